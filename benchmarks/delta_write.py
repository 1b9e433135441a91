"""What does anchoring cost a job that splits lines into words and writes them to Delta, beside the same plain job?

python -m benchmarks.delta_write            10,000,000 words, 5 rounds
python -m benchmarks.delta_write --quick    10,000 words, 1 round

Each round has a table of its own, and a ledger beside ours; both tables have to hold every word. A table that is there
already is what a job meets every time but the first; where there is none, we make it in a commit of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.lines import WORDS_PER_LINE, make_lines
from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, seconds

THROUGHPUT_MIN = 0.90
Write = Callable[[DataFrame, str], None]


def plain(lines: DataFrame, place: str) -> None:
    """Write the words with Spark alone."""
    words = lines.select(F.explode(F.split("line", " ")).alias("word"))
    words.write.format("delta").mode("append").save(f"{place}/sink")


def anchored(lines: DataFrame, place: str) -> None:
    """Write the words with every line tracked, and check that every line is acked."""
    words = rs.anchored(lines, "id").explode(F.split("line", " "), "word").select("word")
    outcome = words.run(f"{place}/sink", ledger=f"{place}/ledger")
    if (outcome.anchored, outcome.pending) != (outcome.acked, 0):
        raise AssertionError(str(outcome))


def written_s(write: Write, lines: DataFrame, count: int, *, is_new: bool) -> float:
    """How long writing takes; the table is counted afterwards."""
    with tempfile.TemporaryDirectory() as place:
        if not is_new:
            plain(lines.limit(0), place)
        took_s = seconds(partial(write, lines, place))
        words = lines.sparkSession.read.format("delta").load(f"{place}/sink").count()
    if words != count:
        raise AssertionError(f"{write.__name__} wrote {words:,} of {count:,} words")
    return took_s


def measure(options: Options) -> list[Line]:
    """Compare the two."""
    count = 1_000 if options.quick else 1_000_000
    lines = rs.session("Delta write benchmark").read.parquet(str(make_lines(count, options.data)))
    words = count * WORDS_PER_LINE
    about = {"against": "plain Spark", "unit": "s", "direction": "at least"}
    results = []
    for table, is_new, bar in (("a table", False, THROUGHPUT_MIN), ("a new table", True, None)):
        ours, peer = (partial(written_s, write, lines, words, is_new=is_new) for write in (anchored, plain))
        work = f"split and write {words:,} words to {table} of Delta"
        results.append(line_of(in_turns(ours, peer, options), faster, work=work, bar=bar, **about))
    return results


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
