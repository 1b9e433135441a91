"""A person's word that the sink may stay as it is, although it was restored to an older state."""

from __future__ import annotations

import json
from datetime import datetime

from deltalake import DeltaTable

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.identity import check_version
from reliable_spark.ledger.journal import Journal
from reliable_spark.ledger.lock import WriterLock
from reliable_spark.ledger.tables import DeltaTables, ledger_errors


def accept_restore(path: str, now: datetime) -> int:
    """Write into a ledger that its sink may have been restored, up to the version it has now.

    What the sink lost by that stays counted as acked; the next start goes on after it.

    Args:
        path: the ledger's directory or URI; no query may be using it.
        now: the time.

    Returns:
        The accepted version of the sink.

    Raises:
        LedgerError: there is no ledger, it is in use, or its sink is no Delta table.
    """
    tables = DeltaTables(path)
    if not tables.exists("batches"):
        raise LedgerError(f"there is no ledger at {path}")
    lock = WriterLock(path)
    try:
        batches, rows = tables.open("batches", "journal")
        check_version(batches)
        journal = Journal(rows)
        sink = json.loads(journal.sink) if journal.sink else {}
        if "delta" not in sink:
            raise LedgerError(f"the ledger {path} has no Delta table as its sink, so nothing can have been restored")
        with ledger_errors("read", sink["delta"]):
            version = int(DeltaTable(sink["delta"]).version())
        last = max(batches.read(["batch_id"])["batch_id"].to_pylist(), default=-1)
        journal.accept_restore(last, version, now)
        return version
    finally:
        lock.release()
