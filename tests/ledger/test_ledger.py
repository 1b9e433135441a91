"""The ledger: atomic over three tables, undone where it was not settled, refused where it cannot be trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.journal import Begun, OpenRun
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.ledger.schema import LEDGER_VERSION, dead_letters_schema, pending_schema, storable
from reliable_spark.ledger.tables import LedgerTable

PAYLOAD = pa.struct([("id", pa.int64())])
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def record(batch_id: int, **counts: Any) -> BatchRecord:
    return BatchRecord(batch_id, counts.pop("kind", "source"), NOW, NOW, **counts)


def pending(*anchors: int, error_class: str = "ValueError") -> pa.Table:
    rows = [{"anchor": anchor, "error_class": error_class, "payload": {"id": anchor}} for anchor in anchors]
    return pa.Table.from_pylist(rows, schema=pending_schema(PAYLOAD))


def dead(*anchors: int) -> pa.Table:
    rows = [{"anchor": anchor, "error_class": "ValueError", "payload": {"id": anchor}} for anchor in anchors]
    return pa.Table.from_pylist(rows, schema=dead_letters_schema(PAYLOAD))


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "ledger")
    _close()


_OPEN: list[Ledger] = []


def _close() -> None:
    while _OPEN:
        _OPEN.pop().close()


def opened(path: str, payload: pa.DataType = PAYLOAD) -> Ledger:
    """Open a ledger as the next process would: the one before has ended, and its lock with it."""
    _close()
    _OPEN.append(Ledger.open(path, payload))
    return _OPEN[-1]


def test_a_ledger_adds_up_over_its_batches(path: str) -> None:
    """Rows taken in are acked, dead or pending, also after a replay and a reopening."""
    ledger = opened(path)
    ledger.settle(record(0, anchored=5, acked=2, failed=3, emitted=2), pending(1, 2), dead(3))
    ledger.settle(record(1, kind="replay", replayed=2, acked=1, failed=1, dead=1, emitted=1), pending(), dead(2))
    counts = opened(path).counts()
    assert (counts.anchored, counts.acked, counts.dead, counts.pending) == (5, 3, 2, 0)
    assert (counts.failed_attempts, counts.replayed, counts.emitted) == (4, 2, 3)
    assert counts.balanced
    assert audit(path) == counts


@pytest.mark.parametrize("name", ["a[b]", "a%20b", "a\\b"])
def test_a_path_that_the_tables_would_be_elsewhere_for_is_refused(tmp_path: Path, name: str) -> None:
    """delta-rs panics at brackets, which no `except Exception` catches, and decodes what is a name as it is."""
    with pytest.raises(LedgerError, match="delta-rs reads as something else"):
        opened(f"{tmp_path}/{name}")


@pytest.mark.parametrize("name", ["a b", "100%", "é", "a#b"])
def test_a_path_may_hold_other_characters(tmp_path: Path, name: str) -> None:
    """Spaces, signs and letters of any language are names as they are."""
    opened(f"{tmp_path}/{name}").settle(record(0, anchored=1, failed=1), pending(), dead(1))
    assert audit(f"{tmp_path}/{name}").dead == 1


def test_a_clean_batch_touches_one_table_only(path: str) -> None:
    """A batch without incomplete trees is one commit to `batches`."""
    ledger = opened(path)
    ledger.settle(record(0, anchored=5, acked=5))
    assert [DeltaTable(f"{path}/{name}").version() for name in ("batches", "pending", "dead_letters")] == [1, 0, 0]


@pytest.mark.parametrize("crash_at", ["pending", "dead_letters", "batches"])
def test_a_crash_between_two_tables_is_undone_and_can_be_repeated(
    path: str, crash_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever table the crash comes before, readers see the batch before, and settling again gives the same."""
    ledger = opened(path)
    ledger.settle(record(0, anchored=4, acked=1, failed=3), pending(1, 2), dead(3))
    before = audit(path)
    write = LedgerTable.write

    def crash(self: LedgerTable, *arguments: Any) -> int:
        if self.uri.endswith(crash_at):
            raise KeyboardInterrupt
        return write(self, *arguments)

    monkeypatch.setattr(LedgerTable, "write", crash)
    batch = record(1, kind="replay", replayed=2, acked=1, failed=1, dead=1)
    with pytest.raises(KeyboardInterrupt):
        ledger.settle(batch, pending(), dead(2))
    monkeypatch.undo()
    assert audit(path) == before
    again = opened(path)
    assert again.counts() == before
    assert sorted(again.pending["anchor"].to_pylist()) == [1, 2]
    again.settle(batch, pending(), dead(2))
    assert opened(path).counts() == audit(path)
    assert (audit(path).dead, audit(path).pending, audit(path).balanced) == (2, 0, True)


