"""Group F: the counts of Storm's UI, exact."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest

from reliable_spark import Tuple
from reliable_spark.testing import AckEveryOther, Aggregate
from tests.topology.pieces import AckOnly, Does, Identity, fail, feed, line, started

SPOUT, BOLT = ("acked", "emitted", "transferred"), ("acked", "executed")


def test_f1_built_in_counters_all_acked() -> None:
    """Per minute 1, 0, 0, 2 in all five counters; two emits with one message id are two."""
    topology = started(line(AckOnly()))
    series: dict[tuple[str, str], list[int]] = {(c, n): [0] for c, names in (("s", SPOUT), ("b1", BOLT)) for n in names}
    for fed in ([1], [], [], [2, 2]):
        feed(topology, *fed)
        topology.advance(60)
        for (component, name), totals in series.items():
            totals.append(getattr(topology.statistics(component), name))
    for totals in series.values():
        assert [high - low for low, high in pairwise(totals)] == [1, 0, 0, 2]
    assert topology.statistics("b1").inputs["s", "default"].executed == 3
    assert topology.statistics("s").outputs["default"].acked == 3


def test_f3_counters_with_a_timeout() -> None:
    """After 9 s one of three is open; 30 s later it is failed and nothing else changed."""
    topology = started(line(AckEveryOther()), timeout=10)
    feed(topology, 1, 2, 3)
    topology.advance(9)
    spout, bolt = topology.statistics("s"), topology.statistics("b1")
    assert (spout.acked, spout.emitted, spout.transferred, spout.failed) == (2, 3, 3, 0)
    assert (bolt.acked, bolt.executed) == (2, 3)
    topology.advance(30)
    spout, bolt = topology.statistics("s"), topology.statistics("b1")
    assert (spout.acked, spout.emitted, spout.transferred, spout.failed) == (2, 3, 3, 1)
    assert (bolt.acked, bolt.executed, bolt.failed) == (2, 3, 0)


def test_the_acker_is_visible() -> None:
    """It executes one init and one ack per tree of one tuple, and emits one answer."""
    topology = started(line(AckOnly()))
    feed(topology, 1, 2, 3)
    acker = topology.statistics("__acker")
    assert acker.inputs["s", "__ack_init"].executed == 3
    assert acker.inputs["b1", "__ack_ack"].executed == 3
    assert acker.outputs["__ack_ack"].emitted == 3
    assert topology.statistics("s").outputs["__ack_init"].emitted == 3
    assert topology.statistics("s").emitted == 3


def test_a_bolts_fails_are_counted_by_source() -> None:
    """One fail per tuple, at the bolt and at the spout."""
    topology = started(line(Does(fail)))
    feed(topology, 1, 2)
    assert topology.statistics("b1").inputs["s", "default"].failed == 2
    assert topology.statistics("s").failed == 2


def test_windows_forget_and_all_time_does_not() -> None:
    """After 10 minutes, 3 hours and a day the windows are empty one after the other."""
    topology = started(line(AckOnly()))
    feed(topology, 1)
    seen = []
    for seconds in (0, 600, 10_200, 75_600):
        topology.advance(seconds)
        windows = topology.statistics("s").windows
        seen.append([windows[name].emitted for name in ("600", "10800", "86400", ":all-time")])
    assert seen == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]


def test_latencies_and_capacity_by_the_simulated_clock() -> None:
    """A bolt that works 2 s and one that holds for 6 s: execute, process and complete latency follow."""

    def work(bolt: Does, input: Tuple) -> None:
        bolt.context.clock.wait(2, threading.Event())
        bolt.collector.emit(input.values, anchors=input)
        bolt.collector.ack(input)

    topology = started(line(Does(work), Aggregate(2)))
    feed(topology, 1)
    topology.advance(6)
    feed(topology, 2)
    assert topology.now_s() == 10
    worker, holder, spout = (topology.statistics(name) for name in ("b1", "b2", "s"))
    assert (worker.execute_latency_ms, worker.process_latency_ms) == (2000, 2000)
    assert (holder.execute_latency_ms, holder.process_latency_ms) == (0, 4000)
    assert worker.capacity == pytest.approx(4 / 10)
    assert holder.capacity == 0
    # The acker hears of a tree when the init arrives, while the worker works: 10 s and 2 s.
    assert spout.complete_latency_ms == 6000


def test_without_ackers_acks_stay_empty() -> None:
    """Emitted and executed are counted; acked, failed and complete latency are not."""
    topology = started(line(Identity(), Does(fail)), ackers=0)
    feed(topology, 1)
    assert topology.acks("s") == [1]
    for component in ("s", "b1", "b2"):
        assert (topology.statistics(component).acked, topology.statistics(component).failed) == (0, 0)
    assert topology.statistics("b2").executed == 1
