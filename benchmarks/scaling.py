"""How does the time of a batch grow with its tuples, and the acker's fold with its ackers?

python -m benchmarks.scaling            10,000 to 10,000,000 tuples, 200,000 trees; rewrites docs/scaling.md
python -m benchmarks.scaling --quick    1,000 and 10,000 tuples, 10,000 trees, 1 round

The batches are word counts in memory and the noop sink, each beside the same plain Spark job. The fold is that of a
batch which is evaluated tree by tree: ids only, four leaves a tree. The ackers see the trees that are not complete, so
it is measured where one tree in a hundred has lost a leaf, and where every tree has; beside it a bare `groupBy` with
`bit_xor`. More ackers than the machine has cores cannot help it; a cluster has more.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.lines import WORDS_PER_LINE, make_lines
from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, timed
from benchmarks.report import markdown, processor
from benchmarks.word_count import anchored, plain
from reliable_spark.engine.acker import incomplete_trees
from reliable_spark.engine.columns import ANCHOR, TUPLE_ID
from reliable_spark.engine.lineage import with_share

PAGE = Path("docs/scaling.md")
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ACKERS = (1, 2, 4, 8, 16)
LEAVES_PER_TREE = 4
INCOMPLETE_ONE_IN = (100, 1)
Trees = tuple[DataFrame, DataFrame]
"""The roots, and the leaves."""


def word_count(spark: SparkSession, tuples: int, options: Options) -> Line:
    """Count the words of one batch, tracked and not."""
    lines = spark.read.parquet(str(make_lines(tuples // WORDS_PER_LINE, options.data)))
    with tempfile.TemporaryDirectory() as ledger:
        pairs = in_turns(timed(anchored, lines, ledger), timed(plain, lines), options)
    note = f"{tuples / statistics.median(ours for ours, _ in pairs):,.0f} tuples/s"
    work = f"word count, {tuples:,} tuples a batch"
    return line_of(pairs, faster, work=work, against="plain Spark", unit="s", note=note)


def make_trees(spark: SparkSession, count: int, incomplete_one_in: int) -> Trees:
    """Trees of four leaves; one in so many has lost its first leaf."""
    root = F.xxhash64(F.lit("tree"), "id")
    units = spark.range(count).select("id", root.alias(ANCHOR), root.alias(TUPLE_ID))
    children = units.withColumn("child", F.explode(F.sequence(F.lit(0), F.lit(LEAVES_PER_TREE - 1))))
    leaves = with_share(children, "child", str(LEAVES_PER_TREE))
    kept = leaves.where(~((F.col("child") == 0) & (F.col("id") % incomplete_one_in == 0)))
    return units.select(ANCHOR, TUPLE_ID).localCheckpoint(), kept.select(ANCHOR, TUPLE_ID).localCheckpoint()


def fold(trees: Trees, ackers: int) -> None:
    """Fold as a batch that is evaluated tree by tree does."""
    units, leaves = trees
    incomplete_trees(units, leaves, [], ackers, may_copy=False).write.format("noop").mode("overwrite").save()


def group(trees: Trees) -> None:
    """Only XOR the messages of each tree."""
    units, leaves = trees
    xor = units.unionByName(leaves).groupBy(ANCHOR).agg(F.bit_xor(TUPLE_ID))
    xor.write.format("noop").mode("overwrite").save()


def folds(spark: SparkSession, count: int, incomplete_one_in: int, options: Options) -> list[Line]:
    """Fold the same trees with each number of ackers."""
    trees = make_trees(spark, count, incomplete_one_in)
    expected = -(-count // incomplete_one_in)
    lines = []
    for ackers in ACKERS:
        found = incomplete_trees(*trees, [], ackers, may_copy=False).count()
        if found != expected:
            raise AssertionError(f"{ackers} ackers found {found:,} of {expected:,} incomplete trees")
        pairs = in_turns(timed(fold, trees, ackers), timed(group, trees), options)
        work = f"fold {count:,} trees, {expected:,} incomplete, {ackers} {'ackers' if ackers > 1 else 'acker'}"
        lines.append(line_of(pairs, faster, work=work, against="groupBy and bit_xor", unit="s"))
    return lines


def rewritten(page: str, lines: list[Line], introduction: str) -> str:
    """The page with these measurements in the place of the last ones."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{introduction}\n\n{markdown(lines)}\n{END}{after}"


def measure(options: Options) -> list[Line]:
    """Measure both curves, and write them down unless it was only to see that it works."""
    spark = rs.session("scaling benchmark")
    sizes, trees = ((1_000, 10_000), 10_000) if options.quick else ((10**4, 10**5, 10**6, 10**7), 200_000)
    lines = [word_count(spark, tuples, options) for tuples in sizes]
    for one_in in INCOMPLETE_ONE_IN:
        lines += folds(spark, trees, one_in, options)
    if not options.quick:
        introduction = f"On {processor()}, {os.cpu_count()} cores, Spark local; medians of {options.rounds} rounds."
        PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), lines, introduction), encoding="utf-8")
    return lines


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
