"""Streams: batches, replays beside them, restarts from the checkpoint, and ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.sinks.delta import DeltaSink


class Source:
    """A directory of Parquet files as a stream, one file a batch."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.path = spark, str(path / "source")

    def add(self, first: int, count: int) -> None:
        frame = self.spark.range(first, first + count).withColumn("k", F.col("id") % 5)
        frame.coalesce(1).write.mode("append").parquet(self.path)

    def stream(self) -> DataFrame:
        reader = self.spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1)
        return reader.parquet(self.path)


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path)


def flaky(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] % 7 == 0 and row.attempt == 1:
        raise OSError("not now")
    if row["id"] % 10 == 9:
        raise rs.Fail("never", retry=False)
    return dict(row)


def start(source: Source, path: Path, **options: Any) -> rs.Query:
    frame = source.stream().anchored("id").bolt(flaky, "id long, k long")
    settings = rs.Settings(backoff_initial_s=0.1)
    query: rs.Query = frame.start(str(path / "sink"), ledger=str(path / "ledger"), settings=settings, **options)
    return query


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row["id"] for row in spark.read.format("delta").load(str(path / "sink")).collect())


def batches(path: Path) -> list[dict[str, Any]]:
    table = DeltaTable(str(path / "ledger" / "batches")).to_pyarrow_table()
    rows: list[dict[str, Any]] = table.sort_by("batch_id").to_pylist()
    return rows


