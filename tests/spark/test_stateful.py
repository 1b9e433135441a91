"""Bolts with a state on Spark: what has been counted, whatever failed, was evaluated again, or crashed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.engine import loop
from reliable_spark.engine.states import States
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.state.change_files import ChangeFiles, newest
from reliable_spark.state.change_table import ChangeTable

ROWS = 60
KEYS = 7


def numbers(spark: SparkSession, count: int = ROWS, first: int = 0) -> Any:
    return spark.range(first, first + count).withColumn("k", F.col("id") % KEYS)


def count(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    """Count first, fail after: what fails must be taken back."""
    n = state.get("n", 0) + 1
    state.put("n", n)
    if row["id"] % 5 == 0 and row.attempt == 1:
        raise ConnectionError("at the first attempt")
    if row["id"] % 10 == 9:
        raise rs.Fail("never", retry=False)
    if row["id"] % 20 == 3 and row.attempt == 1:
        return rs.HOLD  # type: ignore[return-value]
    return {"id": row["id"], "k": row["k"], "n": n}


COUNTED = "id long, k long, n long"
DEAD = {n for n in range(ROWS) if n % 10 == 9}
ACKED = Counter(str(n % KEYS) for n in set(range(ROWS)) - DEAD)


def state_of(path: Path, name: str = "count") -> dict[str | None, Any]:
    """The value of `n` for every key, as the table has it."""
    uri = str(path / "ledger" / "state" / name)
    files = [file for each in ChangeTable(uri, "").snapshot.files.values() for file in each]
    rows = newest(ChangeFiles(uri).read([file.path for file in files]), drop_deleted=True).to_pylist()
    return {row["key"]: json.loads(row["value"]) for row in rows if row["name"] == b'"n"'}


def run(frame: rs.AnchoredFrame, path: Path, **settings: Any) -> rs.Outcome:
    chosen = rs.Settings(**settings)
    outcome = frame.run(str(path / "sink"), ledger=path / "ledger", settings=chosen, clock=rs.ManualClock())
    assert audit(str(path / "ledger")).balanced
    assert outcome.pending == 0
    return outcome


def test_a_row_is_counted_once_however_often_it_is_tried(spark: SparkSession, tmp_path: Path) -> None:
    """Rows that fail or are held change nothing until they succeed; each key counts its acked rows one by one."""
    outcome = run(numbers(spark).anchored("id").stateful(count, key="k", schema=COUNTED), tmp_path)
    assert (outcome.acked, outcome.dead) == (ROWS - len(DEAD), len(DEAD))
    assert state_of(tmp_path) == ACKED
    written = spark.read.format("delta").load(str(tmp_path / "sink")).collect()
    assert sorted((str(row["k"]), row["n"]) for row in written) == sorted(
        (key, n + 1) for key, total in ACKED.items() for n in range(total)
    )
    told = {row["key"]: (row["name"], row["value"]) for row in outcome.state("count").collect()}
    assert told == {key: ('"n"', str(total)) for key, total in ACKED.items()}


def words(row: rs.TupleRow) -> Iterator[dict[str, Any]]:
    return iter([{"id": row["id"], "k": (row["id"] + number) % KEYS} for number in range(3)])


def add(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    state.put("n", state.get("n", 0) + 1)
    return {"id": row["id"], "k": row["k"]}


def fail_some(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] % 4 == 0 and row["k"] == (row["id"] + 2) % KEYS and row.attempt == 1:
        raise ConnectionError("at the first attempt")
    if row["id"] % 10 == 9 and row["k"] == row["id"] % KEYS:
        raise rs.Fail("never", retry=False)
    return dict(row)


@pytest.mark.parametrize("traced", [False, True])
def test_a_tree_that_fails_behind_the_state_is_not_in_it(spark: SparkSession, tmp_path: Path, traced: bool) -> None:
    """One of three words fails after all were counted: none of them counts until the tree succeeds as a whole."""
    frame = numbers(spark).anchored("id").bolt(words, "id long, k long")
    frame = frame.stateful(add, key="k", schema="id long, k long").bolt(fail_some, "id long, k long")
    run(frame.transform(lambda df: df) if traced else frame, tmp_path)
    acked = set(range(ROWS)) - DEAD
    assert state_of(tmp_path, "add") == Counter(str((n + number) % KEYS) for n in acked for number in range(3))
    written = Counter(row["id"] for row in spark.read.format("delta").load(str(tmp_path / "sink")).collect())
    assert written == dict.fromkeys(acked, 3)


def test_the_next_run_goes_on_with_the_state_in_other_shards(spark: SparkSession, tmp_path: Path) -> None:
    """Each run begins with what the one before has counted, also when rows are divided otherwise."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    try:
        for number, partitions in enumerate((2, 3, 1)):
            spark.conf.set("spark.sql.shuffle.partitions", partitions)
            rows = numbers(spark, 20, first=20 * number)
            run(rows.anchored("id").stateful(add, key="k", schema="id long, k long"), tmp_path)
            assert ChangeTable(str(tmp_path / "ledger" / "state" / "add"), "").shards == partitions
            assert state_of(tmp_path, "add") == Counter(str(n % KEYS) for n in range(20 * (number + 1)))
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))


