"""Which offset of a log may be committed: everything below it is done. Pure; no log, no clock.

Source: storm-kafka-client's `internal/OffsetManager`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import takewhile


class OffsetTracker:
    """The committable offset never passes one that was emitted and is not acked.

    An offset that was never emitted (compacted away) holds nothing up.

    Args:
        start: the first offset that is not done yet.
    """

    def __init__(self, start: int) -> None:
        self._committed = start
        self._emitted: list[int] = []
        self._acked: set[int] = set()

    @property
    def committed(self) -> int:
        """The first offset that is not known to be done."""
        return self._committed

    @property
    def uncommitted(self) -> int:
        """How many emitted offsets are not committed, acked ones included."""
        return len(self._emitted)

    def __contains__(self, offset: int) -> bool:
        """Whether the offset was emitted and is not committed."""
        at = bisect_left(self._emitted, offset)
        return at < len(self._emitted) and self._emitted[at] == offset

    def is_acked(self, offset: int) -> bool:
        """Whether the offset is acked and not committed yet."""
        return offset in self._acked

    def emit(self, offset: int) -> None:
        """Take an offset in hand; a second emission of it changes nothing.

        Raises:
            ValueError: the offset is below the committed one: committing it would go back.
        """
        if offset < self._committed:
            raise ValueError(f"offset {offset} is below {self._committed}, which is committed")
        if offset not in self:
            insort(self._emitted, offset)

    def ack(self, offset: int) -> bool:
        """Note that an offset is done.

        Returns:
            False, and nothing changes, for an offset that is not in hand.
        """
        if offset not in self:
            return False
        self._acked.add(offset)
        return True

    def next_commit(self) -> int | None:
        """The offset after the acked ones that nothing holds up; None when there is nothing new to commit."""
        done = list(takewhile(self._acked.__contains__, self._emitted))
        return done[-1] + 1 if done else None

    def commit(self, offset: int) -> int:
        """Forget everything below an offset.

        Returns:
            How many acked offsets were forgotten.
        """
        cut = bisect_left(self._emitted, offset)
        forgotten = self._acked.intersection(self._emitted[:cut])
        self._acked -= forgotten
        del self._emitted[:cut]
        self._committed = max(self._committed, offset)
        return len(forgotten)

    def nth_uncommitted(self, number: int) -> int:
        """The `number`-th emitted offset that is not committed, counted from 1.

        Raises:
            IndexError: there are fewer.
        """
        if not 1 <= number <= len(self._emitted):
            raise IndexError(f"there are {len(self._emitted)} uncommitted offsets, no number {number}")
        return self._emitted[number - 1]
