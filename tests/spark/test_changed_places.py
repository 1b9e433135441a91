"""Ledger, checkpoint and sink that were changed behind the query's back: recognised, and never silently skipped."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import reliable_spark as rs
from reliable_spark.cli import app
from reliable_spark.engine.batches import SparkBatches
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.query import Query
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.sinks.delta import DeltaSink


class Places:
    """A source directory, a sink and a ledger, and a query over them that ends when it has read everything."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark, self.directory = spark, directory
        self.source, self.sink, self.ledger = (directory / name for name in ("source", "sink", "ledger"))
        self.rows = 0
        self.give()

    def give(self) -> None:
        rows = self.spark.range(self.rows, self.rows + 3)
        rows.coalesce(1).write.mode("append").parquet(str(self.source))
        self.rows += 3

    def query(self, sink: Any = None, delivery: str = "at_least_once") -> rs.Outcome:
        frame = self.spark.readStream.schema("id long").parquet(str(self.source)).anchored("id")
        target = str(self.sink) if sink is None else sink
        settings = rs.Settings(delivery=delivery)
        query: Query = frame.start(target, ledger=self.ledger, settings=settings, trigger="availableNow")
        query.await_termination()
        return query.outcome()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.spark.read.format("delta").load(str(self.sink)).collect())


@pytest.fixture
def places(spark: SparkSession, tmp_path: Path) -> Places:
    return Places(spark, tmp_path)


def killed(*arguments: Any) -> Any:
    """Where the process ends."""
    raise KeyError("killed")


def after_one_call(method: Any) -> Any:
    """The method once, then the end of the process."""
    calls = itertools.count()
    return lambda *arguments: killed() if next(calls) else method(*arguments)


