"""Group C: what a spout is asked, when, and what it is told."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from reliable_spark import Settings, SpoutOutputCollector, TopologyContext, Tuple
from reliable_spark.testing import AckEveryOther
from tests.topology.pieces import (
    AckOnly,
    CountingSpout,
    Does,
    FeedSpout,
    Identity,
    TestTopology,
    TopologyBuilder,
    feed,
    keep,
    line,
    line_from,
    started,
)


def slowly(seconds: float) -> Any:
    def work(bolt: Does, input: Tuple) -> None:
        bolt.context.clock.wait(seconds, threading.Event())
        bolt.collector.emit(input.values, anchors=input)
        bolt.collector.ack(input)

    return work


def test_c1_max_pending_throttles_one_emit_per_call() -> None:
    """Never more than two tuples are in flight, and it goes on."""
    topology = started(line_from(CountingSpout(), Does(slowly(0.1)), AckOnly()), max_spout_pending=2)
    topology.advance(2.0)
    seen = topology.state("s")
    assert 0 < seen["most_pending"] <= 2
    assert 15 <= len(seen["acked"]) <= 21
    assert seen["failed"] == []


def test_c1_a_source_with_much_to_emit_stops_at_the_limit() -> None:
    """While two are held no third is emitted; untracked tuples do not count."""
    topology = started(line(Does(keep)), max_spout_pending=2, timeout=10)
    feed(topology, 1, 2, 3, 4, 5)
    assert (topology.pending("s"), topology.executed("b1")) == (2, 2)
    topology.advance(20)
    assert topology.fails("s") == [1, 2]
    assert topology.executed("b1") == 4

    untracked = started(line(Does(keep)), max_spout_pending=2)
    feed(untracked, None, None, None, None)
    assert (untracked.pending("s"), untracked.executed("b1")) == (0, 4)


def test_c3_callbacks_are_serial_per_task() -> None:
    """Never are two of a task's handlers running at the same time."""

    class Slow(CountingSpout):
        running = 0
        most = 0

        def ack(self, message_id: Any) -> None:
            self.running += 1
            self.state["most"] = max(self.state.get("most", 0), self.running)
            self.context.clock.wait(0.05, threading.Event())
            super().ack(message_id)
            self.running -= 1

    topology = started(line_from(Slow(), AckOnly()), max_spout_pending=10)
    topology.advance(2)
    assert topology.state("s")["most"] == 1
    assert len(topology.state("s")["acked"]) > 10


def test_c4_an_idle_spout_is_asked_repeatedly_and_nothing_grows() -> None:
    """Five idle seconds: called again and again, no error, no queue, and no busy loop."""
    calls: list[float] = []

    class Idle(FeedSpout):
        def fed_by(self, feed: Any) -> FeedSpout:
            return self

        def open(
            self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
        ) -> None:
            self.clock = context.clock

        def next_tuple(self) -> None:
            calls.append(self.clock.now().timestamp())

    builder = TopologyBuilder()
    builder.set_spout("s", Idle(["value"]), 1)
    builder.set_bolt("b", AckOnly(), 1).shuffle_grouping("s")
    topology = started(builder)
    topology.advance(5)
    assert 5 <= len(calls) <= 10
    assert len(set(calls)) == 6
    assert (topology.pending("s"), topology.executed("b"), topology.errors("s")) == (0, 0, [])


def test_c4_stop_and_start_with_the_same_source() -> None:
    """Nothing is emitted while stopped; acks still arrive, and after the start the rest is emitted."""
    topology = started(line(Identity(), AckEveryOther()), timeout=10)
    feed(topology, 1, 2)
    assert topology.acks("s") == [1]
    topology.deactivate()
    feed(topology, 3)
    assert (topology.emitted("s"), topology.acks("s")) == ([[1], [2]], [])
    topology.advance(20)
    assert topology.fails("s") == [2]
    topology.activate()
    topology.settle()
    assert (topology.emitted("s"), topology.acks("s")) == ([[3]], [3])


def test_c4_activate_and_deactivate_are_told_once_each() -> None:
    """A spout hears of every change, not of every call; it is deactivated before it is closed."""
    topology = started(line_from(CountingSpout(limit=1), AckOnly()))
    topology.deactivate()
    topology.deactivate()
    topology.activate()
    topology.activate()
    state = topology.state("s")
    assert state["calls"] == ["activate", "deactivate", "activate"]
    topology.close()
    topology.close()
    assert state["calls"] == ["activate", "deactivate", "activate", "deactivate", "close"]


def test_c4_a_spout_task_that_starts_again_is_activated_if_the_topology_is() -> None:
    """While the topology is inactive it is only opened."""
    topology = started(line_from(CountingSpout(limit=1), AckOnly()))
    topology.kill_task("s", 0)
    assert topology.state("s")["calls"] == ["activate"]
    topology.deactivate()
    topology.kill_task("s", 0)
    assert topology.state("s")["calls"] == []
    topology.activate()
    assert topology.state("s")["calls"] == ["activate"]


def test_c4_two_topologies_in_one_process() -> None:
    """Each sees only its own ids, also when both come from one builder."""
    builder = line(Identity(), AckOnly())
    with started(builder) as first, started(builder) as second:
        feed(first, 1, 2)
        feed(second, 3)
        assert (first.acks("s"), second.acks("s")) == ([1, 2], [3])
        assert (first.fails("s"), second.fails("s")) == ([], [])


