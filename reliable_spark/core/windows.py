"""Windows as pure data: what is in one, what is new in it, and what has left since the one before.

An item leaves when a window fires that it is not part of any more; until then it is held. Two departures from Storm
(`windowing/WindowManager` and its policies): an interval takes its start and not its end, so that what is as new as
the watermark still finds its window; and counts by event time go by the order of the timestamps.

Times come and go as seconds, and are counted in whole microseconds here: a window that ends at 0.3 and one that begins
there must mean the same moment, which multiples of 0.1 in floating point do not.

`progress` is what windows know beside the items they hold: new windows that `resume` from it, with these items in the
order in which they came, go on as the old ones would have.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_MICROSECONDS = 1_000_000
_NEVER = float("-inf")
"""Before all times; not a whole number, but Python compares it with those exactly."""


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
        self._length = _whole(length)
        self._slide = _whole(slide)
        self._held: list[_Held[T]] = []
        self._taken = 0
        self._fired = _NEVER

    def add(self, item: T, at: float) -> None:
        """Take an item of a time; in any order, though not from before what already fired."""
        self._taken += 1
        insort(self._held, _Held(_whole(at), self._taken, item), key=lambda held: (held.at, held.number))

    def advance(self, to: float) -> list[Window[T]]:
        """Fire every window that ends by then and changes anything, in order."""
        fired, until = [], _whole(to)
        while self._held and (end := self._next_end()) <= until:
            fired.append(self._fire(end))
        return fired

    @property
    def progress(self) -> float:
        """The end of the last window that fired."""
        return self._fired / _MICROSECONDS

    def resume(self, progress: float, held: Iterable[tuple[T, float]]) -> None:
        """Go on from there, also with another length or slide: nothing fires again that ended by then."""
        self._fired = _moment(progress)
        for item, at in held:
            self.add(item, at)

    def _next_end(self) -> float:
        """When the first window ends, after the last one, that something enters or leaves."""
        return (max(self._held[0].at, self._fired) // self._slide + 1) * self._slide

    def _fire(self, end: float) -> Window[T]:
        gone, until = self._before(end - self._length), self._before(end)
        expired, inside = self._held[:gone], self._held[gone:until]
        new = [each.item for each in inside if each.at >= self._fired]
        self._held, self._fired = self._held[gone:], end
        items, left = [each.item for each in inside], [each.item for each in expired]
        return Window(items, new, left, end / _MICROSECONDS)

    def _before(self, at: float) -> int:
        return bisect_left(self._held, at, key=lambda held: held.at)


@dataclass(frozen=True)
class _Held(Generic[T]):
    at: int
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
        self._final = _NEVER

    def add(self, item: T, at: float) -> None:
        """Take an item of a time."""
        self._taken += 1
        insort(self._waiting, _Held(_whole(at), self._taken, item), key=lambda held: (held.at, held.number))

    def advance(self, to: float) -> list[Window[T]]:
        """Count everything from before then, which nothing can come before any more."""
        until = _whole(to)
        self._final = max(self._final, until)
        final = bisect_left(self._waiting, until, key=lambda held: held.at)
        items, self._waiting = self._waiting[:final], self._waiting[final:]
        return [window for each in items for window in self._windows.add(each.item)]

    @property
    def progress(self) -> tuple[float, int]:
        """Up to when everything is counted, and the progress of what it is counted into."""
        return self._final / _MICROSECONDS, self._windows.progress

    def resume(self, progress: tuple[float, int], held: Iterable[tuple[T, float]]) -> None:
        """Go on from there: what is older than that is counted already, in the order of its times."""
        self._final, counted = _moment(progress[0]), progress[1]
        ordered = sorted(held, key=lambda each: _whole(each[1]))
        final = bisect_left(ordered, self._final, key=lambda each: _whole(each[1]))
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
        self._newest: dict[Hashable, float] = dict.fromkeys(streams, _NEVER)
        self._lag = _whole(lag)
        self._watermark = _NEVER

    def accepts(self, stream: Hashable, at: float) -> bool:
        """Take note of an item's time; says whether it is in time, which it also is at the watermark itself."""
        moment = _whole(at)
        self._newest[stream] = max(self._newest[stream], moment)
        return moment >= self._watermark

    def advance(self) -> float | None:
        """The watermark now, from which lateness is judged from here on; None before there is one."""
        self._watermark = max(self._watermark, min(self._newest.values()) - self._lag)
        return None if self._watermark == _NEVER else self._watermark / _MICROSECONDS

    @property
    def progress(self) -> tuple[float, Mapping[Hashable, float]]:
        """The watermark, and the newest time of each stream."""
        return self._watermark / _MICROSECONDS, {stream: at / _MICROSECONDS for stream, at in self._newest.items()}

    def resume(self, progress: tuple[float, Mapping[Hashable, float]]) -> None:
        """Go on from there; of the streams only those count that there are now."""
        self._watermark = _moment(progress[0])
        self._newest.update({stream: _moment(at) for stream, at in progress[1].items() if stream in self._newest})


def _whole(seconds: float) -> int:
    """The nearest whole microsecond; a later time is never an earlier one."""
    whole, part = divmod(seconds, 1)  # the product of all of it would itself be rounded to more than a microsecond
    return int(whole) * _MICROSECONDS + round(part * _MICROSECONDS)


def _moment(seconds: float) -> float:
    """The nearest whole microsecond, or minus infinity as it is."""
    return seconds if seconds == _NEVER else _whole(seconds)
