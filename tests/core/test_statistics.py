"""Laws of the statistics: nothing is sampled, nothing is counted twice, windows end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.statistics import (
    ALL_TIME,
    BUCKETS,
    WINDOWS,
    WINDOWS_S,
    Metric,
    Ring,
    Tally,
    TaskCounts,
    component_statistics,
)

EVENTS = st.lists(st.tuples(st.floats(0, 3000, allow_nan=False), st.integers(1, 9)), max_size=50)


@given(EVENTS, st.floats(0, 600))
def test_a_ring_sums_the_newest_buckets(events: list[tuple[float, int]], later_s: float) -> None:
    """The sum is that of all events in the newest 20 buckets: all of the last 19 / 20 of the window, none older."""
    ring, width_s = Ring(600), 600 / BUCKETS
    now_s = 0.0
    for at_s, amount in sorted(events):
        ring.add(at_s, amount)
        now_s = at_s
    now_s += later_s
    oldest = now_s // width_s - BUCKETS + 1
    assert ring.total(now_s) == sum(amount for at_s, amount in events if at_s // width_s >= oldest)
    young = sum(amount for at_s, amount in events if at_s > now_s - 600 + width_s)
    old = sum(amount for at_s, amount in events if at_s <= now_s - 600)
    assert young <= ring.total(now_s) <= sum(amount for _, amount in events) - old


@given(EVENTS)
def test_longer_windows_hold_at_least_as_much(events: list[tuple[float, int]]) -> None:
    """10 minutes within 3 hours within a day within all time, and all time is everything."""
    tally, now_s = Tally(), 0.0
    for at_s, amount in sorted(events):
        tally.add(at_s, amount)
        now_s = at_s
    totals = [tally.total(window, now_s) for window in WINDOWS]
    assert totals == sorted(totals)
    assert totals[-1] == sum(amount for _, amount in events)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["default", "side", "__ack_init"])), max_size=40))
def test_tasks_add_up_to_their_component(emits: list[tuple[int, str]]) -> None:
    """By stream and in all; the system's streams are listed, not added."""
    tasks = [TaskCounts() for _ in range(3)]
    for task, stream in emits:
        tasks[task].add(Metric.EMITTED, ("s", stream), 0.0)
    page = component_statistics("s", tasks, 0.0)
    streams = [stream for _, stream in emits]
    assert {stream: each.emitted for stream, each in page.outputs.items()} == {
        stream: streams.count(stream) for stream in set(streams)
    }
    assert page.emitted == page.windows[ALL_TIME].emitted == len(streams) - streams.count("__ack_init")


def test_capacity_is_the_busiest_tasks_share_of_ten_minutes() -> None:
    """300 of 600 seconds is one half, however long the task has been running; the idle task does not dilute it."""
    busy, idle = TaskCounts(), TaskCounts()
    for at_s in (10_000.0, 10_100.0, 10_200.0):
        busy.add(Metric.EXECUTED, ("s", "default"), at_s)
        busy.add(Metric.EXECUTE_MS, ("s", "default"), at_s, 100_000)
    page = component_statistics("b", [busy, idle], 10_300)
    assert page.capacity == 0.5
    assert page.inputs["s", "default"].execute_latency_ms == 100_000
    assert component_statistics("b", [busy], 20_000).capacity == 0
    assert set(page.windows) == {*WINDOWS_S, ALL_TIME}


def test_what_is_fresh_is_in_no_window_until_it_is_kept() -> None:
    """Kept under the time that is given, once; what is counted later is fresh again."""
    counts, key = TaskCounts(), ("s", "default")
    counts.fresh[key].emitted += 2
    counts.fresh[key].complete_ms += 1.5
    assert component_statistics("s", [counts], 0.0).emitted == 0
    counts.keep(0.0)
    counts.keep(700.0)
    counts.fresh[key].emitted += 1
    counts.keep(700.0)
    page = component_statistics("s", [counts], 700.0)
    assert (page.emitted, page.windows["600"].emitted) == (3, 1)
    assert counts.total(Metric.COMPLETE_MS, ALL_TIME, 700.0, key.__eq__) == 1.5
