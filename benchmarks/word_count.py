"""What does anchoring cost a word count, beside the same plain Spark job?

python -m benchmarks.word_count            1,000,000 lines of 10 words, 5 rounds
python -m benchmarks.word_count --quick    1,000 lines, 1 round
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.lines import make_lines
from benchmarks.measure import Ratio, compare


def plain(lines: DataFrame) -> None:
    """Count the words with Spark alone."""
    words = lines.select(F.explode(F.split("line", " ")).alias("word"))
    words.groupBy("word").agg(F.count("*").alias("count")).write.format("noop").mode("overwrite").save()


def anchored(lines: DataFrame, ledger: str) -> rs.Outcome:
    """Count the words with every line tracked."""
    words = rs.anchored(lines, "id").explode(F.split("line", " "), "word")
    return words.groupBy("word").agg(F.count("*").alias("count")).run(None, ledger=ledger)


def measure(spark: SparkSession, line_count: int, rounds: int, data: Path) -> Ratio:
    """Compare the two, and check that every line was acked."""
    lines = spark.read.parquet(str(make_lines(line_count, data)))
    with tempfile.TemporaryDirectory() as directory:

        def ours() -> None:
            shutil.rmtree(directory, ignore_errors=True)
            outcome = anchored(lines, directory)
            if (outcome.acked, outcome.pending) != (line_count, 0):
                raise AssertionError(str(outcome))

        return compare(f"word count, {line_count:,} lines", ours, lambda: plain(lines), rounds)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it works")
    parser.add_argument("--data", type=Path, default=Path("benchmarks/data"), help="where the lines are kept")
    arguments = parser.parse_args(argv)
    spark = rs.session("word count benchmark")
    print(measure(spark, *((1_000, 1) if arguments.quick else (1_000_000, 5)), arguments.data))


if __name__ == "__main__":
    main()