def test_what_spark_appends_to_a_marked_settlement_is_undone_too(path: str) -> None:
    """Rows that another writer added after `mark` vanish when the batch was never settled."""
    ledger = opened(path)
    ledger.settle(record(0, anchored=1, acked=0, failed=1), pending(1))
    ledger.mark(1, pending(1))
    for name, rows in (("pending", pending(2)), ("dead_letters", dead(3))):
        write_deltalake(f"{path}/{name}", rows, mode="append")
    assert audit(path).balanced
    assert opened(path).counts().pending == 1


def test_batches_follow_each_other(path: str) -> None:
    """A batch id is settled once, in order."""
    ledger = opened(path)
    ledger.settle(record(0))
    with pytest.raises(LedgerError, match="cannot follow"):
        ledger.settle(record(0))
    ledger.settle(record(2))
    assert opened(path).last_batch_id == 2


def test_a_source_batch_is_known_after_reopening(path: str) -> None:
    """Which micro-batches of which query are settled survives a restart."""
    opened(path).settle(record(0, query_id="q", source_batch_id=4))
    ledger = opened(path)
    assert ledger.is_settled("q", 4)
    assert not ledger.is_settled("q", 5)
    assert not ledger.is_settled("other", 4)


def test_an_interrupted_run_is_told_from_one_that_ended(path: str) -> None:
    """Only a run that had settled its source and did not end is gone on with."""
    ledger = opened(path)
    assert not ledger.is_run_settled()
    ledger.journal.begin_run(OpenRun(0, is_redrive=False), "a sink", NOW)
    ledger = opened(path)
    assert not ledger.is_run_settled()
    ledger.settle(record(0))
    ledger = opened(path)
    assert ledger.is_run_settled()
    ledger.journal.end_run(1, NOW)
    assert not opened(path).is_run_settled()


def test_rows_removed_or_added_by_hand_break_the_balance(path: str) -> None:
    """The audit counts the tables; it does not believe the sums."""
    ledger = opened(path)
    ledger.settle(record(0, anchored=3, acked=1, failed=2), pending(1), dead(2))
    assert audit(path).balanced
    DeltaTable(f"{path}/dead_letters").delete()
    assert not audit(path).balanced


@pytest.mark.parametrize(("version", "complaint"), [(99, "newer reliable_spark.*upgrade"), (1, "older reliable_spark")])
def test_a_ledger_of_another_version_is_refused(path: str, version: int, complaint: str) -> None:
    """A ledger of another version is neither opened nor audited, and the message says what to do."""
    opened(path)
    for log in Path(path, "batches", "_delta_log").glob("*.json"):
        held = f'\\"ledger_version\\": {LEDGER_VERSION}'
        assert held in log.read_text()
        log.write_text(log.read_text().replace(held, held.replace(str(LEDGER_VERSION), str(version))))
    for use in (lambda: opened(path), lambda: audit(path)):
        with pytest.raises(LedgerError, match=complaint):
            use()


def test_a_second_query_on_a_ledger_is_refused(path: str) -> None:
    """The second one is told at once; when the first has ended, it may."""
    first = opened(path)
    with pytest.raises(LedgerError, match="in use by another query"):
        Ledger.open(path, PAYLOAD)
    first.close()
    Ledger.open(path, PAYLOAD).close()


