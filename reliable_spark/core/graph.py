"""A topology as plain frozen data, and the checks it passes before anything runs.

Source: Storm's `daemon/StormCommon.validateBasic`, `validateStructure` and `stormTaskInfoImpl`. Stricter than Storm:
cycles are refused, a key is looked for in the stream subscribed to, and direct streams take direct groupings only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal

from reliable_spark.core.groupings import Grouping, GroupingKind
from reliable_spark.errors import TopologyError, nearest

DEFAULT_STREAM = "default"
SYSTEM = "__system"
"""The component ticks come from."""
TICK_STREAM = "__tick"
ACKER = "__acker"
CHECKPOINT_SPOUT = "$checkpointspout"
"""The component that checkpoints come from, in a topology with stateful bolts."""
CHECKPOINT_STREAM = "$checkpoint"
WINDOWS = "$windows-"
"""What the content of a bolt's windows is stored under: this, then the bolt's id."""


@dataclass(frozen=True)
class Stream:
    """One declared output: the names of its values, and whether the emitter names the receiving task."""

    fields: tuple[str, ...]
    direct: bool = False


@dataclass(frozen=True)
class Subscription:
    """One input of a bolt."""

    component: str
    stream: str
    grouping: Grouping


@dataclass(frozen=True)
class Component:
    """A spout or bolt as data.

    Attributes:
        name: the component id.
        kind: spout or bolt.
        executors: how many threads Storm would give it (the parallelism hint).
        tasks: how many instances there are; they are spread over the executors.
        inputs: what a bolt subscribes to, at most once per stream.
        streams: what it may emit, by stream id.
        configuration: Storm keys that hold for this component alone.
    """

    name: str
    kind: Literal["spout", "bolt"]
    executors: int
    tasks: int
    inputs: tuple[Subscription, ...] = ()
    streams: Mapping[str, Stream] = field(default_factory=dict)
    configuration: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of components; one that was checked can be run."""

    components: Mapping[str, Component]

    def consumers(self, component: str, stream: str) -> list[tuple[Component, Grouping]]:
        """The bolts that subscribe to a stream, each with its grouping, by name."""
        return [
            (self.components[name], each.grouping)
            for name in sorted(self.components)
            for each in self.components[name].inputs
            if (each.component, each.stream) == (component, stream)
        ]


def check_name(name: str, what: str, taken: Collection[str] = ()) -> None:
    """Raise TopologyError for an id that is no text, empty, reserved, or taken already."""
    if not name or not isinstance(name, str):
        raise TopologyError(f"a {what} id is a text that is not empty, not {name!r}")
    if name.startswith("__"):
        raise TopologyError(f"{what} id {name!r} is reserved: ids that start with '__' are the system's")
    if name in (CHECKPOINT_SPOUT, CHECKPOINT_STREAM):
        raise TopologyError(f"{what} id {name!r} is reserved: checkpoints go by it")
    if name.startswith(WINDOWS):
        raise TopologyError(f"{what} id {name!r} is reserved: ids that start with {WINDOWS!r} are those of windows")
    if name in taken:
        raise TopologyError(f"{what} id {name!r} is taken: each {what} has its own")


def in_order(components: Mapping[str, Component]) -> list[Component]:
    """The components, each after all it subscribes to; independent ones by name.

    Raises:
        TopologyError: a subscription names a component that is not there, or there is a cycle.
    """
    for component in components.values():
        for each in component.inputs:
            if each.component not in components:
                hint = nearest(each.component, components)
                raise TopologyError(f"bolt {component.name!r} subscribes to unknown component {each.component!r}{hint}")
    sources = {name: sorted({each.component for each in components[name].inputs}) for name in sorted(components)}
    try:
        return [components[name] for name in TopologicalSorter(sources).static_order()]
    except CycleError as error:
        path = " -> ".join(error.args[1])
        raise TopologyError(f"the topology has a cycle: {path}; a tuple tree must end") from None


def check_streams(components: Mapping[str, Component]) -> None:
    """Raise TopologyError unless every subscription finds its stream, its key and the right kind of grouping."""
    for component in components.values():
        for each in component.inputs:
            _check_subscription(component.name, each, components[each.component].streams)


def _check_subscription(bolt: str, each: Subscription, streams: Mapping[str, Stream]) -> None:
    subject = f"bolt {bolt!r} subscribes to"
    if each.stream not in streams:
        hint = nearest(each.stream, streams) or "; it declares none"
        raise TopologyError(f"{subject} unknown stream {each.stream!r} of {each.component!r}{hint}")
    stream = streams[each.stream]
    for name in each.grouping.fields:
        if name not in stream.fields:
            hint = nearest(name, stream.fields)
            raise TopologyError(f"{subject} {each.component!r} by unknown field {name!r}{hint}")
    if stream.direct != (each.grouping.kind is GroupingKind.DIRECT):
        kind = "a direct" if stream.direct else "not a direct"
        raise TopologyError(
            f"{subject} {each.component!r} by {each.grouping.kind.value} grouping, "
            f"but stream {each.stream!r} is {kind} stream: a direct stream takes a direct grouping and no other does"
        )


def task_ids(tasks: Mapping[str, int]) -> dict[str, list[int]]:
    """Task ids count from 1 through the components in alphabetical order. Source: `stormTaskInfoImpl`."""
    ids: dict[str, list[int]] = {}
    first = 1
    for name in sorted(tasks):
        ids[name] = list(range(first, first + tasks[name]))
        first += tasks[name]
    return ids


def executors_of(tasks: list[int], executors: int) -> list[list[int]]:
    """The tasks of each executor: contiguous runs whose lengths differ by one at most, longer ones first."""
    short, longer = divmod(len(tasks), executors)
    starts = [number * short + min(number, longer) for number in range(executors + 1)]
    return [tasks[low:high] for low, high in pairwise(starts)]
