"""What a worker does in one step: wake one task, let it execute what arrived, and put it to sleep again."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from reliable_spark.clock import Clock, ManualClock
from reliable_spark.core.graph import Graph
from reliable_spark.core.ids import numbered_ids, xxhash64
from reliable_spark.core.statistics import Amounts, Key, TaskCounts
from reliable_spark.engine.child import WorkerCrash
from reliable_spark.errors import OperatingError, UsageError
from reliable_spark.microbatch.orders import Done, Step, Work
from reliable_spark.microbatch.parcels import LAST, Address, Outbox, Parcel, flat, lose_silently, opened, upright
from reliable_spark.microbatch.pickling import kept, packed, unpacked, woken
from reliable_spark.process.acker_task import AckerRunner
from reliable_spark.process.bolt_task import BoltTask
from reliable_spark.process.starting import Starter
from reliable_spark.process.world import DEADLY, Watch, World
from reliable_spark.settings import Settings
from reliable_spark.topology.bolts import RichBolt
from reliable_spark.topology.builder import Topology
from reliable_spark.topology.tuples import Tuple

_FIRST = -(1 << 40)
STARTING = -1
"""Stands for the place of a tuple while the task is started or woken."""
_RESTARTING = -2


@dataclass(frozen=True)
class Recipe:
    """What makes any bolt's task of a topology; the same for all steps.

    Attributes:
        graph: the topology, the ackers included.
        tasks: component id -> its task ids.
        bolts: the users' objects, to be copied.
        settings: how the topology is run.
        clock: a real clock; None: time is simulated.
        is_watched: whether what is emitted is kept for a test.
        paths: where the driver finds modules.
    """

    graph: Graph
    tasks: Mapping[str, list[int]]
    bolts: Mapping[str, RichBolt]
    settings: Settings
    clock: Clock | None
    is_watched: bool
    paths: Sequence[str] = field(default_factory=lambda: list(sys.path))

    def packed(self) -> bytes:
        """As bytes, the paths before what may need them.

        Raises:
            UsageError: a bolt or grouping holds something that cannot be pickled.
        """
        for name, bolt in self.bolts.items():
            _checked(repr(name), bolt)
        return pickle.dumps((list(self.paths), _checked("a custom grouping", self)))


def _checked(what: str, value: Any) -> bytes:
    try:
        return packed(value)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise UsageError(
            f"{what} cannot be copied for its tasks ({error}): make such things in prepare() or open()"
        ) from None


class BatchWorld(World):
    """A world in which what is sent is packed by address instead of queued."""

    def __post_init__(self) -> None:
        """Nothing is sent yet, and nothing in hand."""
        super().__post_init__()
        self.outbox: Outbox[Address] = Outbox()
        self.place = LAST
        self.send = self._pack

    def take_sent(self) -> list[Parcel[Address]]:
        """What was sent, packed. What cannot be is lost, which is reported, and times out."""
        return self.outbox.take(self._lose)

    def _lose(self, content: tuple[Any, ...], error: Exception) -> None:
        _, _, component, stream, _ = content
        text = f"{component!r} emitted on stream {stream!r} a value that cannot be pickled ({error}): the tuple is lost"
        self.report(component, OperatingError(text))

    def _pack(self, delivery: tuple[int, Tuple]) -> None:
        """Pack a tuple, with the place of the one in hand."""
        task, sent = delivery
        self.outbox.put(Address(task, sent.is_tick), self.place, flat(sent))


class StepCounts(TaskCounts):
    """What a task counts in one step, by second: the driver has the windows."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[tuple[float, Mapping[Key, Amounts]]] = []

    def add_all(self, now_s: float, counted: Mapping[Key, Amounts]) -> None:
        """Write it down."""
        self.seconds.append((now_s, dict(counted)))


class TaskWorld(BatchWorld):
    """The world of one task in one step: it writes down what the driver is to know."""

    def begin(self, task: int, step: Step) -> None:
        """Ids are functions of the task, the step and a count: a second evaluation gives the same."""
        self.new_id = partial(next, numbered_ids(xxhash64(task, step.number)))
        self.seen: Outbox[Key] = Outbox()
        self.counted = StepCounts()
        self.counts[task] = self.counted
        self.reported: list[tuple[int, BaseException]] = []

    def report(self, component: str, error: BaseException) -> None:
        """Write down an error."""
        self.reported.append((self.place, portable(error)))

    def saw_emit(self, key: Key, values: Sequence[Any]) -> None:
        """Write down what was emitted, if somebody looks."""
        if self.is_watched:
            self.seen.put(key, self.place, list(values))


