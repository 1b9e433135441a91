"""Cases H1 to H3 in a running topology: when tuples in windows are acked, fail, or are late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_spark import (
    Count,
    Duration,
    OutputFieldsDeclarer,
    Settings,
    TopologyBuilder,
    TopologyContext,
    TopologyError,
    TupleWindow,
    UsageError,
    WindowedBolt,
    WindowedCollector,
)
from reliable_spark.testing import AckOnly, FeedSpout, TestTopology
from tests.state import pieces
from tests.topology.pieces import Does, fail


class Lists(WindowedBolt):
    """Emits the first values of every window."""

    def __init__(self, *late: str) -> None:
        self.late = late
        self.state: list[list[Any]] = []

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(["values"])
        for stream in self.late:
            declarer.declare_stream(stream, ["tuple"])

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: WindowedCollector) -> None:
        self.collector = collector

    def execute(self, window: TupleWindow) -> None:
        values = [each[0] for each in window.items]
        self.state.append(values)
        self.collector.emit([values])


def windowed(bolt: WindowedBolt, after: Any = None, **values: Any) -> TestTopology:
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["ts"]))
    builder.set_bolt("w", bolt).shuffle_grouping("s")
    builder.set_bolt("end", after or AckOnly()).shuffle_grouping("w")
    return TestTopology(builder, Settings(**values))


def feed(topology: TestTopology, *ids: Any) -> None:
    for each in ids:
        topology.feed("s", [each], message_id=each)
        topology.settle()


def test_h1_count_window_what_expires_is_what_gets_acked() -> None:
    """Length 5, slide 2: after 8 values 1, 2 and 3 are acked and nothing else."""
    topology = windowed(Lists().with_window(Count(5), Count(2)))
    acked = {}
    for number in range(1, 9):
        feed(topology, number)
        acked[number] = topology.acks("s")
    assert topology.state("w") == [[1, 2], [1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8]]
    assert {number: ids for number, ids in acked.items() if ids} == {6: [1], 8: [2, 3]}
    assert topology.pending("s") == 5


def test_h2_event_time_windows_and_watermark_rules() -> None:
    """One look at the time fires three windows; what left them is acked, the late and the newest are not in them."""
    topology = windowed(Lists().with_window(Duration(20), Duration(10)).with_timestamp("ts", lag_s=5))
    feed(topology, 603, 605, 607, 618, 626, 636)
    assert topology.state("w") == []
    topology.advance(1)
    assert topology.state("w") == [[603, 605, 607], [603, 605, 607, 618], [618, 626]]
    assert topology.acks("s") == [603, 605, 607]


def test_h2_no_timestamp_field() -> None:
    """The bolt is wrong, not the tuple."""
    topology = windowed(Lists().with_window(Duration(20), Duration(10)).with_timestamp("tss"))
    topology.feed("s", [1])
    with pytest.raises(UsageError, match="did you mean 'ts'"):
        topology.settle()


@pytest.mark.parametrize(
    "value",
    [None, "monday", True, float("nan"), float("inf"), -float("inf"), 10**400, pandas.NaT, datetime.min, [603]],
    ids=lambda value: repr(value)[:12],
)
@pytest.mark.parametrize("length", [Duration(10), Count(2)], ids=repr)
def test_what_has_no_event_time_fails_alone(value: Any, length: Any) -> None:
    """With an error that says what it was; what is in the windows stays there, and goes on."""
    topology = windowed(Lists().with_tumbling_window(length).with_timestamp("ts"))
    feed(topology, 603)
    topology.feed("s", [value], message_id="wrong")
    topology.settle()
    assert (topology.acks("s"), topology.fails("s"), topology.pending("s")) == ([], ["wrong"], 1)
    [error] = topology.errors("w")
    assert str(error) == (
        f"an event time is a number of seconds or a datetime, not {value!r} in the field 'ts' from 's'"
    )
    feed(topology, 604, 620)
    topology.advance(1)
    assert (topology.state("w"), topology.errors("w")) == ([[603, 604]], [])


def test_a_datetime_is_an_event_time() -> None:
    """By its instant."""
    topology = windowed(Lists().with_tumbling_window(Duration(10)).with_timestamp("ts"))
    times = [datetime(2026, 1, 1, 0, 0, second, tzinfo=timezone.utc) for second in (1, 9, 10, 25)]
    feed(topology, *times)
    topology.advance(1)
    assert topology.state("w") == [times[:2], times[2:3]]


def test_h3_late_tuple() -> None:
    """It is in no window; a copy of it goes to the late stream, anchored to it alone; it is acked once."""
    bolt = Lists("late").with_window(Duration(20), Duration(10)).with_timestamp("ts", lag_s=5, late_stream="late")
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["ts"]))
    builder.set_bolt("w", bolt).shuffle_grouping("s")
    builder.set_bolt("late", Does(lambda bolt, input: bolt.state.append(input))).shuffle_grouping("w", "late")
    topology = TestTopology(builder)
    for at in (603, 605, 607, 618, 626, 636):
        feed(topology, at)
        topology.advance(1)
    topology.acks("s")
    feed(topology, 600)
    [[late]] = topology.emitted("w", "late")
    assert (late.values, late.source_component, late.source_stream, late.edges) == ([600], "s", "default", {})
    assert topology.acks("s") == []
    [held] = topology.state("late")
    topology._engine.instance("late", 0).collector.ack(held)
    topology.settle()
    assert topology.acks("s") == [600]
    topology.advance(5)
    assert 600 not in [value for window in topology.state("w") for value in window]


def test_h3_without_a_late_stream_it_is_acked() -> None:
    """And that is all."""
    topology = windowed(Lists().with_tumbling_window(Duration(10)).with_timestamp("ts"))
    feed(topology, 15)
    topology.advance(1)
    feed(topology, 3)
    assert (topology.acks("s"), topology.emitted("w")) == ([3], [])


@pytest.mark.parametrize(
    ("bolt", "message"),
    [
        (Lists(), "has no window"),
        (Lists("late").with_window(Count(2)).with_late_tuple_stream("late"), "no time to be late by"),
        (Lists("late").with_window(Count(2)).with_timestamp("ts", late_stream="later"), "did you mean 'late'"),
        (Lists().with_window(Duration(25), Duration(6)), r"31 seconds|but 30.0 seconds are the limit"),
        (Lists().with_tumbling_window(Count(600_000)), "but 1000000 pending tuples are the limit"),
    ],
)
def test_windows_that_cannot_work_are_refused(bolt: WindowedBolt, message: str) -> None:
    """When the topology starts: what they lack, or which limit their tuples would run into."""
    with pytest.raises(TopologyError, match=message):
        windowed(bolt)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Lists().with_window(Count(3), Duration(1)), "slides by a Count too"),
        (lambda: Lists().with_window(Duration(3)), "slides by a Duration too"),
        (
            lambda: Lists().with_tumbling_window(timedelta(seconds=3)),  # type: ignore[arg-type] # that is the point
            "a window's length is a Count of tuples or a Duration in seconds, not datetime",
        ),
        (
            lambda: Lists().with_window(Count(3), 1),  # type: ignore[arg-type] # that is the point
            "a window's slide is a Count of tuples or a Duration in seconds, not 1",
        ),
        (
            lambda: Lists().with_timestamp(0),  # type: ignore[arg-type] # that is the point
            "a field is named by a text, not 0",
        ),
        (lambda: Count(0), "1 or more"),
        (
            lambda: Count(1.5),  # type: ignore[arg-type] # that is the point
            "whole number",
        ),
        (lambda: Duration(0), r"duration is a number of seconds, 0\.000001 or more, not 0"),
        (lambda: Duration(1e-9), "duration is .* not 1e-09"),
        (
            lambda: Duration("x"),  # type: ignore[arg-type] # that is the point
            "duration is .* not 'x'",
        ),
        (lambda: Duration(True), "duration is .* not True"),
    ],
)
def test_lengths_that_are_none_are_refused(wrong: Any, message: str) -> None:
    """Where they are written."""
    with pytest.raises(UsageError, match=message):
        wrong()


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "x", None, True])
def test_times_with_which_nothing_would_fire_are_refused(wrong: Any) -> None:
    """Where they are written; a lag of 0 is one, and an interval of 0 or of less than a microsecond is none."""
    with pytest.raises(UsageError, match=r"^lag_s is a number of seconds, 0 or more, not "):
        Lists().with_timestamp("ts", lag_s=wrong)
    for interval_s in (wrong, 0, 1e-9):
        with pytest.raises(UsageError, match=r"^watermark_interval_s is a number of seconds, 0\.000001 or more, not "):
            Lists().with_timestamp("ts", watermark_interval_s=interval_s)
    assert Lists().with_timestamp("ts", lag_s=0, watermark_interval_s=1e-6).windowing.lag_s == 0


def test_by_arrival_windows_fire_as_time_goes_on() -> None:
    """A tuple is in every window from its arrival on for its length, and is acked when it has left."""
    topology = windowed(Lists().with_window(Duration(4), Duration(2)))
    feed(topology, "a")
    topology.advance(3)
    feed(topology, "b")
    topology.advance(3)
    assert (topology.state("w"), topology.acks("s")) == ([["a"], ["a", "b"], ["b"]], ["a"])
    topology.advance(2)
    assert (topology.state("w")[3:], topology.acks("s")) == ([], ["b"])


@pytest.mark.parametrize("slide_s", [0.1, 1 / 3, 2 / 3])
def test_windows_of_a_fraction_of_a_second_fire_with_their_tick(slide_s: float) -> None:
    """Each tuple is in one, and acked one slide later, also where the fraction is no whole number of microseconds."""
    topology = windowed(Lists().with_tumbling_window(Duration(slide_s)))
    for number in range(20):
        feed(topology, number)
        topology.advance(round((number + 1) * round(slide_s, 6) - topology.now_s(), 6))
        assert (topology.state("w")[-1], topology.acks("s")) == ([number], [number - 1] if number else [])


def test_what_is_emitted_is_anchored_to_the_whole_window() -> None:
    """So its failure fails every tuple in it."""
    topology = windowed(Lists().with_tumbling_window(Count(3)), after=Does(fail))
    feed(topology, 1, 2)
    assert topology.fails("s") == []
    feed(topology, 3)
    assert (topology.acks("s"), topology.fails("s")) == ([], [1, 2, 3])


def test_a_window_in_a_stateful_topology() -> None:
    """Its output is counted, and what left it is acked when that is committed."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["ts"]))
    builder.set_bolt("w", First().with_tumbling_window(Count(2))).shuffle_grouping("s")
    builder.set_bolt("count", pieces.Count()).shuffle_grouping("w")
    topology = pieces.running(builder)
    feed(topology, "a", "b", "c", "d")
    assert topology.acks("s") == []
    topology.advance(1)
    assert (topology.acks("s"), dict(topology.state("count"))) == (["a", "b"], {"a": 1, "c": 1})


