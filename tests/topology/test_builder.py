"""What a topology is checked for when it is built, and what the test kit says of wrong calls."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark.core.groupings import GroupingKind
from reliable_spark.process import base
from tests.topology.pieces import (
    AckOnly,
    Does,
    FeedSpout,
    Identity,
    Raises,
    TestTopology,
    TopologyBuilder,
    feed,
    line,
    started,
)


def words() -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("sentences", FeedSpout(["word"]), 1)
    return builder


def test_e10_a_word_count_is_accepted() -> None:
    """The graph is plain data: names, tasks, streams and subscriptions."""
    builder = words()
    builder.set_bolt("count", Identity(), 4).fields_grouping("sentences", ["word"])
    graph = builder.build().graph
    count = graph.components["count"]
    assert (count.kind, count.executors, count.tasks, count.streams["default"].fields) == ("bolt", 4, 4, ("word",))
    (only,) = count.inputs
    assert (only.component, only.stream, only.grouping.kind) == ("sentences", "default", GroupingKind.FIELDS)
    with pytest.raises(dataclasses.FrozenInstanceError):
        count.tasks = 5  # type: ignore[misc]
    with pytest.raises(TypeError):
        graph.components["more"] = count  # type: ignore[index]


def wrong(thing: Any) -> Any:
    """Something that mypy would not let through."""
    return thing


class OnlyNext:
    """A spout in a hurry."""

    def next_tuple(self) -> None:
        """Nothing."""


Declare = Callable[[TopologyBuilder], Any]
STRUCTURE: list[tuple[Declare, str]] = [
    (
        lambda b: b.set_bolt("count", AckOnly(), 1).shuffle_grouping("sentence"),
        "bolt 'count' subscribes to unknown component 'sentence'; did you mean 'sentences'",
    ),
    (
        lambda b: b.set_bolt("count", AckOnly(), 1).fields_grouping("sentences", ["wrod"]),
        "unknown field 'wrod'; did you mean 'word'",
    ),
    (
        lambda b: b.set_bolt("count", AckOnly(), 1).partial_key_grouping("sentences", ["wrod"]),
        "unknown field 'wrod'; did you mean 'word'",
    ),
    (
        lambda b: b.set_bolt("count", AckOnly(), 1).shuffle_grouping("sentences", "defalt"),
        "unknown stream 'defalt' of 'sentences'; did you mean 'default'",
    ),
    (
        lambda b: b.set_bolt("count", Raises(), 1).shuffle_grouping("count2"),
        "unknown component 'count2'; did you mean 'count'",
    ),
    (
        lambda b: b.set_bolt("count", AckOnly(), 1).direct_grouping("sentences"),
        "stream 'default' is not a direct stream",
    ),
    (lambda b: b.set_bolt("count", AckOnly(), 0), "parallelism of 'count' must be a whole number, 1 or more, not 0"),
    (lambda b: b.set_bolt("count", Raises(), 0), "parallelism of 'count'"),
    (lambda b: b.set_spout("more", FeedSpout(["word"]), 0), "parallelism of 'more'"),
    (lambda b: b.set_spout("more", FeedSpout(["word"]), True), "parallelism of 'more'"),
    (lambda b: b.set_bolt("count", AckOnly(), 1).set_num_tasks(0), "tasks of 'count'"),
    (lambda b: b.set_bolt("sentences", AckOnly(), 1), "component id 'sentences' is taken"),
    (lambda b: b.set_spout("sentences", FeedSpout(["word"]), 1), "component id 'sentences' is taken"),
    (lambda b: b.set_bolt("__acker", AckOnly(), 1), "component id '__acker' is reserved"),
    (lambda b: b.set_bolt("", AckOnly(), 1), "not ''"),
    (
        lambda b: b.set_bolt("count", wrong(FeedSpout(["word"])), 1),
        "must be a BasicBolt, a RichBolt or a WindowedBolt, not FeedSpout",
    ),
    (lambda b: b.set_spout("more", wrong(AckOnly()), 1), "must be a Spout, not AckOnly"),
    (lambda b: b.set_spout("more", wrong(FeedSpout)), "must be a Spout, not the class FeedSpout: make one of it"),
    (lambda b: b.set_bolt("count", wrong(AckOnly)), "or a WindowedBolt, not the class AckOnly: make one of it"),
    (lambda b: b.set_spout("more", wrong(OnlyNext())), "spout 'more' has no method declare_output_fields()"),
    (lambda b: b.set_bolt("count", AckOnly()).shuffle_grouping(wrong(None)), "to a component by its id, not None"),
    (
        lambda b: b.set_bolt("count", AckOnly()).shuffle_grouping("sentences", wrong(["word"])),
        "to a stream by its id, not ['word']",
    ),
    (
        lambda b: b.set_bolt("count", AckOnly()).fields_grouping("sentences", wrong(None)),
        "fields are a list of names, not None",
    ),
    (lambda b: b.set_spout("more", FeedSpout(wrong(None))), "fields are a list of names, not None"),
    (
        lambda b: b.set_bolt("count", AckOnly()).custom_grouping("sentences", wrong(len)),
        "the custom grouping of 'count' has no method prepare()",
    ),
    (
        lambda b: b.set_bolt("count", AckOnly()).custom_grouping("sentences", wrong(AckOnly)),
        "a custom grouping is an object, not the class AckOnly",
    ),
    (lambda b: b.set_spout("more", FeedSpout(["a", "a"]), 1), "declares field 'a' twice"),
    (lambda b: b.set_spout("more", FeedSpout(["a"], streams={"__tick": ["a"]}), 1), "stream id '__tick' is reserved"),
    (lambda b: b.set_spout("more", FeedSpout([1]), 1), "a field is named by a text, not 1"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("declare", "said"), STRUCTURE, ids=[said for _, said in STRUCTURE])
def test_e10_structure_errors_are_refused(declare: Declare, said: str) -> None:
    """Each is refused before anything runs, in words that say what to write instead."""

    def build() -> None:
        builder = words()
        declare(builder)
        TestTopology(builder)

    with pytest.raises(rs.TopologyError, match=re.escape(said)):
        build()


def test_cycles_are_named() -> None:
    """The components on the cycle are listed; a bolt that subscribes to itself is one."""
    builder = words()
    builder.set_bolt("a", Identity(), 1).shuffle_grouping("sentences").shuffle_grouping("b")
    builder.set_bolt("b", Identity(), 1).shuffle_grouping("a")
    with pytest.raises(rs.TopologyError, match=r"cycle: (a -> b -> a|b -> a -> b)"):
        builder.build()
    own = words()
    own.set_bolt("a", Identity(), 1).shuffle_grouping("a")
    with pytest.raises(rs.TopologyError, match="cycle: a -> a"):
        own.build()


def test_a_direct_stream_takes_no_other_grouping() -> None:
    """Nothing could ever arrive by it."""

    class Director(Does):
        def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
            declarer.declare(["value"], direct=True)

    builder = words()
    builder.set_bolt("a", Director(lambda bolt, input: None), 1).shuffle_grouping("sentences")
    builder.set_bolt("b", AckOnly(), 1).shuffle_grouping("a")
    with pytest.raises(rs.TopologyError, match="is a direct stream"):
        builder.build()


def test_a_second_subscription_to_a_stream_replaces_the_first() -> None:
    """So each tuple arrives once."""
    builder = words()
    builder.set_bolt("b", AckOnly(), 3).all_grouping("sentences").global_grouping("sentences")
    topology = started(builder)
    topology.feed("sentences", ["a"], message_id=1)
    topology.settle()
    assert (topology.executed("b"), topology.acks("sentences")) == (1, [1])


def test_tasks_are_numbered_in_alphabetical_order() -> None:
    """From 1, the ackers first, since "_" sorts before letters."""
    builder = TopologyBuilder()
    builder.set_spout("z", FeedSpout(["value"]), 1)
    builder.set_bolt("a", Does(lambda bolt, input: bolt.state.append(bolt.context)), 2).all_grouping("z")
    topology = started(builder, ackers=2)
    topology.feed("z", [1])
    topology.settle()
    context = topology.state("a", 1)[0]
    assert {name: context.component_tasks(name) for name in ("__acker", "a", "z")} == {
        "__acker": [1, 2],
        "a": [3, 4],
        "z": [5],
    }
    assert (context.task, context.task_index, context.component) == (4, 1, "a")
    with pytest.raises(rs.TopologyError, match="there is no component 'y'"):
        context.component_tasks("y")


# ------------------------------------------------------------------------------------------- the test kit


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: t.feed("t", [1]), "there is no component 't'"),
        (lambda t: t.feed("b1", [1]), "'b1' is no FeedSpout"),
        (lambda t: t.feed("s", [1, 2]), "not 2 values"),
        (lambda t: t.feed("s", [1], stream="x"), "no stream 'x'"),
        (lambda t: t.acks("b1"), "there is no spout 'b1'"),
        (lambda t: t.pending("spout"), "there is no spout 'spout'"),
        (lambda t: t.emitted("b1", "x"), "no stream 'x'"),
        (lambda t: t.executed("b1", task=1), "has the tasks 0 to 0, not 1"),
        (lambda t: t.kill_task("b9", 0), "there is no component 'b9'"),
        (lambda t: t.state("b1"), "keeps no state"),
        (lambda t: t.advance(-1), "time goes forward"),
        (lambda t: t.advance(float("nan")), "time goes forward"),
        (lambda t: (t.close(), t.settle()), "closed"),
        (lambda t: (t.close(), t.feed("s", [1])), "closed"),
    ],
)
def test_a_wrong_call_of_the_kit_is_a_usage_error(call: Callable[[TestTopology], Any], said: str) -> None:
    """It says what there is instead."""
    with pytest.raises(rs.UsageError, match=said):
        call(started(line(AckOnly())))


def test_the_engine_is_chosen_by_name() -> None:
    """What is not known is refused; the nearest name is said."""
    with pytest.raises(rs.UsageError, match="did you mean 'process'"):
        TestTopology(line(AckOnly()), engine="proces")


@pytest.mark.parametrize("when", ["next_tuple", "ack"])
def test_a_spout_that_never_stops_is_refused(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`settle` says so instead of running for ever, whether it emits when asked or when told."""
    monkeypatch.setattr(base, "STEPS_MAX", 1000)

    class Endless(FeedSpout):
        def fed_by(self, feed: Any) -> FeedSpout:
            return self

        def next_tuple(self) -> None:
            if when == "next_tuple" or not self._is_begun:
                self._is_begun = True
                self._collector.emit([1], message_id=1)

        def ack(self, message_id: Any) -> None:
            if when == "ack":
                self._collector.emit([1], message_id=1)

        _is_begun = False

    builder = TopologyBuilder()
    builder.set_spout("s", Endless(["value"]), 1)
    with pytest.raises(rs.OperatingError, match="still not settled"):
        started(builder).settle()


def test_pytest_does_not_collect_the_kit() -> None:
    """Its name starts like a test's."""
    assert TestTopology.__test__ is False


def test_two_runs_are_the_same() -> None:
    """Every id, pick and answer repeats itself."""

    def run() -> list[Any]:
        builder = line(Identity(), Identity(), Raises())
        topology = started(builder, timeout=10)
        feed(topology, *range(20))
        topology.advance(30)
        return [topology.acks("s"), topology.fails("s"), topology.statistics("__acker")]

    assert run() == run()
