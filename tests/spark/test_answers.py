"""Failures, retries, losses, holds and duplicates: each row gets exactly one answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.engine.answers import TreesInSpark
from reliable_spark.engine.loop import Loop
from tests.spark.running import Ran, Rows, Runner


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(20).withColumn("k", F.col("id") % 5)


def flaky(row: rs.TupleRow) -> dict[str, Any]:
    """Fails its first attempt for every seventh id, and for good for 13."""
    if row["id"] % 7 == 0 and row.attempt == 1:
        raise OSError("not now")
    if row["id"] == 13:
        raise rs.Fail("never", retry=False)
    return {"id": row["id"], "k": row["id"] % 5}


def test_failed_rows_are_replayed_then_dead(numbers: DataFrame, run: Runner) -> None:
    """Good rows are emitted once, flaky ones after a replay, the fatal one is a dead letter with its row."""
    ran = run(numbers.anchored("id").bolt(flaky, "id long, k long"))
    assert ran.counts("anchored", "acked", "dead", "failed_attempts", "replayed") == (20, 19, 1, 4, 3)
    assert sorted(row["id"] for row in ran.rows.all) == [n for n in range(20) if n != 13]
    (letter,) = ran.outcome.dead_letters().collect()
    assert (letter["message_id"], letter["attempts"], letter["bolt"], letter["error"]) == ("13", 1, "flaky", "never")
    assert letter["payload"].asDict() == {"id": 13, "k": 3}
    assert "never" in letter["traceback"]


def test_good_rows_do_not_wait_for_bad_ones(numbers: DataFrame, run: Runner) -> None:
    """The first batch holds everything that did not fail."""
    ran = run(numbers.anchored("id").bolt(flaky, "id long, k long"))
    assert [len(ran.rows.batches[batch_id]) for batch_id in sorted(ran.rows.batches)] == [16, 3]


@pytest.mark.parametrize("max_attempts", [1, 2, 4])
def test_attempts_are_counted(numbers: DataFrame, run: Runner, max_attempts: int) -> None:
    """A tree that always fails is tried max_attempts times, all of them counted."""
    frame = numbers.anchored("id").fail("id = 3", "always")
    ran = run(frame, max_attempts=max_attempts)
    assert ran.counts("dead", "failed_attempts", "replayed") == (1, max_attempts, max_attempts - 1)
    assert ran.outcome.dead_letters().first()["attempts"] == max_attempts  # type: ignore[index]


def test_a_failed_leaf_fails_its_whole_tree(spark: SparkSession, run: Runner) -> None:
    """One bad child of many makes the root dead; its siblings were emitted in each attempt."""
    frame = spark.createDataFrame([(1, ["a", "bad", "c"]), (2, ["d"])], "id int, xs array<string>")
    ran = run(frame.anchored("id").explode("xs", "x").fail("x = 'bad'", F.concat(F.lit("bad "), "x")), max_attempts=2)
    assert ran.dead == {"1": "bad bad"}
    assert sorted(row["x"] for row in ran.rows.all) == ["a", "a", "c", "c", "d"]
    assert ran.counts("anchored", "acked", "dead", "failed_attempts") == (2, 1, 1, 2)


def test_rows_lost_by_a_transform_are_found(numbers: DataFrame, run: Runner) -> None:
    """A function that swallows rows is found out, by their message ids."""
    ran = run(numbers.anchored("id").transform(lambda df: df.where("id < 17")), max_attempts=2)
    letters = ran.outcome.dead_letters().select("message_id", "error_class", "attempts").collect()
    assert sorted(map(tuple, letters)) == [("17", "lost", 2), ("18", "lost", 2), ("19", "lost", 2)]
    assert ran.counts("anchored", "acked", "dead", "lost", "failed_attempts") == (20, 17, 3, 3, 6)


def test_copies_made_by_a_transform_count_as_one(numbers: DataFrame, run: Runner) -> None:
    """Copies have equal ids; they neither cancel each other nor hide a loss."""
    ran = run(numbers.anchored("id").transform(lambda df: df.unionByName(df).where("id != 4")), max_attempts=1)
    assert ran.counts("acked", "lost", "emitted") == (19, 1, 38)


def test_part_of_a_tree_lost_is_a_lost_tree(spark: SparkSession, run: Runner) -> None:
    """One child of many that disappears makes its root lost."""
    frame = spark.createDataFrame([(1, ["a", "b", "c"]), (2, ["d", "e"])], "id int, xs array<string>")
    lossy = frame.anchored("id").explode("xs", "x").transform(lambda df: df.where("x != 'b'"))
    ran = run(lossy, max_attempts=1)
    assert list(ran.dead) == ["1"]
    assert ran.counts("acked", "lost") == (1, 1)


def test_a_limit_loses_rows_and_says_so(numbers: DataFrame, run: Runner) -> None:
    """An operator that reads only some rows is found out as well."""
    ran = run(numbers.anchored("id").transform(lambda df: df.orderBy("id").limit(15)), max_attempts=1)
    assert ran.counts("anchored", "acked", "lost") == (20, 15, 5)


def test_rows_without_an_id_are_dead_at_once(spark: SparkSession, run: Runner) -> None:
    """A null message id cannot be told apart from another: dead, with its row and a clear reason."""
    frame = spark.createDataFrame([(None, "x"), (None, "y"), ("1", "z")], "id string, v string")
    ran = run(frame.anchored("id"))
    letters = ran.outcome.dead_letters().collect()
    assert sorted(letter["payload"]["v"] for letter in letters) == ["x", "y"]
    assert {(letter["error_class"], letter["attempts"]) for letter in letters} == {("null_message_id", 1)}
    assert ran.counts("anchored", "acked", "dead", "replayed") == (3, 1, 2, 0)


def test_rows_that_share_an_id_each_get_their_own_answer(spark: SparkSession, run: Runner) -> None:
    """Of three rows with one id, the bad one is dead and the others are acked."""
    frame = spark.createDataFrame([(1, "good"), (1, "bad"), (1, "good"), (2, "good")], "id int, v string")
    ran = run(frame.anchored("id").fail("v = 'bad'", "bad", retry=False))
    assert ran.counts("anchored", "acked", "dead", "emitted") == (4, 3, 1, 3)
    assert ran.outcome.dead_letters().first()["payload"]["v"] == "bad"  # type: ignore[index]


def test_twins_that_are_lost_together_are_found(spark: SparkSession, run: Runner) -> None:
    """Two rows with one id would cancel in the XOR; they are told apart before it is taken."""
    frame = spark.createDataFrame([(1, "a"), (1, "b"), (2, "c")], "id int, v string")
    ran = run(frame.anchored("id").transform(lambda df: df.where("id = 2")), max_attempts=1)
    assert ran.counts("anchored", "acked", "lost") == (3, 1, 2)


def test_a_held_row_times_out_and_is_replayed(numbers: DataFrame, run: Runner, tmp_path: Path) -> None:
    """A row that is neither acked nor failed comes back between T and 2T after it was emitted."""

    def hold(row: rs.TupleRow) -> Any:
        return rs.HOLD if row["id"] == 2 and row.attempt == 1 else dict(row)

    ran = run(numbers.anchored("id").bolt(hold, "id long, k long"), message_timeout_s=10)
    assert ran.counts("anchored", "acked", "failed_attempts", "replayed") == (20, 20, 1, 1)
    kinds = [row["kind"] for row in _batches(ran)]
    assert kinds == ["source", "timeout", "replay"]
    source, timeout, _ = _batches(ran)
    assert 10 < (timeout["begun_at"] - source["begun_at"]).total_seconds() <= 20


def test_a_source_that_reads_differently_each_time_is_fixed_first(spark: SparkSession, run: Runner) -> None:
    """When the failed rows cannot be found again in the source, the batch is evaluated on one reading of it."""
    drawn = F.udf(lambda: os.urandom(8).hex(), "string").asNondeterministic()
    frame = spark.range(5).withColumn("uid", drawn())
    ran = run(frame.anchored("uid").fail("id = 1", "one", retry=False))
    assert ran.counts("anchored", "acked", "dead") == (5, 4, 1)
    assert ran.outcome.dead_letters().first()["payload"]["id"] == 1  # type: ignore[index]


def test_more_failures_than_the_driver_takes_are_settled_by_spark(
    spark: SparkSession, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the bound the trees are traced, settled in the workers and written by Spark; nothing else changes."""
    for module in ("batches", "answers"):
        monkeypatch.setattr(f"reliable_spark.engine.{module}.DRIVER_ROWS_MAX", 10)
    frame = spark.range(80).anchored("id").fail("id % 2 = 0 and (_attempt = 1 or id < 20)", "even")
    ran = run(frame, max_attempts=2)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts", "replayed") == (80, 70, 10, 50, 40)


