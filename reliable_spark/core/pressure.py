"""Back-pressure as STORM-2306 has it, without clock and threads: who may send, who waits, what is dropped.

Each task has one bounded receive queue. A sender in the same worker that meets a full one keeps what it would send
and takes nothing new, so the pressure bubbles up to the spouts, along that path only. A sender in another worker does
not see the queue: what it sends before it hears of the pressure waits in the receiver's overflow, which has a limit.

Source: Storm's `utils/JCQueue`, `daemon/worker/BackPressureTracker`, `executor/ExecutorTransfer`,
`policy/WaitStrategyProgressive` and `WaitStrategyPark`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")

RESEND_GROWTH = 10_000
"""A status is sent again when a task's overflow has grown by more than this since the last one."""


class Offer(Enum):
    """What became of something that was sent."""

    TAKEN = "taken"
    OVERFLOWED = "overflowed"
    REFUSED = "refused"
    DROPPED = "dropped"


def rounded_up(size: int) -> int:
    """The capacity of a queue of this size: the next power of two, as Storm's queue has it."""
    return 1 << (size - 1).bit_length()


class ReceiveQueue(Generic[Item]):
    """The queue of one task: never more than `capacity` items, and the overflow of other workers beside them.

    Guarantee: what one sender was not refused is taken in the order in which it was sent; between senders no order
    is promised. With a limit the overflow never holds more than that.

    Args:
        capacity: items that fit in; rounded up to a power of two.
        overflow_limit: at this many overflowed items more are dropped; 0 means no limit.
    """

    def __init__(self, capacity: int, overflow_limit: int = 0) -> None:
        if capacity < 1 or overflow_limit < 0:
            raise ValueError(f"capacity must be 1 or more, overflow_limit 0 or more, got {capacity}, {overflow_limit}")
        self.capacity = rounded_up(capacity)
        self.dropped = 0
        self._overflow_limit = overflow_limit
        self._items: deque[Item] = deque()
        self._overflow: deque[Item] = deque()
        self._overflow_turn = 0

    def offer(self, item: Item) -> Offer:
        """Send from the same worker: TAKEN, or REFUSED while the queue is full."""
        if len(self._items) >= self.capacity:
            return Offer.REFUSED
        self._items.append(item)
        return Offer.TAKEN

    def offer_remote(self, item: Item) -> Offer:
        """Send from another worker: never REFUSED, but perhaps OVERFLOWED, or DROPPED at the limit.

        While something has overflowed all else goes there too, so that nothing overtakes it.
        """
        if not self._overflow and self.offer(item) is Offer.TAKEN:
            return Offer.TAKEN
        if 0 < self._overflow_limit <= len(self._overflow):
            self.dropped += 1
            return Offer.DROPPED
        self._overflow.append(item)
        return Offer.OVERFLOWED

    def force(self, item: Item) -> None:
        """Put in what must not be refused, such as a tick."""
        self._items.append(item)

    @property
    def head(self) -> Item:
        """What `take` would give; IndexError when there is nothing."""
        return self._next()[0]

    def take(self) -> Item:
        """The next item; IndexError when there is nothing.

        The queue is emptied first, then as much of the overflow as there was at that moment, and so on.
        """
        if not self._overflow_turn and not self._items:
            self._overflow_turn = len(self._overflow)
        source = self._next()
        item = source.popleft()
        if source is self._overflow:
            self._overflow_turn -= 1
        return item

    def keep(self, is_kept: Callable[[Item], bool]) -> None:
        """Forget everything else: its task died."""
        self._items = deque(filter(is_kept, self._items))
        self._overflow = deque(filter(is_kept, self._overflow))
        self._overflow_turn = min(self._overflow_turn, len(self._overflow))

    @property
    def overflow(self) -> int:
        """How many items have overflowed."""
        return len(self._overflow)

    @property
    def load(self) -> float:
        """The share of the capacity that is used; the overflow does not count."""
        return len(self._items) / self.capacity

    def __len__(self) -> int:
        """How many items wait, the overflow included."""
        return len(self._items) + len(self._overflow)

    def _next(self) -> deque[Item]:
        return self._overflow if self._overflow_turn or not self._items else self._items


