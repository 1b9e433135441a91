"""Dead letters that are tried again: each is one row with one answer before, between and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.engine.loop import Loop
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from tests.spark.running import Ran, Rows
from tests.spark.test_streaming import Source

COUNTS = ("anchored", "acked", "dead", "pending")


def broken(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] % 4 == 0:
        raise KeyError("not known yet")
    if row["id"] == 7:
        raise rs.Fail("never", retry=False)
    return {"id": row["id"]}


def mended(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] == 7:
        raise rs.Fail("never", retry=False)
    return {"id": row["id"]}


class Case:
    """Twelve rows of which 0, 4 and 8 need a mended bolt, and 7 cannot be helped."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.rows, self.ledger = spark.range(12), str(path / "ledger")
        self.sink, self.clock = Rows(), rs.ManualClock()

    def run(self, bolt: Any = broken, sink: Any = None, **settings: Any) -> Ran:
        frame = self.rows.anchored("id").bolt(bolt, "id long")
        outcome = frame.run(sink or self.sink, self.ledger, rs.Settings(**settings), self.clock)
        return Ran(outcome, self.sink, self.ledger)

    def redrive(self, where: Any = None, bolt: Any = mended, sink: Any = None, **settings: Any) -> Ran:
        frame = self.rows.anchored("id").bolt(bolt, "id long")
        outcome = frame.redrive(sink or self.sink, self.ledger, where, rs.Settings(**settings), self.clock)
        counts = audit(self.ledger)
        assert outcome.balanced
        assert vars(counts).items() <= vars(outcome).items()
        return Ran(outcome, self.sink, self.ledger)

    def kinds(self) -> list[str]:
        batches = DeltaTable(f"{self.ledger}/batches").to_pyarrow_table().sort_by("batch_id")
        kinds: list[str] = batches["kind"].to_pylist()
        return kinds


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Case:
    return Case(spark, tmp_path)


def test_a_mended_bolt_acks_what_was_dead(case: Case) -> None:
    """Only dead letters are read; what dies again has all its attempts before it, and is a dead letter again."""
    before = case.run()
    assert before.counts(*COUNTS) == (12, 8, 4, 0)
    after = case.redrive()
    assert after.counts(*COUNTS) == (12, 11, 1, 0)
    assert after.counts("emitted", "replayed") == (11, before.outcome.replayed + 4)
    assert sorted(row["id"] for row in case.sink.all) == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11]
    assert after.dead == {"7": "never"}
    (letter,) = after.outcome.dead_letters().collect()
    (old,) = before.outcome.dead_letters().where("message_id = '7'").collect()
    assert (letter["attempts"], letter["payload"]["id"], letter["first_seen_at"]) == (1, 7, old["first_seen_at"])
    assert case.kinds()[-2:] == ["redrive", "replay"]
    rows = DeltaTable(f"{case.ledger}/batches").to_pyarrow_table()
    assert sum(rows["dead"].to_pylist()) == 1


def test_a_row_that_fails_again_has_all_its_attempts(case: Case) -> None:
    """Attempts are counted anew, and each redrive makes new trees."""
    case.run()
    anchors = set()
    for _ in range(2):
        again = case.redrive("message_id = '4'", bolt=broken)
        assert again.counts(*COUNTS) == (12, 8, 4, 0)
        (letter,) = again.outcome.dead_letters().where("message_id = '4'").collect()
        assert letter["attempts"] == 3
        anchors.add(letter["anchor"])
    assert len(anchors) == 2


def test_a_condition_chooses(case: Case) -> None:
    """Over the columns of `dead_letters`, as text or as a Column; what it does not match stays dead."""
    case.run()
    with pytest.raises(rs.ColumnError, match=r"redrive\(\): there is no column 'bold'; did you mean 'bolt'"):
        case.redrive("bold = 'broken'")
    assert case.redrive("message_id = 'no such'").counts(*COUNTS) == (12, 8, 4, 0)
    assert case.redrive(F.col("payload.id") == 8).counts(*COUNTS) == (12, 9, 3, 0)
    assert case.redrive("bolt = 'broken' AND message_id < '4'").counts(*COUNTS) == (12, 10, 2, 0)


@pytest.mark.parametrize("delivery", ["at_most_once", "exactly_once"])
def test_a_table_gets_each_row_once(case: Case, spark: SparkSession, tmp_path: Path, delivery: str) -> None:
    """Every mode tries again what a person asks for."""
    sink = str(tmp_path / "sink")
    case.run(sink=sink, delivery=delivery)
    case.redrive(sink=sink, delivery=delivery)
    ids = [row["id"] for row in spark.read.format("delta").load(sink).collect()]
    assert sorted(ids) == [n for n in range(12) if n != 7]


