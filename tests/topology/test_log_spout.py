"""Group K: what a spout over a log emits, emits again and commits."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark import LogSpout, LogSpoutSettings, ManualClock, SettingsError, TopologyContext
from reliable_spark.core.graph import Graph
from reliable_spark.core.retry_schedule import Backoff, RecordId
from reliable_spark.topology.log_spout import Record
from tests.topology.pieces import AckOnly, Does, TopologyBuilder, keep, line_from, started

AT_ONCE = Backoff(initial_s=0, period_s=0)


class MemoryLog:
    """Partitions of offset -> value; writes down its commits."""

    def __init__(self, partitions: Mapping[Hashable, Mapping[int, Any]]) -> None:
        self.records = {name: dict(records) for name, records in partitions.items()}
        self.commits: list[tuple[Hashable, int]] = []
        self.order: list[str] = []

    def partitions(self) -> Sequence[Hashable]:
        return list(self.records)

    def committed(self, partition: Hashable) -> int | None:
        return next((offset for name, offset in reversed(self.commits) if name == partition), None)

    def first(self, partition: Hashable) -> int:
        return 0

    def read(self, partition: Hashable, offset: int, limit: int) -> Sequence[Record]:
        self.order.append("read")
        return [Record(at, self.records[partition][at]) for at in sorted(self.records[partition]) if at >= offset][
            :limit
        ]

    def commit(self, partition: Hashable, offset: int) -> None:
        self.order.append("commit")
        self.commits.append((partition, offset))


class Driven:
    """A LogSpout whose calls the test makes; it is the spout's collector."""

    def __init__(self, log: MemoryLog, **settings: Any) -> None:
        self.log = log
        self.clock = ManualClock()
        self.ids: list[RecordId | None] = []
        self.values: list[Any] = []
        settings = {"commit_period_s": 2, "backoff": AT_ONCE, **settings}
        values_of = settings.pop("values_of", lambda value: [value])
        self.spout = LogSpout(log, ["value"], values_of, LogSpoutSettings(**settings))
        self.spout.open({}, TopologyContext("s", 1, 0, self.clock, Graph({}), {"s": [1]}), self)

    def emit(self, values: Sequence[Any], stream: str = "default", message_id: Any = None) -> list[int]:
        self.log.order.append("emit")
        self.ids.append(message_id)
        self.values.append(values[0])
        return []

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = "default", message_id: Any = None) -> None:
        raise AssertionError("not used")

    def pending_count(self) -> int:
        return 0

    def report_error(self, error: BaseException) -> None:
        raise AssertionError("not used")

    def call(self, times: int = 1) -> list[int]:
        """The offsets emitted by this many calls of next_tuple, each at most one."""
        before = len(self.ids)
        for _ in range(times):
            count = len(self.ids)
            self.spout.next_tuple()
            assert len(self.ids) - count <= 1
        return [each.offset for each in self.ids[before:] if each is not None]

    def ack(self, *offsets: int) -> None:
        for offset in offsets:
            self.spout.ack(self.last(offset))

    def fail(self, *offsets: int) -> None:
        for offset in offsets:
            self.spout.fail(self.last(offset))

    def last(self, offset: int, partition: Hashable = "P") -> RecordId:
        """The id under which the offset was emitted last."""
        wanted = RecordId(partition, offset)
        return next(each for each in reversed(self.ids) if each == wanted)


def log(count: int) -> MemoryLog:
    return MemoryLog({"P": {offset: offset for offset in range(count)}})


def limited() -> Driven:
    return Driven(log(100), max_uncommitted=10, batch=5, backoff=Backoff(60, 0, 60, max_retries=1))


def test_k6_limit_on_uncommitted_released_by_commit() -> None:
    """Ten are emitted and no more until they are committed."""
    driven = limited()
    assert driven.call(100) == list(range(10))
    driven.ack(*range(10))
    driven.clock.advance(2.5)
    assert driven.call(101) == list(range(10, 20))


