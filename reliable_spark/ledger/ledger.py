"""The ledger as its one writer sees it: open, settle, and what is pending."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.counts import Counts, count
from reliable_spark.ledger.schema import (
    BATCHES,
    LEDGER_VERSION,
    RUNS,
    dead_letters_schema,
    pending_schema,
)
from reliable_spark.ledger.tables import LedgerTable, ledger_errors


def table_uri(path: str, name: str) -> str:
    """Where a table of the ledger lies."""
    return f"{path.rstrip('/')}/{name}"


def check_version(batches: LedgerTable) -> dict[str, str]:
    """Read who wrote a ledger, and refuse one that this version of the library might misread.

    Raises:
        LedgerError: the directory holds no ledger of ours, or one of a newer version.
    """
    try:
        identity: dict[str, str] = json.loads(batches.description)
        version = int(identity["ledger_version"])
    except (ValueError, KeyError) as error:
        raise LedgerError(f"{batches.uri} is a Delta table, but not a reliable_spark ledger") from error
    if version > LEDGER_VERSION:
        raise LedgerError(
            f"{batches.uri} was written by a newer reliable_spark (ledger version {version}, "
            f"this one reads up to {LEDGER_VERSION}): upgrade the library"
        )
    return identity


@dataclass(frozen=True)
class BatchRecord:
    """The row that settles a batch; its names are the columns of `batches`."""

    batch_id: int
    kind: str
    begun_at: datetime
    settled_at: datetime
    query_id: str | None = None
    source_batch_id: int | None = None
    anchored: int = 0
    replayed: int = 0
    acked: int = 0
    failed: int = 0
    lost: int = 0
    held: int = 0
    timed_out: int = 0
    dead: int = 0
    emitted: int = 0
    duplicates: int = 0
    checksum_ok: bool = True
    sink_actions: tuple[str, ...] = ()


class Ledger:
    """A ledger that is open for writing. One writer at a time.

    Guarantee: `settle` is atomic although it writes three tables. The row of `batches` comes last and
    names the versions of the others that belong to it; `open` undoes what came after them.
    """

    def __init__(self, path: str, batches: LedgerTable) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._batches = batches
        self._pending, self._dead_letters, self._runs = (
            LedgerTable(table_uri(path, name)) for name in ("pending", "dead_letters", "runs")
        )
        self.ledger_id = check_version(batches)["ledger_id"]
        self._rows = batches.read().sort_by("batch_id")
        keys = self._rows.select(["query_id", "source_batch_id"])
        self._settled = {(row["query_id"], row["source_batch_id"]) for row in keys.to_pylist()}
        self._recover()
        self._pending_rows = self._pending.read()

    @classmethod
    def open(cls, path: str, payload: pa.DataType) -> Ledger:
        """Open a ledger for writing, create it where there is none, and undo what was never settled.

        Args:
            path: a directory or URI.
            payload: the struct type of the source row, as the ledger stores it.

        Raises:
            LedgerError: it cannot be written, is of a newer version, or holds rows of another schema.
        """
        path = str(path)
        identity = json.dumps({"ledger_version": LEDGER_VERSION, "ledger_id": uuid.uuid4().hex})
        # batches comes last: where it exists the others do
        if not _exists(table_uri(path, "batches")):
            LedgerTable.create(table_uri(path, "pending"), pending_schema(payload))
            LedgerTable.create(table_uri(path, "dead_letters"), dead_letters_schema(payload))
            LedgerTable.create(table_uri(path, "runs"), RUNS)
            LedgerTable.create(table_uri(path, "batches"), BATCHES, identity)
        batches = LedgerTable(table_uri(path, "batches"))
        check_version(batches)
        _check_payload(LedgerTable(table_uri(path, "pending")), payload)
        return cls(path, batches)

    def _recover(self) -> None:
        for table, column in (
            (self._pending, "pending_version"),
            (self._dead_letters, "dead_letters_version"),
        ):
            settled = self._last(column)
            if table.version > (settled or 0) and table.written_batch() > self.last_batch_id:
                table.restore(settled or 0)

    def _last(self, column: str) -> int | None:
        value: int | None = self._rows[column][-1].as_py() if self._rows.num_rows else None
        return value

    @property
    def last_batch_id(self) -> int:
        """The id of the last settled batch; -1 when none is."""
        last = self._last("batch_id")
        return -1 if last is None else last

    @property
    def last_sink_actions(self) -> tuple[str, ...]:
        """The files that the last settled batch wrote for a Delta sink."""
        return tuple(self._rows["sink_actions"][-1].as_py() or ()) if self._rows.num_rows else ()

    @property
    def pending(self) -> pa.Table:
        """All pending trees, as of the last settled batch."""
        return self._pending_rows

    def version_of(self, name: str) -> int:
        """The version of `pending` or `dead_letters` that belongs to the last settled batch."""
        return (self._pending if name == "pending" else self._dead_letters).version

    def uri_of(self, name: str) -> str:
        """Where a table of this ledger lies."""
        return table_uri(self.path, name)

    def is_settled(self, query_id: str, source_batch_id: int) -> bool:
        """Tell whether a source batch of a streaming query was settled, so that it is never run twice."""
        return (query_id, source_batch_id) in self._settled

    def settle(self, record: BatchRecord, pending: pa.Table | None = None, dead: pa.Table | None = None) -> None:
        """Settle a batch: the pending trees from now on, its dead letters, and its counts, as one.

        Args:
            record: the counts; `batch_id` must follow the last settled one.
            pending: all trees that are pending after this batch; None leaves them as they are.
            dead: the trees that died in this batch.

        Raises:
            LedgerError: a table cannot be written. Nothing is settled then: run the batch again.
        """
        if record.batch_id != self.last_batch_id + 1:
            raise LedgerError(f"batch {record.batch_id} cannot follow batch {self.last_batch_id} in {self.path}")
        with self.lock:
            self._settle(record, pending, dead)

    def _settle(self, record: BatchRecord, pending: pa.Table | None, dead: pa.Table | None) -> None:
        if pending is not None:
            self._pending.write(pending, record.batch_id, "overwrite")
        if dead is not None and dead.num_rows:
            self._dead_letters.write(dead, record.batch_id, "append")
        row = asdict(record) | {
            "pending_version": self._pending.version,
            "dead_letters_version": self._dead_letters.version,
            "sink_actions": list(record.sink_actions),
        }
        rows = pa.Table.from_pylist([row], schema=BATCHES)
        self._batches.write(rows, record.batch_id, "append")
        self._rows = pa.concat_tables([self._rows, rows.cast(self._rows.schema)])
        self._settled.add((record.query_id, record.source_batch_id))
        if pending is not None:
            self._pending_rows = pending

    def begin_run(self, now: datetime) -> None:
        """Write down that a run over static rows begins, so that a later one knows whether it ended."""
        self._write_run("begun", now)

    def end_run(self, now: datetime) -> None:
        """Write down that the run has nothing pending: the next one starts anew."""
        self._write_run("ended", now)

    def is_run_settled(self) -> bool:
        """Tell whether the last run was interrupted after its source rows were settled."""
        runs = self._runs.read()
        if not runs.num_rows:
            return False
        last = max(runs.to_pylist(), key=lambda run: (run["batch_id"], run["at"], run["state"] == "ended"))
        return bool(last["state"] == "begun" and self.last_batch_id >= last["batch_id"])

    def _write_run(self, state: str, now: datetime) -> None:
        next_batch_id = self.last_batch_id + 1
        row = {"batch_id": next_batch_id, "state": state, "at": now}
        self._runs.write(pa.Table.from_pylist([row], schema=RUNS), next_batch_id, "append")

    def mark(self, batch_id: int, pending: pa.Table) -> None:
        """Begin a settlement that Spark writes: what it appends is undone unless the batch is settled.

        Args:
            batch_id: the batch.
            pending: the trees that stay pending from before.
        """
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
            return count(self._rows, self._pending_rows, self._dead_letters.read(["error_class"]))


def _exists(uri: str) -> bool:
    with ledger_errors("read", uri):
        return DeltaTable.is_deltatable(uri)


def _check_payload(pending: LedgerTable, payload: pa.DataType) -> None:
    wanted = DeltaSchema.from_arrow(pa.schema([("payload", payload)])).to_json()
    held = DeltaSchema.from_arrow(pa.schema([pending.schema.field("payload")])).to_json()
    if wanted != held:
        raise LedgerError(
            f"{pending.uri} holds source rows of another schema ({pending.schema.field('payload').type}) "
            f"than this one ({payload}): use a ledger of its own for each source"
        )