def test_an_available_now_query_ends_with_nothing_pending(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    """`await_termination` includes the replays; the sink holds every acked row once."""
    source.add(0, 10)
    source.add(10, 10)
    query = start(source, tmp_path, trigger="availableNow")
    assert query.await_termination(120)
    outcome = query.outcome()
    assert (outcome.anchored, outcome.acked, outcome.dead, outcome.pending) == (20, 18, 2, 0)
    assert (outcome.failed_attempts, outcome.replayed) == (5, 3)
    assert ids(spark, tmp_path) == [n for n in range(20) if n % 10 != 9]
    assert audit(str(tmp_path / "ledger")).balanced


def test_a_restart_goes_on_where_the_checkpoint_is(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    """The second start reads only what is new and adds to the same ledger."""
    for first in (0, 10):
        source.add(first, 10)
        start(source, tmp_path, trigger={"availableNow": True}).await_termination(120)
    counts = audit(str(tmp_path / "ledger"))
    assert (counts.anchored, counts.acked, counts.dead) == (20, 18, 2)
    assert ids(spark, tmp_path) == [n for n in range(20) if n % 10 != 9]


@pytest.mark.parametrize("crash_in", ["prepare", "settle", "commit"])
def test_a_crash_at_any_step_changes_nothing_in_the_end(
    crash_in: str, source: Source, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies around a step of a batch; the next start gives each row to the sink exactly once."""
    source.add(0, 10)
    owner: Any = {"prepare": DeltaSink, "settle": Ledger, "commit": DeltaSink}[crash_in]
    original = getattr(owner, crash_in)

    def crash(self: Any, *arguments: Any, **named: Any) -> Any:
        if crash_in != "commit":
            original(self, *arguments, **named)
        raise RuntimeError("killed")

    monkeypatch.setattr(owner, crash_in, crash)
    with pytest.raises(RuntimeError, match="killed"):
        start(source, tmp_path, trigger="availableNow").await_termination(120)
    monkeypatch.undo()
    query = start(source, tmp_path, trigger="availableNow")
    query.await_termination(120)
    outcome = query.outcome()
    assert (outcome.anchored, outcome.acked, outcome.dead, outcome.pending) == (10, 9, 1, 0)
    assert ids(spark, tmp_path) == list(range(9))


def test_replays_run_while_the_source_is_idle_and_stop_stops(
    source: Source, spark: SparkSession, tmp_path: Path
) -> None:
    """A continuous query with nothing to read still replays what is due, and ends when told."""
    source.add(0, 10)
    with start(source, tmp_path) as query:
        for _ in range(600):
            if query.outcome().acked == 9 or not query.is_active:
                break
            query._stop.wait(0.1)
        assert query.outcome().pending == 0
        was_active = query.is_active
    assert (was_active, query.is_active) == (True, False)
    assert "replay" in [batch["kind"] for batch in batches(tmp_path)]
    assert ids(spark, tmp_path) == list(range(9))


def test_a_stop_lets_the_batch_in_hand_end(source: Source, tmp_path: Path) -> None:
    """Spark's own stop would interrupt it, here in the middle of the sink's work."""
    source.add(0, 10)
    started, written = threading.Event(), list[int]()

    def sink(frame: DataFrame, delivery: rs.Delivery) -> None:
        started.wait(60)
        stopping.start()
        query._stop.wait(60)
        written.extend(frame.count() for _ in range(5))

    query = source.stream().anchored("id").start(sink, ledger=str(tmp_path / "ledger"))
    stopping = threading.Thread(target=query.stop)
    started.set()
    assert query.await_termination(120)
    stopping.join(60)
    assert (written, query.outcome().acked, query.outcome().pending) == ([10] * 5, 10, 0)


@pytest.mark.parametrize("call", [1, 2])
def test_a_sink_function_may_stop_its_own_query(call: int, source: Source, tmp_path: Path) -> None:
    """In a source batch or in a replay: it cannot wait for the end of what it is in, so that ends after it."""
    source.add(0, 10)
    started, calls = threading.Event(), list[int]()

    def sink(frame: DataFrame, batch_id: int) -> None:
        assert started.wait(60)
        calls.append(frame.count())
        if len(calls) == call:
            query.stop()

    frame = source.stream().anchored("id").fail("k = 1 and _attempt = 1", "not now")
    settings = rs.Settings(backoff_initial_s=0.1 if call == 2 else 60)  # else a replay may be due at the very moment
    query: rs.Query = frame.start(sink, ledger=tmp_path / "ledger", settings=settings)
    started.set()
    assert query.await_termination(120), "it waits for itself"
    assert calls == [8, 2][:call]
    assert (query.is_active, query.streaming_query.isActive, query.outcome().acked) == (False, False, sum(calls))


def test_who_asks_for_the_outcome_does_not_wait_for_the_batch_in_hand(source: Source, tmp_path: Path) -> None:
    """The counts are those of the last settled batch, here of none."""
    source.add(0, 10)
    entered, asked = threading.Event(), threading.Event()

    def sink(frame: DataFrame, delivery: rs.Delivery) -> None:
        entered.set()
        assert asked.wait(60)

    query = source.stream().anchored("id").start(sink, ledger=str(tmp_path / "ledger"), trigger="availableNow")
    assert entered.wait(60)
    assert query.outcome().anchored == 0
    asked.set()
    assert query.await_termination(120)
    assert query.outcome().acked == 10


def test_pending_trees_survive_a_stop(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    """What waits for its replay when the query stops is replayed by the next one, without new rows."""
    source.add(0, 10)
    frame = source.stream().anchored("id").fail("id = 3 and _attempt = 1", "once")
    places = (str(tmp_path / "sink"), str(tmp_path / "ledger"))
    slow, quick = rs.Settings(backoff_initial_s=3600, backoff_max_s=3600), rs.ManualClock()
    query = frame.start(places[0], ledger=places[1], settings=slow)
    while query.outcome().anchored < 10 and query.is_active:
        query._stop.wait(0.1)
    query.stop()
    assert audit(places[1]).pending == 1
    quick.advance(366 * 24 * 3600.0)
    again = frame.start(places[0], ledger=places[1], settings=slow, trigger="availableNow", clock=quick)
    assert again.await_termination(120)
    assert (again.outcome().acked, again.outcome().pending) == (10, 0)
    assert ids(spark, tmp_path) == list(range(10))


def test_groups_of_a_stream_are_partial_per_batch(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    """Each micro-batch gives its own groups; their sum is the whole."""
    source.add(0, 10)
    source.add(10, 10)
    frame = source.stream().anchored("id").groupBy("k").agg(F.count("*").alias("n"))
    query = frame.start(str(tmp_path / "sink"), ledger=str(tmp_path / "ledger"), trigger="availableNow")
    query.await_termination(120)
    rows = spark.read.format("delta").load(str(tmp_path / "sink"))
    assert rows.count() == 10
    assert {row["k"]: row["sum(n)"] for row in rows.groupBy("k").sum("n").collect()} == dict.fromkeys(range(5), 4)
    assert query.outcome().acked == 20


def test_a_batch_that_fails_whole_before_an_aggregate_is_dead(source: Source, tmp_path: Path) -> None:
    """In a stream too, what is cut out of the plan with an empty aggregate is found."""
    source.add(0, 4)
    frame = source.stream().anchored("id").fail("true", "all", retry=False).groupBy("k").count()
    query = frame.start(None, ledger=str(tmp_path / "ledger"), trigger="availableNow")
    query.await_termination(120)
    assert (query.outcome().anchored, query.outcome().dead) == (4, 4)


def test_a_source_waits_while_too_much_is_pending(source: Source, tmp_path: Path) -> None:
    """With `max_pending` reached no new batch is taken in before replays have made room."""
    source.add(0, 10)
    source.add(10, 10)
    frame = source.stream().anchored("id").fail("_attempt < 3", "slow")
    settings = rs.Settings(max_pending=5, backoff_initial_s=0.05)
    query = frame.start(None, ledger=str(tmp_path / "ledger"), settings=settings, trigger="availableNow")
    query.await_termination(120)
    assert query.outcome().acked == 20
    settled = batches(tmp_path)
    second = [index for index, batch in enumerate(settled) if batch["kind"] == "source"][1]
    pending_before = sum(batch["anchored"] - batch["acked"] - batch["dead"] for batch in settled[:second])
    assert pending_before < 5


def test_a_stop_while_the_source_waits_is_no_error_of_sparks(source: Source, tmp_path: Path) -> None:
    """The batch that waited is not run, and Spark has nothing to complain about; the next start runs it."""
    source.add(0, 10)
    source.add(10, 10)
    frame = source.stream().anchored("id").fail("_attempt = 1", "later")
    settings = rs.Settings(max_pending=5, backoff_initial_s=3600, backoff_max_s=3600, max_bad_ratio=1)
    with frame.start(None, ledger=str(tmp_path / "ledger"), settings=settings) as query:
        second = tmp_path / "ledger" / "checkpoint" / "offsets" / "1"
        while query.is_active and not (second.exists() and query._in_hand.locked()):
            query._stop.wait(0.1)
    assert query.streaming_query.exception() is None
    assert query.streaming_query.status["message"] == "Stopped"
    assert (query.outcome().anchored, query.outcome().pending) == (10, 10)