def test_k6_acked_tuples_behind_a_failed_one_count_as_uncommitted() -> None:
    """The first nine failed, the tenth acked: nothing can be committed, nothing is emitted."""
    driven = limited()
    driven.call(100)
    driven.fail(*range(9))
    driven.ack(9)
    driven.clock.advance(2.5)
    assert driven.call(101) == []
    assert driven.log.commits == []


def test_k8_retries_inside_the_limit_are_served() -> None:
    """Five new ones after one commit; then exactly the retries up to the tenth uncommitted offset."""
    driven = limited()
    driven.call(100)
    driven.fail(*range(1, 10))
    driven.ack(0)
    driven.clock.advance(2.5)
    assert driven.call(11) == [10, 11, 12, 13, 14]
    driven.fail(*range(10, 15))
    driven.clock.advance(60)
    assert driven.call(100) == list(range(1, 11))


def test_k9_retry_limit_reached_is_acked_and_committed() -> None:
    """Without retries four failed records are committed, before the next read."""
    driven = Driven(log(4), backoff=Backoff(max_retries=0))
    driven.call(4)
    driven.fail(*range(4))
    driven.clock.advance(2.5)
    driven.log.order.clear()
    driven.call()
    assert (driven.log.commits, driven.log.order) == ([("P", 4)], ["commit", "read"])


def test_k9_three_retries_are_four_emits() -> None:
    """Failed one to four times, then never again."""
    driven = Driven(log(1), backoff=Backoff(0, 0, max_retries=3))
    failures = []
    for _ in range(4):
        assert driven.call() == [0]
        failures.append(driven.last(0).failures)
        driven.fail(0)
    assert failures == [0, 1, 2, 3]
    assert driven.call(10) == []


def test_k11_double_ack() -> None:
    """Every record is emitted exactly once, and all are committed."""
    driven = Driven(log(20))
    emitted = driven.call()
    driven.ack(0)
    emitted += driven.call(10)
    driven.ack(0)
    emitted += driven.call(20)
    assert emitted == list(range(20))
    driven.ack(*range(20))
    driven.clock.advance(2.5)
    driven.call()
    driven.spout.ack(RecordId("P", 0))
    assert driven.log.commits == [("P", 20)]


def test_k11_only_the_failed_record_is_emitted_again() -> None:
    """What is done around it is skipped; after its ack all is committed and nothing is left."""
    driven = Driven(log(20), batch=10)
    driven.call(20)
    driven.ack(*range(1, 20))
    driven.fail(0)
    driven.fail(0)  # the second one is no news
    assert driven.call(3) == [0]
    assert driven.last(0).failures == 1
    driven.ack(0)
    driven.clock.advance(2.5)
    assert driven.call(4) == []
    assert driven.log.commits == [("P", 20)]


def test_k11_reader_does_not_go_back_behind_a_commit() -> None:
    """The commit of 10 and the emit of 10 come in one call, and nothing after them."""
    driven = Driven(log(11), batch=10)
    driven.call(10)
    driven.ack(*range(1, 10))
    driven.fail(0)
    assert driven.call() == [0]
    driven.ack(0)
    driven.clock.advance(2.5)
    assert driven.call() == [10]
    assert driven.log.commits == [("P", 10)]
    assert driven.call(5) == []


def test_k11_a_retry_does_not_move_the_reader_back() -> None:
    """With small batches the call after the retry emits the next new record."""
    driven = Driven(log(11), batch=2)
    driven.call(10)
    driven.ack(*range(1, 10))
    driven.fail(0)
    assert [driven.call(), driven.call()] == [[0], [10]]


def test_answers_that_are_no_news_are_ignored() -> None:
    """A fail after the ack, an ack after the fail, a second fail: the first answer stands, until the next emit."""
    driven = Driven(log(2), backoff=Backoff(initial_s=1, period_s=1))
    driven.call(2)
    driven.ack(0)
    driven.fail(0, 1)
    driven.ack(1)
    driven.clock.advance(0.5)
    driven.fail(1)
    assert driven.call() == []
    driven.clock.advance(0.5)
    assert driven.call(3) == [1]
    driven.spout.deactivate()
    assert driven.log.commits == [("P", 1)]


