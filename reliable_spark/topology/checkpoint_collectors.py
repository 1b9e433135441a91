"""The collectors of bolts in a stateful topology: one insists on anchors, one holds acks back until the commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.errors import UsageError
from reliable_spark.topology.bolts import Anchors, OutputCollector
from reliable_spark.topology.tuples import UNTRACKED, Tuple

_NOT_GIVEN: Final = "not given"


class AnchoringCollector:
    """What user bolts of a stateful topology emit through: who gives no anchors is told so.

    An explicit None is taken at its word. A tuple emitted without anchors would be lost, unnoticed, on a rollback.
    """

    def __init__(self, collector: OutputCollector) -> None:
        self._collector = collector

    def emit(
        self,
        values: Sequence[Any],
        anchors: Anchors | Literal["not given"] = _NOT_GIVEN,
        stream: str = DEFAULT_STREAM,
    ) -> list[int]:
        """Send a tuple; see `OutputCollector.emit`."""
        return self._collector.emit(values, _given(anchors), stream)

    def emit_direct(
        self,
        task: int,
        values: Sequence[Any],
        anchors: Anchors | Literal["not given"] = _NOT_GIVEN,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Send a tuple to one task; see `OutputCollector.emit_direct`."""
        self._collector.emit_direct(task, values, _given(anchors), stream)

    def ack(self, input: Tuple) -> None:
        """Say that the bolt is done with a tuple."""
        self._collector.ack(input)

    def fail(self, input: Tuple) -> None:
        """Fail every tree the tuple belongs to, at once."""
        self._collector.fail(input)

    def reset_timeout(self, input: Tuple) -> None:
        """Let the timeouts begin anew."""
        self._collector.reset_timeout(input)

    def report_error(self, error: BaseException) -> None:
        """Show an error to whoever watches the topology."""
        self._collector.report_error(error)


class HoldingCollector(AnchoringCollector):
    """Holds acks back until the state they depend on is committed.

    Source: Storm's `StatefulBoltExecutor.AckTrackingOutputCollector`.
    """

    def __init__(self, collector: OutputCollector) -> None:
        super().__init__(collector)
        self._acked: list[Tuple] = []
        self._prepared: list[Tuple] = []

    def ack(self, input: Tuple) -> None:
        """Ack it with the next commit."""
        self._acked.append(input)

    def prepare(self) -> None:
        """What was acked so far belongs to the transaction that is prepared."""
        self._prepared += self._acked
        self._acked = []

    def commit(self) -> None:
        """Let the prepared acks go. What is emitted later, for a window that goes on, is anchored to none of them."""
        for each in self._prepared:
            self._collector.ack(each)
            each.edges = UNTRACKED
        self._prepared = []

    def rollback(self) -> None:
        """Fail all that was acked and is not committed."""
        for each in (*self._prepared, *self._acked):
            self._collector.fail(each)
        self._prepared, self._acked = [], []


def _given(anchors: Anchors | Literal["not given"]) -> Anchors:
    if anchors == _NOT_GIVEN:
        raise UsageError("in a topology with stateful bolts every emit says what it is anchored to: pass anchors")
    return anchors