def crash_before_commit(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the last batch settled and not committed."""
    monkeypatch.setattr(DeltaSink, "commit", killed)
    with pytest.raises(KeyError, match="killed"):
        places.query()
    monkeypatch.undo()


def test_a_deleted_checkpoint_is_recognised(places: Places) -> None:
    """A new checkpoint would read the source from its beginning again."""
    places.query()
    shutil.rmtree(places.ledger / "checkpoint")
    with pytest.raises(rs.LedgerError, match=r"checkpoint .* is gone"):
        places.query()
    assert places.ids() == [0, 1, 2]


def test_a_deleted_ledger_is_recognised(places: Places) -> None:
    """A checkpoint that has committed what the ledger does not know would leave rows out."""
    places.query()
    for name in ("batches", "pending", "dead_letters", "journal"):
        shutil.rmtree(places.ledger / name)
    with pytest.raises(rs.LedgerError, match="has committed micro-batch 0"):
        places.query()


def test_a_ledger_that_was_rolled_back_is_recognised(places: Places) -> None:
    """With an older ledger the sink's transaction ids would swallow new batches."""
    places.query()
    shutil.copytree(places.ledger, places.directory / "backup")
    places.give()
    places.query()
    shutil.rmtree(places.ledger)
    shutil.copytree(places.directory / "backup", places.ledger)
    with pytest.raises(rs.SinkError, match="has batch 1 of this ledger, which only knows of batch 0"):
        places.query()
    assert places.ids() == list(range(6))


def test_a_checkpoint_that_was_rolled_back_is_recognised(places: Places) -> None:
    """The same micro-batch number with other offsets is not the batch that was settled."""
    checkpoint = places.ledger / "checkpoint"
    places.query()
    places.give()
    places.query()
    for name in ("offsets/1", "commits/1", "commits/.1.crc", "offsets/.1.crc"):
        (checkpoint / name).unlink(missing_ok=True)
    last = checkpoint / "commits" / "0"
    assert last.exists()
    places.give()
    with pytest.raises(rs.LedgerError, match="other source offsets"):
        places.query()


def test_a_restored_sink_is_recognised_until_it_is_accepted(places: Places) -> None:
    """RESTORE keeps the transaction ids but removes rows."""
    places.query()
    places.give()
    places.query()
    DeltaTable.forPath(places.spark, str(places.sink)).restoreToVersion(1)
    places.give()
    with pytest.raises(rs.SinkError, match="was restored to an older state in its version 3"):
        places.query()
    accepted = CliRunner().invoke(app, ["accept-restore", str(places.ledger)])
    assert (accepted.exit_code, accepted.output) == (0, "accepted: the sink as it is in version 3\n")
    assert places.query().acked == 9
    assert places.ids() == [0, 1, 2, 6, 7, 8]


def test_a_sink_that_was_deleted_is_recognised(places: Places) -> None:
    """The rows that the ledger counts as acked are gone with it."""
    places.query()
    shutil.rmtree(places.sink)
    with pytest.raises(rs.SinkError, match="is gone"):
        places.query()
    places.spark.range(0).write.format("delta").save(str(places.sink))
    with pytest.raises(rs.SinkError, match="is another table"):
        places.query()


@pytest.mark.parametrize("forgets", [False, True])
def test_a_sink_that_forgets_transactions_is_not_written_twice(
    places: Places, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a short retention of transaction ids the table's history says whether it has the last batch."""
    property_ = "'delta.setTransactionRetentionDuration' = 'interval 0 seconds'"
    places.spark.sql(f"CREATE TABLE delta.`{places.sink}` (id LONG) USING delta TBLPROPERTIES ({property_})")
    places.query()
    if forgets:
        # what a table looks like from which a checkpoint has removed the expired id
        monkeypatch.setattr(DeltaSink, "_committed", lambda self: -1)
    places.query()
    places.give()
    assert places.query().acked == 6
    assert places.ids() == list(range(6))


def test_an_unfinished_commit_is_finished_at_the_next_start(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was settled is committed from the stored list of files, and only once."""
    crash_before_commit(places, monkeypatch)
    assert places.ids() == []
    places.query()
    assert places.query().acked == 3
    assert places.ids() == [0, 1, 2]


def test_files_that_were_vacuumed_before_their_commit_are_recognised(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of files that are not there would break the table."""
    crash_before_commit(places, monkeypatch)
    for file in places.sink.glob("*.parquet"):
        file.unlink()
    with pytest.raises(rs.SinkError, match="was deleted before it was committed"):
        places.query()


def test_another_sink_has_to_wait_for_an_unfinished_commit(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last batch's files belong to the sink they were written for."""
    crash_before_commit(places, monkeypatch)
    other = str(places.directory / "other")
    with pytest.raises(rs.SinkError, match="start once with that sink"):
        places.query(other)
    places.query()
    places.give()
    places.query(other)
    assert places.ids() == [0, 1, 2]
    assert places.spark.read.format("delta").load(other).count() == 3


def test_a_second_query_is_refused_while_the_first_one_runs(places: Places) -> None:
    """Also in the same process, and only for as long as the first one is there."""
    frame = places.spark.readStream.schema("id long").parquet(str(places.source)).anchored("id")
    with (
        frame.start(None, ledger=places.ledger),
        pytest.raises(rs.LedgerError, match="in use by another query"),
    ):
        frame.start(None, ledger=places.ledger)
    assert places.query(lambda rows, batch_id: None).acked == 3


def test_a_run_gives_its_ledger_back_when_it_fails(spark: SparkSession, tmp_path: Path) -> None:
    """A failed run can be started again in the same process."""
    frame = spark.range(3).anchored("id")

    def refuse(rows: Any, batch_id: int) -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(rs.SinkError, match="the sink function raised in batch 0, which will run again: no"):
            frame.run(refuse, ledger=tmp_path / "ledger")
    assert frame.run(None, ledger=tmp_path / "ledger").acked == 3


def test_a_spout_of_another_name_is_recognised_while_rows_of_the_old_one_wait(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among several spouts none would take them: they would disappear from the ledger without an answer."""

    def start(name: str) -> rs.Outcome:
        orders, returns = rs.anchored(spark.range(3), "id", spout=name), rs.anchored(spark.range(3, 6), "id")
        frame = orders.unionByName(returns).fail("id = 1 AND _attempt = 1", "not now")
        return frame.run(None, ledger=tmp_path / "ledger", clock=rs.ManualClock())

    monkeypatch.setattr(Loop, "run_due", killed)
    with pytest.raises(KeyError, match="killed"):
        start("orders")
    monkeypatch.undo()
    with pytest.raises(rs.LedgerError, match=r"1 pending rows of a spout 'orders'.* did you mean 'order'\?"):
        start("order")
    outcome = start("orders")
    assert (outcome.anchored, outcome.acked, outcome.pending, outcome.balanced) == (6, 6, 0, True)


def test_a_run_is_not_taken_for_settled_because_a_stream_went_on(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before it settled anything; the stream took its next batch; then the same run once more."""
    places.query()
    redriven = places.spark.range(100, 102).anchored("id")
    monkeypatch.setattr(Loop, "_settle", killed)
    with pytest.raises(KeyError, match="killed"):
        redriven.run(places.sink, ledger=places.ledger)
    monkeypatch.undo()
    places.give()
    places.query()
    outcome = redriven.run(places.sink, ledger=places.ledger)
    assert (outcome.anchored, outcome.acked) == (8, 8)
    assert places.ids() == [0, 1, 2, 3, 4, 5, 100, 101]


def test_a_run_after_an_interrupted_replay_is_gone_on_with(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends within a replay, a run comes before it goes on, and its rows are taken in once."""

    def run(*rows: int) -> rs.Outcome:
        frame = places.spark.range(*rows).anchored("id").fail("id % 100 = 1 AND _attempt = 1", "not now")
        outcome: rs.Outcome = frame.run(places.sink, ledger=places.ledger, clock=rs.ManualClock())
        return outcome

    monkeypatch.setattr(Loop, "_take_steps", after_one_call(Loop._take_steps))
    with pytest.raises(KeyError, match="killed"):
        run(3)
    monkeypatch.undo()
    # as a stream leaves it: there is no run to be gone on with
    ledger = Ledger.open(str(places.ledger), pa.struct([("id", pa.int64())]))
    ledger.journal.end_run(ledger.last_batch_id + 1, rs.ManualClock().now())
    ledger.close()
    monkeypatch.setattr(Loop, "run_due", killed)
    with pytest.raises(KeyError, match="killed"):
        run(100, 103)
    monkeypatch.undo()
    outcome = run(100, 103)
    assert (outcome.anchored, outcome.acked, outcome.pending) == (6, 6, 0)
    assert places.ids() == [0, 1, 2, 100, 101, 102]


@pytest.mark.parametrize("goes_on", ["run", "stream"])
def test_replays_do_not_wait_for_a_batch_that_is_not_given_again(
    goes_on: str, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call ends with a row pending; one of the other kind fails in its sink function; the first one goes on."""
    settings = rs.Settings(backoff_initial_s=0.01)

    def refuse(rows: Any, batch_id: int) -> None:
        raise ValueError("no")

    def run(sink: Any) -> rs.Outcome:
        frame = places.spark.range(100, 103).anchored("id").fail("id = 101 AND _attempt = 1", "not now")
        outcome: rs.Outcome = frame.run(sink, ledger=places.ledger, settings=settings)
        return outcome

    def stream(sink: Any) -> rs.Outcome:
        frame = places.spark.readStream.schema("id long").parquet(str(places.source)).anchored("id")
        frame = frame.fail("id = 1 AND _attempt = 1", "not now")
        query: Query = frame.start(sink, ledger=places.ledger, settings=settings, trigger="availableNow")
        assert query.await_termination(60), "it waits for ever"
        return query.outcome()

    first, other = (run, stream) if goes_on == "run" else (stream, run)
    monkeypatch.setattr(SparkBatches, "of_pending", killed)
    with pytest.raises(KeyError, match="killed"):
        first(None)
    monkeypatch.undo()
    with pytest.raises(rs.SinkError, match="raised in batch 1"):
        other(refuse)
    outcome = first(None)
    assert (outcome.anchored, outcome.acked, outcome.pending) == (3, 3, 0)
    outcome = other(None)
    assert (outcome.anchored, outcome.acked, outcome.pending) == (6, 6, 0)