class First(Lists):
    """Emits the first value of every window."""

    def execute(self, window: TupleWindow) -> None:
        self.collector.emit([window.items[0][0]])


@settings(max_examples=40)
@given(
    st.one_of(
        st.tuples(st.just(Count), st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.just(Duration), st.integers(1, 4), st.integers(1, 4)),
    ),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), max_size=15),
)
def test_every_tuple_is_acked_once_after_it_left_its_last_window(
    windows: tuple[Any, int, int], by_event_time: bool, fed: list[tuple[int, int]]
) -> None:
    """By count or time, by arrival or event time; those that never leave are pending, and none is lost."""
    kind, length, slide = windows
    bolt = Lists().with_window(kind(length), kind(slide))
    if by_event_time:
        bolt = bolt.with_timestamp("ts", lag_s=3)
    topology = windowed(bolt, message_timeout_s=10_000)
    acked: Counter[int] = Counter()
    seen = 0
    for number, (at, pause) in enumerate(fed):
        topology.feed("s", [at + number / 1000], message_id=at + number / 1000)
        topology.settle()
        topology.advance(pause)
        for window in topology.state("w")[seen:]:
            assert not any(acked[value] for value in window)
        seen = len(topology.state("w"))
        acked.update(topology.acks("s"))
    assert all(count == 1 for count in acked.values())
    assert (topology.fails("s"), len(acked) + topology.pending("s")) == ([], len(fed))
