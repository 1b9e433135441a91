"""The tasks of an in-process topology: how they are made, die and start again.

Source: Storm's `executor/Executor.mkExecutor`, `daemon/StormCommon.addAcker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

from reliable_spark.clock import ManualClock
from reliable_spark.core.graph import ACKER, CHECKPOINT_SPOUT, Component, Graph, executors_of, task_ids
from reliable_spark.core.statistics import TaskCounts
from reliable_spark.errors import SettingsError, UsageError
from reliable_spark.process.acker_task import AckerRunner
from reliable_spark.process.bolt_task import BoltTask
from reliable_spark.process.spout_task import SpoutExecutor, SpoutTask
from reliable_spark.process.ticks import Ticks, Timer
from reliable_spark.process.world import World
from reliable_spark.settings import Settings
from reliable_spark.state import provider_of
from reliable_spark.topology.bolts import RichBolt
from reliable_spark.topology.builder import Topology
from reliable_spark.topology.checkpoint_spout import INTERVAL_KEY, PROVIDER_KEY
from reliable_spark.topology.checkpointed import StatefulBoltExecutor
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.resharding import Sharding, reshard
from reliable_spark.topology.spouts import Spout

Task = BoltTask | SpoutTask | AckerRunner

_TICK_KEY = "topology.tick.tuple.freq.secs"
_PENDING_KEY = "topology.max.spout.pending"


def world_of(topology: Topology, settings: Settings) -> World:
    """The shared world of a topology with its ackers, before there is a task."""
    components = {name: _with_tasks(each, settings) for name, each in topology.graph.components.items()}
    ackers = settings.topology.workers if settings.ackers is None else settings.ackers
    if ackers:
        components[ACKER] = Component(ACKER, "bolt", ackers, ackers)
    tasks = task_ids({name: each.tasks for name, each in components.items()})
    return World(Graph(components), tasks, settings, ManualClock())


class Crew:
    """All tasks, by id. A task that dies takes its instance, what it held and its queue with it, nothing else.

    Args:
        world: what the tasks share.
        topology: whose objects are copied for the tasks.
    """

    def __init__(self, world: World, topology: Topology) -> None:
        self.tasks: dict[int, Task] = {}
        self.spout_executors: list[SpoutExecutor] = []
        self._world = world
        self._topology = topology
        self._executor_of: dict[int, SpoutExecutor] = {}
        self._state = _state_keys(world)
        if self._state:
            reshard(self._state[PROVIDER_KEY], self._shardings())
        for name, component in world.graph.components.items():
            if component.kind == "spout":
                self._add_executors(component)
            for task in world.tasks[name]:
                world.counts[task] = TaskCounts(world.now_s)
        # Bolts first, so that nothing a spout emits from open on finds nobody.
        kinds = {name: each.kind for name, each in world.graph.components.items()}
        for task in sorted(world.component_of, key=lambda task: (kinds[world.component_of[task]] == "spout", task)):
            self.tasks[task] = self._started(task)

    @property
    def coordinator(self) -> SpoutExecutor | None:
        """The executor of the checkpoint spout, in a topology with stateful bolts."""
        tasks = self._world.tasks.get(CHECKPOINT_SPOUT)
        return self._executor_of[tasks[0]] if tasks else None

    def restart(self, task: int) -> None:
        """Kill a task and start it again from a fresh copy."""
        queue = self._world.queue
        # A tick may stand for a whole executor, whose other tasks go on.
        waiting = [each for each in queue if each.task != task or each.tuple.is_tick]
        queue.clear()
        queue.extend(waiting)
        if task in self._executor_of:
            self._executor_of[task].forget(task)
        self.tasks[task] = self._started(task)

    def instance(self, task: int) -> Spout | RichBolt | AckerRunner:
        """The user's object that runs in a task, or the acker."""
        running = self.tasks[task]
        return running if isinstance(running, AckerRunner) else running.user

    def configuration(self, name: str) -> dict[str, Any]:
        """The Storm keys that hold for a component: its own win over the topology's."""
        settings = self._world.settings
        common = {
            "topology.message.timeout.secs": settings.message_timeout_s,
            "topology.enable.message.timeouts": settings.topology.message_timeouts,
            "topology.acker.executors": len(self._world.tasks.get(ACKER, ())),
            _PENDING_KEY: settings.max_pending,
            _TICK_KEY: settings.topology.tick_s,
            **self._state,
        }
        return {**common, **self._world.graph.components[name].configuration}

    def ticks(self) -> Ticks:
        """The timers: ackers and spouts at the message timeout, bolts at their own period."""
        settings = self._world.settings
        timers = []
        for name, component in self._world.graph.components.items():
            tasks = self._world.tasks[name]
            if name == ACKER or component.kind == "spout":
                # One task stands for each spout executor: a tick rotates what its tasks share once.
                tasks = tasks if name == ACKER else [low[0] for low in executors_of(tasks, component.executors)]
                period_s = settings.message_timeout_s if settings.topology.message_timeouts else None
            else:
                period_s = self.configuration(name)[_TICK_KEY]
            if period_s:
                timers.append(Timer(float(period_s), tasks))
        return Ticks(timers)

    def _shardings(self) -> dict[str, Sharding]:
        components = self._topology.components
        return {
            name: Sharding(len(self._world.tasks[name]), each.bolt.shard_of)
            for name, each in components.items()
            if isinstance(each, StatefulBoltExecutor)
        }

    def _add_executors(self, component: Component) -> None:
        limit = self.configuration(component.name)[_PENDING_KEY] or self._world.settings.max_pending
        for tasks in executors_of(self._world.tasks[component.name], component.executors):
            executor = SpoutExecutor(limit * len(tasks))
            self.spout_executors.append(executor)
            self._executor_of.update(dict.fromkeys(tasks, executor))

    def _started(self, task: int) -> Task:
        """A task with its own copy of the user's object, prepared or open."""
        context = self._context(task)
        if context.component == ACKER:
            return AckerRunner(self._world, context)
        user = self._copy(context.component)
        configuration: Mapping[str, Any] = self.configuration(context.component)
        if task in self._executor_of:
            assert not isinstance(user, RichBolt)
            return SpoutTask(self._world, context, user, configuration, self._executor_of[task])
        assert isinstance(user, RichBolt)
        return BoltTask(self._world, context, user, configuration)

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


def _state_keys(world: World) -> dict[str, Any]:
    """What the components of a stateful topology need to know.

    Raises:
        SettingsError: no checkpoint could ever end.
    """
    settings = world.settings
    if CHECKPOINT_SPOUT not in world.graph.components:
        return {}
    if not world.is_tracking:
        raise SettingsError(
            "checkpoints of stateful bolts need ackers: without them nobody knows that all bolts answered"
        )
    if settings.topology.message_timeouts and settings.checkpoint_interval_s >= settings.message_timeout_s:
        raise SettingsError(
            f"checkpoint_interval_s={settings.checkpoint_interval_s} must be less than "
            f"message_timeout_s={settings.message_timeout_s}: tuples are acked at a checkpoint and would time out first"
        )
    provider = provider_of(settings.topology.state_provider, settings.topology.state_provider_config)
    return {PROVIDER_KEY: provider, INTERVAL_KEY: settings.checkpoint_interval_s * 1000}
