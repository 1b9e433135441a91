"""Windows as pure data: what is in one, what is new in it, and what has left since the one before.

An item leaves when a window fires that it is not part of any more; until then it is held. Two departures from Storm
(`windowing/WindowManager` and its policies): an interval takes its start and not its end, so that what is as new as
the watermark still finds its window; and counts by event time go by the order of the timestamps.

`progress` is what windows know beside the items they hold: new windows that `resume` from it, with these items in the
order in which they came, go on as the old ones would have.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Window(Generic[T]):
    """What fires.

    Attributes:
        items: what is in it, in order; empty when all that happens is that something leaves.
        new: the part of it that was in no window before.
        expired: what was held until now and is in no further window.
        end: for windows by time, the first moment that is not in it any more.
    """

    items: list[T]
    new: list[T]
    expired: list[T]
    end: float | None = None


class CountWindows(Generic[T]):
    """The last `length` items, after every `slide` items.

    Args:
        length: how many items a window has, at most.
        slide: how many items come between two windows.
    """

    def __init__(self, length: int, slide: int) -> None:
        self._length = length
        self._slide = slide
        self._held: list[T] = []
        self._new = 0

    def add(self, item: T) -> list[Window[T]]:
        """Take an item; every `slide`-th one fires."""
        self._held.append(item)
        self._new += 1
        if self._new < self._slide:
            return []
        gone = max(0, len(self._held) - self._length)
        expired, self._held = self._held[:gone], self._held[gone:]
        window = Window(list(self._held), self._held[-min(self._new, len(self._held)) :], expired)
        self._new = 0
        return [window]

    @property
    def progress(self) -> int:
        """How many items came since the last window."""
        return self._new

    def resume(self, progress: int, held: Iterable[tuple[T, float]]) -> None:
        """Go on from there; the items' times do not matter."""
        self._new, self._held = progress, [item for item, _ in held]


class TimeWindows(Generic[T]):
    """The items of the last `length` seconds, every `slide` seconds: [end - length, end), ends on multiples of slide.

    Args:
        length: seconds that a window covers.
        slide: seconds between the ends of two windows.
    """

    def __init__(self, length: float, slide: float) -> None:
        self._length = length
        self._slide = slide
        self._held: list[_Held[T]] = []
        self._taken = 0
        self._fired: float = float("-inf")
        self._last: int | None = None

    def add(self, item: T, at: float) -> None:
        """Take an item of a time; in any order, though not from before what already fired."""
        self._taken += 1
        insort(self._held, _Held(at, self._taken, item), key=lambda held: (held.at, held.number))

    def advance(self, to: float) -> list[Window[T]]:
        """Fire every window that ends by then and changes anything, in order."""
        fired = []
        while self._held and (number := self._next()) * self._slide <= to:
            self._last = number
            fired.append(self._fire(number * self._slide))
        return fired

    @property
    def progress(self) -> float:
        """The end of the last window that fired."""
        return self._fired

    def resume(self, progress: float, held: Iterable[tuple[T, float]]) -> None:
        """Go on from there, also with another length or slide: nothing fires again that ended by then."""
        self._fired = progress
        if progress > float("-inf"):
            last = floor(progress / self._slide)
            self._last = last + ((last + 1) * self._slide <= progress)  # a quotient may be rounded down
        for item, at in held:
            self.add(item, at)

    def _next(self) -> int:
        """The first window after the last one that something enters or leaves, counted in slides from 0."""
        first = floor(self._held[0].at / self._slide)
        return (first if self._last is None else max(first, self._last)) + 1

    def _fire(self, end: float) -> Window[T]:
        gone, until = self._before(end - self._length), self._before(end)
        expired, inside = self._held[:gone], self._held[gone:until]
        new = [each.item for each in inside if each.at >= self._fired]
        self._held, self._fired = self._held[gone:], end
        return Window([each.item for each in inside], new, [each.item for each in expired], end)

    def _before(self, at: float) -> int:
        return bisect_left(self._held, at, key=lambda held: held.at)


@dataclass(frozen=True)
class _Held(Generic[T]):
    at: float
    number: int
    item: T


class OrderedCountWindows(Generic[T]):
    """Windows by count over items in the order of their times, as far as that order is final.

    Args:
        windows: what they are counted into.
    """

    def __init__(self, windows: CountWindows[T]) -> None:
        self._windows = windows
        self._waiting: list[_Held[T]] = []
        self._taken = 0
        self._final = float("-inf")

    def add(self, item: T, at: float) -> None:
        """Take an item of a time."""
        self._taken += 1
        insort(self._waiting, _Held(at, self._taken, item), key=lambda held: (held.at, held.number))

    def advance(self, to: float) -> list[Window[T]]:
        """Count everything from before then, which nothing can come before any more."""
        self._final = max(self._final, to)
        final = bisect_left(self._waiting, to, key=lambda held: held.at)
        items, self._waiting = self._waiting[:final], self._waiting[final:]
        return [window for each in items for window in self._windows.add(each.item)]

    @property
    def progress(self) -> tuple[float, int]:
        """Up to when everything is counted, and the progress of what it is counted into."""
        return self._final, self._windows.progress

    def resume(self, progress: tuple[float, int], held: Iterable[tuple[T, float]]) -> None:
        """Go on from there: what is older than that is counted already, in the order of its times."""
        self._final, counted = progress
        ordered = sorted(held, key=lambda each: each[1])
        final = bisect_left(ordered, self._final, key=lambda each: each[1])
        self._windows.resume(counted, ordered[:final])
        for item, at in ordered[final:]:
            self.add(item, at)


class Watermarks:
    """How far event time has come: the slowest stream's newest time, less the lag. It never goes back.

    Args:
        streams: every input that times come from; before all have spoken there is no watermark.
        lag: how far behind the newest time of its stream an item may come.

    Source: Storm's `windowing/WaterMarkEventGenerator`.
    """

    def __init__(self, streams: set[Hashable] | frozenset[Hashable], lag: float) -> None:
        self._newest: dict[Hashable, float] = dict.fromkeys(streams, float("-inf"))
        self._lag = lag
        self._watermark = float("-inf")

    def accepts(self, stream: Hashable, at: float) -> bool:
        """Take note of an item's time; says whether it is in time, which it also is at the watermark itself."""
        self._newest[stream] = max(self._newest[stream], at)
        return at >= self._watermark

    def advance(self) -> float | None:
        """The watermark now, from which lateness is judged from here on; None before there is one."""
        self._watermark = max(self._watermark, min(self._newest.values()) - self._lag)
        return None if self._watermark == float("-inf") else self._watermark

    @property
    def progress(self) -> tuple[float, Mapping[Hashable, float]]:
        """The watermark, and the newest time of each stream."""
        return self._watermark, dict(self._newest)

    def resume(self, progress: tuple[float, Mapping[Hashable, float]]) -> None:
        """Go on from there; of the streams only those count that there are now."""
        self._watermark, newest = progress
        self._newest.update({stream: at for stream, at in newest.items() if stream in self._newest})
