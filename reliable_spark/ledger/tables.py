"""One Delta table of the ledger through delta-rs: create, read, append, replace, restore; no JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final, Literal, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from reliable_spark.errors import LedgerError

_APPLICATION: Final = "reliable_spark"
RETENTION_HOURS: Final = 1
"""How long old versions stay for readers, before upkeep deletes what only they need."""

Mode = Literal["append", "overwrite"]


class Table(Protocol):
    """A table with one writer, which knows the batch that each of its versions belongs to."""

    @property
    def version(self) -> int:
        """The version that this handle reads."""
        ...

    @property
    def description(self) -> str:
        """The free text that was stored when the table was created."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The table's columns as Arrow has them."""
        ...

    def refresh(self) -> int:
        """Read the newest version and return its number."""
        ...

    def written_batch(self) -> int:
        """The last batch id that wrote to the version this handle reads; -1 when none did."""
        ...

    def read(self, columns: list[str] | None = None, version: int | None = None) -> pa.Table:
        """Read the table into memory: all columns, or some; this handle's version, or another."""
        ...

    def write(self, rows: pa.Table, batch_id: int, mode: Mode) -> int:
        """Append the rows, or replace all there are, in one commit that carries the batch id."""
        ...

    def restore(self, version: int) -> int:
        """Undo everything after a version, as one more commit, and return the version that now holds it."""
        ...

    def compact(self) -> int:
        """Make one file of many small ones, as one more version with the same rows, and return its number."""
        ...

    def forget(self) -> None:
        """Delete what only older versions need, when they are old enough."""
        ...


class Tables(Protocol):
    """Where the tables of one ledger are."""

    def exists(self, name: str) -> bool:
        """Whether there is such a table."""
        ...

    def create(self, schemas: Mapping[str, pa.Schema], description: str = "") -> None:
        """Create tables empty, unless they are there, in any order."""
        ...

    def open(self, *names: str) -> Sequence[Table]:
        """Open tables at their newest version."""
        ...


@contextmanager
def ledger_errors(doing: str, uri: str) -> Iterator[None]:
    """Turn what delta-rs and the file system raise into a LedgerError that names the table.

    Args:
        doing: what was tried, as a verb: "read", "write".
        uri: the table.
    """
    try:
        yield
    except CommitFailedError as error:
        raise LedgerError(
            f"another writer has changed the ledger table {uri}: two queries on one ledger would undo each other's "
            "work, so this one stops; what it had in hand is not settled"
        ) from error
    except (DeltaError, OSError, pa.ArrowException) as error:
        raise LedgerError(f"cannot {doing} the ledger table {uri}: {error}") from error


