"""Who is due for a tick when. The phase is the topology's start, not a tuple's emission.

Source: Storm's `executor/Executor.setupTicks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reliable_spark.errors import SettingsError
from reliable_spark.topology.context import TICK_KEY
from reliable_spark.topology.periods import SHORTEST_S, TIMEOUT_KEY


@dataclass
class Timer:
    """Rings at every multiple of its period.

    Attributes:
        period_s: seconds between two rings.
        tasks: who gets a tick.
        rung: how often it rang.

    Raises:
        SettingsError: the period is less than a microsecond, so that it would ring for ever.
    """

    period_s: float
    tasks: list[int]
    rung: int = 0

    def __post_init__(self) -> None:
        """Check that time passes between two rings."""
        if not self.period_s >= SHORTEST_S:
            raise SettingsError(f"{TICK_KEY} and {TIMEOUT_KEY} are 0.000001 seconds or more, not {self.period_s!r}")

    @property
    def due_s(self) -> float:
        """The time of the next ring, to the microsecond: a multiple, since a sum of periods would drift."""
        return round((self.rung + 1) * self.period_s, 6)


class Ticks:
    """All timers of a topology.

    Attributes:
        next_due_s: when the next timer rings; infinity when there is none.

    Args:
        timers: all of them.
    """

    def __init__(self, timers: Sequence[Timer]) -> None:
        self._timers = timers
        self.next_due_s = self._next_due_s()

    def ring(self, now_s: float) -> list[tuple[float, int]]:
        """Every (period, task) that is due by now, once per ring, earlier rings first."""
        due: list[tuple[float, float, int]] = []
        for timer in self._timers:
            while timer.due_s <= now_s:
                due += [(timer.due_s, timer.period_s, task) for task in timer.tasks]
                timer.rung += 1
        self.next_due_s = self._next_due_s()
        return [(period_s, task) for _, period_s, task in sorted(due, key=lambda ring: ring[0])]

    def _next_due_s(self) -> float:
        return min((timer.due_s for timer in self._timers), default=float("inf"))
