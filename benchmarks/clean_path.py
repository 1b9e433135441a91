"""Where does the time go that a clean batch costs beside plain Spark? The word count, one step after the other.

python -m benchmarks.clean_path            1,000,000 lines of 10 words, 5 rounds
python -m benchmarks.clean_path --quick    1,000 lines, 1 round

Each line adds one thing to the plan of the line before; the last is all of `run`, with planning and the ledger.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks import word_count
from benchmarks.lines import make_lines
from benchmarks.measure import Line, Options, line_of, run, seconds, times
from reliable_spark.engine.columns import CHILD_COUNT, CHILD_INDEX, TUPLE_ID
from reliable_spark.engine.lineage import root_id, share

Step = Callable[[DataFrame], DataFrame]


def rooted(lines: DataFrame) -> DataFrame:
    """Give each line its root id."""
    return lines.selectExpr("line", f"{root_id('spout', ['id'], lines.schema)} AS {TUPLE_ID}")


def observed(frame: DataFrame) -> DataFrame:
    """Count the rows and XOR their ids while they pass."""
    return frame.observe(Observation(), F.expr("count(1) AS rows"), F.expr(f"bit_xor({TUPLE_ID}) AS xor"))


def numbered(frame: DataFrame) -> DataFrame:
    """Make a row of each word, which knows its place in the line."""
    split = frame.selectExpr(TUPLE_ID, "split(line, ' ') AS words").selectExpr("*", f"size(words) AS {CHILD_COUNT}")
    return split.selectExpr(TUPLE_ID, CHILD_COUNT, f"posexplode_outer(words) AS ({CHILD_INDEX}, word)")


def shared(frame: DataFrame) -> DataFrame:
    """Give each word its share of the line's id."""
    return frame.selectExpr("word", f"{share(TUPLE_ID, CHILD_INDEX, CHILD_COUNT)} AS {TUPLE_ID}")


def counted(frame: DataFrame) -> DataFrame:
    """Count the words, and XOR their shares where there are any."""
    xor = [F.expr(f"bit_xor({TUPLE_ID}) AS {TUPLE_ID}")] if TUPLE_ID in frame.columns else []
    return frame.groupBy("word").agg(F.count("*").alias("count"), *xor)


STEPS: dict[str, tuple[Step, ...]] = {
    "root ids, words with their places": (rooted, numbered, lambda frame: frame.select("word"), counted),
    "the XOR of a group": (rooted, numbered, lambda frame: frame.select("word", TUPLE_ID), counted),
    "shares": (rooted, numbered, shared, counted),
    "the roots observed": (rooted, observed, numbered, shared, counted),
    "the groups observed": (rooted, observed, numbered, shared, counted, observed),
}


def evaluate(lines: DataFrame, steps: tuple[Step, ...]) -> None:
    """Run the steps in one job that keeps nothing."""
    frame = lines
    for step in steps:
        frame = step(frame)
    frame.write.format("noop").mode("overwrite").save()


def measure(options: Options) -> list[Line]:
    """Measure plain Spark and each step in turns, and set each beside plain Spark."""
    count = 1_000 if options.quick else 1_000_000
    lines = rs.session("clean path benchmark").read.parquet(str(make_lines(count, options.data)))
    with tempfile.TemporaryDirectory() as ledger:
        works: dict[str, Callable[[], object]] = {"plain": partial(word_count.plain, lines)}
        works |= {f"+ {name}": partial(evaluate, lines, steps) for name, steps in STEPS.items()}
        works["+ the plan, the ledger: all of run"] = partial(word_count.anchored, lines, ledger)
        rounds = [
            {name: seconds(work) for name, work in works.items()} for _ in range(options.warm_up + options.rounds)
        ]
    kept = rounds[options.warm_up :]
    return [
        line_of(((each[name], each["plain"]) for each in kept), times, work=name, against="plain Spark", unit="s")
        for name in list(works)[1:]
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
