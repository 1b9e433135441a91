"""The tasks that run in this process, and the timers of all: how tasks are made, die and start again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from reliable_spark.core.graph import ACKER, CHECKPOINT_SPOUT, Component, executors_of
from reliable_spark.core.statistics import TaskCounts
from reliable_spark.process.acker_task import AckerRunner
from reliable_spark.process.bolt_task import BoltTask
from reliable_spark.process.spout_task import SpoutExecutor, SpoutTask
from reliable_spark.process.starting import PENDING_KEY, Starter
from reliable_spark.process.stateful import fit_states
from reliable_spark.process.ticks import Ticks, Timer
from reliable_spark.process.world import World
from reliable_spark.topology.builder import Topology
from reliable_spark.topology.context import TICK_KEY
from reliable_spark.topology.tuples import Tuple


class Down:
    """In the place of a task that died and has not started again: what arrives is lost, and times out.

    Args:
        on_tick: what a tick is still for: others of a spout's executor.
    """

    def __init__(self, on_tick: Callable[[], object] | None) -> None:
        self._on_tick = on_tick

    def deliver(self, input: Tuple) -> None:
        """Lose it."""
        if input.is_tick and self._on_tick is not None:
            self._on_tick()

    def close(self) -> None:
        """Nothing is held."""


Task = BoltTask | SpoutTask | AckerRunner | Down


class Crew:
    """The tasks here, by id. A task that dies takes its instance and what it held with it, nothing else.

    Args:
        world: what the tasks share.
        topology: whose objects are copied for the tasks.
        elsewhere: components whose tasks run somewhere else.
    """

    def __init__(self, world: World, topology: Topology, elsewhere: Collection[str] = ()) -> None:
        self.tasks: dict[int, Task] = {}
        self.spout_executors: list[SpoutExecutor] = []
        self._world = world
        self._starter = Starter(world, topology)
        self._executor_of: dict[int, SpoutExecutor] = {}
        fit_states(world, topology, self._starter.state_keys)
        for name, component in world.graph.components.items():
            if component.kind == "spout":
                self._add_executors(component)
            for task in world.tasks[name]:
                world.counts[task] = TaskCounts(world.now_s)
        # Bolts first, so that nothing a spout emits from open on finds nobody.
        for task in sorted(world.component_of, key=lambda task: (task in self._executor_of, task)):
            if world.component_of[task] not in elsewhere:
                self.tasks[task] = self._started(task)

    @property
    def coordinator(self) -> SpoutExecutor | None:
        """The executor of the checkpoint spout, in a topology with stateful bolts."""
        tasks = self._world.tasks.get(CHECKPOINT_SPOUT)
        return self._executor_of[tasks[0]] if tasks else None

    def lay_down(self, task: int, expire: Callable[[SpoutExecutor], object]) -> None:
        """Let a task die, with the trees of a spout's; `expire` is called for ticks that stand for its executor."""
        executor = self._executor_of.get(task)
        if executor is None:
            self.tasks[task] = Down(None)
            return
        for each in executor.forget(task):
            self._world.saw_end(self._world.component_of[task], each, "lost")
        self.tasks[task] = Down(partial(expire, executor))

    def start(self, task: int) -> None:
        """Start a task again from a fresh copy."""
        self.tasks[task] = self._started(task)

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
                period_s = self._starter.configuration(name)[TICK_KEY]
            if period_s:
                timers.append(Timer(float(period_s), tasks))
        return Ticks(timers)

    def _add_executors(self, component: Component) -> None:
        limit = self._starter.configuration(component.name)[PENDING_KEY] or self._world.settings.max_pending
        for tasks in executors_of(self._world.tasks[component.name], component.executors):
            executor = SpoutExecutor(limit * len(tasks))
            self.spout_executors.append(executor)
            self._executor_of.update(dict.fromkeys(tasks, executor))

    def _started(self, task: int) -> Task:
        executor = self._executor_of.get(task)
        return self._starter.bolt(task) if executor is None else self._starter.spout(task, executor)
