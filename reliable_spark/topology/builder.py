"""The TopologyBuilder: spouts and bolts by name, joined by groupings, checked before anything runs.

Source: Storm's `topology/TopologyBuilder`, `topology/InputDeclarer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from reliable_spark.core.barriers import with_checkpoint_streams
from reliable_spark.core.graph import (
    DEFAULT_STREAM,
    Component,
    Graph,
    Subscription,
    check_name,
    check_streams,
    in_order,
)
from reliable_spark.core.groupings import Grouping, GroupingKind
from reliable_spark.errors import TopologyError
from reliable_spark.settings import check_storm_keys
from reliable_spark.topology.bolts import BasicBolt, BasicBoltExecutor, RichBolt
from reliable_spark.topology.checkpointed import with_checkpoints
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer, as_fields
from reliable_spark.topology.periods import PENDING_KEY, check_configuration
from reliable_spark.topology.spouts import Spout
from reliable_spark.topology.stateful import StatefulBolt
from reliable_spark.topology.stateful_windowed import StatefulWindowedBolt
from reliable_spark.topology.stateful_windowed_executor import StatefulWindowedBoltExecutor
from reliable_spark.topology.windowed import WindowedBolt
from reliable_spark.topology.windowed_executor import WindowedBoltExecutor

if TYPE_CHECKING:
    from typing_extensions import Self


class CustomStreamGrouping(Protocol):
    """A grouping of one's own; every emitting task has its own copy. Source: `grouping/CustomStreamGrouping`."""

    def prepare(self, context: TopologyContext, stream: tuple[str, str], tasks: Sequence[int]) -> None:
        """Called once: who emits, (component, stream), and the ids of the receiving tasks, ascending."""
        ...

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        """The ids of the tasks that get a tuple: none, one or several; each is one more edge of the tree."""
        ...


@dataclass(frozen=True)
class Topology:
    """A checked topology: the graph as data, and the object of each component, to be copied for every task."""

    graph: Graph
    components: Mapping[str, Spout | RichBolt]


class ComponentDeclarer:
    """Sets what belongs to a component itself. Every method returns the declarer, so calls can be chained."""

    def __init__(self, component: Component) -> None:
        self._component = component

    def set_num_tasks(self, tasks: int) -> Self:
        """Run this many tasks on the component's executors; one task per executor is the default.

        Raises:
            TopologyError: fewer than one task.
        """
        _check_count(tasks, f"tasks of {self._component.name!r}")
        executors = min(self._component.executors, tasks)  # Storm starts no executor without a task
        self._component = replace(self._component, tasks=tasks, executors=executors)
        return self

    def set_max_spout_pending(self, tuples: int) -> Self:
        """Let a spout wait while it has this many tuples per task without an answer.

        Raises:
            SettingsError: it is no whole number, or less than 0; 0 means the topology's limit.
        """
        return self.add_configuration(PENDING_KEY, tuples)

    def add_configuration(self, key: str, value: Any) -> Self:
        """Set a Storm key for this component alone.

        Raises:
            SettingsError: there is no such key; the nearest one is named. Or the component cannot have this value.
        """
        check_storm_keys([key])
        check_configuration(self._component.name, {key: value})
        configuration = {**self._component.configuration, key: value}
        self._component = replace(self._component, configuration=configuration)
        return self

    @property
    def component(self) -> Component:
        """What was declared so far."""
        return self._component


class SpoutDeclarer(ComponentDeclarer):
    """What `set_spout` returns."""


class BoltDeclarer(ComponentDeclarer):
    """What `set_bolt` returns: subscribes the bolt to streams. Of two subscriptions to a stream the second counts."""

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Deal the tuples out in turn: after k * n of them each of n tasks has k."""
        return self._subscribe(component, stream, Grouping(GroupingKind.SHUFFLE))

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Deal the tuples out in turn among the tasks of the same worker, or among all if there is none."""
        return self._subscribe(component, stream, Grouping(GroupingKind.LOCAL_OR_SHUFFLE))

    def fields_grouping(self, component: str, fields: Sequence[str], stream: str = DEFAULT_STREAM) -> Self:
        """Send all tuples with the same values in these fields to the same task."""
        return self._subscribe(component, stream, Grouping(GroupingKind.FIELDS, as_fields(fields)))

    def partial_key_grouping(self, component: str, fields: Sequence[str] = (), stream: str = DEFAULT_STREAM) -> Self:
        """Send the tuples of a key to two tasks, the less used one first; no fields mean the first value."""
        return self._subscribe(component, stream, Grouping(GroupingKind.PARTIAL_KEY, as_fields(fields)))

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send every tuple to every task; its tree is complete when all have acked."""
        return self._subscribe(component, stream, Grouping(GroupingKind.ALL))

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Send all tuples to the task with the lowest id."""
        return self._subscribe(component, stream, Grouping(GroupingKind.GLOBAL))

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Say that it does not matter where a tuple goes."""
        return self._subscribe(component, stream, Grouping(GroupingKind.NONE))

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Let the emitter name the receiving task; the stream must be declared as direct."""
        return self._subscribe(component, stream, Grouping(GroupingKind.DIRECT))

    def custom_grouping(self, component: str, grouping: CustomStreamGrouping, stream: str = DEFAULT_STREAM) -> Self:
        """Let an object choose the receiving tasks.

        Raises:
            TopologyError: it is no such object.
        """
        if isinstance(grouping, type):
            raise TopologyError(f"a custom grouping is an object, not {_kind(grouping)}")
        _check_methods(f"the custom grouping of {self._component.name!r}", grouping, ("prepare", "choose_tasks"))
        return self._subscribe(component, stream, Grouping(GroupingKind.CUSTOM, custom=grouping))

    def _subscribe(self, component: str, stream: str, grouping: Grouping) -> Self:
        for what, name in (("component", component), ("stream", stream)):
            if not isinstance(name, str):
                raise TopologyError(f"bolt {self._component.name!r} subscribes to a {what} by its id, not {name!r}")
        others = [each for each in self._component.inputs if (each.component, each.stream) != (component, stream)]
        subscription = Subscription(component, stream, grouping)
        self._component = replace(self._component, inputs=(*others, subscription))
        return self