def run_work(recipe: bytes, step: Step, work: bytes, tell_place: Callable[[int], object] | None = None) -> bytes:
    """A worker's whole task: packed work in, packed result out; both sides may run anywhere.

    Args:
        recipe: the topology's, packed.
        step: which step.
        work: a `Work`, pickled.
        tell_place: is told of each tuple before it is executed.
    """
    return packed(_Run(_recipe(recipe), step, pickle.loads(work), tell_place).done())


@lru_cache(maxsize=8)
def _recipe(data: bytes) -> Recipe:
    paths, recipe = pickle.loads(data)
    sys.path.extend(path for path in paths if path not in sys.path)
    found: Recipe = unpacked(recipe)
    return found


class _Run:
    """One task in one step. What the user's code raises kills the task; misuse of the library ends the step."""

    def __init__(self, recipe: Recipe, step: Step, work: Work, tell_place: Callable[[int], object] | None) -> None:
        clock = recipe.clock or ManualClock()
        if isinstance(clock, ManualClock):
            clock.advance(step.now_s)
        watch = Watch(recipe.is_watched)
        self._world = TaskWorld(recipe.graph, recipe.tasks, recipe.settings, clock, watch, elapsed_s=step.now_s)
        self._world.begin(work.task, step)
        self._starter = Starter(self._world, Topology(recipe.graph, recipe.bolts))
        self._work = work
        self._tell_place = tell_place
        self._is_down = False
        self._died_at: int | None = None
        self._misuse: tuple[int, BaseException] | None = None

    def done(self) -> Done:
        """Run it."""
        world, state = self._world, self._work.state
        try:
            state = self._executed()
        except DEADLY as error:
            self._misuse = (world.place, portable(error))
        world.keep_counts()
        return Done(
            self._work.task,
            state,
            self._is_down,
            world.take_sent(),
            world.seen.take(lose_silently),
            world.counted.seconds,
            world.reported,
            self._died_at,
            self._misuse,
            world.now_s,
        )

    def _executed(self) -> bytes | None:
        """The task after its tuples."""
        world, work = self._world, self._work
        world.read_time()
        world.place = _FIRST + work.task  # what it sends while it starts comes before all else
        running = self._started() if work.state is None else woken(work.state, world)
        if work.is_closing and running is not None:
            running.close()
            return None
        for place, content in opened(work.arrivals):
            arrived = upright(content, world.graph)
            if running is None or (self._died_at is not None and not arrived.is_tick):
                continue  # it was queued for a task that is dead
            world.place = place
            try:
                self._enter(place)
                running.deliver(arrived)
            except UsageError as error:
                self._misuse = (place, portable(error))
                break
            except DEADLY as error:
                world.report(world.component_of[work.task], error)
                self._died_at = place
                running = self._started()
        return None if running is None else self._kept(running)

    def _started(self) -> BoltTask | AckerRunner | None:
        """The task anew; None if it cannot start, unless it never did, which is the caller's to hear."""
        try:
            self._enter(STARTING if self._died_at is None else _RESTARTING)
            return self._starter.bolt(self._work.task)
        except UsageError:
            raise
        except DEADLY as error:
            if self._died_at is None and not self._work.is_restart:
                raise
            self._world.report(self._world.component_of[self._work.task], error)
            self._is_down = True
            return None

    def _enter(self, place: int) -> None:
        """Say what is begun; what the process died of at a try before, the task dies of now."""
        if self._tell_place is not None:
            self._tell_place(place)
        how = self._work.crashes.get(place)
        if how is not None and place < 0:
            raise OperatingError(f"{self._world.component_of[self._work.task]!r} cannot be started: {how}")
        if how is not None:
            raise WorkerCrash(how)

    def _kept(self, running: BoltTask | AckerRunner) -> bytes:
        try:
            return kept(running, self._world)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            component = self._world.component_of[self._work.task]
            raise UsageError(
                f"what {component!r} holds cannot be pickled between micro-batches ({error}):"
                " leave it out in __getstate__ and make it again in __setstate__"
            ) from None


def portable(error: BaseException) -> BaseException:
    """The error, if it survives the journey; else one that says the same."""
    try:
        unpacked(packed(error))
    except Exception:
        return OperatingError(f"{type(error).__name__}: {error}")
    return error