class Typed:
    """A bolt as an object; it puts values of many types, asks for them back, and deletes."""

    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        seen = self.state.get("seen", [])
        seen.append(row["id"])
        self.state.put("seen", seen)
        self.state.put((row["id"], "total"), Decimal(row["id"]) / 2)
        if row["id"] >= 4:
            assert self.state.delete((row["id"] - 4, "total")) == Decimal(row["id"] - 4) / 2
            assert (row["id"] - 4, "total") not in self.state
        totals = sorted(key[0] for key, value in self.state if type(value) is Decimal and type(key) is tuple)
        yield {"k": row["k"], "seen": self.state.get("seen"), "totals": totals}


def test_values_keep_their_types_and_each_key_has_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Lists, decimals and tuples come back as they were; rows come in order; a null is a key; others see nothing."""
    schema = "k long, seen array<long>, totals array<long>"
    for first in (0, 10):
        rows = spark.range(first, first + 10).withColumn("k", F.expr("nullif(id % 2, 1)"))
        frame = rows.anchored("id").stateful(Typed(), key="k", schema=schema, order_by="id", name="typed")
        run(frame, tmp_path)
    for key in (None, 0):
        last = spark.read.format("delta").load(str(tmp_path / "sink")).where(F.col("k").eqNullSafe(F.lit(key)))
        row = last.orderBy(F.size("seen").desc()).first()
        assert row is not None
        assert row["seen"] == [n for n in range(20) if n % 2 == (key is None)]
        assert row["totals"] == row["seen"][-2:]


@pytest.mark.parametrize("kind", ["float", "double"])
def test_both_zeros_are_one_key(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """As in `groupBy`, alone and beside another column; other numbers keep their text, and rows their zero."""
    rows = spark.range(4).selectExpr("id", f"CAST(element_at(array(-0.0D, 0.0D, 0.1D, null), int(id) + 1) AS {kind}) k")
    assert rows.groupBy("k").count().count() == 3
    run(rows.anchored("id").stateful(add, key="k", schema=f"id long, k {kind}"), tmp_path)
    assert state_of(tmp_path, "add") == {"0.0": 2, "0.1": 1, None: 1}
    written = spark.read.format("delta").load(str(tmp_path / "sink")).where("id = 0").first()
    assert written is not None
    assert str(written["k"]) == "-0.0"
    pair = rows.anchored("id").stateful(add, key=["k", "id"], schema=f"id long, k {kind}", name="pair")
    run(pair, tmp_path)
    assert '["0.0","0"]' in state_of(tmp_path, "pair")


def test_a_state_with_another_key_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """The name and the type of every column of the key stay as they were; the spelling does not matter."""
    rows = numbers(spark, 10).selectExpr("id", "k", "CAST(k AS STRING) AS text", "k AS other")
    schema = "id long, k long"
    run(rows.anchored("id").stateful(add, key="k", schema=schema), tmp_path)
    before = state_of(tmp_path, "add")
    for key, told in (("text", "text string"), (["k", "text"], "k bigint, text string"), ("other", "other bigint")):
        with pytest.raises(rs.StateError, match=rf"is kept by \(k bigint\), not by \({told}\)"):
            run(rows.anchored("id").stateful(add, key=key, schema=schema), tmp_path)
    retyped = rows.anchored("id").withColumn("k", F.col("text"))
    with pytest.raises(rs.StateError, match="k string"):
        run(retyped.stateful(add, key="k", schema=schema), tmp_path)
    assert state_of(tmp_path, "add") == before
    run(rows.anchored("id").stateful(add, key="K", schema=schema), tmp_path)
    assert sum(state_of(tmp_path, "add").values()) == 20


def misfit(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    n = state.get("n", 0) + 1
    state.put("n", n)
    return {"k": row["k"], "n": "no number" if row["id"] == 30 else n}


def test_a_row_whose_answer_does_not_fit_has_changed_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It is found out after later rows have counted on: they count again, without it."""
    frame = numbers(spark).anchored("id").stateful(misfit, key="k", schema="k long, n long")
    outcome = run(frame, tmp_path, max_attempts=1)
    assert outcome.dead == 1
    assert state_of(tmp_path, "misfit") == Counter(str(n % KEYS) for n in range(ROWS) if n != 30)


