"""When failed records are due again: one schedule per record, delays that double to a cap. Time is an argument.

Source: storm-kafka-client's `KafkaSpoutRetryExponentialBackoff`; `begin` is `retryStarted` of storm-kafka 1.x's
`ExponentialBackoffMsgRetryManager`. Both overflow after some 40 failures, this saturates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace

_LARGEST_EXPONENT = 1_000
"""Below the largest power of two a float holds; no product with a cap needs more."""


@dataclass(frozen=True)
class RecordId:
    """The message id of a record: equal by place, whatever happened to it.

    Attributes:
        partition: the part of the log.
        offset: the place within it.
        failures: how often it failed so far.
    """

    partition: Hashable
    offset: int
    failures: int = field(default=0, compare=False)

    def failed(self) -> RecordId:
        """The same place with one failure more."""
        return replace(self, failures=self.failures + 1)


@dataclass(frozen=True)
class Backoff:
    """How long to wait before a retry, and how often to try. The defaults are storm-kafka-client's.

    Attributes:
        initial_s: seconds after the first failure.
        period_s: after the n-th failure, n at least 2, the wait is this times 2**(n - 1).
        max_s: the longest wait.
        max_retries: how many failures are retried; None means all.

    Raises:
        ValueError: a wait is negative or no number, or `max_retries` is negative.
    """

    initial_s: float = 0.0
    period_s: float = 0.002
    max_s: float = 10.0
    max_retries: int | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name in ("initial_s", "period_s", "max_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")
        if self.max_retries is not None and self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, got {self.max_retries}")

    def allows(self, failures: int) -> bool:
        """Whether a record that failed this often is tried again."""
        return self.max_retries is None or failures <= self.max_retries

    def delay_s(self, failures: int) -> float:
        """The wait after the `failures`-th failure.

        Raises:
            ValueError: nothing failed yet.
        """
        if failures < 1:
            raise ValueError(f"failures must be 1 or more, got {failures}")
        if failures == 1:
            return min(self.initial_s, self.max_s)
        return min(self.period_s * 2.0 ** min(failures - 1, _LARGEST_EXPONENT), self.max_s)


class RetrySchedule:
    """At most one due time per record: scheduling again replaces it, counted from now.

    Args:
        backoff: the waits and the limit.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self._due: dict[RecordId, tuple[float, RecordId]] = {}

    def schedule(self, record: RecordId, now_s: float) -> bool:
        """Make a failed record due after its wait.

        Returns:
            False, and it is not scheduled, when it failed more often than is retried.

        Raises:
            ValueError: it has not failed.
        """
        if not self._backoff.allows(record.failures):
            self._due.pop(record, None)
            return False
        self._due[record] = (now_s + self._backoff.delay_s(record.failures), record)
        return True

    def record_id(self, partition: Hashable, offset: int) -> RecordId:
        """The id as it was scheduled, with its failures; a fresh one when it is not."""
        fresh = RecordId(partition, offset)
        return self._due[fresh][1] if fresh in self._due else fresh

    def is_scheduled(self, record: RecordId) -> bool:
        """Whether the record waits for a retry."""
        return record in self._due

    def is_ready(self, record: RecordId, now_s: float) -> bool:
        """Whether the record waits for a retry and is due."""
        return record in self._due and self._due[record][0] <= now_s

    def ready_count(self, now_s: float) -> int:
        """How many records are due."""
        return sum(due_s <= now_s for due_s, _ in self._due.values())

    def earliest_ready(self, now_s: float) -> dict[Hashable, int]:
        """The smallest due offset of each partition that has one."""
        earliest: dict[Hashable, int] = {}
        for due_s, record in self._due.values():
            if due_s <= now_s:
                earliest[record.partition] = min(record.offset, earliest.get(record.partition, record.offset))
        return earliest

    def begin(self, record: RecordId) -> RecordId:
        """Take a record out to try it again.

        Raises:
            LookupError: it has not failed, or not since its last retry began.
        """
        if record not in self._due:
            raise LookupError(f"offset {record.offset} of {record.partition!r} has no failure that waits for a retry")
        return self._due.pop(record)[1]

    def remove(self, record: RecordId) -> bool:
        """Forget a record, for example because it was acked; False when it was not scheduled."""
        return self._due.pop(record, None) is not None

    def retain(self, partitions: Collection[Hashable]) -> None:
        """Forget the records of all other partitions."""
        self._due = {record: due for record, due in self._due.items() if record.partition in partitions}