@pytest.mark.parametrize("write", ["pending", "nothing pending"])
def test_a_second_writer_that_no_lock_keeps_off_cannot_settle(
    path: str, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing can be locked, as on an object store, the commit of the one that is behind is refused."""
    monkeypatch.setattr("reliable_spark.ledger.lock.local_directory", lambda path: None)
    first, second = Ledger.open(path, PAYLOAD), Ledger.open(path, PAYLOAD)
    trees = pending(1) if write == "pending" else None  # two tables are written, or one
    first.settle(record(0, anchored=1, failed=1), trees)
    with pytest.raises(LedgerError, match="another writer has changed the ledger"):
        second.settle(record(0, anchored=1, failed=1), trees)
    assert audit(path).anchored == 1
    assert Ledger.open(path, PAYLOAD).counts().anchored == 1


def test_a_batch_that_was_begun_is_the_same_after_a_restart(path: str) -> None:
    """The journal says which batch it was and counts the attempts; settling ends it."""
    begun = Begun(0, "replay", due_before=NOW)
    assert opened(path).journal.begin(begun, NOW) == 1
    ledger = opened(path)
    assert ledger.begun == begun
    assert ledger.journal.begin(begun, NOW) == 2
    ledger.settle(record(0))
    assert ledger.journal.begun_after(ledger.last_batch_id) is None
    assert opened(path).begun is None


def test_other_offsets_than_those_that_were_settled_are_refused(path: str) -> None:
    """A checkpoint that was rolled back gives the same micro-batch other rows: they must not be skipped."""
    opened(path).settle(record(0, query_id="q", source_batch_id=0, source_offsets="a"))
    ledger = opened(path)
    assert ledger.is_settled("q", 0, "a")
    assert ledger.streamed() == {"q": 0}
    with pytest.raises(LedgerError, match="other source offsets"):
        ledger.is_settled("q", 0, "b")


def test_upkeep_changes_no_answer_and_leaves_few_files(path: str) -> None:
    """After many batches and an upkeep, every table is one file, and all that is known is known."""
    ledger = opened(path)
    for number in range(30):
        ledger.settle(
            record(number, anchored=3, acked=1, failed=2, dead=1, sink_actions=(f"file {number}",)),
            pending(*range(number + 1)),
            dead(100 + number),
        )
        ledger.journal.begin(Begun(number + 1, "source"), NOW)
    before = audit(path)
    ledger.upkeep()
    assert audit(path) == before == ledger.counts()
    for name in ("batches", "pending", "dead_letters", "journal"):
        assert len(DeltaTable(f"{path}/{name}").file_uris()) == 1, name
    actions = DeltaTable(f"{path}/batches").to_pyarrow_table().sort_by("batch_id")["sink_actions"].to_pylist()
    assert actions == [*[None] * 29, ["file 29"]]
    again = opened(path)
    assert again.counts() == before
    assert again.begun == Begun(30, "source")
    again.settle(record(30, anchored=1, acked=1))
    assert opened(path).counts() == audit(path)


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    """An unwritable ledger is a clear error that names the place."""
    with pytest.raises(LedgerError, match="/proc/nothing"):
        Ledger.open("/proc/nothing", PAYLOAD)


def test_rows_of_another_schema_are_refused(path: str) -> None:
    """A ledger belongs to one source."""
    opened(path)
    with pytest.raises(LedgerError, match="another schema"):
        opened(path, pa.struct([("id", pa.string())]))


def test_a_table_that_is_no_ledger_is_refused(path: str) -> None:
    """Another Delta table in the place of a ledger is recognised."""
    write_deltalake(f"{path}/batches", pa.table({"a": [1]}), description=json.dumps({"a": 1}))
    with pytest.raises(LedgerError, match="not a reliable_spark ledger"):
        audit(path)
    with pytest.raises(LedgerError, match="there is no ledger"):
        audit(f"{path}/nowhere")


def test_types_are_stored_in_the_form_that_delta_has() -> None:
    """Large, nested and zoned types are brought to Delta's; what has no form there is refused by name."""
    kind = pa.struct([("t", pa.timestamp("us", tz="Europe/Paris")), ("l", pa.large_list(pa.large_string()))])
    assert storable(kind, "c") == pa.struct([("t", pa.timestamp("us", tz="UTC")), ("l", pa.list_(pa.string()))])
    with pytest.raises(Exception, match=r"column 'c.d'.*cast it"):
        storable(pa.struct([("d", pa.duration("us"))]), "c")