class LedgerTable:
    """A `Table` that is a Delta table.

    Guarantee: of two writers that read the same version only one can write the next, since both carry the
    same application's transaction.

    Args:
        uri: where the table lies.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        directory = local_directory(uri)
        # read by Arrow alone where it can: Python's part in it would race with the end of the interpreter
        self._files = SubTreeFileSystem(str(directory), LocalFileSystem()) if directory else None
        with ledger_errors("read", uri):
            self._table = DeltaTable(uri)

    @staticmethod
    def create(uri: str, schema: pa.Schema, description: str = "") -> None:
        """Create the table empty, unless it is there."""
        with ledger_errors("create", uri):
            DeltaTable.create(
                uri,
                schema,
                mode="ignore",
                name=PurePath(uri).name,
                description=description,
                configuration=_configuration(),
            )

    @property
    def version(self) -> int:
        """The version that this handle reads."""
        return self._table.version()

    @property
    def description(self) -> str:
        """The free text that was stored when the table was created."""
        return self._table.metadata().description or ""

    @property
    def schema(self) -> pa.Schema:
        """The table's columns as Arrow has them."""
        return pa.schema(self._table.schema().to_arrow())

    def refresh(self) -> int:
        """Read the newest version and return its number."""
        with ledger_errors("read", self.uri):
            self._table.update_incremental()
        return self._table.version()

    def written_batch(self) -> int:
        """The last batch id that wrote to the version this handle reads; -1 when none did."""
        version = self._table.transaction_version(_APPLICATION)
        return -1 if version is None else version

    def read(self, columns: list[str] | None = None, version: int | None = None) -> pa.Table:
        """Read the table into memory.

        Args:
            columns: the columns wanted; all when None.
            version: the version wanted; the handle's own when None.

        Raises:
            LedgerError: the table or that version of it cannot be read.
        """
        with ledger_errors("read", self.uri):
            table = self._table if version in (None, self.version) else DeltaTable(self.uri, version=version)
            return table.to_pyarrow_table(columns=columns, filesystem=self._files)

    def write(self, rows: pa.Table, batch_id: int, mode: Mode) -> int:
        """Append the rows, or replace all there are by them, in one commit that carries the batch id.

        Returns:
            The version written. Cost: 4 to 15 ms for a few hundred rows.
        """
        properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, batch_id)])
        with ledger_errors("write", self.uri):
            write_deltalake(self._table, rows.cast(self.schema), mode=mode, commit_properties=properties)
        return self.version

    def restore(self, version: int) -> int:
        """Undo everything after a version, as one more commit, and return the version that now holds it."""
        with ledger_errors("restore", self.uri):
            self._table.restore(version)
        return self.refresh()

    def compact(self) -> int:
        """Make one file of many small ones, as one more version with the same rows, and return its number."""
        with ledger_errors("compact", self.uri):
            if len(self._table.file_uris()) > 1:
                self._table.optimize.compact()
        return self.version

    def forget(self) -> None:
        """Delete what only versions older than `RETENTION_HOURS` need; this handle's version stays readable.

        Cost: the directory is listed.
        """
        with ledger_errors("vacuum", self.uri):
            self._table.create_checkpoint()
            self._table.vacuum(RETENTION_HOURS, enforce_retention_duration=False, dry_run=False, full=True)
            self._table.cleanup_metadata()


_MISREAD: Final = re.compile(r"[\[\]\\]|%[0-9A-Fa-f]{2}")


class DeltaTables:
    """The Delta tables below one directory or URI.

    Raises:
        LedgerError: delta-rs would panic at the path, or read it as another one.
    """

    def __init__(self, path: str) -> None:
        misread = _MISREAD.search(path) if "://" not in path else None
        if misread:
            raise LedgerError(
                f"the ledger's path {path} has {misread.group()!r} in it, which delta-rs reads as something else: "
                "choose a path without brackets, backslashes and percent signs before two hexadecimal digits"
            )
        self._path = path

    def exists(self, name: str) -> bool:
        """Whether there is such a table.

        Raises:
            LedgerError: the place cannot be read.
        """
        with ledger_errors("read", self._uri(name)):
            return DeltaTable.is_deltatable(self._uri(name))

    def create(self, schemas: Mapping[str, pa.Schema], description: str = "") -> None:
        """Create tables empty, side by side, unless they are there.

        Raises:
            LedgerError: the place cannot be written.
        """
        with ThreadPoolExecutor(len(schemas)) as pool:
            list(pool.map(lambda name: LedgerTable.create(self._uri(name), schemas[name], description), schemas))

    def open(self, *names: str) -> list[LedgerTable]:
        """Open tables at their newest version, side by side.

        Raises:
            LedgerError: there is none, or it cannot be read.
        """
        with ThreadPoolExecutor(len(names)) as pool:
            return list(pool.map(LedgerTable, map(self._uri, names)))

    def _uri(self, name: str) -> str:
        return table_uri(self._path, name)


def _configuration() -> dict[str, str]:
    """Old versions go soon, and only in upkeep: a version that a settlement may have to restore must not expire."""
    retention = f"interval {RETENTION_HOURS} hours"
    return {
        "delta.logRetentionDuration": retention,
        "delta.deletedFileRetentionDuration": retention,
        "delta.enableExpiredLogCleanup": "false",
    }


def local_directory(path: str) -> Path | None:
    """The directory that a path or a file URI means; None for other URIs."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(path).absolute()


def table_uri(path: str, name: str) -> str:
    """Where a table of the ledger lies."""
    return f"{path.rstrip('/')}/{name}"