def test_rows_without_a_message_id_are_dead_again(case: Case, spark: SparkSession) -> None:
    """They share their hash of nothing, but each is counted."""
    case.rows = spark.createDataFrame([(None, 1), (None, 2), (None, 3), (4, 4)], "id long, n int")
    case.run(bolt=broken)
    after = case.redrive()
    assert after.counts(*COUNTS) == (4, 1, 3, 0)
    payloads = after.outcome.dead_letters().where("message_id IS NULL").select("payload.n").collect()
    assert sorted(row["n"] for row in payloads) == [1, 2, 3]


def test_a_second_run_finds_nothing_left_over(case: Case) -> None:
    """A redrive is over when it returns: the next run takes the source rows again."""
    case.run()
    case.redrive()
    assert case.run(bolt=mended).counts("anchored", "acked", "dead") == (24, 22, 2)


def test_an_interrupted_redrive_is_gone_on_with(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """By run() as by redrive(): the source rows are not taken again."""
    case.run()

    def interrupt(self: Loop) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run_due", interrupt)
        with pytest.raises(KeyboardInterrupt):
            case.redrive()
    counts = audit(case.ledger)
    assert (counts.anchored, counts.acked, counts.dead, counts.pending) == (12, 8, 0, 4)
    assert case.run(bolt=mended).counts(*COUNTS) == (12, 11, 1, 0)


def test_a_redrive_that_took_nothing_yet_can_be_repeated(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun, but is no run whose source rows are missing."""
    case.run()

    def interrupt(self: Ledger, *_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "settle", interrupt)
        with pytest.raises(KeyboardInterrupt):
            case.redrive()
    assert case.redrive().counts(*COUNTS) == (12, 11, 1, 0)


def test_an_interrupted_run_gets_its_rows_first(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch id would otherwise count as that of the rows."""
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "run_source", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            case.run()
    with pytest.raises(rs.UsageError, match="the last run was interrupted before its rows were settled"):
        case.redrive()
    assert case.run(bolt=mended).counts(*COUNTS) == (12, 11, 1, 0)


def test_what_cannot_be_redriven_is_refused(case: Case, spark: SparkSession, tmp_path: Path) -> None:
    """A ledger that is not there, groups that are made, more than may be pending, a stream, a stage."""
    frame = case.rows.anchored("id").bolt(mended, "id long")
    with pytest.raises(rs.LedgerError, match="there is no ledger at"):
        frame.redrive(None, case.ledger)
    assert not Path(case.ledger).exists()
    case.run()
    with pytest.raises(rs.UsageError, match="cannot be added to groups that are made"):
        frame.groupBy("id").count().redrive(None, case.ledger)
    with pytest.raises(rs.UsageError, match="4 dead letters match, but max_pending leaves room for 3"):
        case.redrive(max_pending=3)
    stream = spark.readStream.format("rate").load().anchored("value")
    with pytest.raises(rs.UsageError, match="a method of the running query"):
        stream.redrive(None, case.ledger)
    with pytest.raises(rs.UsageError, match="takes no stages"):
        stream.stage("queue").redrive(None, case.ledger)
    assert audit(case.ledger).dead == 4


@pytest.mark.parametrize("stages", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
def test_a_running_query_takes_back_its_own(spark: SparkSession, tmp_path: Path, stages: bool) -> None:
    """Also through the stages of a chain; an ended query is to be started again first."""
    source, ledger, sink = Source(spark, tmp_path), tmp_path / "ledger", tmp_path / "sink"
    settings = rs.Settings(backoff_initial_s=0.05, message_timeout_s=600)
    source.add(0, 12)

    def start(bolt: Any, trigger: Any) -> rs.Query:
        frame = source.stream().anchored("id")
        frame = frame.stage("queue") if stages else frame
        query: rs.Query = frame.bolt(bolt, "id long").start(sink, ledger=ledger, settings=settings, trigger=trigger)
        return query

    query = start(broken, "availableNow")
    assert query.await_termination(300)
    assert (query.outcome().acked, query.outcome().dead) == (8, 4)
    with pytest.raises(rs.UsageError, match="the query has ended"):
        query.redrive()
    source.add(12, 1)
    with start(mended, "0 seconds") as running:
        assert running.redrive("bolt = 'broken'") == 4
        while running.outcome().pending or running.outcome().anchored < 13:
            running.await_termination(0.1)
    outcome = running.outcome()
    assert (outcome.anchored, outcome.acked, outcome.dead, outcome.pending) == (13, 12, 1, 0)
    ids = [row["id"] for row in spark.read.format("delta").load(str(sink)).collect()]
    assert sorted(ids) == [n for n in range(13) if n != 7]


def test_a_redrive_waits_for_the_batch_that_was_begun(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay that a crash has interrupted keeps its id and comes first; then all that is dead is taken back."""
    calls: list[int] = []

    def sink(frame: Any, batch_id: int) -> None:
        calls.append(batch_id)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        case.run(sink=sink)
    assert case.redrive(sink=sink).counts(*COUNTS) == (12, 11, 1, 0)
    assert calls[1] == calls[2]
    assert "redrive" in case.kinds()