class TopologyBuilder:
    """Collects spouts and bolts; `build` checks them and gives a topology that can be run.

    Raises (every method):
        TopologyError: what is wrong, and the nearest name that would have been right.
    """

    def __init__(self) -> None:
        self._declarers: dict[str, ComponentDeclarer] = {}
        self._objects: dict[str, Spout | RichBolt] = {}

    def set_spout(self, id: str, spout: Spout, parallelism: int = 1) -> SpoutDeclarer:
        """Add a spout.

        Args:
            id: a name of its own; names that start with "__" are reserved.
            spout: copied for every task.
            parallelism: the number of executors, 1 or more.
        """
        if isinstance(spout, type) or not callable(getattr(spout, "next_tuple", None)):
            raise TopologyError(f"spout {id!r} must be a Spout, not {_kind(spout)}")
        _check_methods(f"spout {id!r}", spout, ("declare_output_fields", *vars(Spout)))
        self._check(id, parallelism)
        declarer = SpoutDeclarer(Component(id, "spout", parallelism, parallelism))
        self._declarers[id], self._objects[id] = declarer, spout
        return declarer

    def set_bolt(self, id: str, bolt: BasicBolt | RichBolt | WindowedBolt, parallelism: int = 1) -> BoltDeclarer:
        """Add a bolt; subscribe it to streams by the methods of what is returned.

        Args:
            id: a name of its own; names that start with "__" are reserved.
            bolt: copied for every task.
            parallelism: the number of executors, 1 or more.
        """
        if not isinstance(bolt, BasicBolt | RichBolt | WindowedBolt):
            raise TopologyError(f"bolt {id!r} must be a BasicBolt, a RichBolt or a WindowedBolt, not {_kind(bolt)}")
        self._check(id, parallelism)
        declarer = BoltDeclarer(Component(id, "bolt", parallelism, parallelism))
        self._declarers[id] = declarer
        self._objects[id] = _as_rich(bolt)
        return declarer

    def build(self) -> Topology:
        """The topology as frozen data, checked.

        Raises:
            TopologyError: a subscription names an unknown component, stream or field, or there is a cycle.
            SettingsError: a component's own configuration has an unknown key, or a value that cannot be.
        """
        declared: dict[str, Component] = {}
        for component in in_order({name: each.component for name, each in self._declarers.items()}):
            declared[component.name] = self._with_streams(component, declared)
        check_streams(declared)
        if not any(isinstance(each, StatefulBolt) for each in self._objects.values()):
            return Topology(Graph(MappingProxyType(declared)), MappingProxyType(dict(self._objects)))
        graph = Graph(MappingProxyType(with_checkpoint_streams(declared)))
        return Topology(graph, MappingProxyType(with_checkpoints(self._objects)))

    def _with_streams(self, component: Component, sources: Mapping[str, Component]) -> Component:
        """The component with what it declares; its sources have declared theirs before."""
        first = component.inputs[0] if component.inputs else None
        stream = sources[first.component].streams.get(first.stream) if first else None
        declarer = OutputFieldsDeclarer(component.name, stream.fields if stream else ())
        user = self._objects[component.name]
        user.declare_output_fields(declarer)
        own = user.component_configuration() if hasattr(user, "component_configuration") else {}
        check_storm_keys(own)
        check_configuration(component.name, own)
        configuration = MappingProxyType({**own, **component.configuration})
        return replace(component, streams=MappingProxyType(declarer.streams), configuration=configuration)

    def _check(self, id: str, parallelism: int) -> None:
        check_name(id, "component", self._declarers)
        _check_count(parallelism, f"parallelism of {id!r}")


def _as_rich(bolt: BasicBolt | RichBolt | WindowedBolt) -> RichBolt:
    if isinstance(bolt, RichBolt):
        return bolt
    if isinstance(bolt, StatefulWindowedBolt):
        return StatefulWindowedBoltExecutor(bolt)
    return BasicBoltExecutor(bolt) if isinstance(bolt, BasicBolt) else WindowedBoltExecutor(bolt)


def _kind(given: object) -> str:
    return f"the class {given.__name__}: make one of it" if isinstance(given, type) else type(given).__name__


def _check_methods(what: str, given: object, names: Iterable[str]) -> None:
    """Raise TopologyError for an object that lacks a method that the engines call."""
    for name in names:
        if not name.startswith("_") and not callable(getattr(given, name, None)):
            raise TopologyError(f"{what} has no method {name}(): {type(given).__name__} is no such thing")


def _check_count(count: int, what: str) -> None:
    if type(count) is not int or count < 1:
        raise TopologyError(f"{what} must be a whole number, 1 or more, not {count!r}")
