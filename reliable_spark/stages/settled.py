"""What a ledger has settled so far, read from its tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_spark.ledger.ledger import Ledger
from reliable_spark.ledger.tables import LedgerTable


def history(ledger: Ledger, columns: list[str]) -> list[dict[str, Any]]:
    """These columns of all settled batches, in order."""
    rows: pa.Table = LedgerTable(ledger.uri_of("batches")).read(["batch_id", *columns])
    settled: list[dict[str, Any]] = rows.sort_by("batch_id").to_pylist()
    return settled


def dead_of(ledger: Ledger, batch_id: int) -> list[dict[str, Any]]:
    """The dead letters of one settled batch."""
    rows = LedgerTable(ledger.uri_of("dead_letters")).read()
    dead: list[dict[str, Any]] = rows.filter(pc.equal(rows["batch_id"], batch_id)).to_pylist()
    return dead
