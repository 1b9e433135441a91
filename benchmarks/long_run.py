"""Does a query that runs for days settle its last batches as fast as its first?

python -m benchmarks.long_run            20,000 batches on a real ledger without Spark, 500 with Spark
python -m benchmarks.long_run --quick    some 300 and 10

Prints, for the first tenth after a warm-up and for the last, the median and the worst of the time that the loop needs
around a batch (evaluating it is not part of that without Spark), and what lies on the disk at the end. A day is run in
minutes here, so old versions are kept for no time at all instead of an hour of that day.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tqdm import tqdm

import reliable_spark as rs
from benchmarks.measure import seconds
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.protocol import Origin
from reliable_spark.ledger import tables
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from tests.engine.simulation import PAYLOAD, MemoryBatches, MemoryTransactions, World

ROWS = 1
WARM_UP = 0.05
"""The share of batches after which as much is pending as ever will be."""


@dataclass(frozen=True)
class LongRun:
    """What a run came to; times in milliseconds."""

    name: str
    first_ms: float
    last_ms: float
    worst_ms: float
    files: int
    bytes: int

    def __str__(self) -> str:
        ratio = self.last_ms / self.first_ms
        return (
            f"{self.name}: first tenth {self.first_ms:.1f} ms, last tenth {self.last_ms:.1f} ms (ratio {ratio:.2f}), "
            f"worst {self.worst_ms:.0f} ms; {self.files} files, {self.bytes / 1e6:.1f} MB on the disk"
        )


def summed_up(name: str, times_s: list[float], ledger: Path) -> LongRun:
    """Compare the first tenth after the warm-up with the last."""
    times_s = times_s[int(len(times_s) * WARM_UP) :]
    tenth = max(1, len(times_s) // 10)
    files = [file for file in ledger.rglob("*") if file.is_file()]
    return LongRun(
        name,
        statistics.median(times_s[:tenth]) * 1e3,
        statistics.median(times_s[-tenth:]) * 1e3,
        max(times_s) * 1e3,
        len(files),
        sum(file.stat().st_size for file in files),
    )


def without_spark(batches: int, directory: Path) -> LongRun:
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
    return summed_up(
        f"{batches:,} batches without Spark, {ledger.last_batch_id + 1:,} with replays", times_s, directory
    )


def with_spark(spark: SparkSession, batches: int, directory: Path) -> LongRun:
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
    return summed_up(f"{len(settled)} batches with Spark", times_s, Path(place))


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small: to see that it works")
    arguments = parser.parse_args(argv)
    tables.RETENTION_HOURS = 0  # type: ignore[misc]
    memory, real = (150, 10) if arguments.quick else (10_000, 500)
    with tempfile.TemporaryDirectory() as directory:
        print(without_spark(memory, Path(directory) / "memory"))
        print(with_spark(rs.session("long run"), real, Path(directory) / "real"))


if __name__ == "__main__":
    main()