def test_x11_ackers_off_acks_inside_emit() -> None:
    """`ack` runs before `emit` returns; bolts' acks and fails do nothing and max pending has no effect."""
    order: list[str] = []

    class Watching(CountingSpout):
        def next_tuple(self) -> None:
            if self.state["emitted"] < 3:
                order.append("emit")
                super().next_tuple()
                order.append("emitted")

        def ack(self, message_id: Any) -> None:
            order.append(f"ack {message_id}")

    topology = started(line_from(Watching(limit=3), Does(keep)), ackers=0, max_spout_pending=1)
    topology.settle()
    assert order == ["emit", "ack 0", "emitted", "emit", "ack 1", "emitted", "emit", "ack 2", "emitted"]
    assert (topology.acks("s"), topology.pending("s")) == ([0, 1, 2], 0)
    assert [dict(each.edges) for each in topology.state("b1")] == [{}, {}, {}]
    statistics = topology.statistics("s")
    assert (statistics.emitted, statistics.acked) == (3, 0)
    topology.advance(100)
    assert topology.fails("s") == []


def test_x11_without_a_message_id_nothing_is_tracked() -> None:
    """No callback ever, nothing pending, and the tuples downstream have no root."""
    topology = started(line(Identity(), Does(keep)), timeout=10)
    feed(topology, None)
    assert topology.pending("s") == 0
    assert [dict(each.edges) for each in topology.state("b2")] == [{}]
    topology.advance(50)
    assert (topology.acks("s"), topology.fails("s")) == ([], [])
    assert topology.statistics("__acker").inputs.keys() == {("__system", "__tick")}


@pytest.mark.parametrize(("tasks", "expected"), [(1, 6), (2, 12)])
def test_x18_max_pending_overshoot(tasks: int, expected: int) -> None:
    """The limit is tested before a round of calls: three per call overshoot five by one, two tasks share ten."""
    builder = TopologyBuilder()
    builder.set_spout("s", CountingSpout(per_call=3), 1).set_num_tasks(tasks)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    topology = started(builder, max_spout_pending=5)
    topology.settle()
    assert topology.pending("s") == expected


def test_x18_after_two_acks_there_is_one_more_call() -> None:
    """Six pending with a limit of five: one ack is not enough, two let three more out."""
    held: list[Does] = []

    def hold(bolt: Does, input: Tuple) -> None:
        bolt.state.append(input)
        held.append(bolt)

    topology = started(line_from(CountingSpout(per_call=3), Does(hold)), max_spout_pending=5)
    topology.settle()
    pending = [topology.pending("s")]
    for each in range(2):
        held[0].collector.ack(held[0].state[each])
        topology.settle()
        pending.append(topology.pending("s"))
    assert pending == [6, 5, 7]


def test_ack_and_fail_come_to_the_task_that_emitted() -> None:
    """Each of three tasks hears of exactly its own trees."""
    told: list[tuple[int, str, Any]] = []

    class Named(CountingSpout):
        def next_tuple(self) -> None:
            if self.state["emitted"] < 2:
                number = self.state["emitted"]
                self.state["emitted"] += 1
                self.collector.emit([number], message_id=(self.context.task, number))

        def ack(self, message_id: Any) -> None:
            told.append((self.context.task, "ack", message_id))

        def fail(self, message_id: Any) -> None:
            told.append((self.context.task, "fail", message_id))

    builder = TopologyBuilder()
    builder.set_spout("s", Named(), 2).set_num_tasks(3)
    builder.set_bolt("b", AckEveryOther(), 1).shuffle_grouping("s")
    topology = started(builder, timeout=10)
    topology.advance(20)
    assert len(told) == 6
    assert all(task == message_id[0] for task, _, message_id in told)
    assert {word for _, word, _ in told} == {"ack", "fail"}


def test_any_message_id_will_do_and_need_not_be_unique() -> None:
    """Two emits with one id are two trees."""
    topology = started(line(AckOnly()))
    for message_id in [("topic", 3), "text", "text", frozenset({1}), 0, False]:
        topology.feed("s", [0], message_id=message_id)
    topology.settle()
    assert topology.acks("s") == [("topic", 3), "text", "text", frozenset({1}), 0, False]


def test_x3_tuple_delivered_to_nobody() -> None:
    """A tracked emit on a stream without subscribers is acked at once; it was emitted and not transferred."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"], streams={"side": ["value"]}), 1)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    topology = started(builder)
    topology.feed("s", [1], message_id=1, stream="side")
    topology.settle()
    assert (topology.acks("s"), topology.pending("s"), topology.now_s()) == ([1], 0, 0)
    side = topology.statistics("s").outputs["side"]
    assert (side.emitted, side.transferred, side.acked) == (1, 0, 1)


def test_a_component_may_have_its_own_limit() -> None:
    """`set_max_spout_pending` wins over the topology's."""
    builder = TopologyBuilder()
    builder.set_spout("s", CountingSpout(), 1).set_max_spout_pending(4)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    topology = TestTopology(builder, Settings(max_pending=2))
    topology.settle()
    assert topology.pending("s") == 4
