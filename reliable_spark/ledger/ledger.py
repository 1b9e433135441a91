"""The ledger as its one writer sees it: open, settle, and what is pending."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema as DeltaSchema

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.counts import COUNTED, Counts, count_sums, sums_of
from reliable_spark.ledger.identity import check_version
from reliable_spark.ledger.journal import Begun, Journal
from reliable_spark.ledger.lock import WriterLock
from reliable_spark.ledger.schema import (
    BATCHES,
    JOURNAL,
    LEDGER_VERSION,
    REDRIVE,
    dead_letters_schema,
    pending_schema,
)
from reliable_spark.ledger.tables import DeltaTables, Table, Tables, table_uri

effects: Final = logging.getLogger("reliable_spark.effects")
"""Says at debug level, just before it does it, what is about to change outside of this process."""


@dataclass(frozen=True)
class BatchRecord:
    """The row that settles a batch; its names are the columns of `batches`."""

    batch_id: int
    kind: str
    begun_at: datetime
    settled_at: datetime
    query_id: str | None = None
    source_batch_id: int | None = None
    source_offsets: str | None = None
    anchored: int = 0
    replayed: int = 0
    acked: int = 0
    failed: int = 0
    lost: int = 0
    held: int = 0
    timed_out: int = 0
    dead: int = 0
    emitted: int = 0
    in_flight: int = 0
    duplicates: int = 0
    checksum_ok: bool = True
    sink_actions: tuple[str, ...] = ()
    sink_version: int | None = None
    state_changes: tuple[str, ...] = ()
    stages: str | None = None


class Ledger:
    """A ledger that is open for writing. One writer at a time.

    Guarantee: `settle` is atomic although it writes three tables. The row of `batches` comes last and names the
    versions of the others that belong to it; opening undoes what came after them.

    Args:
        path: where it lies, for messages and for Spark.
        payload: the struct type of the source row.
        tables: its tables; they exist.
        lock: keeps others out until `close`.
    """

    def __init__(self, path: str, payload: pa.DataType, tables: Tables, lock: WriterLock | None = None) -> None:
        self.path, self._writer_lock, self.lock = path, lock, threading.RLock()
        (self._batches,) = tables.open("batches")
        self.ledger_id = check_version(self._batches)["ledger_id"]
        self._pending, self._dead_letters, journal = tables.open("pending", "dead_letters", "journal")
        _check_payload(self._pending, payload)
        rows = self._batches.read().sort_by("batch_id")
        self.last: dict[str, Any] | None = rows.slice(rows.num_rows - 1).to_pylist()[0] if rows.num_rows else None
        self._sums: Counter[str] = Counter(sums_of(rows))
        origins = (rows[name].to_pylist() for name in ("query_id", "source_batch_id", "source_offsets"))
        self._settled = {(query_id, batch_id): offsets for query_id, batch_id, offsets in zip(*origins, strict=True)}
        self._undo_unsettled()
        self._pending_rows = self._pending.read()
        self.journal = Journal(journal)

    @classmethod
    def open(cls, path: str, payload: pa.DataType, tables: Tables | None = None) -> Ledger:
        """Open a ledger for writing, create it where there is none, and undo what was never settled.

        Args:
            path: a directory or URI.
            payload: the struct type of the source row, as the ledger stores it.
            tables: where the tables are, if not Delta tables below `path`; nothing is locked then.

        Raises:
            LedgerError: it cannot be written, is in use, is of another version, or holds rows of another schema.
        """
        if tables is not None:
            return cls._opened(path, payload, tables, None)
        lock = WriterLock(path)
        try:
            return cls._opened(path, payload, DeltaTables(path), lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _opened(cls, path: str, payload: pa.DataType, tables: Tables, lock: WriterLock | None) -> Ledger:
        # batches comes last: where it exists the others do
        if not tables.exists("batches"):
            identity = json.dumps({"ledger_version": LEDGER_VERSION, "ledger_id": uuid.uuid4().hex})
            dead_letters = dead_letters_schema(payload)
            tables.create({"pending": pending_schema(payload), "dead_letters": dead_letters, "journal": JOURNAL})
            tables.create({"batches": BATCHES}, identity)
        return cls(path, payload, tables, lock)

    def close(self) -> None:
        """Let another query open the ledger."""
        if self._writer_lock is not None:
            self._writer_lock.release()

    def _undo_unsettled(self) -> None:
        for table, name in ((self._pending, "pending_version"), (self._dead_letters, "dead_letters_version")):
            settled = self.last[name] if self.last else 0
            if table.version > settled and table.written_batch() > self.last_batch_id:
                table.restore(settled)

    @property
    def last_batch_id(self) -> int:
        """The id of the last settled batch; -1 when none is."""
        return self.last["batch_id"] if self.last else -1

    @property
    def begun(self) -> Begun | None:
        """The batch that was begun and not settled, if there is one."""
        return self.journal.begun_after(self.last_batch_id)

    @property
    def pending(self) -> pa.Table:
        """All pending trees, as of the last settled batch."""
        return self._pending_rows

    def dead_letters(self) -> pa.Table:
        """All dead letters, as of the last settled batch."""
        return self._dead_letters.read()

    def version_of(self, name: str) -> int:
        """The version of `pending` or `dead_letters` that belongs to the last settled batch."""
        return (self._pending if name == "pending" else self._dead_letters).version

    def uri_of(self, name: str) -> str:
        """Where a table of this ledger lies."""
        return table_uri(self.path, name)

    def is_settled(self, query_id: str | None, source_batch_id: int | None, offsets: str | None = None) -> bool:
        """Tell whether a source batch of a streaming query was settled, so that it is never run twice.

        Raises:
            LedgerError: it was, but with other offsets: the checkpoint is not the one that belongs here.
        """
        key = (query_id, source_batch_id)
        if query_id is None or key not in self._settled:
            return False
        held = self._settled[key]
        if offsets is not None and held is not None and offsets != held:
            raise LedgerError(
                f"micro-batch {source_batch_id} was settled in {self.path} with other source offsets than the "
                "checkpoint has for it now: the checkpoint was replaced or rolled back, and going on would skip rows"
            )
        return True

    def streamed(self) -> dict[str, int]:
        """The last settled micro-batch of each streaming query that wrote to this ledger."""
        last: dict[str, int] = {}
        for query_id, source_batch_id in self._settled:
            if query_id is not None:
                last[query_id] = max(source_batch_id or 0, last.get(query_id, -1))
        return last

    def settle(self, record: BatchRecord, pending: pa.Table | None = None, dead: pa.Table | None = None) -> None:
        """Settle a batch: the pending trees from now on, its dead letters, and its counts, as one.

        Args:
            record: the counts; `batch_id` must be greater than that of the last settled batch.
            pending: all trees that are pending after this batch; None leaves them as they are.
            dead: the trees that died in this batch; of a redrive, the dead letters that are left.

        Raises:
            LedgerError: a table cannot be written. Nothing is settled then: run the batch again.
        """
        if record.batch_id <= self.last_batch_id:
            raise LedgerError(f"batch {record.batch_id} cannot follow batch {self.last_batch_id} in {self.path}")
        with self.lock:
            self._settle(record, pending, dead)

    def _settle(self, record: BatchRecord, pending: pa.Table | None, dead: pa.Table | None) -> None:
        if pending is not None:
            effects.debug("write pending")
            self._pending.write(pending, record.batch_id, "overwrite")
        is_redrive = record.kind == REDRIVE
        if dead is not None and (dead.num_rows or is_redrive):
            effects.debug("write dead letters")
            self._dead_letters.write(dead, record.batch_id, "overwrite" if is_redrive else "append")
        row = asdict(record) | {
            "pending_version": self._pending.version,
            "dead_letters_version": self._dead_letters.version,
        }
        effects.debug("write batches")
        self._batches.write(pa.Table.from_pylist([row], schema=BATCHES), record.batch_id, "append")
        self.last = row
        self._sums.update({name: row[name] for name in COUNTED})
        self._settled[record.query_id, record.source_batch_id] = record.source_offsets
        if pending is not None:
            self._pending_rows = pending

    def is_run_settled(self) -> bool:
        """Tell whether the last run was interrupted after its source rows were settled, or has none of its own."""
        run = self.journal.open_run()
        return run is not None and (run.is_redrive or self.last_batch_id >= run.first_batch_id)

    def is_run_unsettled(self) -> bool:
        """Tell whether the last run was interrupted before its source rows were settled."""
        begun = self.begun
        is_begun = begun is not None and begun.kind == "source" and begun.query_id is None
        return is_begun or (self.journal.open_run() is not None and not self.is_run_settled())

    def mark(self, batch_id: int, pending: pa.Table) -> None:
        """Begin a settlement that Spark writes: what it appends is undone unless the batch is settled.

        Args:
            batch_id: the batch.
            pending: the trees that stay pending from before.
        """
        effects.debug("mark")
        self._pending.write(pending, batch_id, "overwrite")
        self._dead_letters.write(self._dead_letters.schema.empty_table(), batch_id, "append")

    def reload(self) -> None:
        """Read again what another writer of the same batch (Spark) has put into the tables."""
        self._pending.refresh()
        self._dead_letters.refresh()
        self._pending_rows = self._pending.read()

    def counts(self) -> Counts:
        """Add the ledger up."""
        with self.lock:
            return count_sums(self._sums, self._pending_rows, self._dead_letters.read(["error_class"]))

    def upkeep(self) -> None:
        """Keep every table small in files and versions, so that settling stays as fast as on the first day.

        Guarantee: each step is one commit that changes no answer, so a crash anywhere leaves nothing to mend. What
        older versions need is deleted after the last row of `batches` names the compacted ones.
        Cost: `batches` and `dead_letters` are rewritten; call it every hundred batches or so.
        """
        if self.last is None:
            return
        with self.lock:
            effects.debug("upkeep")
            pinned = {"pending_version": self._pending.compact(), "dead_letters_version": self._dead_letters.compact()}
            effects.debug("upkeep: rewrite batches")
            self.last |= pinned
            self._batches.write(_cleared(self._batches.read(), self.last), self.last_batch_id, "overwrite")
            effects.debug("upkeep: forget")
            self.journal.upkeep(self.last_batch_id)
            for table in (self._batches, self._dead_letters, self._pending):
                table.forget()


def _cleared(batches: pa.Table, last: dict[str, Any]) -> pa.Table:
    """The rows of `batches`, of which only the last one says what may still have to be committed."""
    before = batches.filter(pc.less(batches["batch_id"], last["batch_id"])).sort_by("batch_id")
    for name in ("sink_actions", "state_changes"):
        place, field = before.schema.get_field_index(name), before.schema.field(name)
        before = before.set_column(place, field, pa.nulls(before.num_rows, field.type))
    return pa.concat_tables([before, pa.Table.from_pylist([last], schema=before.schema)])


def _check_payload(pending: Table, payload: pa.DataType) -> None:
    wanted = DeltaSchema.from_arrow(pa.schema([("payload", payload)])).to_json()
    held = DeltaSchema.from_arrow(pa.schema([pending.schema.field("payload")])).to_json()
    if wanted != held:
        raise LedgerError(
            f"the ledger holds source rows of another schema ({pending.schema.field('payload').type}) "
            f"than this one ({payload}): use a ledger of its own for each source"
        )
