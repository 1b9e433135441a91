"""Group B: timeouts, resets and expiry; and what dies in the reliability page's list."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from reliable_spark import Settings, SpoutOutputCollector, Tuple
from reliable_spark.testing import AckEveryOther, Aggregate
from tests.topology.pieces import (
    AckOnly,
    CountingSpout,
    Does,
    FeedSpout,
    Identity,
    TestTopology,
    TopologyBuilder,
    TopologyContext,
    feed,
    keep,
    line,
    started,
)


def single(grouping: str) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    getattr(builder.set_bolt("b", AckEveryOther(), 1), grouping)("s")
    return builder


def test_b1_an_unacked_tuple_fails_between_t_and_2t_global_grouping() -> None:
    """Fed at 11 with T = 10 it fails at the tick of 30, not at that of 20."""
    topology = started(single("global_grouping"), timeout=10)
    topology.advance(11)
    feed(topology, 1, 2, 3)
    topology.advance(9)
    assert (topology.acks("s"), topology.fails("s"), topology.now_s()) == ([1, 3], [], 20)
    topology.advance(9.999999)
    assert topology.fails("s") == []
    topology.advance(0.000001)
    assert (topology.fails("s"), topology.pending("s")) == ([2], 0)
    topology.advance(100)
    assert (topology.acks("s"), topology.fails("s")) == ([], [])


def test_b1_an_unacked_tuple_fails_between_t_and_2t_shuffle_grouping() -> None:
    """Fed at 0 it is there at 9 and at 19, and failed at 21."""
    topology = started(single("shuffle_grouping"), timeout=10)
    feed(topology, 1, 2, 3)
    topology.advance(9.0)
    assert (topology.acks("s"), topology.fails("s")) == ([1, 3], [])
    topology.advance(10.0)
    assert topology.fails("s") == []
    topology.advance(2.0)
    assert topology.fails("s") == [2]


def test_b4_one_rotation_per_tick_for_many_spout_tasks() -> None:
    """A tuple emitted just before a tick by any of five tasks of one executor outlives that tick."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1).set_num_tasks(5)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    topology = started(builder, timeout=10)
    topology.advance(9.9)
    feed(topology, 1, 2, 3, 4, 5)
    assert {each.source_task for each in topology.state("b")} == {3, 4, 5, 6, 7}
    topology.advance(0.2)
    assert (topology.fails("s"), topology.pending("s")) == ([], 5)
    topology.advance(10)
    assert (topology.fails("s"), topology.pending("s")) == ([1, 2, 3, 4, 5], 0)


def test_b5_ledger_overflow_is_refused() -> None:
    """With a high water of 8 the first 17 of a burst are held, the other 83 fail at once, each once."""
    settings = Settings(high_water=8, max_pending=512, message_timeout_s=1)
    topology = TestTopology(line(Does(keep)), settings)
    feed(topology, *range(100))
    assert (topology.fails("s"), topology.pending("s")) == (list(range(17, 100)), 17)
    topology.advance(2)
    assert (topology.fails("s"), topology.acks("s")) == (list(range(17)), [])


def started_without_timeouts(builder: TopologyBuilder) -> TestTopology:
    return TestTopology(builder, Settings.from_storm({"topology.enable.message.timeouts": False}))


def test_without_timeouts_nothing_expires() -> None:
    """`topology.enable.message.timeouts: false` keeps a tree pending for ever, and it can still be acked."""
    topology = started_without_timeouts(line(Aggregate(2)))
    feed(topology, 1)
    topology.advance(1000)
    assert (topology.fails("s"), topology.pending("s")) == ([], 1)
    feed(topology, 2)
    assert topology.acks("s") == [1, 2]


def test_reset_timeout_begins_the_life_of_a_tree_anew() -> None:
    """A tree that is reset before each tick lives; when the resets stop it fails two ticks later."""
    held: list[Does] = []

    def hold(bolt: Does, input: Tuple) -> None:
        bolt.state.append(input)
        held.append(bolt)

    topology = started(line(Does(hold)), timeout=10)
    feed(topology, 1)
    for _ in range(5):
        topology.advance(9)
        held[0].collector.reset_timeout(held[0].state[0])
        topology.settle()
        topology.advance(1)
    assert (topology.fails("s"), topology.now_s()) == ([], 50)
    topology.advance(9)
    assert topology.fails("s") == []
    topology.advance(1)
    assert topology.fails("s") == [1]


def test_a_late_ack_of_a_tree_that_timed_out_is_ignored() -> None:
    """At most one of ack and fail is called per emit."""
    held: list[Does] = []

    def hold(bolt: Does, input: Tuple) -> None:
        bolt.state.append(input)
        held.append(bolt)

    topology = started(line(Does(hold)), timeout=10)
    feed(topology, 1)
    topology.advance(20)
    assert topology.fails("s") == [1]
    held[0].collector.ack(held[0].state[0])
    topology.advance(100)
    assert (topology.acks("s"), topology.fails("s")) == ([], [])


# ------------------------------------------------------------------------- what dies, as the reliability page lists


def test_a_bolt_task_dies_and_its_trees_time_out() -> None:
    """What the dead task held fails by timeout; its successor has a fresh state and goes on."""
    topology = started(line(Does(keep)), timeout=10)
    feed(topology, 1, 2)
    topology.kill_task("b1", 0)
    assert topology.state("b1") == []
    feed(topology, 3)
    assert len(topology.state("b1")) == 1
    topology.advance(20)
    assert (topology.fails("s"), topology.acks("s"), topology.pending("s")) == ([1, 2, 3], [], 0)


