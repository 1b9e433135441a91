"""How much a micro-batch takes: less while batches are too slow, of a queue whole commits, never above the user's."""

from __future__ import annotations

import logging
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import reliable_spark as rs
from reliable_spark.ledger.audit import audit
from tests.spark.test_streaming import Source

FILES = 6
NEVER_S, ALWAYS_S = 1e-6, 1e6
"""A batch is never as short, and always."""


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    made = Source(spark, tmp_path)
    for number in range(FILES):
        made.add(number * 10, 10)
    return made


def settings(**given: Any) -> rs.Settings:
    return rs.Settings(message_timeout_s=600, **given)


def files_at_most(source: Source, files: int) -> Any:
    reader = source.spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", files)
    return rs.anchored(reader.parquet(source.path), "id")


def taken(ledger: Path) -> list[int]:
    """The rows of each batch, in order."""
    batches = DeltaTable(str(ledger / "batches")).to_pyarrow_table().sort_by("batch_id").to_pylist()
    return [batch["anchored"] for batch in batches if batch["kind"] == "source" and batch["anchored"]]


@pytest.mark.parametrize(("target_s", "rows"), [(NEVER_S, [30, 10, 10, 10]), (ALWAYS_S, [30, 30]), (None, [30, 30])])
def test_a_slow_batch_is_followed_by_a_smaller_one_and_none_is_above_the_option(
    source: Source, tmp_path: Path, target_s: float | None, rows: list[int]
) -> None:
    query = files_at_most(source, 3).start(
        tmp_path / "sink", tmp_path / "ledger", settings(target_batch_s=target_s), trigger="availableNow"
    )
    assert query.await_termination(200)
    assert taken(tmp_path / "ledger") == rows


@pytest.mark.parametrize(("target_s", "rows"), [(NEVER_S, [30, 10, 10, 10]), (ALWAYS_S, [30, 30])])
def test_a_delta_table_is_taken_by_its_files(
    spark: SparkSession, tmp_path: Path, target_s: float, rows: list[int]
) -> None:
    """Each append is a file, and a file is not divided."""
    for number in range(FILES):
        file = spark.range(number * 10, number * 10 + 10).coalesce(1)
        file.write.format("delta").mode("append").save(str(tmp_path / "table"))
    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 3).load(str(tmp_path / "table"))
    query = rs.anchored(stream, "id").start(
        tmp_path / "sink", tmp_path / "ledger", settings(target_batch_s=target_s), trigger="availableNow"
    )
    assert query.await_termination(200)
    assert taken(tmp_path / "ledger") == rows


@pytest.mark.timeout(600)
def test_a_stage_that_was_down_takes_its_queue_commit_by_commit(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    """The first batch already; without a target it is all that has piled up."""
    ledger, slow = tmp_path / "ledger", settings(target_batch_s=NEVER_S)
    with files_at_most(source, 2).stage("queue").start(ledger=ledger, settings=settings()) as first:
        first.streaming_query.processAllAvailable()
        queue = rs.from_stage(spark, ledger, "queue")
        assert queue.start(tmp_path / "sink", ledger, slow, trigger="availableNow").await_termination(200)
        while first.is_active and first.outcome().pending:
            rs.SystemClock().wait(0.1, Event())
    assert taken(ledger / "stages" / "queue") == taken(ledger) == [20, 20, 20]
    assert audit(str(ledger)).acked == FILES * 10


def test_a_full_queue_makes_the_sources_batches_smaller(source: Source, tmp_path: Path) -> None:
    """Where nobody takes anything: what fits into the queue, then what would not is left in the source."""
    frame = files_at_most(source, 3).stage("queue", capacity=45)
    with frame.start(ledger=tmp_path / "ledger", settings=settings(target_batch_s=ALWAYS_S)) as query:
        while query.is_active and query.outcome().anchored < 50:
            rs.SystemClock().wait(0.1, Event())
    assert taken(tmp_path / "ledger") == [30, 10, 10]


def test_a_source_that_cannot_be_limited_is_said_so(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's rate source gives whole seconds."""
    rate = rs.anchored(spark.readStream.format("rate").option("rowsPerSecond", 5).load(), "value")
    query = rate.start(tmp_path / "sink", tmp_path / "ledger", settings(target_batch_s=NEVER_S))
    with caplog.at_level(logging.WARNING), query:
        while query.is_active and query.outcome().anchored < 5:
            rs.SystemClock().wait(0.1, Event())
    assert "target_batch_s has no effect" in caplog.text
