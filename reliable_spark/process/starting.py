"""How one task is started: its own copy of the user's object, its configuration, its collector.

Source: Storm's `executor/Executor.mkExecutor`, `daemon/StormCommon.addAcker`.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from reliable_spark.core.graph import ACKER, CHECKPOINT_SPOUT, Component, Graph, task_ids
from reliable_spark.errors import UsageError
from reliable_spark.process.acker_task import AckerRunner
from reliable_spark.process.bolt_task import BoltTask
from reliable_spark.process.spout_task import SpoutExecutor, SpoutTask
from reliable_spark.process.stateful import state_keys
from reliable_spark.process.world import World
from reliable_spark.settings import Settings
from reliable_spark.topology.bolts import RichBolt
from reliable_spark.topology.builder import Topology
from reliable_spark.topology.context import TICK_KEY, TopologyContext
from reliable_spark.topology.spouts import Spout

PENDING_KEY = "topology.max.spout.pending"


def with_ackers(graph: Graph, settings: Settings) -> tuple[Graph, dict[str, list[int]]]:
    """The graph with its ackers, and the task ids of each component."""
    components = {name: _with_tasks(each, settings) for name, each in graph.components.items()}
    ackers = settings.topology.workers if settings.ackers is None else settings.ackers
    if ackers:
        components[ACKER] = Component(ACKER, "bolt", ackers, ackers)
    return Graph(components), task_ids({name: each.tasks for name, each in components.items()})


class Starter:
    """Makes the tasks of a topology; whoever has its world and the user's objects can make any of them.

    Args:
        world: what the tasks share.
        topology: whose objects are copied for the tasks.
    """

    def __init__(self, world: World, topology: Topology) -> None:
        self.state_keys = state_keys(world)
        self._world = world
        self._topology = topology

    def configuration(self, name: str) -> dict[str, Any]:
        """The Storm keys that hold for a component: its own win over the topology's."""
        settings = self._world.settings
        common = {
            "topology.message.timeout.secs": settings.message_timeout_s,
            "topology.enable.message.timeouts": settings.topology.message_timeouts,
            "topology.acker.executors": len(self._world.tasks.get(ACKER, ())),
            PENDING_KEY: settings.max_pending,
            TICK_KEY: settings.topology.tick_s,
            **self.state_keys,
        }
        return {**common, **self._world.graph.components[name].configuration}

    def bolt(self, task: int) -> BoltTask | AckerRunner:
        """A bolt's task, prepared, or an acker."""
        context = self._context(task)
        if context.component == ACKER:
            return AckerRunner(self._world, context)
        user = self._copy(context.component)
        assert isinstance(user, RichBolt)
        return BoltTask(self._world, context, user, self.configuration(context.component))

    def spout(self, task: int, executor: SpoutExecutor) -> SpoutTask:
        """A spout's task, open."""
        context = self._context(task)
        user = self._copy(context.component)
        assert not isinstance(user, RichBolt)
        return SpoutTask(self._world, context, user, self.configuration(context.component), executor)

    def _copy(self, component: str) -> Spout | RichBolt:
        """A task's own copy of the user's object.

        Raises:
            UsageError: it holds something that cannot be copied, such as a lock or a connection.
        """
        try:
            return deepcopy(self._topology.components[component])
        except TypeError as error:
            raise UsageError(
                f"{component!r} cannot be copied for its tasks ({error}): make such things in prepare() or open()"
            ) from None

    def _context(self, task: int) -> TopologyContext:
        world = self._world
        name = world.component_of[task]
        index = world.tasks[name].index(task)
        return TopologyContext(name, task, index, world.clock, world.graph, world.tasks)


def _with_tasks(component: Component, settings: Settings) -> Component:
    """The component with the topology's number of tasks, unless it has its own."""
    tasks = settings.topology.tasks
    if tasks is None or component.tasks != component.executors or component.name == CHECKPOINT_SPOUT:
        return component
    return replace(component, tasks=tasks, executors=min(component.executors, tasks))
