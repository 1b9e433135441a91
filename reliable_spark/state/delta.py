"""States kept in Delta tables, one per bolt, written by delta-rs: no JVM, and any Delta reader reads them.

A table is a journal: each step of a transaction appends its rows in one commit, and a task finds its state by
folding its own rows in their order. Now and then a task's rows are replaced by what they fold to.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from reliable_spark.errors import StateError
from reliable_spark.ledger.tables import table_uri
from reliable_spark.state.layers import Changes, LayeredState, Stored, folded
from reliable_spark.state.serializers import JsonSerializer, Serializer

COMPACT_EVERY: Final = 64
"""After how many steps a task's rows are replaced by what they fold to."""

WRITE_TRIES: Final = 10
"""How often a step is written again because a compaction came in between."""

RETENTION_HOURS: Final = 1
"""How long old versions stay for readers."""

_CONFIGURATION: Final = {
    "delta.logRetentionDuration": f"interval {RETENTION_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_HOURS} hours",
}
_PREPARE, _COMMIT, _ROLLBACK = "prepare", "commit", "rollback"
SCHEMA: Final = pa.schema(
    [
        pa.field("namespace", pa.string(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("txid", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""A prepare has one row per changed key (no value: deleted) and one without a key; other steps have one row."""

_open: dict[tuple[int, str, str], DeltaStore] = {}
"""The stores that came from other processes, of which a worker of Spark has many tasks' in turn."""


class Folded(NamedTuple):
    """What a journal says so far."""

    pairs: Mapping[bytes, bytes]
    stored: Stored


def fold(before: Folded, action: str, txid: int | None, changes: Changes) -> Folded:
    """Take one step. Each replaces what it says, so that taking it twice is taking it once."""
    pairs, stored = before
    if action == _PREPARE:
        return Folded(pairs, Stored(stored.committed, txid, changes))
    if action == _COMMIT:
        return Folded(folded(pairs, stored.changes), Stored(txid))
    return Folded(pairs, Stored(stored.committed))


@contextmanager
def delta_errors(doing: str, uri: str) -> Iterator[None]:
    """Turn what delta-rs and the file system raise into a StateError that names the table."""
    try:
        yield
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise StateError(f"cannot {doing} the state table {uri}: {error}") from error


class DeltaStore:
    """One namespace in a table. Its task is the only one to append its rows; the pairs are held in memory too.

    Args:
        uri: the bolt's table.
        namespace: whose rows.
    """

    def __init__(self, uri: str, namespace: str) -> None:
        self._uri = uri
        self._namespace = namespace
        with delta_errors("create", uri):
            DeltaTable.create(uri, SCHEMA, mode="ignore", partition_by=["namespace"], configuration=_CONFIGURATION)
            self._table = DeltaTable(uri)
        self._folded, self._first, self._steps = self._read()

    def __reduce__(self) -> tuple[Any, ...]:
        return _store, (self._uri, self._namespace)

    def catch_up(self) -> None:
        """Read the rows again if another process has written any. Cost: a look at the log if none has."""
        if self._newest_step() != self._steps:
            self._folded, self._first, self._steps = self._read()

    def load(self) -> Stored:
        """What is prepared, and both txids."""
        return self._folded.stored

    def get(self, key: bytes) -> bytes | None:
        """A committed value."""
        return self._folded.pairs.get(key)

    def scan(self) -> Iterable[tuple[bytes, bytes]]:
        """The committed pairs."""
        return list(self._folded.pairs.items())

    def prepare(self, txid: int, changes: Changes) -> None:
        """Replace whatever was prepared."""
        self._append(_PREPARE, txid, changes)

    def commit(self, txid: int) -> None:
        """Fold what is prepared; the rows stay where they are."""
        self._append(_COMMIT, txid, {})
        if self._steps - self._first >= COMPACT_EVERY:
            self._compact()

    def rollback(self) -> None:
        """Drop what is prepared, if anything is."""
        if self._folded.stored.prepared is not None:
            self._append(_ROLLBACK, None, {})

    def _append(self, action: str, txid: int | None, changes: Changes) -> None:
        """Write one step. A compaction of another task's rows may be in the way, as often as there are such tasks."""
        step = self._steps + 1
        rows = _rows(self._namespace, step, action, txid, changes)
        for tries_left in reversed(range(WRITE_TRIES)):
            try:
                self._write(rows, step)
                break
            except StateError as error:
                if not (tries_left and isinstance(error.__cause__, CommitFailedError)):
                    raise
        self._steps = step
        self._folded = fold(self._folded, action, txid, changes)

    def _newest_step(self) -> int:
        """The namespace's last step, whoever took it."""
        with delta_errors("read", self._uri):
            self._table.update_incremental()
            return self._table.transaction_version(self._namespace) or 0

    def _compact(self) -> None:
        """Replace the rows by one commit of all pairs. Whoever is in the way wins: the next commit tries again."""
        txid, step = self._folded.stored.committed, self._steps + 1
        rows = _rows(self._namespace, step, _PREPARE, txid, self._folded.pairs)
        commit = _rows(self._namespace, step + 1, _COMMIT, txid, {})
        try:
            self._write(pa.concat_tables([rows, commit]), step + 1, is_replacing=True)
        except StateError as error:
            if isinstance(error.__cause__, CommitFailedError):
                return
            raise
        self._first, self._steps = step, step + 1
        with delta_errors("vacuum", self._uri):
            self._table.create_checkpoint()
            self._table.vacuum(RETENTION_HOURS, dry_run=False, enforce_retention_duration=False)
            self._table.cleanup_metadata()

    def _write(self, rows: pa.Table, step: int, is_replacing: bool = False) -> None:
        """One commit, with the step as the namespace's transaction: a task that was replaced cannot write any more."""
        if self._newest_step() != self._steps:
            raise StateError(
                f"state {self._namespace!r}: another task has written to it since, and goes on in its place"
            )
        properties = CommitProperties(app_transactions=[Transaction(self._namespace, step)])
        predicate = f"namespace = {_quoted(self._namespace)}" if is_replacing else None
        with delta_errors("write", self._uri):
            if predicate is None:
                write_deltalake(self._table, rows, mode="append", commit_properties=properties)
            else:
                write_deltalake(self._table, rows, mode="overwrite", predicate=predicate, commit_properties=properties)

    def _read(self) -> tuple[Folded, int, int]:
        """What the rows fold to, and the first and the last step they are of."""
        with delta_errors("read", self._uri):
            rows = self._table.to_pyarrow_table(filters=[("namespace", "=", self._namespace)]).to_pylist()
        steps: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            steps[row["step"]].append(row)
        folded_so_far = Folded({}, Stored())
        for _, each in sorted(steps.items()):
            changes = {row["key"]: row["value"] for row in each if row["key"] is not None}
            folded_so_far = fold(folded_so_far, each[0]["action"], each[0]["txid"], changes)
        return folded_so_far, min(steps, default=0), max(steps, default=0)


def _store(uri: str, namespace: str) -> DeltaStore:
    """A store that came from another process, as it is now; this one keeps it open."""
    known = (os.getpid(), uri, namespace)
    store = _open.get(known)
    if store is None:
        store = _open[known] = DeltaStore(uri, namespace)
    else:
        store.catch_up()
    return store


class DeltaStateProvider:
    """Keeps states in Delta tables, one per bolt, and outlives the process. A task's state has to fit its memory.

    Args:
        path: the directory or URI that the tables lie below.
        serializer: how keys and values are stored.
    """

    def __init__(self, path: str, serializer: Serializer | None = None) -> None:
        self._path = str(path)
        self._serializer = serializer or JsonSerializer()

    def state(self, namespace: str) -> LayeredState[Any, Any]:
        """The state of a namespace as it was prepared and committed last.

        Raises:
            StateError: the table cannot be read.
        """
        bolt, _, _ = namespace.rpartition("-")
        store = DeltaStore(table_uri(self._path, table_name(bolt or namespace)), namespace)
        return LayeredState(namespace, store, self._serializer, self._serializer)


def _rows(namespace: str, step: int, action: str, txid: int | None, changes: Changes) -> pa.Table:
    """The rows of one step; the one without a key is there even if nothing changed."""
    keys: list[bytes | None] = [None, *changes]
    count = len(keys)
    columns: list[list[Any]] = [
        [namespace] * count,
        [step] * count,
        [action] * count,
        [txid] * count,
        keys,
        [None, *changes.values()],
    ]
    return pa.table(columns, schema=SCHEMA)


def table_name(bolt: str) -> str:
    """The bolt's id where a directory can have it as its name, else with codes for what it cannot have."""
    return re.sub(r"[^A-Za-z0-9_$.-]", lambda found: f"~{ord(found[0]):x}~", bolt)


def _quoted(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"'{escaped}'"
