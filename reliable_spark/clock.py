"""Time as an argument: what the loop asks for the time of day and to wait."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Protocol


class Clock(Protocol):
    """Tells the time and waits; injected, so that tests need not sleep."""

    def now(self) -> datetime:
        """The time in UTC."""
        ...

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait, at most until `stop` is set.

        Returns:
            True when it was set.
        """
        ...


class SystemClock:
    """The machine's clock."""

    now = staticmethod(partial(datetime.now, timezone.utc))  # no call in between: a topology asks for every tuple

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Wait for real."""
        return stop.wait(max(0.0, seconds))


class ManualClock:
    """A clock that stands still until somebody advances it or waits on it: waiting costs no time at all.

    Args:
        start: the first time it tells.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc)) -> None:
        self._now = start
        self._lock = threading.Lock()
        self.waited_s = 0.0

    def now(self) -> datetime:
        """The time in UTC."""
        with self._lock:
            return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += timedelta(seconds=seconds)

    def wait(self, seconds: float, stop: threading.Event) -> bool:
        """Advance instead of waiting."""
        self.advance(max(0.0, seconds))
        self.waited_s += max(0.0, seconds)
        return stop.is_set()
