"""A join of two streams by key, within a time.

Source: the idea of Storm's `bolt/JoinBolt` and of its example `SingleJoinBolt`; here nothing is joined twice or lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reliable_spark.core.graph import CHECKPOINT_STREAM, DEFAULT_STREAM
from reliable_spark.errors import TopologyError, UsageError, nearest
from reliable_spark.topology.bolts import OutputCollector, ReportedFail, RichBolt
from reliable_spark.topology.context import TICK_KEY, TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer, as_fields
from reliable_spark.topology.periods import TIMEOUT_KEY, check_period
from reliable_spark.topology.tuples import Tuple

if TYPE_CHECKING:
    from typing_extensions import Self

_TICK_S = 1.0
"""How often the join looks for what has waited too long, unless that is a shorter time."""


class JoinSide:
    """One of the two streams, and its key.

    Args:
        component: who emits it.
        key: the fields that are compared, in the order of the other side's; group the stream by them.
        stream: which of its streams.
    """

    def __init__(self, component: str, key: Sequence[str], stream: str = DEFAULT_STREAM) -> None:
        self.source = (component, stream)
        self.key = as_fields(key)


@dataclass
class _Waiting:
    """A tuple that has not been answered."""

    input: Tuple
    side: int
    key: Hashable
    arrived_s: float
    is_matched: bool = False


class JoinBolt(RichBolt):
    """Emits one tuple for each pair of equal keys that arrive within a time of each other, anchored to both.

    Guarantee: each tuple is answered once. It is acked with its match: with the first one, the oldest that waits,
    after which it matches no other; or, `with_all_matches`, when its time is over and it had one. Until then its tree
    waits. When its time is over without a match it fails, so that its spout emits it again, or goes to a stream.

    What waits is not a checkpointed state: it comes again from the spout if the task dies.

    Args:
        left: one side.
        right: the other.
        within_s: how long a tuple waits for its match, seconds from its arrival.
        select: the fields of what is emitted, such as "left:name", "right:name", or "name" where only one side has it.
        unmatched_stream: where a copy of what found no match goes, as the field "tuple"; None: it fails.

    Raises:
        UsageError: the sides are one stream, or their keys are not of as many fields; or an argument is no such thing.
    """

    def __init__(
        self,
        left: JoinSide,
        right: JoinSide,
        within_s: float,
        select: Sequence[str],
        unmatched_stream: str | None = None,
    ) -> None:
        check_period("within_s", within_s)
        _check_sides(left, right)
        for name in as_fields(select):
            if name.rpartition(":")[0] not in ("", "left", "right"):
                raise UsageError(f"a join selects 'left:field', 'right:field' or 'field', not {name!r}")
        self._sides = (left, right)
        self._within_s = within_s
        self._select = as_fields(select)
        self._unmatched_stream = unmatched_stream
        self._all_matches = False

    def with_all_matches(self) -> Self:
        """Let a tuple match every tuple of the other side that comes within the time."""
        self._all_matches = True
        return self

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """The selected fields without their side, and the stream of what found no match."""
        declarer.declare([name.rpartition(":")[2] for name in self._select])
        if self._unmatched_stream is not None:
            declarer.declare_stream(self._unmatched_stream, ["tuple"])

    def component_configuration(self) -> Mapping[str, Any]:
        """Ticks, to see what has waited too long."""
        return {TICK_KEY: min(_TICK_S, self._within_s)}

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Keep the collector.

        Raises:
            TopologyError: a side is not subscribed to, or something else is, a field of a key or of what is selected is
                in no side, or tuples would time out while they wait.
        """
        self._check_fields(context)
        longest_s, timeout_s = self._within_s + min(_TICK_S, self._within_s), configuration[TIMEOUT_KEY]
        if configuration["topology.enable.message.timeouts"] and longest_s > timeout_s:
            raise TopologyError(
                f"join {context.component!r} holds tuples for up to {longest_s} s, "
                f"longer than {TIMEOUT_KEY}={timeout_s}"
            )
        self._collector, self._clock = collector, context.clock
        self._waiting: tuple[defaultdict[Any, list[_Waiting]], ...] = (defaultdict(list), defaultdict(list))

    def execute(self, input: Tuple) -> None:
        """Match a tuple with what waits, or let it wait; on a tick answer what has waited too long."""
        if input.is_tick:
            self._expire()
            self._collector.ack(input)
            return
        try:
            came = self._arrived(input)
        except TypeError as error:  # it would kill the task, with all that waits, each time it comes again
            said = f"the key of a tuple from {input.source_component!r} cannot be compared: {error}"
            self._collector.report_error(ReportedFail(said))
            self._collector.fail(input)
            return
        for other in self._matches(came):
            self._emit(came, other)
            if not self._all_matches:
                self._remove(other)
                self._collector.ack(other.input)
                self._collector.ack(input)
                return
        self._waiting[came.side][came.key].append(came)

    def _arrived(self, input: Tuple) -> _Waiting:
        source = (input.source_component, input.source_stream)
        side = 0 if source == self._sides[0].source else 1
        key = _hashable(tuple(input[name] for name in self._sides[side].key))
        return _Waiting(input, side, key, self._now_s())

    def _check_fields(self, context: TopologyContext) -> None:
        components = context.graph.components
        inputs = [(each.component, each.stream) for each in components[context.component].inputs]
        sides = [side.source for side in self._sides]
        others = [each for each in inputs if each not in sides and each[1] != CHECKPOINT_STREAM]
        if others:
            raise TopologyError(f"join {context.component!r} subscribes to {others[0]}, which is none of its sides")
        valid: dict[str, list[str]] = {"": []}
        for name, side in zip(("left", "right"), self._sides, strict=True):
            if side.source not in inputs:
                raise TopologyError(f"join {context.component!r} does not subscribe to its side {side.source}")
            component, stream = side.source
            fields = components[component].streams[stream].fields
            for field in side.key:
                if field not in fields:
                    hint = nearest(field, fields)
                    raise TopologyError(f"the key of {side.source} in {context.component!r} has no {field!r}{hint}")
            valid[name] = [f"{name}:{field}" for field in fields]
            valid[""] += fields
        for each in self._select:
            choices = valid[each.rpartition(":")[0]]
            if each not in choices:
                raise TopologyError(
                    f"join {context.component!r} selects unknown field {each!r}{nearest(each, choices)}"
                )

    def _matches(self, came: _Waiting) -> list[_Waiting]:
        """The tuples of the other side with its key that are in time, oldest first."""
        others = self._waiting[1 - came.side].get(came.key, ())
        return [other for other in others if came.arrived_s - other.arrived_s < self._within_s]

    def _emit(self, came: _Waiting, other: _Waiting) -> None:
        came.is_matched = other.is_matched = True
        left, right = (came, other) if came.side == 0 else (other, came)
        values = [_selected(name, left.input, right.input) for name in self._select]
        self._collector.emit(values, [left.input, right.input])

    def _expire(self) -> None:
        """Answer everything whose time is over."""
        now_s = self._now_s()
        for side in self._waiting:
            over = [each for waiting in side.values() for each in waiting if now_s - each.arrived_s >= self._within_s]
            for each in over:
                self._remove(each)
                self._answer(each)

    def _answer(self, waited: _Waiting) -> None:
        if not waited.is_matched and self._unmatched_stream is None:
            self._collector.fail(waited.input)
            return
        if not waited.is_matched and self._unmatched_stream is not None:
            self._collector.emit([waited.input.detached()], waited.input, self._unmatched_stream)
        self._collector.ack(waited.input)

    def _remove(self, waited: _Waiting) -> None:
        side = self._waiting[waited.side]
        side[waited.key] = [each for each in side[waited.key] if each is not waited]
        if not side[waited.key]:
            del side[waited.key]

    def _now_s(self) -> float:
        return self._clock.now().timestamp()


