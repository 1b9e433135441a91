"""Streaming word count with totals: each word's count is a state on Delta, and every text file is in it exactly once.

Beside `jobs/word_count.py`, which writes the counts of each batch, this one knows the total whenever a word comes:
Spark counts the words of a batch, and the bolt adds one number per word to what it has. The message is the file, as
there. Kill it at any moment: the same command goes on and ends with the same totals.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs

TOTALS = "totals"


def add(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    """Add a batch's count to the word's total."""
    total = state.get("total", 0) + row["count"]
    state.put("total", total)
    return {"word": row["word"], "total": total}


def count_words(spark: SparkSession, files: str, output: Path, files_per_batch: int) -> rs.Outcome:
    """Count the words of all files that are there, and wait until every file is answered."""
    # by default, Spark passes over a file that is a week older than the newest one it has seen
    reader = spark.readStream.options(maxFilesPerTrigger=files_per_batch, maxFileAge="36500d")
    texts = reader.text(files, wholetext=True)
    totals = (
        rs.anchored(texts.select("value", F.col("_metadata.file_path").alias("file")), "file")
        .explode(F.expr(r"regexp_extract_all(lower(value), '(?U)(\\w+)')"), "word")
        .groupBy("word")
        .count()
        .stateful(add, key="word", schema="word string, total long", name=TOTALS)
    )
    query = totals.start(output / "changes", ledger=output / "ledger", trigger="availableNow")
    with query:
        query.await_termination()
    return query.outcome()


def show(outcome: rs.Outcome, output: Path, top: int) -> None:
    """Print the balance in files, and the most frequent words."""
    print(f"files: {outcome}\n")
    totals = outcome.state(TOTALS).selectExpr("key AS word", "CAST(value AS LONG) AS total")
    for row in totals.orderBy(F.desc("total"), "word").limit(top).collect():
        print(f"{row['total']:10,}  {row['word']}")
    print(f"\nEach change of a total lies in {output}/changes. Next:\n    reliable-spark audit {output}/ledger")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; 0 when the ledger balances with nothing pending and nothing dead."""
    arguments = parser().parse_args(argv)
    is_pattern = any(sign in arguments.input for sign in "*?[{:")
    if not is_pattern and not Path(arguments.input).is_dir():
        parser().error(f"{arguments.input} is neither a directory nor a glob")
    try:
        spark = rs.session("stateful_word_count")
        outcome = count_words(spark, arguments.input, arguments.output, arguments.files_per_batch)
        show(outcome, arguments.output, arguments.top)
    except rs.ReliableSparkError as error:
        print(f"stateful_word_count: {error}", file=sys.stderr)
        return 1
    except AnalysisException as error:
        print(f"stateful_word_count: {str(error).splitlines()[0]}", file=sys.stderr)  # below it is Spark's plan
        return 1
    except KeyboardInterrupt:
        print("\nstateful_word_count: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0 if outcome.balanced and not outcome.pending and not outcome.dead else 1


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="stateful_word_count.py",
        description="Keep the totals of the words of text files; a second run adds what is new.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example: spark-submit --jars "$(reliable-spark jars)" jobs/stateful_word_count.py '
        "--input docs --output words",
    )
    made.add_argument("--input", required=True, help="a directory or a glob of text files")
    made.add_argument("--output", type=Path, required=True, help="directory for changes, totals and the ledger")
    made.add_argument("--files-per-batch", type=positive, default=100, help="(default %(default)s)")
    made.add_argument("--top", type=positive, default=10, help="how many words to print (default %(default)s)")
    return made


def positive(text: str) -> int:
    """A number of things, 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
