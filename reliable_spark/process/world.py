"""What all tasks of one topology share: the clock, the queue, the ids, the counts and what was seen."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from reliable_spark.clock import Clock
from reliable_spark.core.graph import ACKER, CHECKPOINT_SPOUT, Graph
from reliable_spark.core.ids import numbered_ids
from reliable_spark.core.messages import Ending, Message, Messages, text_of
from reliable_spark.core.statistics import Key, TaskCounts
from reliable_spark.settings import Settings
from reliable_spark.topology.tuples import Tuple

_LOG = logging.getLogger("reliable_spark.topology")

DEADLY = (Exception, SystemExit)
"""What kills a task when it leaves the user's code: `sys.exit` too, which would end the thread of all tasks."""


class Emitted(NamedTuple):
    """A tracked emit of a spout: the id of its tree, the task, the stream and the spout's own id."""

    root: int
    task: int
    stream: str
    message_id: Any


@dataclass(frozen=True)
class Watch:
    """Who looks at a topology.

    Attributes:
        is_test: whether what is emitted and answered is kept until a test asks for it.
        messages: where every message's answer is written down, if a ledger is kept.
    """

    is_test: bool = True
    messages: Messages | None = None


@dataclass
class World:
    """One process, one thread: a run repeats itself exactly.

    Attributes:
        graph: the topology, the ackers included.
        tasks: component id -> its task ids.
        settings: how the topology is run.
        clock: the time; a simulated one is moved by bolts that wait on it.
        watch: who looks.
        elapsed_s: how long the topology had run when this object was made.
        is_watched: whether a test looks.
        ackers: the ackers' task ids.
        is_tracking: whether there are any.
        read_at_s: the time that was read last, at the end of the call of a user's code before.
        send: puts a task and a tuple for it at the end of the queue.
        new_id: gives a 64-bit id that no other emission of this run has, computed from a count.
        queue: what was sent since the engine looked, each with its task.
        counts: task id -> what it counts; what is fresh there belongs to the second in which the time was read last.
        emitted: (component, stream) -> what was emitted since somebody looked.
        acks: spout id -> the message ids acked since somebody looked.
        fails: spout id -> the message ids failed since somebody looked.
        errors: component id -> what was reported since somebody looked.
    """

    graph: Graph
    tasks: Mapping[str, list[int]]
    settings: Settings
    clock: Clock
    watch: Watch = Watch()
    elapsed_s: float = 0.0
    queue: deque[tuple[int, Tuple]] = field(default_factory=deque)
    counts: dict[int, TaskCounts] = field(default_factory=dict)
    emitted: defaultdict[Key, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    acks: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    fails: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    errors: defaultdict[str, list[BaseException]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        """Remember when it began."""
        self._began = self.clock.now() - timedelta(seconds=self.elapsed_s)
        self._second_ends_s = int(self.elapsed_s) + 1
        self.read_at_s = self.elapsed_s
        self.is_watched, self._messages = self.watch.is_test, self.watch.messages
        self.ackers = self.tasks.get(ACKER, ())
        self.is_tracking = bool(self.ackers)
        self.new_id = partial(next, numbered_ids())
        self.send: Callable[[tuple[int, Tuple]], None] = self.queue.append
        self.component_of = {task: name for name, tasks in self.tasks.items() for task in tasks}

    @property
    def now_s(self) -> float:
        """Seconds since the topology began, exact to the microsecond."""
        return self.read_time()

    def read_time(self) -> float:
        """Read the clock; what was counted since it was read last is kept under the second of that time.

        It is read around every call of a user's code, so what a call counts belongs to the second in which it began.
        """
        now_s = (self.clock.now() - self._began).total_seconds()
        if not self._second_ends_s - 1 <= now_s < self._second_ends_s:
            self.keep_counts()
            self._second_ends_s = int(now_s) + 1
        self.read_at_s = now_s
        return now_s

    def take_queued(self) -> list[tuple[int, Tuple]]:
        """What was sent, taken out; what another thread sends meanwhile stays for the next time."""
        return [self.queue.popleft() for _ in range(len(self.queue))]

    def acker_of(self, root: int) -> int:
        """The one acker that has a tree: root ids are hashes already."""
        return self.ackers[root % len(self.ackers)]

    def keep_counts(self) -> None:
        """Let what was counted be seen. Whole seconds are exact enough: all buckets of time begin at one."""
        for counts in self.counts.values():
            counts.keep(self._second_ends_s - 1)

    def saw_emit(self, key: Key, values: Sequence[Any]) -> None:
        """Keep what was emitted on an output, if somebody looks."""
        if self.is_watched:
            self.emitted[key].append(list(values))

    def saw_message(self, spout: str, emitted: Emitted, values: Sequence[Any]) -> None:
        """Write down that a message was emitted, if a ledger is kept."""
        if self._messages is not None and spout != CHECKPOINT_SPOUT:
            now_s, own = self.read_at_s, emitted.message_id
            message = Message(
                spout, text_of(own), emitted.stream, list(values), now_s, now_s, id_type=type(own).__name__
            )
            self._messages.emitted(emitted.root, message)

    def saw_ack(self, spout: str, emitted: Emitted) -> None:
        """Keep an ack, if somebody looks."""
        if self.is_watched:
            self.acks[spout].append(emitted.message_id)
        if self._messages is not None:
            self._messages.acked(emitted.root)

    def saw_end(self, spout: str, emitted: Emitted, ending: Ending) -> None:
        """Keep a fail, if somebody looks; of a message whose task died nobody hears."""
        if self.is_watched and ending == "failed":
            self.fails[spout].append(emitted.message_id)
        if self._messages is not None:
            self._messages.ended(emitted.root, ending)

    def report(self, component: str, error: BaseException) -> None:
        """Keep an error that a component reported or died of."""
        self.errors[component].append(error)
        _LOG.warning("%s: %s: %s", component, type(error).__name__, error)
