"""The queues between the tasks of one process: bounded, so that a slow task slows its own upstreams and nobody else.

The tasks are spread over `topology.workers` workers. Between two of the same worker a full receive queue refuses, and
the sender takes nothing new until it has handed over what it sent. To another worker a sender sends without looking,
until it is told of pressure there, which is once it has sent what it was about to send: what does not fit overflows.
A refused sender tries again as the configured wait strategy says, as long as time is simulated.
A tuple is delivered in the order in which it was sent, unless pressure or a busy task delays it. What one worker tells
the others cannot get lost here, so it is not told again when an overflow grows.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import NamedTuple

from reliable_spark.clock import ManualClock
from reliable_spark.core.graph import executors_of
from reliable_spark.core.pressure import (
    Offer,
    PendingEmits,
    PressureTracker,
    ReceiveQueue,
    WaitStrategy,
    park,
    progressive,
)
from reliable_spark.process.world import World
from reliable_spark.settings import TopologySettings
from reliable_spark.topology.tuples import Tuple

_LOG = logging.getLogger("reliable_spark.topology")


class Posted(NamedTuple):
    """A tuple in a queue, numbered in the order of sending."""

    number: int
    tuple: Tuple


class Post:
    """Everything that is on its way between tasks.

    Guarantee: a receive queue holds at most its capacity of tuples (ticks aside); between two tasks the order of
    sending is kept; nothing is lost but what is dropped at the overflow's limit.

    Args:
        world: what the tasks share.

    Attributes:
        queues: the receive queues, by task.
        capacity: how many tuples one of them takes.
    """

    def __init__(self, world: World) -> None:
        own = world.settings.topology
        self._world = world
        self.capacity = own.receive_buffer_size
        self._worker_of = _workers(world)
        self.queues: dict[int, ReceiveQueue[Posted]] = {
            task: ReceiveQueue(own.receive_buffer_size, own.overflow_limit) for task in world.component_of
        }
        by_worker: dict[int, list[int]] = defaultdict(list)
        for task, worker in self._worker_of.items():
            by_worker[worker].append(task)
        self._trackers = {worker: PressureTracker(tasks) for worker, tasks in by_worker.items()}
        self._told_pressed: frozenset[int] = frozenset()
        self._check_s = own.backpressure_check_s
        self._next_check_s = round(self._check_s, 6)
        self._emits: dict[int, PendingEmits[Posted]] = {}
        self._busy_until_s: dict[int, float] = {}
        self._waiting_for: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._strategy = _wait_strategy(own) if isinstance(world.clock, ManualClock) else None
        self._refused_s: dict[int, float] = {}
        self._tries: dict[int, float] = {}
        self._ready: list[tuple[int, int]] = []
        self._numbers = count()

    # ------------------------------------------------------------------------------------------ receiving

    def take_next(self) -> tuple[int, Tuple] | None:
        """The first tuple whose task is free to execute it; None when there is none now."""
        while self._ready:
            number, task = heapq.heappop(self._ready)
            queue = self.queues[task]
            if len(queue) and queue.head.number == number and self._is_free(task):
                taken = queue.take()
                self._show(task)
                self._made_room(task)
                return task, taken.tuple
        return None

    def may_emit(self, task: int) -> bool:
        """Whether a spout may be asked for a tuple: it has handed over what it sent, and is not busy."""
        return task not in self._emits and task not in self._busy_until_s

    def forget(self, task: int) -> None:
        """A task died: what is queued for it is lost, but its ticks, and what it was busy with; not what it sent."""
        self.queues[task].keep(lambda posted: posted.tuple.is_tick)
        if self._busy_until_s.pop(task, None) is not None:
            self._emits.pop(task, None)
            self._refused_s.pop(task, None)
        self._show(task)
        self._made_room(task)

    # -------------------------------------------------------------------------------------------- sending

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in these queues, and nobody is busy or held back."""
        return not (self._ready or self._busy_until_s or self._emits or self._told_pressed)

    def collect(self, sender: int | None, busy_until_s: float = 0.0, sent_before: int = 0) -> None:
        """Take in what was sent; a sender that was busy meanwhile sends it when it is done.

        Args:
            sender: whose call has ended.
            busy_until_s: when it is done.
            sent_before: how many tuples had been sent before its call began.
        """
        sent = self._world.take_queued()
        for target, each in sent[:sent_before]:
            self._send(target, each)
        if sender is not None and busy_until_s > self._world.now_s:
            self._busy_until_s[sender] = busy_until_s
        for target, each in sent[sent_before:]:
            self._send(target, each)
        self._tell()

    def _send(self, target: int, sent: Tuple) -> None:
        posted, sender = Posted(next(self._numbers), sent), sent.source_task
        if sender not in self.queues:  # the system itself
            self.queues[target].force(posted)
            self._show(target)
        elif not self.may_emit(sender) or self._offer(target, posted) is Offer.REFUSED:
            self._emits.setdefault(sender, PendingEmits()).add(target, posted)
            if sender not in self._busy_until_s:
                self._refused(sender, target)

    def _offer(self, target: int, posted: Posted) -> Offer:
        queue, worker = self.queues[target], self._worker_of[target]
        if worker == self._worker_of[posted.tuple.source_task]:
            offer = queue.offer(posted)
        elif target in self._told_pressed:
            return Offer.REFUSED
        else:
            offer = queue.offer_remote(posted)
        if offer is Offer.DROPPED:
            _LOG.warning("%s: a tuple was dropped, the overflow is full", self._world.component_of[target])
        elif offer is Offer.OVERFLOWED:
            self._trackers[worker].record(target)
        if offer is not Offer.REFUSED:
            self._show(target)
        return offer

    def _refused(self, sender: int, target: int) -> None:
        self._waiting_for[target][sender] = None
        self._refused_s.setdefault(sender, self._world.read_at_s)

    def _made_room(self, task: int) -> None:
        """Let those try again who wait for this task, each when its strategy has it try."""
        waiting = self._waiting_for.pop(task, {})
        if self._strategy is None:
            self._hand_over(waiting)
            return
        now_s = self._world.read_at_s
        for sender in waiting:
            if sender not in self._refused_s:
                continue  # it has handed over everything meanwhile
            refused_s = self._refused_s[sender]
            at_s = _microseconds_up(refused_s + self._strategy.next_try_s(round(now_s - refused_s, 6)))
            if at_s > now_s:
                self._tries[sender] = at_s
            else:
                self._hand_over([sender])

    def _hand_over(self, senders: Iterable[int]) -> None:
        """Let senders try again, longest waiting first."""
        for sender in senders:
            if sender in self._busy_until_s or sender not in self._emits:
                continue
            refused_by = self._emits[sender].flush(self._offer)
            if refused_by is None:
                del self._emits[sender]
                self._refused_s.pop(sender, None)
                self._show(sender)
            else:
                self._refused(sender, refused_by)

    def _tell(self) -> None:
        """Let the senders in other workers know who is under pressure."""
        self._told_pressed = frozenset().union(*(tracker.status.pressed for tracker in self._trackers.values()))

    # ----------------------------------------------------------------------------------------------- time

    @property
    def next_event_s(self) -> float:
        """When a busy task is done, a refused one tries again, or pressure may be lifted; else infinity."""
        is_drained = any(not self.queues[task].overflow for task in self._told_pressed)
        return min((*self._busy_until_s.values(), *self._tries.values(), *self._checks(is_drained)), default=math.inf)

    def wake(self) -> None:
        """Do what is due by now: free the tasks that are done, and lift the pressure that is gone."""
        now_s = self._world.now_s
        done = [task for task, until_s in self._busy_until_s.items() if until_s <= now_s]
        for task in done:
            del self._busy_until_s[task]
            self._show(task)
        self._hand_over(done)
        due = [sender for sender, at_s in self._tries.items() if at_s <= now_s]
        for sender in due:
            del self._tries[sender]
        self._hand_over(due)
        if now_s >= self._next_check_s:
            # to the microsecond, as the clock has it: else it might never be reached
            self._next_check_s = round((math.floor(now_s / self._check_s + 1e-9) + 1) * self._check_s, 6)
            self._lift()

    def _checks(self, is_drained: bool) -> Iterator[float]:
        if is_drained:
            yield self._next_check_s

    def _lift(self) -> None:
        overflow = {task: queue.overflow for task, queue in self.queues.items()}
        changes = [tracker.refresh(overflow) for tracker in self._trackers.values()]
        if any(changes):
            before = self._told_pressed
            self._tell()
            for task in sorted(before - self._told_pressed):
                self._made_room(task)

    # -------------------------------------------------------------------------------------------- readiness

    def _is_free(self, task: int) -> bool:
        """A bolt with something left to hand over takes nothing; a spout still hears acks, or nothing would end."""
        if task in self._busy_until_s:
            return False
        return task not in self._emits or self._is_spout(task)

    def _is_spout(self, task: int) -> bool:
        return self._world.graph.components[self._world.component_of[task]].kind == "spout"

    def _show(self, task: int) -> None:
        """Put a task in the line of those that may have something to do."""
        queue = self.queues[task]
        if len(queue) and self._is_free(task):
            heapq.heappush(self._ready, (queue.head.number, task))


def _wait_strategy(settings: TopologySettings) -> WaitStrategy | None:
    if settings.wait_strategy is None:
        return None
    if settings.wait_strategy == "park":
        return park(settings.wait_park_s)
    return progressive(settings.wait_level1_count, settings.wait_level2_count, settings.wait_level3_sleep_s)


def _microseconds_up(seconds: float) -> float:
    """To the next whole microsecond, as the clock has it."""
    return math.ceil(round(seconds * 1e6, 3)) / 1e6


def _workers(world: World) -> dict[int, int]:
    """The worker of each task: executors are dealt out in turn, as Storm's even scheduler does."""
    turn = count()
    return {
        task: number % world.settings.topology.workers
        for name, component in world.graph.components.items()
        for tasks in executors_of(world.tasks[name], component.executors)
        for number in [next(turn)]
        for task in tasks
    }