def _check_sides(left: JoinSide, right: JoinSide) -> None:
    for side in (left, right):
        if not isinstance(side, JoinSide):
            raise UsageError(f"a side of a join is a JoinSide, not {type(side).__name__}")
    if left.source == right.source:
        raise UsageError(f"both sides of a join are {left.source}: a tuple cannot be told to be of one of them")
    if len(left.key) != len(right.key):
        raise UsageError(f"the keys of a join have as many fields on both sides, not {left.key} and {right.key}")


def _selected(name: str, left: Tuple, right: Tuple) -> Any:
    """A value by "left:field", "right:field", or "field"."""
    side, _, field = name.rpartition(":")
    if side == "right" or (not side and field not in left.fields):
        return right[field]
    return left[field]


def _hashable(value: Any) -> Hashable:
    """The value, or for a collection one that is equal where a grouping takes two for one key.

    Raises:
        TypeError: there is none.
    """
    key: Hashable = value
    try:
        hash(key)
    except TypeError:
        return _frozen(value)
    return key


def _frozen(value: Any) -> Hashable:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "tolist"):  # numpy's arrays
        value = value.tolist()
    if isinstance(value, Mapping):
        return "mapping", frozenset((_hashable(key), _hashable(each)) for key, each in value.items())
    if isinstance(value, Set):
        return frozenset(map(_hashable, value))
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    raise TypeError(f"unhashable type: {type(value).__name__!r}")
