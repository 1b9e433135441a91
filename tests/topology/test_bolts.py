"""Group D and X: ticks, errors of bolts, multi-anchoring, and misuse that behaves as in Storm."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from reliable_spark import BasicBolt, BasicOutputCollector, Fail, ReportedFail, RichBolt, Tuple, UsageError
from reliable_spark.testing import Aggregate
from tests.topology.pieces import (
    AckOnly,
    Does,
    FeedSpout,
    Identity,
    TopologyBuilder,
    fail,
    feed,
    keep,
    keep_values,
    line,
    started,
)


def test_d2_tick_tuples_arrive_on_schedule() -> None:
    """Exactly one per period, from `__system` on `__tick`; acking one changes no count of the spout."""

    def ack_all(bolt: Does, input: Tuple) -> None:
        bolt.state.append((input.source_component, input.source_stream, input.values, input.is_tick))
        bolt.collector.ack(input)

    topology = started(line(Does(ack_all)), tick_tuple_freq_secs=30)
    feed(topology, 1)
    assert topology.acks("s") == [1]
    for number in (1, 2, 3):
        topology.advance(30)
        assert topology.state("b1")[1:] == [("__system", "__tick", [30.0], True)] * number
    assert (topology.acks("s"), topology.fails("s"), topology.statistics("s").acked) == ([], [], 1)
    assert topology.statistics("__acker").executed == 2 + 3  # init, ack, and its own ticks


def test_d2_ticks_of_a_fraction_of_a_second_do_not_drift() -> None:
    """Three tenths hold three ticks, though three times 0.1 is more than 0.3 in floating point."""
    topology = started(line(AckOnly()), tick_tuple_freq_secs=0.1)
    topology.advance(0.3)
    assert topology.executed("b1") == 3
    topology.advance(9.7)
    assert topology.executed("b1") == 100


def test_d3_tick_with_and_without_something_to_report() -> None:
    """A component's own period: its tick reports the counts unanchored; other components get none."""

    class Counting(RichBolt):
        state: Counter[object]

        def __init__(self) -> None:
            self.state = Counter()

        def component_configuration(self) -> dict[str, object]:
            return {"topology.tick.tuple.freq.secs": 5}

        def declare_output_fields(self, declarer: object) -> None:
            declarer.declare(["object", "count"])  # type: ignore[attr-defined]

        def prepare(self, configuration: object, context: object, collector: object) -> None:
            self.collector = collector

        def execute(self, input: Tuple) -> None:
            if input.is_tick:
                for key, count in self.state.items():
                    self.collector.emit([key, count])  # type: ignore[attr-defined]
            else:
                self.state[input["value"]] += 1
                self.collector.ack(input)  # type: ignore[attr-defined]

    topology = started(line(Counting(), Does(keep_values)))
    topology.advance(5)
    assert (topology.emitted("b1"), topology.executed("b1")) == ([], 1)
    feed(topology, "word")
    assert topology.acks("s") == ["word"]
    topology.advance(5)
    assert topology.emitted("b1") == [["word", 1]]
    assert topology.state("b2") == [["word", 1]]
    statistics = topology.statistics("b1")
    assert (statistics.acked, statistics.failed) == (1, 0)
    assert topology.executed("b2") == 1


class Strict(BasicBolt):
    """A basic bolt with Storm's own rule; it emits before it raises."""

    failing: ClassVar[tuple[type[Exception], ...]] = (Fail,)

    def declare_output_fields(self, declarer: object) -> None:
        declarer.declare(["value"])  # type: ignore[attr-defined]

    def execute(self, input: Tuple, collector: BasicOutputCollector) -> None:
        collector.emit(input.values)
        errors = {"fail": Fail("fail"), "report": ReportedFail("report"), "die": KeyError("die")}
        if input["value"] in errors:
            raise errors[input["value"]]


