"""When tasks that died start again: not always at once, or one that cannot live would keep the others from working."""

from __future__ import annotations

import math
from collections import Counter

WAIT_MAX_S = 30.0
"""The longest wait before a restart; who has lived for longer has its restarts begin anew."""


class Restarts:
    """The tasks that wait to be started again, on the engine's clock.

    Attributes:
        next_due_s: when the first of them is to be started; infinity when there is none.
    """

    def __init__(self) -> None:
        self.next_due_s = math.inf
        self._tries: Counter[int] = Counter()
        self._due_s: dict[int, float] = {}
        self._started_s: dict[int, float] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self._due_s)

    def __contains__(self, task: int) -> bool:
        """Whether a task waits."""
        return task in self._due_s

    def put_off(self, task: int, now_s: float, first_s: float = 1.0) -> bool:
        """A task died or could not start: its next start is later, after 2, 4, 8 and so on seconds.

        Args:
            task: which.
            now_s: the time.
            first_s: how long it waits the first time.

        Returns:
            Whether it waits at all.
        """
        if now_s - self._started_s.pop(task, now_s) > WAIT_MAX_S:
            del self._tries[task]
        wait_s = first_s if not self._tries[task] else min(2.0 ** min(self._tries[task], 10), WAIT_MAX_S)
        self._tries[task] += 1
        if wait_s:
            self._due_s[task] = now_s + wait_s
            self._see()
        return wait_s > 0

    def started(self, task: int, now_s: float) -> None:
        """It lives."""
        self._started_s[task] = now_s
        if self._due_s.pop(task, None) is not None:
            self._see()

    def due(self, now_s: float) -> list[int]:
        """Those to be started by now."""
        return [task for task, due_s in self._due_s.items() if due_s <= now_s]

    def _see(self) -> None:
        self.next_due_s = min(self._due_s.values(), default=math.inf)