def test_k12_commit_over_a_void() -> None:
    """Offsets that never were hold nothing up, neither between acked records nor beside one in flight."""
    driven = Driven(MemoryLog({"P": dict.fromkeys([0, 1, 2, 3, 4, 8, 9])}), values_of=lambda value: ["x"])
    driven.ack(*driven.call(10))
    driven.clock.advance(2.5)
    driven.call()
    assert driven.log.commits == [("P", 10)]

    gap = Driven(MemoryLog({"P": {0: "a", 2: "b"}}))
    gap.call(2)
    for offset, expected in ((0, 1), (2, 3)):
        gap.ack(offset)
        gap.clock.advance(2.5)
        gap.call()
        assert gap.log.commits[-1] == ("P", expected)


def test_k12_retries_that_were_compacted_away_count_as_done() -> None:
    """Of three failed records one is left in P: it is emitted, the others are committed."""
    memory = MemoryLog({"P": {0: 0, 1: 1, 2: 2}, "Q": {0: 0, 1: 1, 2: 2}})
    driven = Driven(memory)
    driven.call(10)
    for each in list(driven.ids):
        assert each is not None
        driven.spout.fail(each)
    del memory.records["P"][0], memory.records["P"][1]
    before = len(driven.ids)
    driven.call(10)
    again = driven.ids[before:]
    assert again == [RecordId("P", 2), *(RecordId("Q", offset) for offset in range(3))]
    driven.clock.advance(2.5)
    driven.call()
    assert memory.commits == [("P", 2)]
    for record in again:
        assert record is not None
        driven.spout.ack(record)
    driven.clock.advance(2.5)
    driven.call()
    assert memory.commits[1:] == [("P", 3), ("Q", 3)]


def test_k14_at_most_once_commits_before_it_emits() -> None:
    """Read, commit, emit; no message ids, no limit, nothing a late answer could change."""
    driven = Driven(log(5), guarantee="at_most_once", max_uncommitted=1, batch=5)
    driven.call(6)
    assert driven.log.order[:3] == ["read", "commit", "emit"]
    assert (driven.values, driven.ids, driven.log.commits) == ([0, 1, 2, 3, 4], [None] * 5, [("P", 5)])

    tracked = Driven(log(3), guarantee="at_most_once", is_tracking_enforced=True)
    assert tracked.call(3) == [0, 1, 2]
    tracked.fail(0)
    tracked.ack(1)
    tracked.clock.advance(10)
    assert tracked.call(5) == []
    assert tracked.log.commits == [("P", 3)]


def test_k14_no_guarantee_commits_the_position() -> None:
    """When the period has passed, acked or not; a fail changes nothing."""
    driven = Driven(log(5), guarantee="none", max_uncommitted=1, is_tracking_enforced=True, batch=2)
    assert driven.call(3) == [0, 1, 2]
    assert driven.log.commits == []
    driven.fail(0, 1)
    driven.clock.advance(2.5)
    assert driven.call(5) == [3, 4]
    assert driven.log.commits == [("P", 4)]


def test_k16_deactivate_and_activate() -> None:
    """Deactivation commits; after activation it goes on behind what was emitted."""
    driven = Driven(log(20), batch=10)
    driven.ack(*driven.call(6))
    assert driven.call() == [6]
    driven.spout.deactivate()
    assert driven.log.commits == [("P", 6)]
    driven.ack(6)
    driven.spout.activate()
    rest = driven.call(13)
    assert rest == list(range(7, 20))
    driven.ack(*rest)
    driven.clock.advance(2.5)
    assert driven.call(3) == []
    assert driven.log.commits[-1] == ("P", 20)


def test_k16_records_that_are_nothing_are_committed() -> None:
    """Ten of them: no emit, commit 10."""
    driven = Driven(log(10), values_of=lambda value: None)
    assert driven.call(3) == []
    driven.clock.advance(2.5)
    driven.call()
    assert driven.log.commits == [("P", 10)]


