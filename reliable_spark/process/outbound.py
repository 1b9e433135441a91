"""The way out of a task: who gets a tuple, and what is counted for it.

Source: Storm's `daemon/Task.getOutgoingTasks`, `daemon/GrouperFactory.mkGrouper`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from threading import Lock
from typing import Any

from reliable_spark.core import groupings
from reliable_spark.core.graph import ACKER, Stream
from reliable_spark.core.groupings import Grouping, GroupingKind
from reliable_spark.core.ids import xxhash64
from reliable_spark.core.statistics import Metric
from reliable_spark.errors import UsageError, nearest
from reliable_spark.process.world import World
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.tuples import Tuple

Choose = Callable[[Sequence[Any]], Sequence[int]]
NewEdges = Callable[[], Mapping[int, int]]


class Outbound:
    """Everything one task can send.

    Args:
        world: what the tasks share.
        context: who sends.
    """

    def __init__(self, world: World, context: TopologyContext) -> None:
        self._world = world
        self._context = context
        self._streams = world.graph.components[context.component].streams
        self._routes = {name: self._routes_of(name, stream) for name, stream in self._streams.items()}

    def targets(self, values: Sequence[Any], stream: str) -> list[int]:
        """The tasks that a regular emit reaches.

        Raises:
            UsageError: the stream is unknown or direct, or the values do not fit its fields.
        """
        self._check(values, stream)
        if self._streams[stream].direct:
            raise UsageError(f"{self._where(stream)} is direct: use emit_direct")
        return [task for choose in self._routes[stream].values() for task in choose(values)]

    def direct_targets(self, task: int, values: Sequence[Any], stream: str) -> list[int]:
        """The task itself, or nobody when its component does not subscribe to the stream.

        Raises:
            UsageError: the stream is unknown, not direct or has no subscriber, or there is no such task.
        """
        self._check(values, stream)
        if not self._streams[stream].direct:
            raise UsageError(f"{self._where(stream)} is not direct: declare it with direct=True")
        if not self._routes[stream]:
            raise UsageError(f"{self._where(stream)} has no subscriber: emit_direct can reach nobody")
        if task not in self._world.component_of:
            raise UsageError(f"there is no task {task}: take one of context.component_tasks(component)")
        return [task] if self._world.component_of[task] in self._routes[stream] else []

    def send(self, values: Sequence[Any], stream: str, targets: Sequence[int], new_edges: NewEdges) -> None:
        """Count one emit and send one tuple to each target, each with edges of its own."""
        context, world = self._context, self._world
        key = (context.component, stream)
        world.count(context.task, Metric.EMITTED, key)
        world.count(context.task, Metric.TRANSFERRED, key, len(targets))
        world.saw_emit(key, values)
        fields = self._streams[stream].fields
        for task in targets:
            sent = Tuple(list(values), fields, context.component, stream, context.task, new_edges())
            world.send(task, sent)

    def tell_acker(self, stream: str, values: Sequence[Any]) -> None:
        """Send a message about a tree, whose root id comes first, to the one acker that has the tree."""
        ackers = self._world.tasks[ACKER]
        self.tell(ackers[groupings.fields_target(values[:1], len(ackers))], stream, values)

    def tell(self, task: int, stream: str, values: Sequence[Any]) -> None:
        """Send a system message, which is itself tracked by nobody."""
        context, world = self._context, self._world
        world.count(context.task, Metric.EMITTED, (context.component, stream))
        world.count(context.task, Metric.TRANSFERRED, (context.component, stream))
        world.send(task, Tuple(list(values), (), context.component, stream, context.task))

    def _check(self, values: Sequence[Any], stream: str) -> None:
        if stream not in self._streams:
            hint = nearest(stream, self._streams) or "; it declares none"
            raise UsageError(f"component {self._context.component!r} has no stream {stream!r}{hint}")
        if isinstance(values, str | bytes):
            raise UsageError(f"values are a list, one per field: emit([{values!r}]), not emit({values!r})")
        fields = self._streams[stream].fields
        if len(values) != len(fields):
            raise UsageError(f"{self._where(stream)} has the fields {list(fields)}, not {len(values)} values")

    def _where(self, stream: str) -> str:
        return f"stream {stream!r} of {self._context.component!r}"

    def _routes_of(self, name: str, stream: Stream) -> dict[str, Choose]:
        """How the tuples of one stream are spread over each component that subscribes."""
        return {
            consumer.name: self._chooser(name, stream, grouping, self._world.tasks[consumer.name])
            for consumer, grouping in self._world.graph.consumers(self._context.component, name)
        }

    def _chooser(self, name: str, stream: Stream, grouping: Grouping, tasks: list[int]) -> Choose:
        """A grouping between this task and the tasks of one component."""
        if grouping.kind is GroupingKind.CUSTOM:
            custom = deepcopy(grouping.custom)
            custom.prepare(self._context, (self._context.component, name), list(tasks))
            return partial(_by_custom, custom, self._context.task, tasks)
        places = [stream.fields.index(field) for field in grouping.fields]
        seed = xxhash64(self._context.component, self._context.task, name, tasks[0])
        return partial(_as_tasks, tasks, chooser(grouping.kind, places, len(tasks), seed))


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


def chooser(kind: GroupingKind, places: Sequence[int], count_of_tasks: int, seed: int) -> Choose:
    """The memory a grouping needs around its pure rule: how many tuples went out, and where to.

    Args:
        kind: any but CUSTOM.
        places: where the key's values are; none means the first for PARTIAL_KEY.
        count_of_tasks: how many tasks there are to choose from.
        seed: makes emitters differ.

    Returns:
        A function from values to places in the sorted list of tasks. Several threads may call it, and it can be
        pickled with what it remembers.
    """
    if kind is GroupingKind.FIELDS:
        return partial(_by_fields, places, count_of_tasks)
    if kind is GroupingKind.PARTIAL_KEY:
        return partial(_by_partial_key, places or [0], count_of_tasks, Counter())
    if kind is GroupingKind.NONE:
        return partial(_at_random, count_of_tasks, seed, _Numbers())
    if kind in (GroupingKind.SHUFFLE, GroupingKind.LOCAL_OR_SHUFFLE):  # one process: every task is local
        return partial(_in_turn, groupings.shuffled(count_of_tasks, seed), _Numbers())
    fixed = {GroupingKind.GLOBAL: [0], GroupingKind.ALL: list(range(count_of_tasks)), GroupingKind.DIRECT: []}[kind]
    return partial(_always, fixed)


def _by_fields(places: Sequence[int], count_of_tasks: int, values: Sequence[Any]) -> Sequence[int]:
    return [groupings.fields_target([values[place] for place in places], count_of_tasks)]


def _by_partial_key(
    places: Sequence[int], count_of_tasks: int, used: Counter[int], values: Sequence[Any]
) -> Sequence[int]:
    key = [values[place] for place in places]
    target = groupings.partial_key_target(groupings.partial_key_candidates(key, count_of_tasks), used)
    used[target] += 1
    return [target]


def _at_random(count_of_tasks: int, seed: int, numbers: _Numbers, values: Sequence[Any]) -> Sequence[int]:
    return [groupings.random_target(count_of_tasks, seed, numbers())]


def _in_turn(order: Sequence[int], numbers: _Numbers, values: Sequence[Any]) -> Sequence[int]:
    return [groupings.round_robin_target(order, numbers())]


def _always(fixed: Sequence[int], values: Sequence[Any]) -> Sequence[int]:
    return fixed


def _as_tasks(tasks: Sequence[int], choose: Choose, values: Sequence[Any]) -> Sequence[int]:
    return [tasks[target] for target in choose(values)]


def _by_custom(custom: Any, emitter: int, tasks: Sequence[int], values: Sequence[Any]) -> Sequence[int]:
    chosen: list[int] = list(custom.choose_tasks(emitter, list(values)))
    strangers = [task for task in chosen if task not in tasks]
    if strangers:
        raise UsageError(f"a custom grouping chose task {strangers[0]}, which is none of {tasks}")
    return chosen
