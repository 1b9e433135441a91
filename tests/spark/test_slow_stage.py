"""A last stage that is ten times slower than its source, for ten minutes, beside a chain that is not."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import reliable_spark as rs
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.counts import Counts
from reliable_spark.stages.acks import Acks
from reliable_spark.stages.places import queue_path
from reliable_spark.stages.queue import BATCH_ID

DURATION_S = 600
TRIGGER_S, ROWS_A_BATCH = 5, 1_000
SLOW_ROW_S = 10 * TRIGGER_S / ROWS_A_BATCH
CAPACITY = 1_000
LOOK_S = 2.0


@dataclass
class Sink:
    """Keeps the ids that it is given, and takes its time for each row.

    Attributes:
        row_s: how long it takes for one.
        began_s, ended_s: when the first rows came, and the last ones were done.
    """

    row_s: float
    values: list[int] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float = 0.0

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        values = [row["value"] for row in frame.select("value").collect()]
        if not values:
            return
        self.began_s = self.began_s or time.monotonic()
        threading.Event().wait(self.row_s * len(values))
        self.values += values
        self.ended_s = time.monotonic()

    @property
    def pace(self) -> float:
        """Rows in a second."""
        return len(self.values) / (self.ended_s - self.began_s)


def chain(spark: SparkSession, ledger: Path, sink: Sink, capacity: int) -> rs.Query:
    """Batches of a thousand rows at a pace, through a queue, into the sink."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS_A_BATCH).load()
    frame = rs.anchored(source, "value").stage("queue", capacity=capacity)
    settings = rs.Settings(message_timeout_s=7_200)
    return frame.selectExpr("value").start(sink, ledger, settings, trigger=f"{TRIGGER_S} seconds")


def depth(ledger: Path) -> int:
    """The rows in the queue that its stage has not taken."""
    taken = Acks(str(ledger)).taken("queue")
    table = DeltaTable(queue_path(str(ledger), "queue"))
    return int(table.to_pyarrow_table(columns=[BATCH_ID], filters=[(BATCH_ID, ">", taken)]).num_rows)


def memory_mib(spark: SparkSession) -> float:
    """What is used by this process and by the JVM's heap, after both have cleaned up."""
    gc.collect()
    java: Any = spark._jvm
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * 4_096 + runtime.totalMemory() - runtime.freeMemory()) / 1024**2


@pytest.mark.soak
@pytest.mark.timeout(DURATION_S * 3)
def test_a_slow_last_stage_slows_its_own_source_and_nothing_else(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The queue and the memory stay bounded, the stage is never idle, nothing is lost, the sibling keeps its pace."""
    ledgers, sinks = (tmp_path / "slow", tmp_path / "sibling"), (Sink(SLOW_ROW_S), Sink(0))
    depths: list[int] = []
    memory: list[float] = []
    with chain(spark, ledgers[0], sinks[0], CAPACITY) as slow, chain(spark, ledgers[1], sinks[1], 100_000) as sibling:
        end_s = time.monotonic() + DURATION_S
        while (left_s := end_s - time.monotonic()) > 0:
            assert slow.is_active
            assert sibling.is_active
            threading.Event().wait(LOOK_S)
            depths.append(depth(ledgers[0]))
            if left_s < DURATION_S * (2 - len(memory)) / 3:
                memory.append(memory_mib(spark))
        memory.append(memory_mib(spark))
    counts = [audit(str(ledger)) for ledger in ledgers]
    with capsys.disabled():
        print(f"\nqueue at most {max(depths):,} rows, capacity {CAPACITY:,} and a batch of {ROWS_A_BATCH:,}")
        print(f"memory {', '.join(f'{each:.0f}' for each in memory)} MiB at one third, two thirds and the end")
        print(f"slow stage {sinks[0].pace:.1f} rows/s, sibling {sinks[1].pace:.1f} rows/s", *counts, sep="\n")
    assert max(depths) <= CAPACITY + ROWS_A_BATCH
    # the first third is not compared: there a JVM still warms up
    assert memory[2] <= 1.15 * memory[1]
    assert sinks[0].pace >= 0.9 / SLOW_ROW_S
    assert sinks[1].pace >= 0.9 * ROWS_A_BATCH / TRIGGER_S
    assert counts[0].pending <= CAPACITY + 3 * ROWS_A_BATCH, "in the queue, and what the stage has in hand"
    for sink, counted in zip(sinks, counts, strict=True):
        check_nothing_is_lost(sink, counted)


def check_nothing_is_lost(sink: Sink, counted: Counts) -> None:
    """Nor written twice: nothing had to be tried again."""
    assert counted.balanced
    assert (counted.dead, counted.replayed) == (0, 0)
    assert sorted(sink.values) == list(range(len(sink.values)))
    assert counted.acked <= len(sink.values) <= counted.anchored
