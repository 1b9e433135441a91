"""Read a ledger without Spark and without a JVM: does it balance, and what is dead?"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.counts import COUNTED, Counts, count
from reliable_spark.ledger.identity import check_version
from reliable_spark.ledger.tables import DeltaTables, LedgerTable, table_uri

_VERSIONS = ["batch_id", "pending_version", "dead_letters_version"]


def audit(path: str) -> Counts:
    """Count a ledger from its tables as they are now.

    A table that a crashed or running settlement has already written to is read at the version that the
    last settled batch recorded; otherwise as it is, so rows that were removed or added by hand show.

    Args:
        path: the ledger's directory or URI.

    Raises:
        LedgerError: there is no ledger, it cannot be read, or a newer version of the library wrote it.
    """
    rows = _batches(path, COUNTED)
    pending, dead = (_settled(path, name, rows, ["error_class"]) for name in ("pending", "dead_letters"))
    return count(rows, pending, dead)


def dead_letters(path: str, limit: int = 0) -> list[dict[str, Any]]:
    """The dead letters of a ledger with all their columns, those that died last first.

    Args:
        path: the ledger's directory or URI.
        limit: how many at most; 0 means all.

    Raises:
        LedgerError: as `audit`.
    """
    rows = _settled(path, "dead_letters", _batches(path)).sort_by(
        [("died_at", "descending"), ("message_id", "ascending")]
    )
    letters: list[dict[str, Any]] = rows.slice(0, limit or None).to_pylist()
    return letters


def _batches(path: str, columns: tuple[str, ...] = ()) -> pa.Table:
    """Some columns of `batches`, in order."""
    if not DeltaTables(path).exists("batches"):
        raise LedgerError(f"there is no ledger at {path}")
    batches = LedgerTable(table_uri(path, "batches"))
    check_version(batches)
    return batches.read([*_VERSIONS, *columns]).sort_by("batch_id")


def _settled(path: str, name: str, batches: pa.Table, columns: list[str] | None = None) -> pa.Table:
    """The rows of a table of trees, without those of a settlement that is under way."""
    table = LedgerTable(table_uri(path, name))
    last = batches.slice(batches.num_rows - 1).to_pylist()[0] if batches.num_rows else None
    settled, version = (last["batch_id"], last[f"{name}_version"]) if last else (-1, 0)
    return table.read(columns, version if table.written_batch() > settled else None)
