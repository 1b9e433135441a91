"""Streaming word count: every text file that appears is answered once, acked or dead.

Text has no message ids and Spark numbers no lines, so the message is the file: its path is the message id, its lines
and their words are the tree, and it is acked when its last word is counted. So a file is read into memory as a whole:
split a huge one first. As for every file stream, a file has to appear complete (write it elsewhere and move it), is
read once, and is nothing at all when it has no bytes.

Each batch adds its own counts per word to a Delta table; the total is their sum.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs


def split_words(row: rs.TupleRow) -> Iterator[dict[str, str]]:
    """Give the words of a line."""
    for word in re.findall(r"\w+", row["line"].lower()):
        yield {"word": word}


def count_words(spark: SparkSession, files: str, output: Path, files_per_batch: int) -> rs.Outcome:
    """Count the words of all files that are there, and wait until every file is answered."""
    # by default, Spark passes over a file that is a week older than the newest one it has seen
    reader = spark.readStream.options(maxFilesPerTrigger=files_per_batch, maxFileAge="36500d")
    texts = reader.text(files, wholetext=True)
    counts = (
        rs.anchored(texts.select("value", F.col("_metadata.file_path").alias("file")), "file")
        .explode(F.split("value", "\r?\n"), "line")
        .bolt(split_words, "word string")
        .groupBy("word")
        .count()
    )
    query = counts.start(output / "counts", ledger=output / "ledger", trigger="availableNow")
    with query:
        query.await_termination()
    return query.outcome()


def show(spark: SparkSession, outcome: rs.Outcome, output: Path, top: int) -> None:
    """Print the balance in files, and the most frequent words."""
    partial = spark.read.format("delta").load(str(output / "counts"))
    total = partial.groupBy("word").agg(F.sum("count").alias("count"))
    print(f"files: {outcome}\n")
    for row in total.orderBy(F.desc("count"), "word").limit(top).collect():
        print(f"{row['count']:10,}  {row['word']}")
    print(f"\nThe counts lie in {output}/counts. Next:\n    reliable-spark audit {output}/ledger")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; 0 when the ledger balances with nothing pending and nothing dead."""
    arguments = parser().parse_args(argv)
    is_pattern = any(sign in arguments.input for sign in "*?[{:")
    if not is_pattern and not Path(arguments.input).is_dir():
        parser().error(f"{arguments.input} is neither a directory nor a glob")
    try:
        spark = rs.session("word_count")
        outcome = count_words(spark, arguments.input, arguments.output, arguments.files_per_batch)
        show(spark, outcome, arguments.output, arguments.top)
    except rs.ReliableSparkError as error:
        print(f"word_count: {error}", file=sys.stderr)
        return 1
    except AnalysisException as error:
        print(f"word_count: {str(error).splitlines()[0]}", file=sys.stderr)  # below it is Spark's plan
        return 1
    except KeyboardInterrupt:
        print("\nword_count: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0 if outcome.balanced and not outcome.pending and not outcome.dead else 1


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="word_count.py",
        description="Count the words of text files as a stream; a second run counts only what is new.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example: spark-submit --jars "$(reliable-spark jars)" jobs/word_count.py --input docs --output words',
    )
    made.add_argument("--input", required=True, help="a directory or a glob of text files")
    made.add_argument("--output", type=Path, required=True, help="directory for the counts and the ledger")
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
