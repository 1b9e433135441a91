"""Group A: when a tree is complete and when it failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from reliable_spark import BasicBolt, BasicOutputCollector, Fail, RichBolt, Tuple
from reliable_spark.core.acker import Kind, Verdict
from reliable_spark.core.acker_task import AckerTask, Message
from reliable_spark.testing import Aggregate, DupAnchor
from reliable_spark.topology.bolts import Anchors, BasicBoltExecutor
from tests.topology.pieces import AckOnly, Does, FeedSpout, Identity, Raises, TopologyBuilder, feed, line, started


class Collected:
    """A collector that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = "default") -> list[int]:
        self.said.append(("emit", list(values), anchors, stream))
        return []

    def emit_direct(self, task: int, values: Sequence[Any], anchors: Anchors = None, stream: str = "default") -> None:
        raise AssertionError("not used")

    def ack(self, input: Tuple) -> None:
        self.said.append(("ack", input))

    def fail(self, input: Tuple) -> None:
        self.said.append(("fail", input))

    def reset_timeout(self, input: Tuple) -> None:
        raise AssertionError("not used")

    def report_error(self, error: BaseException) -> None:
        self.said.append(("report", str(error)))


def prepared(bolt: RichBolt) -> Collected:
    collector = Collected()
    bolt.prepare({}, None, collector)  # type: ignore[arg-type] # these bolts ask nothing of the context
    return collector


def one(value: object, stream: str = "default") -> Tuple:
    return Tuple([value], ["value"], "s", stream, 1, {7: 100})


def diamond(last: RichBolt) -> TopologyBuilder:
    """S to B2 and B3, both to B4."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("b2", Identity(), 1).shuffle_grouping("s")
    builder.set_bolt("b3", Identity(), 1).shuffle_grouping("s")
    builder.set_bolt("b4", last, 1).shuffle_grouping("b2").shuffle_grouping("b3")
    return builder


def test_a1_two_branches_joined_by_one_aggregator() -> None:
    """Both trees are complete when the bolt that holds four of their tuples lets them go, and not before."""
    topology = started(diamond(Aggregate(4)))
    feed(topology, 1)
    assert (topology.acks("s"), len(topology.state("b4", 0)), topology.pending("s")) == ([], 2, 1)
    feed(topology, 2)
    assert (topology.acks("s"), topology.fails("s"), topology.pending("s")) == ([1, 2], [], 0)


def test_a3_the_same_tuple_named_twice_as_anchor() -> None:
    """Two ids are drawn for it and do not cancel, so the tree ends with the child and not before."""
    topology = started(line(DupAnchor(), AckOnly()))
    feed(topology, 1)
    assert topology.acks("s") == [1]
    feed(topology, 2, 3, 4)
    assert (topology.acks("s"), topology.fails("s")) == ([2, 3, 4], [])


def test_a3_a_child_named_twice_still_holds_its_tree_up() -> None:
    """While the child is held, the tree is not acked."""
    topology = started(line(DupAnchor(), Aggregate(2)))
    feed(topology, 1)
    assert topology.acks("s") == []
    feed(topology, 2)
    assert topology.acks("s") == [1, 2]


def test_a4_worked_xor_trace_chain() -> None:
    """Created 100 and 200, done 100 and 200: the fifth message completes the tree, none before."""
    acker = AckerTask()
    told = [
        acker.take(Message(Kind.INIT, 7, 100, task=3), 0.0),
        acker.take(Message(Kind.ACK, 7, 100 ^ 200), 1.0),
        acker.take(Message(Kind.ACK, 7, 200), 2.0),
    ]
    assert told == [None, None, (Verdict.ACKED, 7, 3, 2.0)]
    assert len(acker) == 0


def test_a7_bolt_error_fails_the_tree_at_once() -> None:
    """Each id fails once, long before any timeout, and the bolt goes on receiving."""
    topology = started(line(Raises()), timeout=2, max_spout_pending=2)
    feed(topology, *range(6))
    assert (topology.fails("s"), topology.acks("s"), topology.now_s()) == ([0, 1, 2, 3, 4, 5], [], 0)
    assert topology.executed("b1", task=0) == 6
    assert len(topology.errors("b1")) == 6
    topology.advance(10)
    assert topology.fails("s") == []


def test_a8_child_keeps_the_parents_lineage() -> None:
    """What a sink fails fails exactly the source tuples it came from; nothing when they were not anchored."""

    def fail_every_third(bolt: Does, input: Tuple) -> None:
        (bolt.collector.ack if input["value"] % 3 else bolt.collector.fail)(input)

    def pass_unanchored(bolt: Does, input: Tuple) -> None:
        bolt.collector.emit(input.values)
        bolt.collector.ack(input)

    anchored = started(line(Identity(), Does(fail_every_third)))
    feed(anchored, *range(10))
    assert (anchored.fails("s"), anchored.acks("s")) == ([0, 3, 6, 9], [1, 2, 4, 5, 7, 8])

    unanchored = started(line(Does(pass_unanchored), Does(fail_every_third)))
    feed(unanchored, *range(10))
    assert (unanchored.fails("s"), unanchored.acks("s")) == ([], list(range(10)))
    assert unanchored.executed("b2") == 10


def test_a9_auto_ack_bolt_contract() -> None:
    """One ack and no fail when the user's code returns; one fail, no ack and a report when it raises."""

    class Picky(BasicBolt):
        def execute(self, input: Tuple, collector: BasicOutputCollector) -> None:
            if input["value"] == "bad":
                raise ValueError("bad value")

    bolt = BasicBoltExecutor(Picky())
    collector = prepared(bolt)
    good, bad, again = one("good"), one("bad"), one("good")
    for each in (good, bad, again):
        bolt.execute(each)
    assert collector.said == [("ack", good), ("report", "bad value"), ("fail", bad), ("ack", again)]


