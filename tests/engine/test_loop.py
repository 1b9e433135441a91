"""What the loop tells its query: when the source has to wait."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa

import reliable_spark as rs
from reliable_spark.engine.loop import Loop
from reliable_spark.ledger.journal import Begun
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.ledger.schema import pending_schema

PAYLOAD = pa.struct([("id", pa.int64())])
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def with_pending(path: Path, trees: int) -> Ledger:
    """A ledger with failed trees that wait for their next attempt."""
    ledger = Ledger.open(str(path / "ledger"), PAYLOAD)
    rows = [{"anchor": number, "status": "failed", "due_at": NOW} for number in range(trees)]
    pending = pa.Table.from_pylist(rows, schema=pending_schema(PAYLOAD))
    ledger.settle(BatchRecord(0, "source", NOW, NOW, anchored=trees, failed=trees), pending)
    return ledger


def test_a_batch_that_was_begun_does_not_wait_for_room(tmp_path: Path) -> None:
    """Replays wait for it, so it would wait for ever: after a crash, and a restart with a smaller `max_pending`."""
    ledger, nothing = with_pending(tmp_path, 2), Any
    loop = Loop(nothing, ledger, nothing, rs.Settings(max_pending=2), rs.ManualClock())  # type: ignore[arg-type]
    assert loop.is_full()
    ledger.journal.begin(Begun(1, "source", "query", 1), NOW)
    assert not loop.is_full()
