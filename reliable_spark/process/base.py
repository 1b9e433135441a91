"""What the engines have in common: the rounds, the clock, the spouts, and looking at what happened.

The order of one round: ring the timers that are due; let every tuple that is queued arrive, first in first out, what
it causes included; then let the spouts emit. Source: Storm's `executor/spout/SpoutExecutor.call`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from reliable_spark.clock import ManualClock
from reliable_spark.core.graph import SYSTEM, TICK_STREAM
from reliable_spark.core.pressure import ReceiveQueue
from reliable_spark.core.statistics import ALL_TIME, ComponentStatistics, Metric, component_statistics
from reliable_spark.errors import OperatingError, UsageError
from reliable_spark.process.acker_task import AckerRunner
from reliable_spark.process.bolt_task import BoltTask
from reliable_spark.process.closing import first_error
from reliable_spark.process.crew import Crew, Task
from reliable_spark.process.spout_task import SpoutExecutor, SpoutTask
from reliable_spark.process.world import DEADLY, World
from reliable_spark.topology.checkpoint_spout import CheckpointSpout
from reliable_spark.topology.tuples import Tuple

IDLE_STEP_S = 1.0
"""How often an idle spout is asked for a tuple while simulated time passes."""

STEPS_MAX = 10_000_000
"""What has not come to rest after this many steps while no time passed will not do so by itself."""


class TopologyEngine(ABC):
    """Runs one topology; see `testing.TestTopology` for what the methods promise.

    Args:
        world: what the tasks share.
        crew: the tasks of this process, the spouts' at least.
    """

    def __init__(self, world: World, crew: Crew) -> None:
        self._world = world
        self._crew = crew
        self._ticks = crew.ticks()
        self._is_active = False
        self._has_user_emitted = False
        self._idle_step_s = IDLE_STEP_S
        if crew.coordinator:
            self._idle_step_s = min(IDLE_STEP_S, world.settings.checkpoint_interval_s)
            self._begin_states(crew.coordinator)
        self.activate()

    # ------------------------------------------------------------------------------------------- running

    def settle(self) -> None:
        """Run until nothing is queued anywhere and no spout has anything to emit."""
        self._run(until_s=float("inf"))

    def advance(self, seconds: float) -> None:
        """Settle, then let time pass from one tick to the next, settling after each step."""
        world = self._world
        assert isinstance(world.clock, ManualClock), "only simulated time can be advanced"
        until_s = round(world.now_s + seconds, 6)
        self._run(until_s)
        while world.now_s < until_s:
            next_s = min(until_s, self._ticks.next_due_s, world.now_s + self._idle_step_s)
            world.clock.advance(next_s - world.now_s)
            self._run(until_s)

    def run_once(self) -> bool:
        """One round; says whether anything happened."""
        self._has_user_emitted = False
        return self._round(until_s=float("inf"))

    def is_checkpointing_alone(self) -> bool:
        """Whether nothing but a checkpoint can have made the last `run_once` busy: no spout of the user's emitted."""
        return self._crew.coordinator is not None and not self._has_user_emitted

    def activate(self) -> None:
        """Let the spouts emit."""
        if not self._is_active:
            self._is_active = True
            for task in self._spout_tasks():
                self._guarded(task, self._spout(task).user.activate)

    def deactivate(self) -> None:
        """Let the spouts emit nothing more; acks, fails and ticks still arrive."""
        if self._is_active:
            self._is_active = False
            for task in self._spout_tasks():
                self._guarded(task, self._spout(task).user.deactivate)

    def kill_task(self, component: str, task: int) -> None:
        """Let a task die and start again."""
        self._restart(self._world.tasks[component][task])

    def close(self) -> None:
        """Deactivate, then close spouts and clean up bolts, each of them; raises the first error at the end."""
        error = first_error(self._closing())
        if error is not None:
            raise error

    # ------------------------------------------------------------------------------------------- looking

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
        """The user's object that runs in a task, or the acker."""
        running = self._running(self._world.tasks[component][task])
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

    # ------------------------------------------------------------------------------------------- one round

    @abstractmethod
    def _drain(self, until_s: float) -> bool:
        """Let everything queued arrive, with what it causes; says whether there was anything."""

    @abstractmethod
    def _drop_queued(self, task: int) -> None:
        """A task died: what is queued for it is lost, but its ticks, which may stand for a whole executor."""

    def _may_emit(self, task: int) -> bool:
        """Whether back-pressure lets a spout be asked for a tuple."""
        return True

    def _pass_time(self, until_s: float) -> bool:
        """With nothing left to do now, go on to when there is, if tasks have a time of their own."""
        return False

    def _closing(self) -> list[Callable[[], object]]:
        """What closes the topology, in order."""
        return [self.deactivate, *(running.close for running in self._crew.tasks.values())]

    def _running(self, task: int) -> Task:
        return self._crew.tasks[task]

    def _run(self, until_s: float) -> None:
        """Rounds until one finds nothing to do, or bolts have spent more time than there was."""
        quiet_since_s, rounds = self._world.now_s, 0
        while (self._round(until_s) or self._pass_time(until_s)) and self._world.now_s <= until_s:
            rounds = rounds + 1 if self._world.now_s == quiet_since_s else 0
            quiet_since_s = self._world.now_s
            if rounds > STEPS_MAX:
                raise OperatingError(f"still not settled after {STEPS_MAX} rounds: a spout never stops emitting")

    def _round(self, until_s: float) -> bool:
        """Deliver what is queued, then let the spouts emit; says whether anything happened."""
        self._ring()
        delivered = self._drain(until_s)
        emitted = self._world.now_s <= until_s and self._ask_spouts()
        return delivered or emitted or self._flush()

    def _begin_states(self, coordinator: SpoutExecutor) -> None:
        """Initialise states, and checkpoint them once, before there are tuples; no longer, if the next one is due."""
        [task] = coordinator.tasks.values()
        spout = task.user
        assert isinstance(spout, CheckpointSpout)
        while not spout.has_checkpointed and self._round(until_s=float("inf")):
            pass

    def _flush(self) -> bool:
        """Nothing else is to be done: let the bolts that batch run what waits."""
        bolts = [task for task, running in self._crew.tasks.items() if isinstance(running, BoltTask)]
        return any(self._guarded(task, partial(self._flush_task, task)) for task in bolts)

    def _flush_task(self, task: int) -> bool:
        running = self._crew.tasks[task]
        return isinstance(running, BoltTask) and running.flush()

    def _ring(self) -> None:
        now_s = self._world.now_s
        if self._ticks.next_due_s <= now_s:
            for period_s, task in self._ticks.ring(now_s):
                self._world.send((task, Tuple([period_s], ("rate_secs",), SYSTEM, TICK_STREAM, -1)))

    def _deliver(self, task: int, arrived: Tuple) -> None:
        """Let a tuple arrive at the time that was read last; after a user's code it is read again."""
        running = self._crew.tasks[task]
        if isinstance(running, SpoutTask) and arrived.is_tick:
            self._expire(running.executor)
            return
        try:  # as `_guarded`, without a call in between: this is done for every tuple
            running.deliver(arrived)
        except UsageError:
            raise
        except DEADLY as error:
            self._died(task, error)

    def _expire(self, executor: SpoutExecutor) -> None:
        """Fail what timed out; a task that dies of it does not keep the others from hearing of theirs."""
        for late in executor.rotate():
            self._guarded(late.task, partial(executor.tasks[late.task].failed, late))
        self._world.read_time()

    def _ask_spouts(self) -> bool:
        """One call of `next_tuple` for each task of each executor that is not throttled.

        Checkpoints go on while the spouts are inactive: what is on its way is acked by them.
        """
        emitted = False
        for executor in self._crew.spout_executors:
            if (self._is_active or executor is self._crew.coordinator) and not executor.is_throttled:
                for task in filter(self._may_emit, list(executor.tasks)):
                    has_emitted = bool(self._guarded(task, executor.tasks[task].next_tuple))
                    emitted |= has_emitted
                    self._has_user_emitted |= has_emitted and executor is not self._crew.coordinator
        return emitted

    def _guarded(self, task: int, call: Callable[[], object]) -> object:
        """Run a task's code; what it raises kills the task, unless the library was misused: that is the caller's."""
        try:
            return call()
        except UsageError:
            raise
        except DEADLY as error:
            self._died(task, error)
            return False

    def _died(self, task: int, error: BaseException) -> None:
        self._world.report(self._world.component_of[task], error)
        self._restart(task)

    def _restart(self, task: int) -> None:
        self._drop_queued(task)
        self._crew.restart(task)
        running = self._crew.tasks[task]
        if isinstance(running, SpoutTask) and self._is_active:
            running.user.activate()

    def _spout_tasks(self) -> list[int]:
        return [task for executor in self._crew.spout_executors for task in executor.tasks]

    def _spout(self, task: int) -> SpoutTask:
        running = self._crew.tasks[task]
        assert isinstance(running, SpoutTask)
        return running
