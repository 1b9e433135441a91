"""What all tasks of one topology share: the clock, the queue, the ids, the counts and what was seen."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from reliable_spark.clock import Clock
from reliable_spark.core.graph import Graph
from reliable_spark.core.ids import xxhash64
from reliable_spark.core.statistics import Key, Metric, TaskCounts
from reliable_spark.settings import Settings
from reliable_spark.topology.tuples import Tuple

_LOG = logging.getLogger("reliable_spark.topology")


class Delivery(NamedTuple):
    """A tuple on its way to a task."""

    task: int
    tuple: Tuple


@dataclass
class World:
    """One process, one thread, one queue: what is sent first arrives first, so a run repeats itself exactly.

    Attributes:
        graph: the topology, the ackers included.
        tasks: component id -> its task ids.
        settings: how the topology is run.
        clock: the time; a simulated one is moved by bolts that wait on it.
        is_watched: whether somebody looks: what is emitted and answered is then kept.
        elapsed_s: how long the topology had run when this object was made.
        queue: what is sent and has not arrived.
        counts: task id -> what it counted.
        emitted: (component, stream) -> what was emitted since somebody looked.
        acks: spout id -> the message ids acked since somebody looked.
        fails: spout id -> the message ids failed since somebody looked.
        errors: component id -> what was reported since somebody looked.
    """

    graph: Graph
    tasks: Mapping[str, list[int]]
    settings: Settings
    clock: Clock
    is_watched: bool = True
    elapsed_s: float = 0.0
    queue: deque[Delivery] = field(default_factory=deque)
    counts: dict[int, TaskCounts] = field(default_factory=dict)
    emitted: defaultdict[Key, list[list[Any]]] = field(default_factory=lambda: defaultdict(list))
    acks: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    fails: defaultdict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    errors: defaultdict[str, list[BaseException]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        """Remember when it began."""
        self._began = self.clock.now() - timedelta(seconds=self.elapsed_s)
        self._ids_given = 0
        self.component_of = {task: name for name, tasks in self.tasks.items() for task in tasks}

    @property
    def now_s(self) -> float:
        """Seconds since the topology began, exact to the microsecond."""
        return (self.clock.now() - self._began).total_seconds()

    @property
    def is_tracking(self) -> bool:
        """Whether there are ackers."""
        return "__acker" in self.tasks

    def new_id(self) -> int:
        """A 64-bit id that no other emission of this run has, computed from a count."""
        self._ids_given += 1
        return xxhash64(self._ids_given)

    def send(self, task: int, sent: Tuple) -> None:
        """Put a tuple at the end of the queue."""
        self.queue.append(Delivery(task, sent))

    def count(self, task: int, metric: Metric, key: Key, amount: float = 1) -> None:
        """Count for a task, now."""
        self.counts[task].add(metric, key, self.now_s, amount)

    def saw_emit(self, key: Key, values: Sequence[Any]) -> None:
        """Keep what was emitted on an output, if somebody looks."""
        if self.is_watched:
            self.emitted[key].append(list(values))

    def saw_answer(self, answers: defaultdict[str, list[Any]], spout: str, message_id: Any) -> None:
        """Keep an ack or fail, if somebody looks."""
        if self.is_watched:
            answers[spout].append(message_id)

    def report(self, component: str, error: BaseException) -> None:
        """Keep an error that a component reported or died of."""
        self.errors[component].append(error)
        _LOG.warning("%s: %s: %s", component, type(error).__name__, error)
