"""Bolts of a topology: what users subclass, and the collectors they emit through.

Source: Storm's `topology/IRichBolt`, `topology/IBasicBolt`, `topology/BasicBoltExecutor`, `task/OutputCollector`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from reliable_spark.bolts import Fail
from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.errors import UsageError
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.tuples import Tuple

Anchors = Tuple | Sequence[Tuple] | None
"""One tuple, several (one may occur twice), or none: what is emitted then is not tracked."""


class ReportedFail(Fail):
    """Raise in a BasicBolt to fail the tuple in hand and to report the error too."""


class OutputCollector(Protocol):
    """What a rich bolt emits, acks and fails through. Source: Storm's `BoltOutputCollectorImpl`.

    Guarantee: an anchored tuple fails and holds up every tree of each of its anchors. The collector remembers
    nothing: a tuple acked twice, or emitted to after its ack, leaves its tree to time out.
    """

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> list[int]:
        """Send a tuple to the tasks that the stream's groupings choose.

        Returns:
            The receiving tasks' ids; none when nobody subscribes.

        Raises:
            UsageError: the stream is not declared or is direct, or the values are not as many as its fields.
        """
        ...

    def emit_direct(
        self, task: int, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Send a tuple to one task by its id; dropped when the task's component does not subscribe to the stream.

        Raises:
            UsageError: the stream is not declared or not direct, nobody subscribes, or there is no such task.
        """
        ...

    def ack(self, input: Tuple) -> None:
        """Say that the bolt is done with a tuple; at any time, also long after execute returned."""
        ...

    def fail(self, input: Tuple) -> None:
        """Fail every tree the tuple belongs to, at once."""
        ...

    def reset_timeout(self, input: Tuple) -> None:
        """Let the message timeout of every tree the tuple belongs to begin anew."""
        ...

    def report_error(self, error: BaseException) -> None:
        """Show an error to whoever watches the topology; nothing else happens."""
        ...


class _Component:
    """What bolts have in common with spouts."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams that are emitted to; none unless overridden."""

    def component_configuration(self) -> Mapping[str, Any]:
        """Storm keys that hold for this component alone, such as its tick period."""
        return {}


class RichBolt(_Component):
    """A bolt that acks and fails by itself. Every task has its own copy of the object given to the builder.

    An exception that leaves `execute` kills the task: it starts again from a fresh copy, what it held is lost, and
    the trees of that time out. `self.state`, where a bolt has one, is what a test may look at.
    """

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Called once per task before the first tuple; keep the collector."""

    def execute(self, input: Tuple) -> None:
        """Called once per tuple; ack or fail it now or later."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Called when the topology is closed, not when the task dies."""


class BatchingBolt(RichBolt):
    """A rich bolt that lets tuples wait for each other. It runs in the program that submitted the topology.

    Its engine calls `flush` when nothing is queued and no spout has anything to emit; so no tuple waits for ever.
    """

    def flush(self) -> bool:
        """Emit, ack and fail what waits; says whether anything did."""
        raise NotImplementedError


class BasicOutputCollector:
    """What a basic bolt emits through: every tuple is anchored to the one in hand.

    Attributes:
        input: the tuple in hand. Source: Storm's `setContext`.
    """

    def __init__(self, collector: OutputCollector) -> None:
        self._collector = collector
        self.input: Tuple | None = None

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> list[int]:
        """Send a tuple anchored to the one in hand; see `OutputCollector.emit`."""
        return self._collector.emit(values, self.input, stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """Send a tuple to one task, anchored to the one in hand; see `OutputCollector.emit_direct`."""
        self._collector.emit_direct(task, values, self.input, stream)

    def report_error(self, error: BaseException) -> None:
        """Show an error to whoever watches the topology."""
        self._collector.report_error(error)


class BasicBolt(_Component):
    """A bolt that takes a tuple, emits what follows from it, and is done with it.

    Guarantee: the tuple is acked when `execute` returns and failed when it raises; what was emitted before stays
    emitted, in the failed tree. A `UsageError` is nobody's failure but the program's and comes through.

    Attributes:
        failing: what `execute` may raise to fail the tuple; other exceptions kill the task, and the tree times out.
            Storm's own rule is `(Fail,)`. All but a plain `Fail` are reported too.
    """

    failing: ClassVar[tuple[type[Exception], ...]] = (Exception,)

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext) -> None:
        """Called once per task before the first tuple."""

    def execute(self, input: Tuple, collector: BasicOutputCollector) -> None:
        """Called once per tuple."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Called when the topology is closed, not when the task dies."""


class Wrapped(Protocol):
    """What every kind of user's bolt has."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Declare the streams that are emitted to."""
        ...

    def component_configuration(self) -> Mapping[str, Any]:
        """Storm keys that hold for this component alone."""
        ...

    def cleanup(self) -> None:
        """Called when the topology is closed."""
        ...


UserBolt = TypeVar("UserBolt", bound=Wrapped)


class BoltWrapper(RichBolt, Generic[UserBolt]):
    """A rich bolt that runs a user's bolt: what the user's declares, configures and keeps is the wrapper's too.

    Args:
        bolt: the user's.
    """

    def __init__(self, bolt: UserBolt) -> None:
        self.bolt = bolt

    @property
    def state(self) -> Any:
        """The user's bolt's state."""
        return self.bolt.state  # type: ignore[attr-defined] # a bolt need not have one

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """As the user's bolt declares."""
        self.bolt.declare_output_fields(declarer)

    def component_configuration(self) -> Mapping[str, Any]:
        """As the user's bolt has it."""
        return self.bolt.component_configuration()

    def cleanup(self) -> None:
        """Clean up the user's bolt."""
        self.bolt.cleanup()


def innermost(bolt: RichBolt) -> Any:
    """The user's own object, whatever it is wrapped in."""
    user: Any = bolt
    while isinstance(user, BoltWrapper):
        user = user.bolt
    return user


class BasicBoltExecutor(BoltWrapper[BasicBolt]):
    """Runs a basic bolt as a rich one: one ack or one fail per tuple, never both."""

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the user's bolt."""
        self._collector = collector
        self._basic = BasicOutputCollector(collector)
        self.bolt.prepare(configuration, context)

    def execute(self, input: Tuple) -> None:
        """Execute, then ack, or fail and report."""
        self._basic.input = input
        try:
            self.bolt.execute(input, self._basic)
        except UsageError:
            raise  # the program is wrong, not the tuple
        except self.bolt.failing as error:
            if not isinstance(error, Fail) or isinstance(error, ReportedFail):
                self._collector.report_error(error)
            self._collector.fail(input)
        else:
            self._collector.ack(input)
