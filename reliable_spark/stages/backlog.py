"""How much waits in the queue that a query writes, and when there is room in it again."""

from __future__ import annotations

from reliable_spark.stages.acks import Acks


class Backlog:
    """The rows that the next stage has not taken yet.

    Guarantee: a writer that puts a batch in only while `is_full` is False never deadlocks, and never lets the queue
    grow beyond its capacity and one batch. (Waiting until the batch fits would, when it is larger than the capacity.)

    Args:
        stage: the stage that reads the queue.
        capacity: rows.
        acks: where that stage says what it has taken.
    """

    def __init__(self, stage: str, capacity: int, acks: Acks) -> None:
        self.stage, self.capacity = stage, capacity
        self._acks = acks
        self._waiting: list[tuple[int, int]] = []

    def put(self, batch_id: int, rows: int) -> None:
        """A batch goes into the queue."""
        if rows:
            self._waiting.append((batch_id, rows))

    def room(self) -> int:
        """How many rows fit in now. Cost: a read of `acks`."""
        taken = self._acks.taken(self.stage)
        self._waiting = [(batch_id, rows) for batch_id, rows in self._waiting if batch_id > taken]
        return self.capacity - self.rows

    @property
    def rows(self) -> int:
        """How many rows wait, as of the last look."""
        return sum(rows for _, rows in self._waiting)

    def is_full(self) -> bool:
        """Whether the next batch has to wait. Cost: a read of `acks` while it does."""
        return self.rows >= self.capacity and self.room() <= 0