@pytest.mark.parametrize(
    ("value", "acks", "fails", "reported", "fails_late"),
    [
        ("fine", ["fine"], [], [], []),
        ("fail", [], ["fail"], [], []),
        ("report", [], ["report"], ["report"], []),
        ("die", [], [], ["'die'"], ["die"]),
    ],
)
def test_x12_basic_bolt_errors(
    value: str, acks: list[str], fails: list[str], reported: list[str], fails_late: list[str]
) -> None:
    """Return acks, Fail fails, ReportedFail reports too, anything else kills the task; what was emitted has left."""
    topology = started(line(Strict(), Does(keep_values)), timeout=10)
    feed(topology, value)
    assert (topology.acks("s"), topology.fails("s")) == (acks, fails)
    assert [str(error) for error in topology.errors("b1")] == reported
    assert topology.state("b2") == [[value]]
    topology.advance(20)
    assert topology.fails("s") == fails_late


def test_x9_a_diamond_is_acked_when_its_last_sink_acked() -> None:
    """Two anchors with one root: the joined tuple holds the tree up, its failure fails the tree once."""
    for last, expected in ((Does(fail), ([], [1])), (AckOnly(), ([1], []))):
        builder = TopologyBuilder()
        builder.set_spout("s", FeedSpout(["value"]), 1)
        builder.set_bolt("a", Identity(), 1).shuffle_grouping("s")
        builder.set_bolt("b", Identity(), 1).shuffle_grouping("s")
        builder.set_bolt("join", Aggregate(2), 1).shuffle_grouping("a").shuffle_grouping("b")
        builder.set_bolt("sink", last, 1).shuffle_grouping("join")
        topology = started(builder, timeout=10)
        feed(topology, 1)
        assert (topology.acks("s"), topology.fails("s")) == expected
        topology.advance(30)
        assert (topology.acks("s"), topology.fails("s")) == ([], [])


@pytest.mark.parametrize(("last", "expected"), [(Does(fail), ([], [1, 2])), (AckOnly(), ([1, 2], []))])
def test_x9_a_tuple_of_two_roots_answers_both(last: RichBolt, expected: tuple[list[int], list[int]]) -> None:
    """Failing it fails both trees, acking it completes both."""
    topology = started(line(Aggregate(2), last))
    feed(topology, 1, 2)
    assert (topology.acks("s"), topology.fails("s")) == expected


def test_x9_an_untracked_anchor_adds_nothing() -> None:
    """Of a tracked and an untracked anchor only the first has a tree, which ends as if the other were not there."""
    topology = started(line(Aggregate(2), Does(keep)))
    feed(topology, None, 1)
    assert (topology.acks("s"), [len(each.edges) for each in topology.state("b2")]) == ([], [1])
    other = started(line(Aggregate(2), AckOnly()))
    feed(other, None, 1)
    assert other.acks("s") == [1]


# ------------------------------------------------------------------------------------------------- misuse


def test_x7_double_ack_of_a_parent_never_completes() -> None:
    """The two messages cancel: the tree times out."""

    def ack_twice(bolt: Does, input: Tuple) -> None:
        bolt.collector.emit(input.values, anchors=input)
        bolt.collector.ack(input)
        bolt.collector.ack(input)

    topology = started(line(Does(ack_twice), AckOnly()), timeout=10)
    feed(topology, 1)
    assert topology.acks("s") == []
    topology.advance(20)
    assert (topology.acks("s"), topology.fails("s")) == ([], [1])


def test_x7_double_ack_of_the_last_open_leaf_acks_once() -> None:
    """The second message is a stray that can notify nobody and leaves by rotation."""

    def ack_twice(bolt: Does, input: Tuple) -> None:
        bolt.collector.ack(input)
        bolt.collector.ack(input)

    topology = started(line(Does(ack_twice)), timeout=10)
    feed(topology, 1)
    assert (topology.acks("s"), topology.state("__acker", 0)) == ([1], 1)
    topology.advance(29.9)
    assert topology.state("__acker", 0) == 1
    topology.advance(0.1)
    assert (topology.acks("s"), topology.fails("s"), topology.state("__acker", 0)) == ([], [], 0)


