"""Group I in running topologies: bounded queues, who is slowed and who is not, drops, no deadlock."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_spark import SettingsError, Tuple, UsageError
from reliable_spark.testing import AckOnly, Branch, FeedSpout, Identity
from tests.topology.pieces import CountingSpout, Does, TestTopology, TopologyBuilder, feed, keep_values, line, started
from tests.topology.test_random_topologies import FEEDS, SOUND, run, topologies


class PacedSpout(CountingSpout):
    """Emits ten tuples a second, for ever."""

    def next_tuple(self) -> None:
        super().next_tuple()
        self.context.clock.wait(0.1, threading.Event())


def busy(seconds: float) -> Does:
    """A bolt that takes this long for a tuple."""

    def work(bolt: Does, input: Tuple) -> None:
        bolt.context.clock.wait(seconds, threading.Event())
        bolt.collector.emit(input.values, anchors=input)
        bolt.collector.ack(input)

    return Does(work)


def slow_and_fast(**storm: Any) -> TestTopology:
    """A path whose last bolt is ten times slower than its source, beside one that is quick."""
    builder = TopologyBuilder()
    builder.set_spout("source", PacedSpout(), 1)
    builder.set_bolt("middle", Identity(), 1).shuffle_grouping("source")
    builder.set_bolt("slow", busy(1.0), 1).shuffle_grouping("middle")
    builder.set_spout("sibling", PacedSpout(), 1)
    builder.set_bolt("quick", AckOnly(), 1).shuffle_grouping("sibling")
    return started(builder, executor_receive_buffer_size=8, timeout=100, **storm)


@pytest.mark.parametrize("ackers", [0, 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_a_slow_bolt_slows_its_own_upstreams_and_nobody_else(ackers: int, workers: int) -> None:
    """For ten minutes: queues stay bounded, the path runs at the slow bolt's pace, the sibling at its own."""
    topology = slow_and_fast(ackers=ackers, workers=workers)
    for _ in range(60):
        topology.advance(10)
        for component in ("middle", "slow", "quick"):
            queue = topology.queue(component)
            assert len(queue) - queue.overflow <= 8
            assert queue.overflow <= 1, "more than one batch of the one writer"
    assert topology.executed("slow") >= 0.9 * 600
    assert topology.executed("quick") >= 0.99 * 6000
    assert topology.statistics("source").emitted - topology.executed("slow") <= 2 * 8 + 2 + 2 + 2
    if ackers:
        assert len(topology.acks("source")) >= 0.9 * 600
    assert topology.fails("source") == []


def test_nothing_is_lost_when_the_slow_bolt_has_caught_up() -> None:
    """After the source is told to stop, everything that it emitted arrives, in order."""
    topology = slow_and_fast(ackers=1)
    topology.advance(30)
    topology.deactivate()
    topology.settle()
    emitted = [values[0] for values in topology.emitted("source")]
    assert [values[0] for values in topology.emitted("slow")] == emitted
    assert sorted(topology.acks("source")) == emitted


def test_a_bolt_with_more_to_send_than_fits_waits() -> None:
    """It sends 100 tuples into a queue of 4: each arrives, in order, and its own queue fills meanwhile."""

    def burst(bolt: Does, input: Tuple) -> None:
        for number in range(100):
            bolt.collector.emit([input["value"] * 100 + number], anchors=input)
        bolt.collector.ack(input)

    topology = started(line(Does(burst), Does(keep_values)), executor_receive_buffer_size=4)
    feed(topology, 0, 1, 2)
    assert [values[0] for values in topology.state("b2")] == list(range(300))
    assert topology.acks("s") == [0, 1, 2]


def test_what_is_dropped_at_the_overflows_limit_comes_back_by_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """Between workers a burst overflows before the sender hears of it; same-worker tuples are never dropped."""

    def burst(bolt: Does, input: Tuple) -> None:
        for _ in range(20):
            bolt.collector.emit(input.values, anchors=input)
        bolt.collector.ack(input)

    for workers, is_dropped in ((2, True), (1, False)):
        topology = started(
            line(Does(burst), AckOnly()),
            executor_receive_buffer_size=4,
            executor_overflow_limit=6,
            workers=workers,
            ackers=1,
            timeout=10,
        )
        with caplog.at_level(logging.WARNING):
            feed(topology, 1)
        topology.advance(20)
        dropped = topology.queue("b2").dropped
        assert dropped == (20 - 4 - 6 if is_dropped else 0)
        assert topology.executed("b2") == 20 - dropped
        assert (topology.acks("s"), topology.fails("s")) == (([], [1]) if is_dropped else ([1], []))
    assert sum("dropped" in message for message in caplog.messages) == 10


