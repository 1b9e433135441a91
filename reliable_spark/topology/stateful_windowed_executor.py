"""Runs a windowed bolt whose windows are a state. Source: Storm's `topology/PersistentWindowedBoltExecutor`.

A tuple that is held has a key of its own in the windows' state, its number; one more key has what the windows know
beside their tuples. What came and left between two checkpoints is never written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from reliable_spark.core.graph import WINDOWS
from reliable_spark.errors import TopologyError, UnstorableError, UsageError
from reliable_spark.state.base import KeyValueState, State, StateProvider
from reliable_spark.topology.bolts import OutputCollector
from reliable_spark.topology.checkpoint_spout import PROVIDER_KEY
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.stateful import StatefulBolt
from reliable_spark.topology.stateful_windowed import StatefulWindowedBolt
from reliable_spark.topology.tuples import UNTRACKED, Tuple
from reliable_spark.topology.windowed import Count, Windowing
from reliable_spark.topology.windowed_executor import WindowedBoltExecutor

_MARKS: Final = "marks"


class Marks(NamedTuple):
    """What is stored beside the tuples.

    Attributes:
        kind: what the windows go by.
        numbered: how many tuples have entered so far.
        began_s: the time of day that arrivals are counted from.
        latest_s: the time of the last arrival or tick, counted from there.
        progress: the windows' own.
        watermarks: how far event time had come.
    """

    kind: str
    numbered: int
    began_s: float
    latest_s: float
    progress: Any
    watermarks: Any


class StatefulWindowedBoltExecutor(WindowedBoltExecutor, StatefulBolt[State]):
    """A stateful bolt that keeps a windowed one's tuples: puts them when they enter, deletes them when they leave.

    It runs in a `StatefulBoltExecutor`, which has the bolt's own state and holds acks back. The windows' state is
    prepared before that one, committed before it and rolled back before it, under the same transaction.

    Args:
        bolt: the user's.
    """

    bolt: StatefulWindowedBolt[Any]

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Find the windows' state, check the windows, and prepare the user's bolt.

        Raises:
            TopologyError: there is no length, or the provider's states have no keys.
        """
        provider: StateProvider = configuration[PROVIDER_KEY]
        self._component = context.component
        self._kept = cast(
            "KeyValueState[str, Any]", provider.state(f"{WINDOWS}{context.component}-{context.task_index}")
        )
        if not (hasattr(self._kept, "put") and hasattr(self._kept, "delete") and hasattr(self._kept, "__iter__")):
            raise TopologyError(
                f"bolt {self._component!r} keeps its windows in a KeyValueState, which the state provider does not give"
            )
        super().prepare(configuration, context, collector)

    def init_state(self, state: State) -> None:
        """Open the windows as they were committed last, then let the user's bolt have its own state."""
        self._load()
        self.bolt.init_state(state)

    def pre_prepare(self, txid: int) -> None:
        """Prepare the windows."""
        self.bolt.pre_prepare(txid)
        self._write()
        self._kept.prepare_commit(txid)

    def pre_commit(self, txid: int) -> None:
        """Commit the windows."""
        self.bolt.pre_commit(txid)
        self._kept.commit(txid)

    def pre_rollback(self) -> None:
        """Open the windows as they were committed last."""
        self.bolt.pre_rollback()
        self._kept.rollback()
        self._load()

    # ------------------------------------------------------------------------------------------- for the base

    def _check_limits(self, component: str, configuration: Mapping[str, Any]) -> None:
        """None: no tuple is pending for as long as it is in a window."""

    def _open_windows(self) -> None:
        super()._open_windows()
        self._windows = self._counted or self._timed
        self._numbers: dict[Tuple, int] = {}
        self._entering: dict[int, tuple[Tuple, float]] = {}
        self._leaving: list[int] = []
        self._numbered, self._latest_s = 0, 0.0
        self._written: Marks | None = None

    def _entered(self, input: Tuple, at: float) -> None:
        self._numbered += 1
        self._numbers[input] = self._numbered
        self._entering[self._numbered] = (input, at)
        self._collector.ack(input)  # it goes out with the commit that holds the tuple

    def _left(self, input: Tuple) -> None:
        number = self._numbers.pop(input)
        if self._entering.pop(number, None) is None:
            self._leaving.append(number)

    def _anchors(self, items: Sequence[Tuple]) -> Sequence[Tuple]:
        return [each for each in items if each.edges]  # so that an emit costs nothing for what is acked

    def _now_s(self) -> float:
        self._latest_s = super()._now_s()
        return self._latest_s

    # ------------------------------------------------------------------------------------------- the state

    def _write(self) -> None:
        """Put what changed since the last time into the state."""
        for number, (input, at) in self._entering.items():
            origin = input.source_component, input.source_stream, input.source_task
            try:
                self._kept.put(str(number), (at, list(input.values), tuple(input.fields), *origin))
            except UnstorableError as error:
                raise UsageError(f"bolt {self._component!r} cannot keep a tuple of {origin[0]!r}: {error}") from error
        for number in self._leaving:
            self._kept.delete(str(number))
        self._entering, self._leaving = {}, []
        marks = self._marks()
        if marks != self._written:
            self._kept.put(_MARKS, tuple(marks))
            self._written = marks

    def _marks(self) -> Marks:
        assert self._windows is not None
        progress, watermarks = self._windows.progress, self._watermarks.progress
        kind = _kind(self.bolt.windowing)
        return Marks(kind, self._numbered, self._began_s, self._latest_s, progress, watermarks)

    def _load(self) -> None:
        """Fill the windows from the state; a tuple of it belongs to no tree, since it is acked.

        Raises:
            TopologyError: they are of another kind than the state's.
        """
        self._open_windows()
        assert self._windows is not None
        stored = dict(self._kept)
        if _MARKS not in stored:
            return
        marks = Marks(*stored.pop(_MARKS))
        kind = _kind(self.bolt.windowing)
        if marks.kind != kind:
            raise TopologyError(
                f"bolt {self._component!r} has windows {kind}, but its state holds windows {marks.kind}: give it "
                "another id, under which it begins anew, or the windows that it had"
            )
        held = [(_restored(stored[key]), stored[key][0], int(key)) for key in sorted(stored, key=int)]
        self._numbers = {input: number for input, _, number in held}
        self._numbered, self._latest_s, self._written = marks.numbered, marks.latest_s, marks
        self._windows.resume(marks.progress, [(input, at) for input, at, _ in held])
        self._watermarks.resume(marks.watermarks)
        # a clock that is behind what has been seen goes on from there
        self._began_s = min(marks.began_s, self._clock.now().timestamp() - marks.latest_s)


def _kind(windowing: Windowing) -> str:
    """What times and counts of stored windows mean."""
    by = "count" if isinstance(windowing.length, Count) else "time"
    return f"by {by} of arrival" if windowing.timestamp_field is None else f"by {by} of events"


def _restored(record: Sequence[Any]) -> Tuple:
    _, values, fields, component, stream, task = record
    return Tuple(values, fields, component, stream, task, UNTRACKED)
