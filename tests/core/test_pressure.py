"""Group I: back-pressure, the rules alone."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count, islice, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reliable_spark.core.pressure import (
    RESEND_GROWTH,
    Offer,
    PendingEmits,
    PressureTracker,
    ReceiveQueue,
    Status,
    park,
    progressive,
)


def test_i1_bounded_queue_refuses_and_recovers() -> None:
    """Of 100 offers 64 are taken and 36 refused; after one take the next one is taken."""
    queue: ReceiveQueue[int] = ReceiveQueue(64)
    offers = [queue.offer(number) for number in range(100)]
    assert offers == [Offer.TAKEN] * 64 + [Offer.REFUSED] * 36
    assert (len(queue), queue.overflow, queue.load) == (64, 0, 1.0)
    assert queue.take() == 0
    assert len(queue) == 63
    assert queue.offer(100) is Offer.TAKEN


def test_a_capacity_is_rounded_up_to_a_power_of_two() -> None:
    """As Storm's queue has it; nothing below one is a capacity."""
    assert [ReceiveQueue[int](size).capacity for size in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
    with pytest.raises(ValueError, match="capacity"):
        ReceiveQueue(0)


def test_i3_back_pressure_status_bookkeeping() -> None:
    """Free at first; recorded once; pressed until the overflow is drained; the last overflow is kept per task."""
    tracker = PressureTracker([1, 2])
    assert tracker.status == Status(frozenset(), frozenset({1, 2}))
    assert (tracker.record(1), tracker.record(1)) == (True, False)
    assert tracker.status == Status(frozenset({1}), frozenset({2}))
    assert not tracker.refresh({1: 5, 2: 0})
    assert tracker.status == Status(frozenset({1}), frozenset({2}))
    assert tracker.refresh({1: 0, 2: 0})
    assert tracker.status == Status(frozenset(), frozenset({1, 2}))
    assert tracker.record(1)


def test_i3_a_status_is_sent_again_on_growth() -> None:
    """After more than 10,000 items each time, counted per task from the last one."""
    tracker = PressureTracker([1, 2])
    tracker.record(1)
    assert [tracker.grew(1, RESEND_GROWTH + more) for more in (0, 1, 2)] == [False, True, False]
    assert (tracker.last_overflow(1), tracker.last_overflow(2)) == (RESEND_GROWTH + 1, 0)
    assert tracker.grew(1, 2 * RESEND_GROWTH + 2)


@pytest.mark.parametrize("batch", [1, 10])
def test_i4_one_producer_is_received_in_order(batch: int) -> None:
    """Through a queue that is much smaller than what is sent."""
    queue: ReceiveQueue[int] = ReceiveQueue(1024)
    emits: PendingEmits[int] = PendingEmits()
    received: list[int] = []
    numbers = iter(range(64 * 1024))
    while True:
        while not len(emits) and (batched := list(islice(numbers, batch))):
            for number in batched:
                emits.add(0, number)
            emits.flush(lambda _, item: queue.offer(item))
        if not len(queue):
            break
        received.append(queue.take())
        emits.flush(lambda _, item: queue.offer(item))
    assert received == list(range(64 * 1024))


def test_i4_what_is_published_first_is_received_first() -> None:
    """Whoever publishes afterwards, from this worker or another."""
    queue: ReceiveQueue[object] = ReceiveQueue(2)
    queue.offer("FIRST")
    for number in range(4):
        (queue.offer if number % 2 else queue.offer_remote)(number)
    assert queue.take() == "FIRST"


def test_the_overflow_drops_at_its_limit_and_the_queue_never_does() -> None:
    """At the limit, not above it; same-worker offers are refused instead."""
    queue: ReceiveQueue[int] = ReceiveQueue(2, overflow_limit=3)
    offers = [queue.offer_remote(number) for number in range(7)]
    assert offers == [Offer.TAKEN] * 2 + [Offer.OVERFLOWED] * 3 + [Offer.DROPPED] * 2
    assert (len(queue), queue.overflow, queue.dropped) == (5, 3, 2)
    assert queue.offer(9) is Offer.REFUSED
    assert [queue.take() for _ in range(5)] == [0, 1, 2, 3, 4]


def test_the_queue_is_emptied_first_then_as_much_overflow_as_there_was() -> None:
    """What arrives in the queue meanwhile waits for that much, and not for more."""
    queue: ReceiveQueue[str] = ReceiveQueue(1)
    for name in ("a", "b", "c"):
        queue.offer_remote(name)
    assert [queue.take(), queue.take()] == ["a", "b"]
    queue.offer("local")
    queue.offer_remote("d")
    assert [queue.take() for _ in range(3)] == ["c", "local", "d"]
    with pytest.raises(IndexError):
        queue.take()


def test_i8_wait_strategies_are_tables_of_idle_counts() -> None:
    """Progressive: none, the shortest, a sleep; park: always the same."""
    waits = progressive(level1_count=2, level2_count=3, level3_sleep_s=0.5)
    assert [waits.wait_s(number) for number in range(7)] == [0, 0, 1e-9, 1e-9, 1e-9, 0.5, 0.5]
    assert [progressive().wait_s(number) for number in (0, 1, 1000, 1001)] == [0, 1e-9, 1e-9, 0.001]
    assert {park(0.2).wait_s(number) for number in range(5)} == {0.2}


@given(st.integers(0, 3), st.integers(0, 5), st.integers(1, 50), st.integers(0, 200), st.booleans())
def test_the_next_try_is_the_first_one_that_its_waits_come_to(
    level1: int, level2: int, sleep: int, elapsed: int, parks: bool
) -> None:
    """Counted out try by try, in milliseconds; the shortest wait is a nanosecond."""
    strategy = park(sleep / 1e3) if parks else progressive(level1, level2, sleep / 1e3)
    tries = accumulate(strategy.wait_s(number) for number in count())
    expected = next(at_s for at_s in tries if at_s >= elapsed / 1e3 - 1e-12)
    assert strategy.next_try_s(elapsed / 1e3) == pytest.approx(expected, abs=1e-10)


class Queues(RuleBasedStateMachine):
    """Three senders, of which two are in another worker, and one receiver."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ReceiveQueue[tuple[int, int]] = ReceiveQueue(2, overflow_limit=3)
        self.accepted: dict[int, list[int]] = defaultdict(list)
        self.taken: dict[int, list[int]] = defaultdict(list)
        self.number = 0

    @rule(sender=st.integers(0, 2))
    def send(self, sender: int) -> None:
        self.number += 1
        offer = self.queue.offer if sender == 0 else self.queue.offer_remote
        if offer((sender, self.number)) in (Offer.TAKEN, Offer.OVERFLOWED):
            self.accepted[sender].append(self.number)

    @precondition(lambda self: len(self.queue) > 0)
    @rule()
    def take(self) -> None:
        head = self.queue.head
        sender, number = self.queue.take()
        assert head == (sender, number)
        self.taken[sender].append(number)

    @invariant()
    def nothing_is_lost_or_overtaken(self) -> None:
        waiting = len(self.queue)
        assert sum(map(len, self.accepted.values())) == sum(map(len, self.taken.values())) + waiting
        for sender, numbers in self.taken.items():
            assert numbers == self.accepted[sender][: len(numbers)]

    @invariant()
    def nothing_grows_beyond_its_bound(self) -> None:
        assert len(self.queue) - self.queue.overflow <= 2
        assert self.queue.overflow <= 3


TestQueues = Queues.TestCase


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["record", "drain"]))))
def test_every_task_is_in_exactly_one_list(steps: list[tuple[int, str]]) -> None:
    """Whatever is recorded and drained; a task that is recorded last is pressed."""
    tracker, overflow = PressureTracker([1, 2, 3]), dict.fromkeys([1, 2, 3], 0)
    for task, step in steps:
        overflow[task] = int(step == "record")
        if step == "record":
            tracker.record(task)
        else:
            tracker.refresh(overflow)
        assert tracker.status.pressed | tracker.status.free == {1, 2, 3}
        assert not tracker.status.pressed & tracker.status.free
        assert {each for each, count in overflow.items() if count} <= tracker.status.pressed


# ---------------------------------------------------------------------------- the diamond, all of its states

SPOUT, LEFT, RIGHT, JOIN, ACKER = range(5)
FLOW = {SPOUT: (LEFT, RIGHT, ACKER), LEFT: (JOIN, JOIN, ACKER), RIGHT: (JOIN, ACKER), JOIN: (ACKER,), ACKER: (SPOUT,)}
"""What a task sends for each tuple it takes, in order; the spout for each tuple it emits."""
EXECUTED = {LEFT: 1, RIGHT: 1, JOIN: 3, ACKER: 6, SPOUT: 6}
"""How many tuples each task takes for one that the spout emits."""


@dataclass
class Diamond:
    """A spout, two bolts, one that joins them, and an acker that answers each message, by the pure rules alone."""

    capacity: int
    workers: tuple[int, ...]
    to_emit: int
    queues: list[ReceiveQueue[int]] = field(default_factory=list)
    emits: list[PendingEmits[int]] = field(default_factory=list)
    executed: list[int] = field(default_factory=lambda: [0] * len(FLOW))
    told: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.queues = [ReceiveQueue(self.capacity) for _ in FLOW]
        self.emits = [PendingEmits() for _ in FLOW]
        self.tracker = PressureTracker(FLOW)

    def offer(self, sender: int, target: int) -> Offer:
        if self.workers[sender] == self.workers[target]:
            return self.queues[target].offer(sender)
        if target in self.told:
            return Offer.REFUSED
        offer = self.queues[target].offer_remote(sender)
        if offer is Offer.OVERFLOWED:
            self.tracker.record(target)
        return offer

    def may(self, task: int, action: str) -> bool:
        """Whether a step is there to be taken."""
        waits = len(self.emits[task]) > 0
        if action == "emit":
            return task == SPOUT and not waits and self.to_emit > 0
        if action == "take":
            return len(self.queues[task]) > 0 and (not waits or task == SPOUT)
        return waits or action == "lift"

    def act(self, task: int, action: str) -> bool:
        """Take a step; says whether it changed anything."""
        if action == "lift":
            return self._lift()
        emits, before = self.emits[task], len(self.emits[task])
        if action == "emit":
            self.to_emit -= 1
            self._send(task)
        elif action == "take":
            self.queues[task].take()
            self.executed[task] += 1
            if task != SPOUT:
                self._send(task)
        else:
            emits.flush(lambda target, item: self.offer(item, target))
            self.told = self.tracker.status.pressed
            return len(emits) < before
        return True

    def _send(self, task: int) -> None:
        for target in FLOW[task]:
            self.emits[task].add(target, task)
        self.emits[task].flush(lambda target, item: self.offer(item, target))
        self.told = self.tracker.status.pressed  # the halt-lag: the sender hears of it after what it was sending

    def _lift(self) -> bool:
        changed = self.tracker.refresh({task: self.queues[task].overflow for task in FLOW})
        self.told = self.tracker.status.pressed
        return changed

    def check(self) -> None:
        for task, sends in FLOW.items():
            queue = self.queues[task]
            writers = {each: to.count(task) for each, to in FLOW.items()}
            remote = sum(count for each, count in writers.items() if self.workers[each] != self.workers[task])
            assert len(queue) - queue.overflow <= self.capacity
            assert queue.overflow <= remote, "more than one batch of each writer has overflowed"
            assert len(self.emits[task]) <= len(sends)


def reachable(start: Diamond) -> Iterator[tuple[Diamond, bool]]:
    """Every state there is, and whether it is an end."""
    seen, todo = set(), [pickle.dumps(start)]
    while todo:
        packed = todo.pop()
        if packed in seen:
            continue
        seen.add(packed)
        state: Diamond = pickle.loads(packed)
        is_end = True
        for task, action in [*product(FLOW, ("emit", "take", "flush")), (SPOUT, "lift")]:
            if state.may(task, action):
                following: Diamond = pickle.loads(packed)
                if following.act(task, action):
                    is_end = False
                    todo.append(pickle.dumps(following))
        yield state, is_end


@pytest.mark.parametrize(
    ("workers", "tuples"), [((0, 0, 0, 0, 0), 2), ((0, 0, 1, 0, 1), 1), ((0, 1, 0, 1, 0), 1), ((0, 1, 2, 3, 4), 1)]
)
def test_a_diamond_with_queues_of_one_never_deadlocks(workers: tuple[int, ...], tuples: int) -> None:
    """In each state that any order of steps can reach the bounds hold, and in each end everything has arrived."""
    ends = 0
    for state, is_end in reachable(Diamond(1, workers, to_emit=tuples)):
        state.check()
        if is_end:
            ends += 1
            assert state.executed == [tuples * EXECUTED[task] for task in FLOW]
    assert ends
