"""Chains of stages: one ledger over several queries, whatever fails, stops or is slow in whichever of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.ledger.audit import audit
from tests.spark.test_streaming import Source


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> Source:
    return Source(spark, tmp_path)


def settings(**given: Any) -> rs.Settings:
    return rs.Settings(**{"backoff_initial_s": 0.05, "message_timeout_s": 600, **given})


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()["id"].to_pylist())


def flaky(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] % 7 == 0 and row.attempt == 1:
        raise OSError("not now")
    if row["id"] == 18:
        raise rs.Fail("never", retry=False)
    return dict(row)


@pytest.mark.timeout(900)
def test_a_row_is_acked_when_its_last_descendant_is_done_in_the_last_stage(source: Source, tmp_path: Path) -> None:
    """Three stages, failures in the second and the third: replayed from the source."""
    source.add(0, 20)
    ledger, sink = tmp_path / "ledger", tmp_path / "sink"
    frame = source.stream().anchored("id").where("k < 4").stage("bronze")
    frame = frame.bolt(flaky, "id long, k long").withColumn("copies", F.sequence(F.lit(1), F.lit(2)))
    frame = frame.explode("copies", "copy").stage("silver").fail("id = 12 and _attempt = 1", "slow")
    query = frame.where("copy = 1").start(sink, ledger=ledger, settings=settings(), trigger="availableNow")
    assert query.await_termination(800)
    outcome = query.outcome()
    alive = [n for n in range(20) if n % 5 < 4]
    assert (outcome.anchored, outcome.acked, outcome.dead, outcome.pending) == (20, 19, 1, 0)
    assert (outcome.failed_attempts, outcome.replayed) == (4, 3)
    assert ids(sink) == [n for n in alive if n != 18]
    letters = outcome.dead_letters().collect()
    assert [(row["message_id"], row["payload"]["k"], row["error"]) for row in letters] == [("18", 3, "never")]
    assert audit(str(ledger)).balanced


def slow_once(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] % 3 == 0 and row["copy"] == 2 and row.attempt == 1:
        raise OSError("not now")
    return {"id": row["id"]}


@pytest.mark.timeout(900)
def test_a_part_of_a_tree_that_fails_in_a_last_bolt_fails_its_root(source: Source, tmp_path: Path) -> None:
    """A row of a queue may be one of many of its tree, so the bolt has to know the root as well as the share."""
    source.add(0, 6)
    frame = source.stream().anchored("id").withColumn("copies", F.sequence(F.lit(1), F.lit(3)))
    frame = frame.explode("copies", "copy").stage("silver").bolt(slow_once, "id long")
    query = frame.start(tmp_path / "sink", ledger=tmp_path / "ledger", settings=settings(), trigger="availableNow")
    assert query.await_termination(800)
    outcome = query.outcome()
    assert (outcome.anchored, outcome.acked, outcome.failed_attempts, outcome.pending) == (6, 6, 2, 0)
    # the other two parts of the trees that were replayed came twice
    assert Counter(ids(tmp_path / "sink")) == {0: 5, 1: 3, 2: 3, 3: 5, 4: 3, 5: 3}
    assert audit(str(tmp_path / "ledger")).balanced


def test_a_chain_of_which_the_source_failed_can_be_started_again_at_once(source: Source, tmp_path: Path) -> None:
    """The stages behind it are stopped with it, so that they give their ledgers back."""
    source.add(0, 100)
    places: dict[str, Any] = {"sink": tmp_path / "sink", "ledger": tmp_path / "ledger", "trigger": "availableNow"}
    failing = source.stream().anchored("id").fail("true", "no").stage("bronze").select("id").start(**places)
    with pytest.raises(rs.TooManyFailures):
        failing.await_termination(300)
    assert [query.is_active for query in failing.queries] == [False, False]
    again = source.stream().anchored("id").stage("bronze").select("id").start(**places)
    assert again.await_termination(300)
    assert (again.outcome().acked, len(ids(tmp_path / "sink"))) == (100, 100)


@pytest.mark.timeout(900)
def test_another_job_goes_on_where_a_stage_ends(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    """The first only fills the queue; the second takes what is there and ends, whenever it is started."""
    source.add(0, 6)
    ledger, sink = tmp_path / "ledger", tmp_path / "sink"
    with pytest.raises(rs.LedgerError, match="start the job first"):
        rs.from_stage(spark, ledger, "bronze")
    first = source.stream().anchored("id").stage("bronze").start(ledger=ledger, settings=settings())
    with first:
        while first.is_active and first.outcome().anchored < 6:
            rs.SystemClock().wait(0.1, Event())
        assert (first.outcome().acked, first.outcome().pending) == (0, 6)
        second = rs.from_stage(spark, ledger, "bronze").start(sink, ledger=ledger, trigger="availableNow")
        assert second.await_termination(400)
        while first.is_active and first.outcome().pending:
            rs.SystemClock().wait(0.1, Event())
        assert (first.outcome().acked, first.outcome().pending) == (6, 0)
    assert ids(sink) == list(range(6))


def test_what_cannot_be_cut_is_refused_when_it_is_defined(source: Source, spark: SparkSession, tmp_path: Path) -> None:
    """With what to do instead."""
    source.add(0, 1)
    frame = source.stream().anchored("id")
    with pytest.raises(rs.UsageError, match="many roots"):
        frame.groupBy("k").count().stage("bronze")
    with pytest.raises(rs.UsageError, match="not tracked"):
        frame.unanchored().stage("bronze")
    with pytest.raises(rs.UsageError, match="capacity"):
        frame.stage("bronze", capacity=0)
    with pytest.raises(rs.UsageError, match="two stages"):
        frame.stage("bronze").stage("bronze")
    with pytest.raises(rs.UsageError, match="use start"):
        frame.stage("bronze").run(ledger=tmp_path / "ledger")
    with pytest.raises(rs.UsageError, match="at_least_once"):
        frame.stage("bronze").start(ledger=tmp_path / "ledger", settings=settings(delivery="exactly_once"))
    with pytest.raises(rs.UsageError, match="union before stage"):
        frame.stage("bronze").unionByName(frame).start(ledger=tmp_path / "ledger")
