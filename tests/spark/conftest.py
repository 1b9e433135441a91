"""What the Spark tests share: running a frame on a clock that never waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark.ledger.audit import audit
from tests.spark.running import Ran, Rows, Runner


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    """Run a frame to its end; whatever happens in it, its ledger has to balance."""

    def runner(frame: rs.AnchoredFrame, **settings: Any) -> Ran:
        rows, ledger = Rows(), str(tmp_path / "ledger")
        chosen = rs.Settings(**settings) if settings else None
        outcome = frame.run(rows, ledger=ledger, settings=chosen, clock=rs.ManualClock())
        assert outcome.balanced, str(outcome)
        assert outcome.pending == 0
        counts = audit(ledger)
        assert all(getattr(outcome, name) == getattr(counts, name) for name in vars(counts))
        assert outcome.emitted == len(rows.all)
        return Ran(outcome, rows, ledger)

    return runner