def test_too_many_failures_stop_the_run_before_anything_is_written(spark: SparkSession, tmp_path: Path) -> None:
    """Over `max_bad_ratio` nothing reaches sink or ledger; with the cause mended the run starts anew."""
    sink, ledger = str(tmp_path / "sink"), str(tmp_path / "ledger")
    frame = spark.range(100).anchored("id")
    with pytest.raises(rs.TooManyFailures, match="60 of 100 rows"):
        frame.fail("id < 60", "broken").run(sink, ledger=ledger, clock=rs.ManualClock())
    assert spark.read.format("delta").load(sink).count() == 0
    outcome = frame.run(sink, ledger=ledger, clock=rs.ManualClock())
    assert (outcome.anchored, outcome.acked, outcome.dead) == (100, 100, 0)


def test_an_interrupted_run_goes_on_with_what_is_pending(
    numbers: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed before its replays does not read the source again; it replays what the ledger holds."""
    frame, rows, ledger = numbers.anchored("id").bolt(flaky, "id long, k long"), Rows(), str(tmp_path / "ledger")

    def killed(self: Loop) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "run_due", killed)
    with pytest.raises(KeyboardInterrupt):
        frame.run(rows, ledger=ledger, clock=rs.ManualClock())
    monkeypatch.undo()
    outcome = frame.run(rows, ledger=ledger, clock=rs.ManualClock())
    assert (outcome.anchored, outcome.acked, outcome.dead, outcome.balanced) == (20, 19, 1, True)
    assert len(rows.all) == 19


def test_a_second_run_appends_to_a_finished_ledger(numbers: DataFrame, tmp_path: Path) -> None:
    """A ledger whose run has ended takes the next one under new batch ids."""
    rows, ledger = Rows(), str(tmp_path / "ledger")
    for _ in range(2):
        outcome = numbers.anchored("id").run(rows, ledger=ledger)
    assert (outcome.anchored, outcome.acked, outcome.balanced) == (40, 40, True)
    assert sorted(rows.batches) == [0, 1]


def test_payloads_of_every_type_come_back_from_the_ledger(spark: SparkSession, run: Runner) -> None:
    """Timestamps, decimals, maps, nested structs and binary are replayed as they were."""
    columns = [
        "id",
        "timestamp'2026-01-02 03:04:05.678901' as t",
        "timestamp_ntz'2026-01-02 03:04:05' as n",
        "date'2026-01-02' as d",
        "cast(1.25 as decimal(10,3)) as dec",
        "map('a', 1, 'b', null) as m",
        "named_struct('x', array(named_struct('y', 1)), 'z', null) as s",
        "binary('abc') as b",
        "cast('nan' as double) as f",
        "array(cast(null as string), 'q') as a",
    ]
    columns[6] = "named_struct('x', array(named_struct('y', 1)), 'z', cast(null as int)) as s"
    frame = spark.range(2).selectExpr(*columns)
    ran = run(frame.anchored("id").fail("_attempt = 1", "first"))
    assert ran.counts("acked", "replayed") == (2, 2)
    assert str(sorted(ran.rows.all)) == str(sorted(frame.collect()))


def _batches(ran: Ran) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    table: pa.Table = DeltaTable(f"{ran.ledger}/batches").to_pyarrow_table()
    rows: list[dict[str, Any]] = table.sort_by("batch_id").to_pylist()
    return rows


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_becomes_of_rows_the_ledger_balances(data: st.DataObject, spark: SparkSession, tmp_path: Path) -> None:
    """For any mixture of ok, dropped, flaky, fatal and fanned-out rows the answers are those of a simple model."""
    fates = data.draw(st.lists(st.sampled_from(["ok", "drop", "flaky", "fatal", "always", "fan"]), max_size=30))

    def bolt(row: rs.TupleRow) -> Any:
        fate = row["fate"]
        if fate == "always" or (fate == "flaky" and row.attempt == 1):
            raise ValueError(fate)
        if fate == "fatal":
            raise rs.Fail(fate, retry=False)
        return {"drop": None, "fan": [dict(row)] * 3}.get(fate, dict(row))

    frame = spark.createDataFrame(list(enumerate(fates)), "id int, fate string").anchored("id")
    ledger = str(tmp_path / str(len(list(tmp_path.iterdir()))))
    rows = Rows()
    outcome = frame.bolt(bolt, "id int, fate string").run(rows, ledger=ledger, clock=rs.ManualClock())
    n = {fate: fates.count(fate) for fate in ("ok", "drop", "flaky", "fatal", "always", "fan")}
    assert outcome.balanced
    assert (outcome.anchored, outcome.dead) == (len(fates), n["fatal"] + n["always"])
    assert outcome.failed_attempts == n["flaky"] + n["fatal"] + 3 * n["always"]
    assert outcome.emitted == n["ok"] + n["flaky"] + 3 * n["fan"] == len(rows.all)


@pytest.mark.parametrize("driver_rows_max", [100_000, 10])
def test_held_trees_beyond_twice_the_high_water_mark_fail_at_once(
    driver_rows_max: int, spark: SparkSession, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a burst of 100, an acker with the mark at 8 holds 17 until they time out and nacks the other 83 (seed 001)."""
    for module in ("batches", "answers"):
        monkeypatch.setattr(f"reliable_spark.engine.{module}.DRIVER_ROWS_MAX", driver_rows_max)
    frame = rs.anchored(spark.range(100), "id").bolt(lambda row: rs.HOLD, "id long", name="hold")
    ran = run(frame, high_water=8, max_attempts=1, max_bad_ratio=1.0)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts") == (100, 0, 100, 100)
    letters = ran.outcome.dead_letters().groupBy("error_class").count().collect()
    assert {row["error_class"]: row["count"] for row in letters} == {"high_water": 83, "timeout": 17}


def test_large_source_rows_are_settled_where_they_are(
    spark: SparkSession, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads that are too much for the driver together never pass through it, however few rows they are."""
    monkeypatch.setattr("reliable_spark.engine.answers.PAYLOAD_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("reliable_spark.engine.answers.MEASURED_ROWS_MIN", 10)
    monkeypatch.setattr("reliable_spark.engine.batches.MEASURED_ROWS_MIN", 10)
    settled: list[Any] = []
    settle = TreesInSpark.settle

    def noted(*given: Any) -> Any:
        settled.append(given)
        return settle(*given)

    monkeypatch.setattr(TreesInSpark, "settle", noted)
    rows = spark.range(40).select("id", F.repeat(F.lit("x"), 100_000).alias("body"))
    frame = rs.anchored(rows, "id").fail("id < 20", "no", retry=False)
    ran = run(frame)
    assert ran.counts("anchored", "acked", "dead") == (40, 20, 20)
    assert len(settled) == 1
    assert ran.outcome.dead_letters().select(F.sum(F.length("payload.body"))).collect()[0][0] == 2_000_000


def test_columns_may_be_called_as_ours_are(spark: SparkSession, run: Runner) -> None:
    """Whatever a table of the ledger or of an evaluation calls its columns, a user's row has the same name free."""
    names = [
        "ack_val",
        "status",
        "attempts",
        "attempt",
        "anchor",
        "spout",
        "bolt",
        "error",
        "payload",
        "init",
        "failed",
    ]
    frame = spark.range(4).select("id", *(F.lit(name).alias(name) for name in names))
    ran = run(frame.anchored("id").bolt(lambda row: {"id": 1 // row["id"]}, "id long", name="divide"), max_attempts=2)
    assert ran.counts("anchored", "acked", "dead", "replayed") == (4, 3, 1, 1)
    letter = ran.outcome.dead_letters().select("payload.*").first()
    assert letter is not None
    assert letter.asDict() == {"id": 0} | {name: name for name in names}
