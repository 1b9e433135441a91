"""A spout over a replayable log, such as Kafka's: at least once, at most once, or no guarantee.

Source: storm-kafka-client's `KafkaSpout`, `KafkaSpoutConfig`, `internal/OffsetManager`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Protocol, get_args

from reliable_spark.core.offsets import OffsetTracker
from reliable_spark.core.retry_schedule import Backoff, RecordId, RetrySchedule
from reliable_spark.errors import SettingsError, UsageError, nearest
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.spouts import Spout, SpoutOutputCollector

Guarantee = Literal["at_least_once", "at_most_once", "none"]

_NUMBERS: Mapping[str, Any] = {"max_uncommitted": Integral, "batch": Integral, "commit_period_s": Real}
_FIRST_COMMIT_AFTER_S = 0.5
"""What storm-kafka-client adds to the first period."""


class Record(NamedTuple):
    """One record of a partition."""

    offset: int
    value: Any


class Log(Protocol):
    """What a LogSpout reads. All its tasks share the object; each reads partitions of its own."""

    def partitions(self) -> Sequence[Hashable]:
        """The partitions, always in the same order."""
        ...

    def committed(self, partition: Hashable) -> int | None:
        """The offset that was committed last; None before the first commit."""
        ...

    def first(self, partition: Hashable) -> int:
        """The offset to begin with when none was committed; what is below it is not in the log any more."""
        ...

    def read(self, partition: Hashable, offset: int, limit: int) -> Sequence[Record]:
        """The records from an offset on, ascending, at most `limit`; offsets may be missing."""
        ...

    def commit(self, partition: Hashable, offset: int) -> None:
        """Keep that everything below the offset is done."""
        ...


@dataclass(frozen=True)
class LogSpoutSettings:
    """How a log is read. The defaults are storm-kafka-client's.

    Attributes:
        guarantee: "at_least_once": committed is what is done; "at_most_once": committed before it is emitted;
            "none": the position is committed every period, done or not.
        max_uncommitted: a partition with this many emitted and uncommitted records is read no further.
        batch: how many records are read at once.
        commit_period_s: seconds between two commits.
        backoff: when failed records are emitted again, and how often.
        is_tracking_enforced: whether records have message ids also without "at_least_once", for the statistics.

    Raises:
        SettingsError: there is no such guarantee, a number is out of its range, or the backoff is none.
    """

    guarantee: Guarantee = "at_least_once"
    max_uncommitted: int = 10_000_000
    batch: int = 500
    commit_period_s: float = 30.0
    backoff: Backoff = field(default_factory=Backoff)
    is_tracking_enforced: bool = False

    def __post_init__(self) -> None:
        """Check the names and the ranges."""
        if self.guarantee not in get_args(Guarantee):
            hint = nearest(str(self.guarantee), get_args(Guarantee))
            raise SettingsError(f"there is no guarantee {self.guarantee!r}{hint}")
        for name, kind in _NUMBERS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or not value > 0:
                what = "a whole number" if kind is Integral else "a number"
                raise SettingsError(f"{name} must be {what} of more than 0, got {value!r}")
        if not isinstance(self.backoff, Backoff):
            raise SettingsError(f"backoff must be a Backoff, got {self.backoff!r}")


class _Partition:
    """One partition in hand: what is done, and where reading goes on."""

    def __init__(self, start: int) -> None:
        self.tracker = OffsetTracker(start)
        self.position = start


class LogSpout(Spout):
    """Emits the records of a log, one per `next_tuple`, with a `RecordId` as message id.

    Guarantee (at least once): a record below the committed offset was acked, was dropped after its last retry, has no
    values, or is no longer in the log. After a restart reading begins at the committed offset.

    Args:
        log: the log.
        fields: the fields of the stream "default".
        values_of: a record's value -> one value per field, or None for a record that is nothing; by default the
            value itself for a single field.
        settings: how it is read.

    Raises:
        UsageError: the log lacks a method, or one of the others is no such thing.
    """

    def __init__(
        self,
        log: Log,
        fields: Sequence[str] = ("value",),
        values_of: Callable[[Any], Sequence[Any] | None] = lambda value: [value],
        settings: LogSpoutSettings | None = None,
    ) -> None:
        for name in ("partitions", "committed", "first", "read", "commit"):
            if not callable(getattr(log, name, None)):
                raise UsageError(f"a LogSpout reads a Log, and {type(log).__name__} has no method {name}()")
        others: tuple[Any, Any] = (values_of, settings)
        if not callable(others[0]) or not isinstance(others[1], LogSpoutSettings | None):
            raise UsageError(f"a LogSpout takes a function and LogSpoutSettings, not {values_of!r} and {settings!r}")
        self._log = log
        self._fields = fields
        self._values_of = values_of
        self._settings = settings or LogSpoutSettings()

    def __deepcopy__(self, memo: dict[int, Any]) -> LogSpout:
        """A task's own spout over the same log."""
        return LogSpout(self._log, self._fields, self._values_of, self._settings)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """As given."""
        declarer.declare(self._fields)

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Take every n-th partition, n being the number of tasks, from the committed offset on."""
        self._collector = collector
        self._clock = context.clock
        self._retries = RetrySchedule(self._settings.backoff)
        self._waiting: deque[tuple[Hashable, Record]] = deque()
        self._in_hand: dict[Hashable, _Partition] = {}
        tasks = len(context.component_tasks(context.component))
        for partition in list(self._log.partitions())[context.task_index :: tasks]:
            committed = self._log.committed(partition)
            self._in_hand[partition] = _Partition(self._log.first(partition) if committed is None else committed)
        self._commit_due_s = self._now_s() + _FIRST_COMMIT_AFTER_S + self._settings.commit_period_s

    def next_tuple(self) -> None:
        """Commit if it is time, read if nothing that waits is to be emitted, emit one record if there is one."""
        if self._settings.guarantee != "at_most_once" and self._now_s() >= self._commit_due_s:
            self._commit_due_s = self._now_s() + self._settings.commit_period_s
            self._commit()
        if not self._emit_next():
            self._read()
            self._emit_next()

    def ack(self, message_id: RecordId) -> None:
        """The record is done."""
        if self._is_in_flight(message_id):
            self._in_hand[message_id.partition].tracker.ack(message_id.offset)

    def fail(self, message_id: RecordId) -> None:
        """Emit the record again after its wait; after its last retry it counts as done."""
        if self._is_in_flight(message_id) and not self._retries.schedule(message_id.failed(), self._now_s()):
            self._in_hand[message_id.partition].tracker.ack(message_id.offset)

    def deactivate(self) -> None:
        """Commit what can be."""
        self._commit()

    def close(self) -> None:
        """Commit what can be."""
        self._commit()

    def _now_s(self) -> float:
        return self._clock.now().timestamp()

    def _is_in_flight(self, record: RecordId) -> bool:
        """Whether an answer about the record is news: not after an ack, a fail or a commit."""
        tracker = self._in_hand[record.partition].tracker
        return record.offset in tracker and not tracker.is_acked(record.offset) and not self._is_waiting(record)

    def _is_waiting(self, record: RecordId) -> bool:
        return self._retries.is_scheduled(record)

    def _commit(self) -> None:
        for partition, held in self._in_hand.items():
            if self._settings.guarantee == "at_least_once":
                self._commit_done(partition, held)
            elif held.position != self._log.committed(partition):
                self._log.commit(partition, held.position)

    def _commit_done(self, partition: Hashable, held: _Partition) -> None:
        offset = held.tracker.next_commit()
        if offset is not None:
            self._log.commit(partition, offset)
            held.tracker.commit(offset)

    def _read(self) -> None:
        """Take a batch of each partition that may be read, from its earliest due retry, else from its position."""
        due = self._retries.earliest_ready(self._now_s())
        for partition, held in self._in_hand.items():
            retry = due.get(partition)
            if not self._may_read(held.tracker, retry):
                continue
            start = held.position if retry is None else retry
            records = self._log.read(partition, start, self._settings.batch)
            if not records and retry is not None:
                # retention may have taken the end of the log; what is only late is not below its first offset
                self._forget(partition, range(start, min(self._log.first(partition), held.position)))
            if records:
                found = [record.offset for record in records]
                self._forget(partition, set(range(start, found[-1])).difference(found))
                held.position = max(held.position, records[-1].offset + 1)
                self._waiting.extend((partition, record) for record in records)
        if self._settings.guarantee == "at_most_once" and self._waiting:
            self._commit()

    def _may_read(self, tracker: OffsetTracker, retry: int | None) -> bool:
        """Below the limit, or for a retry that lies within the limit: such a one is what lets the commit go on."""
        limit = self._settings.max_uncommitted
        if self._settings.guarantee != "at_least_once" or tracker.uncommitted < limit:
            return True
        return retry is not None and retry <= tracker.nth_uncommitted(limit)

    def _forget(self, partition: Hashable, gone: Iterable[int]) -> None:
        """A retry that is not in the log any more can only count as done."""
        for offset in gone:
            if self._retries.remove(RecordId(partition, offset)):
                self._in_hand[partition].tracker.ack(offset)

    def _emit_next(self) -> bool:
        """Emit the first waiting record that is to be emitted, drop those before it."""
        while self._waiting:
            if self._emit(*self._waiting.popleft()):
                return True
        return False

    def _emit(self, partition: Hashable, record: Record) -> bool:
        """Emit a record unless it is in flight, done or not due; the books are kept before the tuple leaves."""
        values = self._values_of(record.value)
        if self._settings.guarantee != "at_least_once":
            message_id = RecordId(partition, record.offset) if self._settings.is_tracking_enforced else None
            return values is not None and self._send(values, message_id)
        record_id, tracker = self._retries.record_id(partition, record.offset), self._in_hand[partition].tracker
        if self._is_waiting(record_id):
            if not self._retries.is_ready(record_id, self._now_s()):
                return False
            self._retries.begin(record_id)
        elif record.offset in tracker or record.offset < tracker.committed:
            return False
        tracker.emit(record.offset)
        if values is None:
            tracker.ack(record.offset)
            return False
        return self._send(values, record_id)

    def _send(self, values: Sequence[Any], message_id: RecordId | None) -> bool:
        self._collector.emit(values, message_id=message_id)
        return True
