"""What the engines have in common: the rounds, the clock, the spouts, and looking at what happened.

The order of one round: ring the timers that are due; let every tuple that is queued arrive, first in first out, what
it causes included; then let the spouts emit. Source: Storm's `executor/spout/SpoutExecutor.call`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from reliable_spark.clock import ManualClock
from reliable_spark.core.graph import SYSTEM, TICK_STREAM
from reliable_spark.errors import OperatingError, UsageError
from reliable_spark.process.bolt_task import BoltTask
from reliable_spark.process.closing import first_error
from reliable_spark.process.crew import Crew
from reliable_spark.process.restarts import Restarts
from reliable_spark.process.spout_task import SpoutExecutor, SpoutTask
from reliable_spark.process.view import TopologyView
from reliable_spark.process.world import DEADLY, World
from reliable_spark.topology.checkpoint_spout import CheckpointSpout
from reliable_spark.topology.tuples import Tuple

IDLE_STEP_S = 1.0
"""How often an idle spout is asked for a tuple while simulated time passes."""

STEPS_MAX = 10_000_000
"""What has not come to rest after this many steps while no time passed will not do so by itself."""


class TopologyEngine(TopologyView, ABC):
    """Runs one topology; see `testing.TestTopology` for what the methods promise.

    Args:
        world: what the tasks share.
        crew: the tasks of this process, the spouts' at least.
    """

    def __init__(self, world: World, crew: Crew) -> None:
        super().__init__(world, crew)
        self._restarts = Restarts()
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

    def is_short_of_tasks(self) -> bool:
        """Whether a task waits to be started again."""
        return len(self._restarts) > 0

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
        if self._restarts.next_due_s <= self._world.now_s:
            self._start_those_due()
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
            running = executor.tasks.get(late.task)
            if running is None:  # it died of one before
                self._world.saw_end(self._world.component_of[late.task], late, "lost")
            else:
                self._guarded(late.task, partial(running.failed, late))
        self._world.read_time()

    def _ask_spouts(self) -> bool:
        """One call of `next_tuple` for each task of each executor that is not throttled.

        Checkpoints go on while the spouts are inactive: what is on its way is acked by them.
        """
        emitted = False
        for executor in self._crew.spout_executors:
            if (self._is_active or executor is self._crew.coordinator) and not executor.is_throttled:
                for task in filter(self._may_emit, sorted(executor.tasks)):
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
        """Start a task again: a spout after a wait, from its second death on, since nothing else would slow it down."""
        self._world.report(self._world.component_of[task], error)
        is_spout = isinstance(self._crew.tasks[task], SpoutTask)
        if is_spout and self._restarts.put_off(task, self._world.now_s, first_s=0.0):
            self._drop_queued(task)
            self._crew.lay_down(task, self._expire)
        else:
            self._restart(task)

    def _restart(self, task: int) -> None:
        """Let a task die and start again, now or, if it cannot, later."""
        self._drop_queued(task)
        self._crew.lay_down(task, self._expire)
        self._start(task)

    def _start_those_due(self) -> None:
        for task in self._restarts.due(self._world.now_s):
            self._start(task)

    def _start(self, task: int) -> None:
        try:
            self._crew.start(task)
            running = self._crew.tasks[task]
            if isinstance(running, SpoutTask) and self._is_active:
                running.user.activate()
        except UsageError:
            raise
        except DEADLY as error:
            self._world.report(self._world.component_of[task], error)
            self._crew.lay_down(task, self._expire)
            self._restarts.put_off(task, self._world.now_s)
        else:
            self._restarts.started(task, self._world.now_s)

    def _spout_tasks(self) -> list[int]:
        return [task for executor in self._crew.spout_executors for task in executor.tasks]

    def _spout(self, task: int) -> SpoutTask:
        running = self._crew.tasks[task]
        assert isinstance(running, SpoutTask)
        return running
