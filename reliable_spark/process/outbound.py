"""The way out of a task: who gets a tuple, and what is counted for it.

Source: Storm's `daemon/Task.getOutgoingTasks`, `daemon/GrouperFactory.mkGrouper`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set, Sized
from copy import deepcopy
from functools import partial
from threading import Lock
from typing import Any

from reliable_spark.core import groupings
from reliable_spark.core.graph import Stream
from reliable_spark.core.groupings import Grouping, GroupingKind
from reliable_spark.core.ids import xxhash64
from reliable_spark.errors import UsageError, nearest
from reliable_spark.process.world import World
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.tuples import UNTRACKED, Tuple

Choose = Callable[[Sequence[Any]], Sequence[int]]
NewEdges = Callable[[], Mapping[int, int]]

_LISTS = (list, tuple)
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)
"""What has a length too, but whose parts are letters, names or in no order."""
_REMEMBERED_LENGTH = 64


class _Output:
    """One stream of a task: what fits it, and who gets what is emitted to it.

    Attributes:
        fields, width: the names of its values, and how many there are.
        is_direct: whether the emitter names the receiving task.
        choosers: subscriber -> a function that says which of its tasks get a tuple.
    """

    def __init__(self, stream: Stream, choosers: Mapping[str, Choose]) -> None:
        self.fields, self.width, self.is_direct = stream.fields, len(stream.fields), stream.direct
        self.choosers = choosers


class Outbound:
    """Everything one task can send.

    Args:
        world: what the tasks share.
        context: who sends.
    """

    def __init__(self, world: World, context: TopologyContext) -> None:
        self._world = world
        self._context = context
        self._component, self._task = context.component, context.task
        streams = world.graph.components[context.component].streams
        self._outputs = {name: _Output(stream, self._choosers(name, stream)) for name, stream in streams.items()}

    def emit(self, values: Sequence[Any], stream: str, new_edges: NewEdges) -> list[int]:
        """Send a tuple to the tasks that the groupings choose, each with edges of its own.

        Returns:
            These tasks.

        Raises:
            UsageError: the stream is unknown or direct, or the values do not fit its fields.
        """
        output = self._outputs.get(stream)
        if output is None or output.is_direct or type(values) not in _LISTS or len(values) != output.width:
            output = self._checked(values, stream)
        if output.is_direct:
            raise UsageError(f"{self._where(stream)} is direct: use emit_direct")
        targets: list[int] = []
        for choose in output.choosers.values():
            targets += choose(values)
        self._send(values, stream, targets, new_edges)
        return targets

    def emit_direct(self, task: int, values: Sequence[Any], stream: str, new_edges: NewEdges) -> list[int]:
        """Send a tuple to one task, or to nobody when its component does not subscribe to the stream.

        Returns:
            The task, if it gets the tuple.

        Raises:
            UsageError: the stream is unknown, not direct or has no subscriber, or there is no such task.
        """
        output = self._checked(values, stream)
        if not output.is_direct:
            raise UsageError(f"{self._where(stream)} is not direct: declare it with direct=True")
        if not output.choosers:
            raise UsageError(f"{self._where(stream)} has no subscriber: emit_direct can reach nobody")
        if task not in self._world.component_of:
            raise UsageError(f"there is no task {task}: take one of context.component_tasks(component)")
        targets = [task] if self._world.component_of[task] in output.choosers else []
        self._send(values, stream, targets, new_edges)
        return targets

    def tell(self, task: int, stream: str, values: list[Any]) -> None:
        """Send a system message, which is itself tracked by nobody."""
        world, component, own = self._world, self._component, self._task
        counted = world.counts[own].fresh[component, stream]
        counted.emitted += 1
        counted.transferred += 1
        world.send((task, Tuple(values, (), component, stream, own, UNTRACKED)))

    def _send(self, values: Sequence[Any], stream: str, targets: Sequence[int], new_edges: NewEdges) -> None:
        world, component, own = self._world, self._component, self._task
        counted = world.counts[own].fresh[component, stream]
        counted.emitted += 1
        counted.transferred += len(targets)
        if world.is_watched:
            world.saw_emit((component, stream), values)
        fields = self._outputs[stream].fields
        for target in targets:
            world.send((target, Tuple(list(values), fields, component, stream, own, new_edges())))

    def _checked(self, values: Sequence[Any], stream: str) -> _Output:
        """The output, if the values fit it."""
        if stream not in self._outputs:
            hint = nearest(stream, self._outputs) or "; it declares none"
            raise UsageError(f"component {self._component!r} has no stream {stream!r}{hint}")
        if isinstance(values, _NO_LISTS) or not isinstance(values, Sized):
            text = f": emit([{values!r}]), not emit({values!r})" if isinstance(values, str | bytes) else ""
            raise UsageError(
                f"values are a list, one per field of {self._where(stream)}, not {type(values).__name__}{text}"
            )
        output = self._outputs[stream]
        if len(values) != output.width:
            raise UsageError(f"{self._where(stream)} has the fields {list(output.fields)}, not {len(values)} values")
        return output

    def _where(self, stream: str) -> str:
        return f"stream {stream!r} of {self._component!r}"

    def _choosers(self, name: str, stream: Stream) -> dict[str, Choose]:
        """How the tuples of one stream are spread over each component that subscribes."""
        return {
            consumer.name: self._chooser(name, stream, grouping, self._world.tasks[consumer.name])
            for consumer, grouping in self._world.graph.consumers(self._component, name)
        }

    def _chooser(self, name: str, stream: Stream, grouping: Grouping, tasks: list[int]) -> Choose:
        """A grouping between this task and the tasks of one component."""
        if grouping.kind is GroupingKind.CUSTOM:
            custom = deepcopy(grouping.custom)
            custom.prepare(self._context, (self._component, name), list(tasks))
            return partial(_by_custom, custom, self._task, tasks)
        places = [stream.fields.index(field) for field in grouping.fields]
        return chooser(grouping.kind, places, tasks, xxhash64(self._component, self._task, name, tasks[0]))


class _Numbers:
    """0, 1, 2 and so on for several threads; unlike itertools.count it can be pickled for good."""

    def __init__(self, following: int = 0) -> None:
        self._following = following
        self._lock = Lock()

    def __call__(self) -> int:
        with self._lock:
            self._following += 1
            return self._following - 1

    def __reduce__(self) -> tuple[type[_Numbers], tuple[int]]:
        return _Numbers, (self._following,)


def chooser(kind: GroupingKind, places: Sequence[int], tasks: Sequence[int], seed: int) -> Choose:
    """The memory a grouping needs around its pure rule: how many tuples went out, and where to.

    Args:
        kind: any but CUSTOM.
        places: where the key's values are; none means the first for PARTIAL_KEY.
        tasks: the ids to choose from, ascending.
        seed: makes emitters differ.

    Returns:
        A function from values to task ids. Several threads may call it, and it can be pickled with what it remembers.
    """
    if kind is GroupingKind.FIELDS:
        return partial(_by_field, places[0], tasks) if len(places) == 1 else partial(_by_fields, places, tasks)
    if kind is GroupingKind.PARTIAL_KEY:
        return partial(_by_partial_key, places or [0], tasks, Counter())
    if kind is GroupingKind.NONE:
        return partial(_at_random, tasks, seed, _Numbers())
    if kind in (GroupingKind.SHUFFLE, GroupingKind.LOCAL_OR_SHUFFLE):  # one process: every task is local
        order = [tasks[place] for place in groupings.shuffled(len(tasks), seed)]
        return partial(_in_turn, order, _Numbers())
    fixed = {GroupingKind.GLOBAL: tasks[:1], GroupingKind.ALL: tasks, GroupingKind.DIRECT: []}[kind]
    return partial(_always, fixed)


def _by_field(place: int, tasks: Sequence[int], values: Sequence[Any]) -> Sequence[int]:
    value = values[place]
    if type(value) is str and len(value) <= _REMEMBERED_LENGTH:
        return (tasks[groupings.text_hash(value) % len(tasks)],)
    return (tasks[groupings.fields_target((value,), len(tasks))],)


def _by_fields(places: Sequence[int], tasks: Sequence[int], values: Sequence[Any]) -> Sequence[int]:
    return (tasks[groupings.fields_target([values[place] for place in places], len(tasks))],)


def _by_partial_key(
    places: Sequence[int], tasks: Sequence[int], used: Counter[int], values: Sequence[Any]
) -> Sequence[int]:
    key = [values[place] for place in places]
    target = groupings.partial_key_target(groupings.partial_key_candidates(key, len(tasks)), used)
    used[target] += 1
    return (tasks[target],)


def _at_random(tasks: Sequence[int], seed: int, numbers: _Numbers, values: Sequence[Any]) -> Sequence[int]:
    return (tasks[groupings.random_target(len(tasks), seed, numbers())],)


def _in_turn(order: Sequence[int], numbers: _Numbers, values: Sequence[Any]) -> Sequence[int]:
    return (groupings.round_robin_target(order, numbers()),)


def _always(fixed: Sequence[int], values: Sequence[Any]) -> Sequence[int]:
    return fixed


def _by_custom(custom: Any, emitter: int, tasks: Sequence[int], values: Sequence[Any]) -> Sequence[int]:
    chosen: list[int] = list(custom.choose_tasks(emitter, list(values)))
    strangers = [task for task in chosen if task not in tasks]
    if strangers:
        raise UsageError(f"a custom grouping chose task {strangers[0]}, which is none of {tasks}")
    return chosen