def test_a11_windowed_aggregate_hold_multi_anchor_ack_all() -> None:
    """Before the end of the window nothing is said; at it all is emitted anchored to all, then each is acked."""

    class Summing(Does):
        def __init__(self) -> None:
            super().__init__(lambda bolt, input: None)

        def execute(self, input: Tuple) -> None:
            self.state.append(input)
            if input.source_stream == "marker":
                data = sum(each["value"] for each in self.state[:-1])
                self.collector.emit([data], anchors=self.state)
                self.collector.emit(input.values, anchors=self.state, stream="marker")
                for each in self.state:
                    self.collector.ack(each)

    bolt = Summing()
    collector = prepared_without_context(bolt)
    first, second, end = one(100), one(100), one("end", "marker")
    bolt.execute(first)
    bolt.execute(second)
    assert collector.said == []
    bolt.execute(end)
    held = [first, second, end]
    assert collector.said[:2] == [("emit", [200], held, "default"), ("emit", ["end"], held, "marker")]
    assert collector.said[2:] == [("ack", first), ("ack", second), ("ack", end)]


def prepared_without_context(bolt: Does) -> Collected:
    collector = Collected()
    bolt.collector = collector
    return collector


@pytest.mark.parametrize("outcome", ["ack", "fail"])
def test_a12_ack_or_fail_decided_later_by_a_callback(outcome: str) -> None:
    """After execute nothing is said; when the writer is done the tuple is acked or failed, once."""

    def write(bolt: Does, input: Tuple) -> None:
        def done(error: Exception | None) -> None:
            if error is None:
                bolt.collector.ack(input)
            else:
                bolt.collector.report_error(error)
                bolt.collector.fail(input)

        bolt.state.append(done)

    topology = started(line(Does(write)))
    feed(topology, 1)
    assert (topology.acks("s"), topology.fails("s")) == ([], [])
    topology.state("b1")[0](None if outcome == "ack" else OSError("disk full"))
    topology.settle()
    expected = ([1], [], []) if outcome == "ack" else ([], [1], ["disk full"])
    assert (topology.acks("s"), topology.fails("s"), [str(each) for each in topology.errors("b1")]) == expected
    topology.advance(100)
    assert (topology.acks("s"), topology.fails("s")) == ([], [])


def test_a_plain_fail_is_not_reported() -> None:
    """`Fail` fails the tuple and says nothing."""
    topology = started(line(Raises(Fail)))
    feed(topology, 1)
    assert (topology.fails("s"), topology.errors("b1")) == ([1], [])
