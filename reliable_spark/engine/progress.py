"""A progress bar of answered rows, where a person is watching."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm

from reliable_spark.engine.loop import Loop
from reliable_spark.ledger.ledger import BatchRecord


class Progress:
    """Shows on stderr, if that is a terminal, how many rows are acked, dead and pending.

    Args:
        loop: whose batches are counted.
        unit: what is counted.
    """

    def __init__(self, loop: Loop, unit: str) -> None:
        self._loop = loop
        self._bar = tqdm(unit=unit, disable=not sys.stderr.isatty(), dynamic_ncols=True)

    @classmethod
    def of(cls, loop: Loop, unit: str) -> Progress:
        """Follow a loop."""
        progress = cls(loop, unit)
        loop.on_settled = progress.settled
        return progress

    def settled(self, record: BatchRecord) -> None:
        """Take in one settled batch."""
        self._bar.update(record.acked + record.dead)
        self._bar.set_postfix(batch=record.batch_id, kind=record.kind, pending=self._loop.ledger.pending.num_rows)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()
