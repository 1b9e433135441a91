"""Who is due for a tick when. The phase is the topology's start, not a tuple's emission.

Source: Storm's `executor/Executor.setupTicks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Timer:
    """Rings at every multiple of its period.

    Attributes:
        period_s: seconds between two rings.
        tasks: who gets a tick.
        rung: how often it rang.
    """

    period_s: float
    tasks: list[int]
    rung: int = 0

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
