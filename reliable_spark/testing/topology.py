"""TestTopology: a topology under a test's control, value by value and second by second."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.core.pressure import ReceiveQueue
from reliable_spark.core.statistics import ComponentStatistics
from reliable_spark.errors import UsageError, nearest
from reliable_spark.process.view import check_task
from reliable_spark.settings import Settings, given_settings
from reliable_spark.testing.engine import engine_of
from reliable_spark.testing.kit import Fed, Feed, FeedSpout
from reliable_spark.topology.builder import TopologyBuilder

if TYPE_CHECKING:
    from typing_extensions import Self


class TestTopology:
    """Runs a topology on a simulated clock that starts at 0 and stands still unless it is advanced.

    Guarantee: two runs of the same calls give the same results in the same order. Tasks are named by their place in
    the component, from 0.

    Args:
        builder: the topology; it is built here and may be used again.
        settings: how it is run.
        engine: "process" runs it in this process and thread; "spark" in micro-batches, on the active session or a
            new one: bolts are pickled between them, so `state` gives a copy.

    Raises:
        TopologyError: the topology is wrong.
        UsageError: there is no such engine; from every method, a component or task that is not there, and anything
            but looking after `close`. A bolt's or spout's misuse of its collector comes out of `settle` and `advance`.
    """

    __test__: ClassVar[bool] = False  # for pytest its name looks like a test's

    def __init__(self, builder: TopologyBuilder, settings: Settings | None = None, engine: str = "process") -> None:
        topology = builder.build()
        self._feeds = {name: Feed() for name, each in topology.components.items() if isinstance(each, FeedSpout)}
        self._spouts: dict[str, FeedSpout] = {}
        for name, each in topology.components.items():
            if isinstance(each, FeedSpout):
                self._spouts[name] = each.fed_by(self._feeds[name])
        self._graph = topology.graph
        connected = replace(topology, components={**topology.components, **self._spouts})
        self._engine = engine_of(engine, connected, given_settings(settings))
        self._is_closed = False

    def __enter__(self) -> Self:
        """The topology; it is closed at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def feed(
        self,
        spout: str,
        values: Sequence[Any],
        message_id: Hashable | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> None:
        """Hand one value to a FeedSpout, whose next `next_tuple` emits it.

        Args:
            spout: its component id.
            values: one per declared field.
            message_id: what acks and fails are told by; None: nothing is tracked.
            stream: where it is emitted.

        Raises:
            UsageError: the component is no FeedSpout, or the values do not fit the stream.
        """
        self._check_open()
        self._check(spout)
        if spout not in self._spouts:
            raise UsageError(f"component {spout!r} is no FeedSpout{nearest(spout, self._spouts)}")
        fed = Fed(list(values), message_id, stream)
        self._spouts[spout].check(fed)
        self._feeds[spout].append(fed)

    def settle(self) -> None:
        """Run until nothing is queued anywhere; time passes only where a bolt or spout waits on its clock.

        Raises:
            OperatingError: it never ends.
        """
        self._check_open()
        self._engine.settle()

    def advance(self, seconds: float) -> None:
        """Settle, let time pass, and settle at every tick on the way and at the end.

        Raises:
            UsageError: time cannot go back.
        """
        self._check_open()
        if not (math.isfinite(seconds) and seconds >= 0):
            raise UsageError(f"time goes forward: advance(seconds) takes 0 or more, not {seconds}")
        self._engine.advance(seconds)

    def acks(self, spout: str) -> list[Any]:
        """The message ids whose `ack` was called since the previous call, in order."""
        return self._engine.acks(self._check_spout(spout))

    def fails(self, spout: str) -> list[Any]:
        """The message ids whose `fail` was called since the previous call, in order."""
        return self._engine.fails(self._check_spout(spout))

    def emitted(self, component: str, stream: str = DEFAULT_STREAM) -> list[list[Any]]:
        """The value lists emitted since the previous call, in order, whoever got them."""
        self._check(component)
        streams = self._graph.components[component].streams if component in self._graph.components else {}
        if stream not in streams:
            raise UsageError(f"component {component!r} has no stream {stream!r}{nearest(stream, streams)}")
        return self._engine.emitted(component, stream)

    def errors(self, component: str) -> list[BaseException]:
        """The errors that were reported, or that killed a task, since the previous call, in order."""
        self._check(component)
        return self._engine.errors(component)

    def pending(self, spout: str) -> int:
        """How many tracked emits of a spout have no answer yet."""
        return self._engine.pending(self._check_spout(spout))

    def state(self, component: str, task: int = 0) -> Any:
        """The `state` of the user's object in a task; an acker's is the number of trees it holds.

        Raises:
            UsageError: it has none.
        """
        self._check(component, task)
        try:
            return self._engine.instance(component, task).state
        except AttributeError:
            raise UsageError(f"component {component!r} keeps no state: give it an attribute `state`") from None

    def executed(self, component: str, task: int | None = None) -> int:
        """How many tuples one task, or all of a component, executed since the topology began; ticks count."""
        self._check(component, task or 0)
        return self._engine.executed(component, task)

    def queue(self, component: str, task: int = 0) -> ReceiveQueue[Any]:
        """What waits for one task: its length, how much of it has overflowed, how much was dropped.

        Raises:
            UsageError: the engine has no such queues.
        """
        self._check(component, task)
        return self._engine.queue(component, task)

    def statistics(self, component: str) -> ComponentStatistics:
        """What Storm's UI shows of a component; `__acker` is one too."""
        self._check(component)
        return self._engine.statistics(component)

    def now_s(self) -> float:
        """Seconds on the simulated clock."""
        return self._engine.now_s()

    def activate(self) -> None:
        """Let the spouts emit again."""
        self._check_open()
        self._engine.activate()

    def deactivate(self) -> None:
        """Let the spouts emit nothing more; what is on its way still arrives."""
        self._check_open()
        self._engine.deactivate()

    def kill_task(self, component: str, task: int) -> None:
        """Let a task die, with all it held and all that was queued for it, and start again from a fresh copy."""
        self._check_open()
        self._check(component, task)
        self._engine.kill_task(component, task)

    def close(self) -> None:
        """Deactivate and close every task; a second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._engine.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("the topology is closed")

    def _check_spout(self, name: str) -> str:
        """The name, if it is a spout's; what a topology did may be looked at after it is closed."""
        spouts = [each for each, component in self._graph.components.items() if component.kind == "spout"]
        if name not in spouts:
            raise UsageError(f"there is no spout {name!r}{nearest(name, spouts)}")
        return name

    def _check(self, component: str, task: int = 0) -> None:
        check_task(self._engine.components(), component, task)