def test_tuples_on_their_way_to_a_dead_task_are_lost_and_time_out() -> None:
    """The error of one tuple takes those queued behind it along; the next ones arrive."""

    def die_of_one(bolt: Does, input: Tuple) -> None:
        if input["value"] == 0:
            raise RuntimeError("dead")
        bolt.collector.ack(input)

    builder = TopologyBuilder()
    builder.set_spout("s", CountingSpout(per_call=3, limit=6), 1)
    builder.set_bolt("b", Does(die_of_one), 1).shuffle_grouping("s")
    topology = started(builder, timeout=10)
    topology.settle()
    assert topology.acks("s") == [3, 4, 5]
    assert [str(error) for error in topology.errors("b")] == ["dead"]
    topology.advance(20)
    assert topology.fails("s") == [0, 1, 2]


@pytest.mark.parametrize("ackers", [1, 2])
def test_an_acker_task_dies_and_its_trees_time_out(ackers: int) -> None:
    """The acker forgets; the spout does not, so every tree has its one answer."""
    held: list[Does] = []

    def hold(bolt: Does, input: Tuple) -> None:
        bolt.state.append(input)
        held.append(bolt)

    topology = started(line(Does(hold)), timeout=10, ackers=ackers)
    feed(topology, *range(20))
    topology.kill_task("__acker", 0)
    for each in held[0].state:
        held[0].collector.ack(each)
    topology.settle()
    acked = topology.acks("s")
    assert len(acked) < 20 if ackers == 1 else 0 < len(acked) < 20
    topology.advance(20)
    failed = topology.fails("s")
    assert sorted(acked + failed) == list(range(20))
    feed(topology, 20)
    assert topology.executed("b1") == 21


def test_a_spout_task_dies_and_its_trees_are_forgotten() -> None:
    """Nobody is told of them: the source must redeliver. The other task's trees are answered."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1).set_num_tasks(2)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    topology = started(builder, timeout=10)
    feed(topology, 1, 2)
    topology.kill_task("s", 0)
    assert topology.pending("s") == 1
    topology.advance(20)
    assert (topology.fails("s"), topology.acks("s")) == ([2], [])
    feed(topology, 3)
    assert topology.pending("s") == 1


def test_a_tick_on_its_way_outlives_the_task_it_was_sent_to() -> None:
    """It stands for the whole executor: the other task's tree still times out at the second tick."""

    class Slow(FeedSpout):
        def fed_by(self, feed: object) -> FeedSpout:
            spout = Slow(["value"])
            spout._feed = feed  # type: ignore[assignment] # the test's own spout
            return spout

        def open(
            self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector
        ) -> None:
            super().open(configuration, context, collector)
            self.clock = context.clock

        def ack(self, message_id: object) -> None:
            self.clock.wait(15, threading.Event())

    def ack_work(bolt: Does, input: Tuple) -> None:
        if input["value"] == "work":
            bolt.collector.ack(input)

    builder = TopologyBuilder()
    builder.set_spout("s", Slow(["value"]), 1).set_num_tasks(2)
    builder.set_bolt("b", Does(ack_work), 1).shuffle_grouping("s")
    topology = started(builder, timeout=10)
    feed(topology, 1, 2)
    topology.feed("s", ["work"], message_id="work")
    topology.advance(11)  # the first task is busy until 15; the tick of 10 is still on its way to it
    topology.kill_task("s", 0)
    topology.advance(9)
    assert topology.fails("s") == [2]


def test_what_waits_in_the_source_outlives_the_spout_task() -> None:
    """A fed value that was not emitted belongs to the source."""
    topology = started(line(AckOnly()))
    topology.feed("s", [1], message_id=1)
    topology.kill_task("s", 0)
    topology.settle()
    assert topology.acks("s") == [1]


def test_a_spout_that_raises_in_fail_dies_alone() -> None:
    """The trees of the other task of its executor are failed in the same tick."""

    class Fragile(FeedSpout):
        def fed_by(self, feed: object) -> FeedSpout:
            spout = Fragile(["value"])
            spout._feed = feed  # type: ignore[assignment] # the test's own spout
            return spout

        def fail(self, message_id: object) -> None:
            if message_id == 1:
                raise RuntimeError("cannot")

    builder = TopologyBuilder()
    builder.set_spout("s", Fragile(["value"]), 1).set_num_tasks(2)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    topology = started(builder, timeout=10)
    feed(topology, 1, 2)
    topology.advance(20)
    assert topology.fails("s") == [1, 2]
    assert [str(error) for error in topology.errors("s")] == ["cannot"]


def test_time_spent_in_a_bolt_passes_for_the_timeouts() -> None:
    """A bolt that works for 25 seconds with T = 10 acks a tuple that has failed."""

    def work(bolt: Does, input: Tuple) -> None:
        bolt.context.clock.wait(25, threading.Event())
        bolt.collector.ack(input)

    topology = started(line(Identity(), Does(work)), timeout=10)
    feed(topology, 1)
    assert topology.now_s() == 25
    assert (topology.acks("s"), topology.fails("s")) == ([], [1])