@pytest.mark.parametrize(
    ("is_held_up", "acks", "fails"),
    [(False, [1], []), (True, [], [1])],
    ids=["the last open node", "another node is open"],
)
def test_emit_after_ack(is_held_up: bool, acks: list[int], fails: list[int]) -> None:
    """The child is never announced: the spout is acked too early, or the tree is poisoned and times out."""

    def ack_then_emit(bolt: Does, input: Tuple) -> None:
        bolt.collector.ack(input)
        bolt.collector.emit(input.values, anchors=input)

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("wrong", Does(ack_then_emit), 1).shuffle_grouping("s")
    builder.set_bolt("sink", AckOnly(), 1).shuffle_grouping("wrong")
    if is_held_up:
        builder.set_bolt("zlow", Identity(), 1).shuffle_grouping("s")
        builder.set_bolt("zlower", Identity(), 1).shuffle_grouping("zlow")
        builder.set_bolt("zlowest", AckOnly(), 1).shuffle_grouping("zlower")
    topology = started(builder, timeout=10)
    feed(topology, 1)
    assert (topology.acks("s"), topology.executed("sink")) == (acks, 1)
    topology.advance(20)
    assert topology.fails("s") == fails


def test_fail_then_ack_of_the_same_tuple() -> None:
    """The fail was delivered, the rest is ignored."""

    def fail_then_ack(bolt: Does, input: Tuple) -> None:
        bolt.collector.fail(input)
        bolt.collector.ack(input)

    topology = started(line(Does(fail_then_ack)), timeout=10)
    feed(topology, 1)
    assert (topology.acks("s"), topology.fails("s")) == ([], [1])
    topology.advance(50)
    assert (topology.acks("s"), topology.fails("s")) == ([], [])


def test_emits_anchored_to_a_tick_are_untracked() -> None:
    """A tick has no root; failing it reaches nobody."""

    def pass_on(bolt: Does, input: Tuple) -> None:
        if input.is_tick:
            bolt.collector.emit([0], anchors=input)
        bolt.collector.fail(input)

    topology = started(line(Does(pass_on), Does(keep)), tick_tuple_freq_secs=5)
    topology.advance(5)
    assert [dict(each.edges) for each in topology.state("b2") if not each.is_tick] == [{}]
    assert (topology.acks("s"), topology.fails("s")) == ([], [])


@pytest.mark.parametrize(
    ("emit", "said"),
    [
        (lambda bolt, input: bolt.collector.emit([1], input, stream="defualt"), "did you mean 'default'"),
        (lambda bolt, input: bolt.collector.emit([1, 2], input), "not 2 values"),
        (lambda bolt, input: bolt.collector.emit("ab", input), r"emit\(\['ab'\]\)"),
        (lambda bolt, input: bolt.collector.emit({"value": 1}, input), "values are a list, .* not dict"),
        (lambda bolt, input: bolt.collector.emit({1}, input), "values are a list, .* not set"),
        (lambda bolt, input: bolt.collector.emit(bytearray(b"a"), input), "values are a list, .* not bytearray"),
        (lambda bolt, input: bolt.collector.emit(None, input), "values are a list, .* not NoneType"),
        (lambda bolt, input: bolt.collector.emit((each for each in [1]), input), "values are a list, .* not generator"),
        (lambda bolt, input: bolt.collector.emit([1], [1]), "an anchor is a tuple"),
        (lambda bolt, input: bolt.collector.emit([1], 1), "an anchor is a tuple"),
        (lambda bolt, input: bolt.collector.ack(1), "a tuple that the bolt received, not int"),
        (lambda bolt, input: bolt.collector.fail(input.values), "a tuple that the bolt received, not list"),
        (lambda bolt, input: bolt.collector.reset_timeout(None), "a tuple that the bolt received, not NoneType"),
        (lambda bolt, input: bolt.collector.emit_direct(1, [1], input), "not direct"),
    ],
)
def test_a_wrong_emit_comes_out_of_settle(emit: object, said: str) -> None:
    """The program is wrong, not the tuple: the test hears of it."""
    topology = started(line(Does(emit)))  # type: ignore[arg-type] # lambdas of many types
    topology.feed("s", [1], message_id=1)
    with pytest.raises(UsageError, match=said):
        topology.settle()


