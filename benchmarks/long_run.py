"""Does a query that runs for days settle its last batches as fast as its first?

python -m benchmarks.long_run            20,000 batches on a real ledger without Spark, 500 with Spark
python -m benchmarks.long_run --quick    some 300 and 10

Prints, for the first tenth after a warm-up and for the last, the median and the worst of the time that the loop needs
around a batch (evaluating it is not part of that without Spark), and what lies on the disk at the end. A day is run in
minutes here, so old versions are kept for no time at all instead of an hour of that day.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tqdm import tqdm

import reliable_spark as rs
from benchmarks.measure import Line, Options, line_of, run, seconds, times
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.protocol import Origin
from reliable_spark.ledger import tables
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from tests.engine.simulation import PAYLOAD, MemoryBatches, MemoryTransactions, World

ROWS = 1
WARM_UP = 0.05
"""The share of batches after which as much is pending as ever will be."""


def summed_up(work: str, times_s: list[float], ledger: Path) -> Line:
    """Compare the first tenth after the warm-up with the last."""
    times_s = times_s[int(len(times_s) * WARM_UP) :]
    tenth = max(1, len(times_s) // 10)
    first_ms, last_ms = (statistics.median(part) * 1e3 for part in (times_s[:tenth], times_s[-tenth:]))
    sizes = [file.stat().st_size for file in ledger.rglob("*") if file.is_file()]
    disk = f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB on the disk"
    note = f"worst {max(times_s) * 1e3:.0f} ms; {disk}"
    return line_of([(last_ms, first_ms)], times, work=work, against="the first tenth", unit="ms", note=note)


def without_spark(batches: int, directory: Path) -> Line:
    """Every fifth row fails at first, so that replays, timeouts and dead letters come along all the time."""
    world = World(random.Random(0), deterministic=True, micro_batches=[])
    world.reach = lambda effect: None  # type: ignore[method-assign]
    sink: Any = MemoryTransactions(world)
    ledger = Ledger.open(str(directory), PAYLOAD)
    settings = rs.Settings(message_timeout_s=5)
    loop = Loop(MemoryBatches(world, False, sink), ledger, sink, settings, world.clock)
    times_s = []
    for number in tqdm(range(batches), unit="batches", disable=None):
        rows = list(range(number * ROWS, (number + 1) * ROWS))
        times_s.append(seconds(partial(loop.run_source, rows, Origin("q", number))))
        world.clock.advance(1)
        loop.run_due()
        world.evaluations.clear()
        world.sink_batches.clear()
    counts = audit(str(directory))
    if not counts.balanced or counts.anchored != batches * ROWS:
        raise AssertionError(str(counts))
    ledger.close()
    work = f"last tenth of {batches:,} batches without Spark, {ledger.last_batch_id + 1:,} with replays"
    return summed_up(work, times_s, directory)


def with_spark(spark: SparkSession, batches: int, directory: Path) -> Line:
    """A stream of one file per micro-batch, half as many as batches, since each row is replayed once."""
    source, place = directory / "source", str(directory / "ledger")
    source.mkdir(parents=True)
    for number in range(batches // 2):
        (source / f"{number:06d}.json").write_text(json.dumps({"id": number}))
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))
    frame = rs.anchored(stream, "id").fail("_attempt = 1", "once")
    settings = rs.Settings(backoff_initial_s=0)
    query = frame.start(str(directory / "sink"), ledger=place, settings=settings, trigger="availableNow")
    query.await_termination()
    counts = audit(place)
    if not counts.balanced or counts.acked != batches // 2:
        raise AssertionError(str(counts))
    settled = tables.LedgerTable(f"{place}/batches").read().sort_by("batch_id").to_pylist()
    times_s = [(row["settled_at"] - row["begun_at"]).total_seconds() for row in settled]
    return summed_up(f"last tenth of {len(settled)} batches with Spark", times_s, Path(place))


def measure(options: Options) -> list[Line]:
    """Measure both."""
    memory, real = (150, 10) if options.quick else (12_600, 500)
    spark, retention_hours = rs.session("long run"), tables.RETENTION_HOURS
    tables.RETENTION_HOURS = 0  # type: ignore[misc]
    try:
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            return [without_spark(memory, place / "memory"), with_spark(spark, real, place / "real")]
    finally:
        tables.RETENTION_HOURS = retention_hours  # type: ignore[misc]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
