"""What does a Python bolt cost beside the same function in a `mapInArrow` that somebody wrote by hand?

python -m benchmarks.python_bolts            1,000,000 rows, 5 rounds
python -m benchmarks.python_bolts --quick    1,000 rows, 1 round

One function takes a row, one an Arrow batch; nothing is written. By hand there are no ids, no answers, and one row
that raises fails the job.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

import reliable_spark as rs
from benchmarks.lines import make_lines
from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, timed

THROUGHPUT_MIN = 0.80
COLUMNS = "id long, words int, longest string"
SCHEMA = pa.schema([("id", pa.int64()), ("words", pa.int32()), ("longest", pa.string())])
UPPER_COLUMNS = "id long, line string, words int"
Batches = Iterator[pa.RecordBatch]


def summary(row: dict[str, Any]) -> dict[str, Any]:
    """What the row bolt does: count a line's words, and take the longest."""
    words = row["line"].split(" ")
    return {"id": row["id"], "words": len(words), "longest": max(words, key=len)}


@rs.arrow
def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What the Arrow bolt does: write the lines in capitals, and count their words."""
    line = batch.column("line")
    words = pc.add(pc.count_substring(line, " "), 1).cast(pa.int32())
    return pa.RecordBatch.from_arrays([batch.column("id"), pc.utf8_upper(line), words], ["id", "line", "words"])


def rows_by_hand(batches: Batches) -> Batches:
    """Call the row function as `mapInArrow` wants it."""
    for batch in batches:
        yield pa.RecordBatch.from_pylist([summary(row) for row in batch.to_pylist()], schema=SCHEMA)


def batches_by_hand(batches: Batches) -> Batches:
    """Call the Arrow function as `mapInArrow` wants it."""
    return map(upper, batches)


BOLTS: dict[str, tuple[Callable[..., Any], Callable[[Batches], Batches], str]] = {
    "row": (summary, rows_by_hand, COLUMNS),
    "Arrow": (upper, batches_by_hand, UPPER_COLUMNS),
}


def plain(lines: DataFrame, function: Callable[[Batches], Batches], columns: str) -> None:
    """Map with Spark alone."""
    lines.mapInArrow(function, columns).write.format("noop").mode("overwrite").save()


def anchored(lines: DataFrame, function: Callable[..., Any], columns: str, ledger: str) -> None:
    """Map with every line tracked, and check that every line is acked and came out."""
    shutil.rmtree(ledger, ignore_errors=True)
    outcome = rs.anchored(lines, "id").bolt(function, columns).run(None, ledger=ledger)
    if (outcome.anchored, outcome.anchored, outcome.pending) != (outcome.acked, outcome.emitted, 0):
        raise AssertionError(str(outcome))


def check_equal(lines: DataFrame, kind: str) -> None:
    """Refuse to compare the times of different rows: those of the first lines have to be the same."""
    function, by_hand, columns = BOLTS[kind]
    ours: list[Any] = []
    first = lines.where("id < 100")
    with tempfile.TemporaryDirectory() as ledger:
        bolt = rs.anchored(first, "id").bolt(function, columns)
        bolt.run(lambda frame, batch_id: ours.extend(frame.collect()), ledger=ledger)
    if sorted(ours) != sorted(first.mapInArrow(by_hand, columns).collect()):
        raise AssertionError(f"the rows of the {kind} bolt differ from those by hand")


def compare(lines: DataFrame, count: int, kind: str, options: Options) -> Line:
    """Run one kind of bolt and its function by hand, in turns."""
    check_equal(lines, kind)
    function, by_hand, columns = BOLTS[kind]
    with tempfile.TemporaryDirectory() as ledger:
        ours = timed(anchored, lines, function, columns, ledger)
        pairs = in_turns(ours, timed(plain, lines, by_hand, columns), options)
    about = {"work": f"{kind} bolt, {count:,} rows", "against": "mapInArrow by hand", "unit": "s"}
    return line_of(pairs, faster, bar=THROUGHPUT_MIN, direction="at least", **about)


def measure(options: Options) -> list[Line]:
    """Compare each kind."""
    count = 1_000 if options.quick else 1_000_000
    lines = rs.session("Python bolts benchmark").read.parquet(str(make_lines(count, options.data)))
    return [compare(lines, count, kind, options) for kind in BOLTS]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