def test_a_field_that_is_not_there_is_named() -> None:
    """`input["vlaue"]` names the nearest field."""
    topology = started(line(Does(lambda bolt, input: input["vlaue"])))
    topology.feed("s", [1], message_id=1)
    with pytest.raises(UsageError, match="did you mean 'value'"):
        topology.settle()


def test_a_wrong_emit_of_a_basic_bolt_comes_out_too() -> None:
    """It is not taken for a failure of the tuple."""

    class Wrong(BasicBolt):
        def execute(self, input: Tuple, collector: BasicOutputCollector) -> None:
            collector.emit([1], stream="nowhere")

    topology = started(line(Wrong()))
    topology.feed("s", [1], message_id=1)
    with pytest.raises(UsageError, match="has no stream 'nowhere'"):
        topology.settle()
    assert topology.fails("s") == []


def test_emit_returns_the_receiving_tasks() -> None:
    """One id per delivery; none when nobody subscribes."""
    builder = line(Does(lambda bolt, input: bolt.state.append(bolt.collector.emit(input.values, input))))
    feed(first := started(builder), 1)
    assert first.state("b1") == [[]]
    builder.set_bolt("c", AckOnly(), 2).all_grouping("b1")
    builder.set_bolt("d", AckOnly(), 1).all_grouping("b1")
    feed(second := started(builder), 1)
    assert second.state("b1") == [[3, 4, 5]]


def test_a_bolt_is_prepared_with_its_own_configuration_and_cleaned_up_once() -> None:
    """The component's keys win over the topology's; a dead task is not cleaned up."""
    seen: list[object] = []

    class Watched(RichBolt):
        def component_configuration(self) -> dict[str, object]:
            return {"topology.tick.tuple.freq.secs": 7, "topology.max.spout.pending": 1}

        def prepare(self, configuration: Mapping[str, Any], context: object, collector: object) -> None:
            seen.append([configuration[f"topology.{key}"] for key in ("tick.tuple.freq.secs", "max.spout.pending")])

        def cleanup(self) -> None:
            seen.append("cleanup")

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    declarer = builder.set_bolt("b", Watched(), 1).shuffle_grouping("s")
    declarer.add_configuration("topology.max.spout.pending", 2)
    topology = started(builder, tick_tuple_freq_secs=5)
    topology.kill_task("b", 0)
    topology.close()
    assert seen == [[7, 2], [7, 2], "cleanup"]


def test_what_cannot_be_copied_is_said_so() -> None:
    """A lock belongs into `prepare`."""

    class Locked(RichBolt):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(UsageError, match=r"'b1' cannot be copied for its tasks .* in prepare\(\)"):
        started(line(Locked()))


def test_late_acks_from_another_thread() -> None:
    """A bolt may hold tuples and let another thread ack them."""
    bolts: list[Does] = []

    def hold(bolt: Does, input: Tuple) -> None:
        bolt.state.append(input)
        bolts.append(bolt)

    def ack_all() -> None:
        for each in bolts[0].state:
            bolts[0].collector.ack(each)

    topology = started(line(Does(hold)))
    feed(topology, 1, 2)
    thread = threading.Thread(target=ack_all)
    thread.start()
    thread.join()
    topology.settle()
    assert topology.acks("s") == [1, 2]


def test_tuples_are_equal_only_to_themselves() -> None:
    """Held tuples are told apart even when their values are the same."""
    topology = started(line(Does(keep)))
    feed(topology, None, None)
    first, second = topology.state("b1")
    assert first.values == second.values
    assert len({first, second}) == 2
    assert first.as_dict() == {"value": None}