def test_a_restarted_spout_begins_at_the_commit() -> None:
    """In a topology: what was not committed when the task died is emitted again, partitions are shared out."""
    memory = MemoryLog({"P": {0: "a", 1: "b"}, "Q": {0: "c"}, "R": {0: "d"}})
    builder = TopologyBuilder()
    builder.set_spout("s", LogSpout(memory, settings=LogSpoutSettings(commit_period_s=1)), 2)
    builder.set_bolt("b", AckOnly(), 1).shuffle_grouping("s")
    topology = started(builder)
    topology.settle()
    assert sorted(values[0] for values in topology.emitted("s")) == ["a", "b", "c", "d"]
    topology.kill_task("s", 1)
    topology.advance(10)
    assert [values[0] for values in topology.emitted("s")] == ["c"]
    assert sorted(memory.commits) == [("P", 2), ("Q", 1), ("R", 1)]


def test_a_failed_record_comes_back_by_itself_in_a_topology() -> None:
    """A record that times out is emitted again, with a new tree."""
    topology = started(line_from(LogSpout(log(1)), Does(keep)), timeout=10)
    topology.advance(21)
    assert topology.executed("b1") == 2
    assert topology.fails("s") == [RecordId("P", 0)]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("max_uncommitted", [0, "x", 1.5, True, None]),
        ("batch", [0, 1.5, "500"]),
        ("commit_period_s", [0, "30", float("nan"), False]),
        ("guarantee", ["", None, [], "exactly_once"]),
        ("backoff", [None, 5, {"max_retries": 2}]),
    ],
)
def test_a_wrong_setting_is_refused(name: str, values: list[Any]) -> None:
    """By its name, whatever its type."""
    for value in values:
        with pytest.raises(SettingsError, match=name):
            LogSpoutSettings(**{name: value})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"log": None}, "NoneType has no method partitions"),
        ({"values_of": 5}, "takes a function and LogSpoutSettings, not 5"),
        ({"settings": {"batch": 5}}, r"takes a function and LogSpoutSettings, not .*'batch'"),
    ],
)
def test_what_is_no_log_is_refused(arguments: dict[str, Any], said: str) -> None:
    """At the call, not when its task dies of it again and again."""
    with pytest.raises(rs.UsageError, match=said):
        LogSpout(**{"log": log(1), **arguments})


def test_what_a_log_is_made_of_can_be_had_by_name() -> None:
    """Whoever writes a log needs its records, and whoever limits retries the backoff."""
    settings = rs.LogSpoutSettings(backoff=rs.Backoff(max_retries=2))
    assert (settings.backoff.max_retries, rs.Record(1, "a").offset, rs.Log.__name__) == (2, 1, "Log")


def test_a_guarantee_that_is_misspelt_is_refused_with_the_nearest() -> None:
    """It would otherwise be none."""
    with pytest.raises(SettingsError, match="'at-least-once'; did you mean 'at_least_once'"):
        LogSpoutSettings(guarantee="at-least-once")  # type: ignore[arg-type] # what is refused


def test_retries_that_retention_took_from_the_end_of_the_log_count_as_done() -> None:
    """Those below the log's first offset are committed though no newer record comes; those that are only late wait."""

    class Aged(MemoryLog):
        oldest = 0

        def first(self, partition: Hashable) -> int:
            return self.oldest

    aged = Aged({"P": {offset: offset for offset in range(6)}})
    driven = Driven(aged)
    driven.call(6)
    driven.ack(0, 1)
    driven.fail(2, 3, 5)
    aged.records["P"].clear()
    driven.clock.advance(2.5)
    driven.call(2)
    assert aged.commits == [("P", 2)]
    aged.oldest = 5
    driven.call()
    driven.ack(4)
    driven.clock.advance(2.5)
    driven.call()
    assert aged.commits == [("P", 2), ("P", 5)]
    aged.records["P"][5] = 5
    assert driven.call() == [5]
