"""Read a ledger without Spark and without a JVM, and say whether it balances."""

from __future__ import annotations

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.counts import COUNTED, Counts, count
from reliable_spark.ledger.identity import check_version
from reliable_spark.ledger.tables import DeltaTables, LedgerTable, table_uri


def audit(path: str) -> Counts:
    """Count a ledger from its tables as they are now.

    A table that a crashed or running settlement has already written to is read at the version that the
    last settled batch recorded; otherwise as it is, so rows that were removed or added by hand show.

    Args:
        path: the ledger's directory or URI.

    Raises:
        LedgerError: there is no ledger, it cannot be read, or a newer version of the library wrote it.
    """
    if not DeltaTables(path).exists("batches"):
        raise LedgerError(f"there is no ledger at {path}")
    batches = LedgerTable(table_uri(path, "batches"))
    check_version(batches)
    columns = ["batch_id", "pending_version", "dead_letters_version", *COUNTED]
    rows = batches.read(columns).sort_by("batch_id")
    last = rows.slice(rows.num_rows - 1).to_pylist()[0] if rows.num_rows else None
    trees = {}
    for name in ("pending", "dead_letters"):
        table = LedgerTable(table_uri(path, name))
        settled, version = (last["batch_id"], last[f"{name}_version"]) if last else (-1, 0)
        unsettled = table.written_batch() > settled
        trees[name] = table.read(["error_class"], version if unsettled else None)
    return count(rows, trees["pending"], trees["dead_letters"])
