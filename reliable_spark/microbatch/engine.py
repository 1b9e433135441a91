"""The Spark engine: the same rounds as in one process, but everything that is queued is delivered in one step.

A step gives each task all that is queued for it, and the tasks run side by side. What they send is put in the order in
which one queue would hold it, so a bolt or an acker meets the same tuples in the same order as in one process; only
the spouts, which live here, emit many tuples before the next step and not one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reliable_spark.clock import Clock, ManualClock
from reliable_spark.core.graph import ACKER, CHECKPOINT_SPOUT
from reliable_spark.microbatch.cluster import Cluster
from reliable_spark.microbatch.orders import Done, Step, Work
from reliable_spark.microbatch.parcels import LAST, Address, Arrival, Parcel, arrivals, opened, upright
from reliable_spark.microbatch.pickling import send_hidden_modules_by_value, woken
from reliable_spark.microbatch.states import check_shared
from reliable_spark.microbatch.work import BatchWorld, Recipe
from reliable_spark.process.base import TopologyEngine
from reliable_spark.process.crew import Crew, Down, Task
from reliable_spark.process.starting import with_ackers
from reliable_spark.process.world import Watch
from reliable_spark.settings import Settings
from reliable_spark.topology.bolts import BasicBolt, BatchingBolt, RichBolt, innermost
from reliable_spark.topology.builder import Topology
from reliable_spark.topology.windowed import WindowedBolt

ROUNDS_MAX = 10_000
"""How many tuples each spout task is asked for, at most, before what they emitted is processed."""


class MicroBatchEngine(TopologyEngine):
    """Runs one topology; the bolts and ackers on a cluster, the spouts and the clock here.

    Args:
        topology: what is run.
        settings: how.
        cluster: where bolts and ackers run.
        clock: the time; a simulated one by default.
        watch: who looks; a test by default.

    Raises:
        SettingsError: there are stateful bolts, and their states would lie in the memory of one process.
        UsageError: a bolt, or what it holds between two steps, cannot be pickled.
    """

    _world: BatchWorld

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        cluster: Cluster,
        clock: Clock | None = None,
        watch: Watch | None = None,
    ) -> None:
        if CHECKPOINT_SPOUT in topology.graph.components:
            check_shared(settings)
        graph, tasks = with_ackers(topology.graph, settings)
        world = BatchWorld(graph, tasks, settings, clock or ManualClock(), watch=watch or Watch())
        bolts = {
            name: each
            for name, each in topology.components.items()
            if isinstance(each, RichBolt) and not isinstance(innermost(each), BatchingBolt)
        }
        elsewhere = [name for name, each in graph.components.items() if name in bolts or name == ACKER]
        send_hidden_modules_by_value()
        real_clock = None if isinstance(clock, ManualClock) else clock
        self._recipe = Recipe(graph, tasks, bolts, settings, real_clock, world.is_watched).packed()
        self._bolts = bolts
        self._cluster = cluster
        self._states: dict[int, bytes | None] = {task: None for name in elsewhere for task in tasks[name]}
        self._in_flight: list[Parcel[Address]] = []
        self._steps = 0
        self._died_at: dict[int, int] = {}
        self._has_started: set[int] = set()
        super().__init__(world, Crew(world, topology, elsewhere))

    def _closing(self) -> list[Callable[[], object]]:
        return [self.deactivate, self._clean_up, *super()._closing()]

    def _clean_up(self) -> None:
        """Let the bolts on the cluster clean up that have something to clean up."""
        tasks = [task for name, bolt in self._bolts.items() if _cleans_up(bolt) for task in self._world.tasks[name]]
        up = [task for task in tasks if task not in self._restarts]
        _raise_misuse(self._run_works([Work(task, self._states[task], is_closing=True) for task in up]))

    # ------------------------------------------------------------------------------------------- one step

    def _round(self, until_s: float) -> bool:
        """Tasks start with the first tuples that are queued; without any, for themselves."""
        happened = super()._round(until_s)
        if not happened and any(state is None for task, state in self._states.items() if task not in self._restarts):
            self._step()
            return True
        return happened

    def _drain(self, until_s: float) -> bool:
        steps = self._steps
        while (self._in_flight or self._world.outbox) and self._world.now_s <= until_s:
            self._step()
            self._ring()
        return self._steps > steps

    def _step(self) -> None:
        """Deliver everything that is queued now; what it causes is queued then."""
        self._in_flight += self._world.take_sent()
        arrived: dict[int, list[Arrival]] = {}
        for parcel, arrival in zip(self._in_flight, arrivals(self._in_flight), strict=True):
            arrived.setdefault(parcel.to.task, []).append(arrival)
        here = {task: arrived.pop(task) for task in self._crew.tasks if task in arrived}
        works = [
            Work(task, state, arrived.get(task, ()), is_restart=task in self._has_started)
            for task, state in self._states.items()
            if (state is None or task in arrived) and task not in self._restarts  # what is for those is lost
        ]
        done = self._run_works(works)
        self._in_flight = []  # only now: a job that fails has delivered nothing
        self._take_back(done)
        try:
            self._deliver_here(here)
        finally:
            self._lose_what_was_queued_for_the_dead()
        _raise_misuse(done)

    def _run_works(self, works: list[Work]) -> list[Done]:
        self._steps += 1
        return self._cluster.run(self._recipe, Step(self._steps, self._world.now_s), works) if works else []

    def _take_back(self, done: list[Done]) -> None:
        """Keep the tasks, their counts and what they sent, in the order of one queue."""
        world = self._world
        for each in done:
            self._keep_task(each)
            self._in_flight += each.parcels
            for second, counted in each.counted:
                world.counts[each.task].add_all(second, counted)
        errors = [(place, each.task, error) for each in done for place, error in each.reported]
        for _, task, error in sorted(errors, key=lambda report: report[:2]):
            world.report(world.component_of[task], error)
        for key in {parcel.to for each in done for parcel in each.seen}:
            parcels = [parcel for each in done for parcel in each.seen if parcel.to == key]
            world.emitted[key] += [values for _, values in opened(arrivals(parcels))]
        if isinstance(world.clock, ManualClock):  # who waits longest is who the others wait for
            world.clock.advance(max((each.now_s for each in done), default=world.now_s) - world.now_s)

    def _keep_task(self, done: Done) -> None:
        """Keep a task until the next step, and know whether it is there to begin that one."""
        task = done.task
        if done.is_down:
            self._restarts.put_off(task, done.now_s)
        elif done.state is not None and (self._states[task] is None or done.died_at is not None):
            self._restarts.started(task, done.now_s)
        self._states[task] = done.state
        if done.state is not None or done.died_at is not None:
            self._has_started.add(task)
        if done.died_at is not None:
            self._died_at[task] = done.died_at

    def _deliver_here(self, here: dict[int, list[Arrival]]) -> None:
        """Let the spouts hear of answers and ticks, and the bolts that run here of their tuples."""
        world = self._world
        for place, (task, content) in _merged(here):
            arrived = upright(content, world.graph)
            if task not in self._died_at or arrived.is_tick:
                world.place = place
                world.read_time()
                try:
                    self._deliver(task, arrived)
                finally:
                    world.place = LAST

    def _lose_what_was_queued_for_the_dead(self) -> None:
        """A task that died took along what had been sent to it by then; what was sent later arrives."""
        self._in_flight += self._world.take_sent()
        self._in_flight = [
            parcel
            if parcel.to.is_tick or parcel.to.task not in self._died_at
            else parcel.without_those_before(self._died_at[parcel.to.task])
            for parcel in self._in_flight
        ]
        self._died_at.clear()

    # ------------------------------------------------------------------------------------------- tasks

    def _ask_spouts(self) -> bool:
        rounds = 0
        while rounds < ROUNDS_MAX and super()._ask_spouts():
            rounds += 1
        return rounds > 0

    def _running(self, task: int) -> Task:
        if task not in self._states:
            return super()._running(task)
        if self._states[task] is None and task not in self._restarts:
            done = self._run_works([Work(task, None, is_restart=task in self._has_started)])
            self._take_back(done)
            _raise_misuse(done)
        state = self._states[task]
        if state is None:
            return Down(None)
        running: Task = woken(state, self._world)
        return running

    def _restart(self, task: int) -> None:
        if task in self._states:
            self._drop_queued(task)
            self._start(task)
        else:
            super()._restart(task)

    def _start(self, task: int) -> None:
        if task in self._states:
            self._states[task] = None  # the next step starts it
            self._restarts.started(task, self._world.now_s)
        else:
            super()._start(task)

    def _drop_queued(self, task: int) -> None:
        if self._world.place != LAST:
            self._died_at[task] = self._world.place
            return
        self._in_flight += self._world.take_sent()
        self._in_flight = [each for each in self._in_flight if each.to.task != task or each.to.is_tick]


def _merged(here: dict[int, list[Arrival]]) -> list[tuple[int, tuple[int, Any]]]:
    """What arrived for several tasks, in one order."""
    found = [(place, (task, content)) for task, arrived in here.items() for place, content in opened(arrived)]
    return sorted(found, key=lambda each: each[0])


def _raise_misuse(done: list[Done]) -> None:
    misuse = [each.misuse for each in done if each.misuse is not None]
    if misuse:
        raise min(misuse, key=lambda each: each[0])[1]


def _cleans_up(bolt: RichBolt) -> bool:
    return type(innermost(bolt)).cleanup not in (RichBolt.cleanup, BasicBolt.cleanup, WindowedBolt.cleanup)