class PendingEmits(Generic[Item]):
    """What a task has sent and could not hand over: while there is anything it takes nothing new.

    Guarantee: everything is handed over in the order in which it was sent, to whatever task.
    """

    def __init__(self) -> None:
        self._emits: deque[tuple[int, Item]] = deque()

    def add(self, target: int, item: Item) -> None:
        """Put something at the end."""
        self._emits.append((target, item))

    def flush(self, offer: Callable[[int, Item], Offer]) -> int | None:
        """Hand over what can be, up to the first refusal.

        Returns:
            The task that refused; None when nothing is left.
        """
        while self._emits:
            target, item = self._emits[0]
            if offer(target, item) is Offer.REFUSED:
                return target
            self._emits.popleft()
        return None

    def __len__(self) -> int:
        """How many emits wait."""
        return len(self._emits)


class Status(NamedTuple):
    """What a worker tells those that send to it: which of its tasks are under pressure, and which are not."""

    pressed: frozenset[int]
    free: frozenset[int]


class PressureTracker:
    """Which tasks of one worker are under pressure, and when the other workers have to hear of it.

    A status is due when `record` or `grew` or `refresh` says so, and for every sender that is new.

    Args:
        tasks: the worker's own.
    """

    def __init__(self, tasks: Iterable[int]) -> None:
        self._is_pressed = dict.fromkeys(tasks, False)
        self._last_overflow = dict.fromkeys(self._is_pressed, 0)

    def record(self, task: int) -> bool:
        """A task's queue was met full; says whether it was free until now."""
        was_free = not self._is_pressed[task]
        self._is_pressed[task] = True
        return was_free

    def grew(self, task: int, overflow: int) -> bool:
        """Say whether the overflow has grown so much that the last status seems not to have arrived."""
        if overflow - self._last_overflow[task] <= RESEND_GROWTH:
            return False
        self._last_overflow[task] = overflow
        return True

    def refresh(self, overflow: Mapping[int, int]) -> bool:
        """A timer's check: free the tasks whose overflow is drained; says whether there were any."""
        drained = [task for task, is_pressed in self._is_pressed.items() if is_pressed and not overflow[task]]
        for task in drained:
            self._is_pressed[task] = False
            self._last_overflow[task] = 0
        return bool(drained)

    def last_overflow(self, task: int) -> int:
        """How much had overflowed when a status was last sent again."""
        return self._last_overflow[task]

    @property
    def status(self) -> Status:
        """The state of all tasks."""
        pressed = frozenset(task for task, is_pressed in self._is_pressed.items() if is_pressed)
        return Status(pressed, frozenset(self._is_pressed) - pressed)


@dataclass(frozen=True)
class WaitStrategy:
    """How long to wait before trying again, by how often it was tried in vain; the count restarts with success.

    Attributes:
        steps: (count below which it holds, seconds), counts ascending; the last one holds for ever.
    """

    steps: tuple[tuple[float, float], ...]

    def wait_s(self, idle_count: int) -> float:
        """Seconds to wait after this many vain tries, from 0."""
        return next(wait_s for below, wait_s in self.steps if idle_count < below)

    def next_try_s(self, waited_s: float) -> float:
        """When somebody tries again who has tried in vain for that long: how long after the refusal, never less."""
        begin_s, tried = 0.0, 0.0
        for below, wait_s in self.steps:
            if wait_s:
                number = max(1, math.ceil((waited_s - begin_s) / wait_s - 1e-9))
                if number <= below - tried:
                    return max(begin_s + number * wait_s, waited_s)
                begin_s += (below - tried) * wait_s
            elif below > tried and waited_s <= begin_s:
                return waited_s
            tried = below
        raise AssertionError("the last step holds for ever")


def progressive(level1_count: int = 1, level2_count: int = 1000, level3_sleep_s: float = 0.001) -> WaitStrategy:
    """No wait at first, then the shortest there is, then a sleep. Source: `WaitStrategyProgressive`."""
    steps = ((level1_count, 0.0), (level1_count + level2_count, 1e-9), (math.inf, level3_sleep_s))
    return WaitStrategy(steps)


def park(park_s: float = 0.0001) -> WaitStrategy:
    """Always the same wait. Source: `WaitStrategyPark`."""
    return WaitStrategy(((math.inf, park_s),))