def test_pressure_between_workers_is_lifted_by_the_timer_once_the_overflow_is_drained() -> None:
    """Until the check after that, the sender sends nothing more to that task."""

    def burst(bolt: Does, input: Tuple) -> None:
        for _ in range(6):
            bolt.collector.emit(input.values, anchors=input)
        bolt.collector.ack(input)

    topology = started(
        line(Does(burst), Does(keep_values)),
        executor_receive_buffer_size=2,
        workers=2,
        ackers=0,
        backpressure_check_millis=500,
    )
    topology.feed("s", [1])
    topology.feed("s", [2])
    topology.advance(0.4)
    assert (len(topology.state("b2")), len(topology.queue("b2"))) == (6, 0)
    topology.advance(0.1)
    assert len(topology.state("b2")) == 12


PARK = "org.apache.storm.policy.WaitStrategyPark"
PROGRESSIVE = {"level1_count": 3, "level2_count": 0, "level3_sleep_millis": 3_000}


@pytest.mark.parametrize(
    ("storm", "taken_s"),
    [
        ({"strategy": PARK, "park_microsec": 1_500_000}, [1.0, 2.5, 3.5, 4.5]),
        ({f"progressive_{name}": value for name, value in PROGRESSIVE.items()}, [1.0, 2.0, 4.0, 5.0]),
        ({}, [1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_a_refused_sender_goes_on_at_its_next_try(storm: dict[str, Any], taken_s: list[float]) -> None:
    """The bolt takes a second for a tuple and has room for one more, which it lacks while the sender waits."""
    ended: list[float] = []

    def work(bolt: Does, input: Tuple) -> None:
        bolt.context.clock.wait(1.0, threading.Event())
        ended.append(topology.now_s())
        bolt.collector.ack(input)

    def burst(bolt: Does, input: Tuple) -> None:
        for number in range(4):
            bolt.collector.emit([number], anchors=input)
        bolt.collector.ack(input)

    given = {f"backpressure_wait_{name}": value for name, value in storm.items()}
    topology = started(line(Does(burst), Does(work)), executor_receive_buffer_size=1, timeout=100, **given)
    topology.feed("s", [1])
    topology.advance(10)
    assert ended == pytest.approx(taken_s)


def test_many_threads_of_one_bolt_emit_and_none_of_it_is_lost_or_mixed_up() -> None:
    """Case I4(c): ten threads of one executor send a tuple each; all arrive whole, and the tree is acked."""

    def emit_by_threads(bolt: Does, input: Tuple) -> None:
        barrier = threading.Barrier(10)

        def emit(number: int) -> None:
            barrier.wait()
            bolt.collector.emit([(input["value"], number)], anchors=input)

        threads = [threading.Thread(target=emit, args=[number]) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bolt.collector.ack(input)

    topology = started(line(Does(emit_by_threads), Does(keep_values)), executor_receive_buffer_size=4)
    feed(topology, *range(20))
    arrived = [values[0] for values in topology.state("b2")]
    assert sorted(arrived) == [(message, number) for message in range(20) for number in range(10)]
    assert sorted(topology.acks("s")) == list(range(20))
    assert topology.fails("s") == []


def test_a_dead_task_loses_its_queue_and_the_senders_go_on() -> None:
    """What waited for room is sent to the new task; what the old one was busy with is lost with it."""
    topology = started(line(Identity(), busy(1.0)), executor_receive_buffer_size=2, timeout=100)
    for number in range(8):
        topology.feed("s", [number], message_id=number)
    topology.advance(0.5)
    topology.kill_task("b2", 0)
    topology.advance(200)
    acked, failed = topology.acks("s"), topology.fails("s")
    assert Counter(acked + failed) == dict.fromkeys(range(8), 1)
    assert failed == [0, 1, 2], "the one in hand and the two that were queued"


@settings(max_examples=60, deadline=None)
@given(topologies([*SOUND, lambda: Branch(5)]), FEEDS, st.integers(0, 2), st.integers(1, 3))
def test_no_topology_deadlocks_with_queues_of_one(
    builder: TopologyBuilder, feeds: list[int], ackers: int, workers: int
) -> None:
    """Diamonds among them, with ackers and without, in one worker and in several: every message is acked."""
    _, answers = run(builder, feeds, [], ackers, executor_receive_buffer_size=1, workers=workers)
    assert sorted(answers) == [("acked", number) for number in range(len(feeds))]


def test_only_a_task_of_this_engine_has_a_queue_and_sizes_are_checked() -> None:
    """A size below one is refused where the settings are made; an unknown component is named."""
    with pytest.raises(SettingsError, match="receive_buffer_size"):
        started(line(AckOnly()), executor_receive_buffer_size=0)
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    with pytest.raises(UsageError, match="no component"):
        started(builder).queue("b")
