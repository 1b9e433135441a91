"""What does anchoring cost a word count, beside the same plain Spark job?

python -m benchmarks.word_count            1,000,000 lines of 10 words, 5 rounds
python -m benchmarks.word_count --quick    1,000 lines, 1 round
"""

from __future__ import annotations

import shutil
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.lines import make_lines
from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, timed

BAR = 0.7


def plain(lines: DataFrame) -> None:
    """Count the words with Spark alone."""
    words = lines.select(F.explode(F.split("line", " ")).alias("word"))
    words.groupBy("word").agg(F.count("*").alias("count")).write.format("noop").mode("overwrite").save()


def anchored(lines: DataFrame, ledger: str) -> None:
    """Count the words with every line tracked, and check that every line is acked."""
    shutil.rmtree(ledger, ignore_errors=True)
    words = rs.anchored(lines, "id").explode(F.split("line", " "), "word")
    outcome = words.groupBy("word").agg(F.count("*").alias("count")).run(None, ledger=ledger)
    if (outcome.anchored, outcome.pending) != (outcome.acked, 0):
        raise AssertionError(str(outcome))


def measure(options: Options) -> list[Line]:
    """Compare the two."""
    count = 1_000 if options.quick else 1_000_000
    lines = rs.session("word count benchmark").read.parquet(str(make_lines(count, options.data)))
    with tempfile.TemporaryDirectory() as ledger:
        pairs = in_turns(timed(anchored, lines, ledger), timed(plain, lines), options)
    work = f"word count, {count:,} lines"
    return [line_of(pairs, faster, work=work, against="plain Spark", unit="s", bar=BAR, direction="at least")]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