def fail_once(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    if row["k"] == 3 and row.attempt == 1:
        raise ConnectionError("at the first attempt")
    state.put("n", state.get("n", 0) + row["n"])
    state.put("times", state.get("times", 0) + 1)
    return {"k": row["k"], "n": state.get("n")}


def test_groups_are_added_up(spark: SparkSession, tmp_path: Path) -> None:
    """A state behind an aggregate: one of the groups fails, is tried again, and no group counts twice."""
    for number in range(2):
        groups = numbers(spark, first=number * ROWS).anchored("id").groupBy("k").agg(F.count("*").alias("n"))
        run(groups.stateful(fail_once, key="k", schema="k long, n long"), tmp_path)
    assert state_of(tmp_path, "fail_once") == Counter(str(n % KEYS) for n in range(2 * ROWS))


@pytest.mark.parametrize("step", ["settle", "commit", "sink"])
def test_a_crash_counts_nothing_twice(
    spark: SparkSession, tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends before the batch is settled, before the sink has it, or before the state has it."""

    class Crash(BaseException):
        pass

    def crash(*_: Any) -> None:
        raise Crash

    frame = numbers(spark).anchored("id").stateful(count, key="k", schema=COUNTED)
    owner, method = {
        "settle": (Ledger, "settle"),
        "commit": (States, "commit"),
        "sink": (loop.Loop, "_commit"),
    }[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, crash)
        with pytest.raises(Crash):
            run(frame, tmp_path)
    run(frame, tmp_path)
    assert state_of(tmp_path) == ACKED
    written = spark.read.format("delta").load(str(tmp_path / "sink")).collect()
    assert Counter(str(row["k"]) for row in written) == ACKED


def test_a_bolt_that_is_gone_after_a_crash_has_counted_all_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batch was settled; what was left to try again is counted by the bolt in its place."""

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    frame = numbers(spark).anchored("id")
    with monkeypatch.context() as patch:
        patch.setattr(States, "commit", crash)
        with pytest.raises(KeyboardInterrupt):
            run(frame.stateful(count, key="k", schema=COUNTED), tmp_path)
    run(frame.stateful(count, key="k", schema=COUNTED, name="other"), tmp_path)
    assert Counter(state_of(tmp_path)) + Counter(state_of(tmp_path, "other")) == ACKED


def test_a_stream_keeps_its_state_and_its_files_few(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches, replays between them, a restart, and compaction after each batch: the counts are right all the same."""
    monkeypatch.setattr(loop, "UPKEEP_BATCHES", 1)
    for number in range(2):
        numbers(spark, 30, first=30 * number).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
        source = (
            spark.readStream.schema("id long, k long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
        )
        frame = rs.anchored(source, "id").stateful(count, key="k", schema=COUNTED)
        settings = rs.Settings(backoff_initial_s=0.05, message_timeout_s=0.2)
        ledger = tmp_path / "ledger"
        query = frame.start(str(tmp_path / "sink"), ledger=ledger, settings=settings, trigger="availableNow")
        query.await_termination()
    assert state_of(tmp_path) == ACKED
    files = ChangeTable(str(tmp_path / "ledger" / "state" / "count"), "").snapshot.files
    assert all(len(each) <= 3 for each in files.values())


def test_a_ledger_that_was_rolled_back_is_recognised(spark: SparkSession, tmp_path: Path) -> None:
    """A state that knows more batches than the ledger would count them again."""
    frame = numbers(spark, 10).anchored("id").stateful(add, key="k", schema="id long, k long")
    outcome = run(frame, tmp_path)
    identity = json.loads(DeltaTable(f"{outcome.ledger}/batches").metadata().description)
    ChangeTable(str(tmp_path / "ledger" / "state" / "add"), identity["ledger_id"]).commit([], 7)
    with pytest.raises(rs.StateError, match="rolled back"):
        run(frame, tmp_path)


def test_what_cannot_be_is_refused_when_it_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    """A key that is not there, two states of one name, a bolt over batches, and a run without ackers."""
    frame = numbers(spark).anchored("id")
    with pytest.raises(rs.ColumnError, match="did you mean 'k'"):
        frame.stateful(add, key="kk", schema="id long")
    with pytest.raises(rs.UsageError, match="'add' already"):
        frame.stateful(add, key="k", schema="id long, k long").stateful(add, key="k", schema="id long")
    with pytest.raises(rs.UsageError, match="one by one"):
        frame.stateful(rs.arrow(lambda rows, state: rows), key="k", schema="id long")
    with pytest.raises(rs.UsageError, match="needs ackers"):
        run(frame.stateful(add, key="k", schema="id long, k long"), tmp_path, ackers=0)


def kill_the_worker(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    n = state.get("n", 0) + 1
    state.put("n", n)
    if row["id"] == 30:
        os._exit(1)
    return {"k": row["k"], "n": n}


def test_a_row_that_kills_its_worker_is_dead_and_the_others_count_once(spark: SparkSession, tmp_path: Path) -> None:
    """It is found, whatever had been counted in the worker that it took along."""
    frame = numbers(spark).anchored("id").stateful(kill_the_worker, key="k", schema="k long, n long")
    outcome = run(frame, tmp_path, max_attempts=1)
    assert (outcome.acked, outcome.dead) == (ROWS - 1, 1)
    assert [row["message_id"] for row in outcome.dead_letters().collect()] == ["30"]
    assert state_of(tmp_path, "kill_the_worker") == Counter(str(n % KEYS) for n in range(ROWS) if n != 30)
