"""Looking at a topology that runs: what both engines can tell, whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reliable_spark.core.pressure import ReceiveQueue
from reliable_spark.core.statistics import ALL_TIME, ComponentStatistics, Metric, component_statistics
from reliable_spark.errors import UsageError, nearest
from reliable_spark.process.acker_task import AckerRunner
from reliable_spark.process.crew import Crew, Down, Task
from reliable_spark.process.world import World


def check_task(tasks: Mapping[str, int], component: str, task: int = 0) -> None:
    """Refuse a component or the place of a task that is not there.

    Args:
        tasks: how many each component has.
        component: its id.
        task: the place among them, from 0.

    Raises:
        UsageError: it names those that are there.
    """
    if component not in tasks:
        raise UsageError(f"there is no component {component!r}{nearest(component, tasks)}")
    if not 0 <= task < tasks[component]:
        raise UsageError(f"component {component!r} has the tasks 0 to {tasks[component] - 1}, not {task}")


class TopologyView:
    """What happened in a topology, and what is in it now.

    Args:
        world: what the tasks share.
        crew: the tasks of this process.
    """

    def __init__(self, world: World, crew: Crew) -> None:
        self._world = world
        self._crew = crew

    def components(self) -> dict[str, int]:
        """Every component with its number of tasks, the ackers included."""
        return {name: len(tasks) for name, tasks in self._world.tasks.items()}

    def now_s(self) -> float:
        """Seconds since the topology began."""
        return self._world.now_s

    def acks(self, spout: str) -> list[Any]:
        """Message ids acked since the previous call."""
        return self._world.acks.pop(spout, [])

    def fails(self, spout: str) -> list[Any]:
        """Message ids failed since the previous call."""
        return self._world.fails.pop(spout, [])

    def emitted(self, component: str, stream: str) -> list[list[Any]]:
        """Value lists emitted since the previous call."""
        return self._world.emitted.pop((component, stream), [])

    def errors(self, component: str) -> list[BaseException]:
        """Errors reported since the previous call."""
        return self._world.errors.pop(component, [])

    def pending(self, spout: str) -> int:
        """Trees of a spout that have no answer."""
        own = self._world.tasks[spout]
        entries = (entry for executor in self._crew.spout_executors for _, entry in executor.pending.items())
        return sum(entry.task in own for entry in entries)

    def instance(self, component: str, task: int) -> Any:
        """The user's object that runs in a task, or the acker.

        Raises:
            UsageError: none does, since it could not be started again yet.
        """
        running = self._running(self._world.tasks[component][task])
        if isinstance(running, Down):
            raise UsageError(f"task {task} of {component!r} has died and not started again yet")
        return running if isinstance(running, AckerRunner) else running.user

    def executed(self, component: str, task: int | None) -> int:
        """Tuples that one or all tasks executed, ticks included."""
        tasks = self._world.tasks[component]
        chosen = tasks if task is None else [tasks[task]]
        now_s = self._world.now_s
        self._world.keep_counts()
        counts = [self._world.counts[each] for each in chosen]
        return int(sum(each.total(Metric.EXECUTED, ALL_TIME, now_s, lambda key: True) for each in counts))

    def queue(self, component: str, task: int) -> ReceiveQueue[Any]:
        """The receive queue of one task, where tasks have one.

        Raises:
            UsageError: here a step takes everything that is queued.
        """
        raise UsageError("this engine has no queue for each task: a step takes everything that is queued")

    def statistics(self, component: str) -> ComponentStatistics:
        """The component's page of Storm's UI."""
        now_s = self._world.now_s
        self._world.keep_counts()
        counts = [self._world.counts[task] for task in self._world.tasks[component]]
        return component_statistics(component, counts, now_s)

    def _running(self, task: int) -> Task:
        return self._crew.tasks[task]
