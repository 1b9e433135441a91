"""Cases G5, G6, G9, X13: a bolt between its barriers."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from reliable_spark import ManualClock, RichBolt, StateError, TopologyContext, TopologyError, Tuple, UsageError
from reliable_spark.core.graph import CHECKPOINT_SPOUT, CHECKPOINT_STREAM, Component, Graph, Subscription
from reliable_spark.core.groupings import Grouping, GroupingKind
from reliable_spark.state import MemoryStateProvider
from reliable_spark.testing import AckOnly, FeedSpout, Identity
from reliable_spark.topology import StatefulBolt, TopologyBuilder
from reliable_spark.topology.checkpoint_spout import PROVIDER_KEY
from reliable_spark.topology.checkpointed import CheckpointForwarder, StatefulBoltExecutor
from tests.state.pieces import Count, chain, running
from tests.topology.test_tuple_trees import Collected


class Unstorable(Enum):
    """What a grouping takes and a state does not."""

    ONE = 1


class Recorded:
    """A state that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def state(self, namespace: str) -> Recorded:
        assert namespace == "b-0"
        return self

    def prepare_commit(self, txid: int) -> None:
        self.said.append(("prepare", txid))

    def commit(self, txid: int | None = None) -> None:
        self.said.append(("commit", txid))

    def rollback(self) -> None:
        self.said.append("rollback")


class Keeps(StatefulBolt[Any]):
    """Acks every tuple and keeps it; keeps the calls of its hooks."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.hooks: list[Any] = []

    def prepare(self, configuration: Any, context: Any, collector: Any) -> None:
        self.collector = collector

    def init_state(self, state: Any) -> None:
        self.hooks.append(("init", state))

    def execute(self, input: Tuple) -> None:
        self.seen.append(input[0])
        self.collector.ack(input)

    def pre_commit(self, txid: int) -> None:
        self.hooks.append(("commit", txid))


class Case:
    """A bolt "b" between two tasks of "u" (1 and 2) and one of "v" (3), all of which send barriers."""

    def __init__(self, bolt: RichBolt | None = None, sources: tuple[str, ...] = ("v",)) -> None:
        self.states = Recorded()
        self.user = bolt or Keeps()
        wrap: Any = StatefulBoltExecutor if isinstance(self.user, StatefulBolt) else CheckpointForwarder
        self.bolt = wrap(self.user)
        self.collector = Collected()
        inputs = tuple(Subscription(each, CHECKPOINT_STREAM, Grouping(GroupingKind.ALL)) for each in sources)
        tasks = {"u": [1, 2], "v": [3], "b": [4]}
        graph = Graph({"b": Component("b", "bolt", 1, 1, inputs)})
        context = TopologyContext("b", 4, 0, ManualClock(), graph, tasks)
        self.bolt.prepare({PROVIDER_KEY: self.states}, context, self.collector)
        self.attempt = 0

    def data(self, value: object, task: int = 3) -> Tuple:
        sent = Tuple([value], ["value"], "v", "default", task)
        self.bolt.execute(sent)
        return sent

    def barrier(self, action: str, txid: int, task: int = 3, new: bool = True) -> Tuple:
        self.attempt += new
        values = [txid, action, (1, self.attempt)]
        sent = Tuple(values, ("txid", "action", "attempt"), CHECKPOINT_SPOUT, CHECKPOINT_STREAM, task)
        self.bolt.execute(sent)
        return sent

    def said(self) -> list[Any]:
        """What the collector was told since the last call, without the values of emits."""
        said, self.collector.said = self.collector.said, []
        return [(each[0], each[2] if each[0] == "emit" else each[1]) for each in said]


def test_g5_tuples_before_initialisation_are_buffered() -> None:
    """They are neither executed nor acked until INITSTATE gives the state; then in the order they came."""
    case = Case()
    case.data("a")
    case.data("b")
    assert (case.user.seen, case.said()) == ([], [])  # type: ignore[attr-defined] # it is a Keeps
    barrier = case.barrier("initstate", 0)
    assert isinstance(case.user, Keeps)
    assert (case.user.hooks, case.user.seen) == ([("init", case.states)], ["a", "b"])
    assert case.said() == [("emit", barrier), ("ack", barrier)]
    case.barrier("initstate", 0)
    assert len(case.user.hooks) == 1


@pytest.mark.parametrize(
    ("actions", "state", "hooks"),
    [
        ([("rollback", 0)], ["rollback"], []),
        ([("commit", 0)], [("commit", 0)], [("commit", 0)]),
        ([("commit", 100), ("rollback", 100)], [("commit", 100), "rollback"], [("commit", 100)]),
    ],
)
def test_g6_rollback_and_commit_are_accepted_before_initialisation_and_reach_the_state_once(
    actions: list[tuple[str, int]], state: list[Any], hooks: list[Any]
) -> None:
    """Each is forwarded and acked. Corrected: a rollback fails what waits, since it fails its siblings elsewhere."""
    case = Case()
    waiting = case.data("a")
    for action, txid in actions:
        barrier = case.barrier(action, txid)
        failed = [("fail", waiting)] if action == "rollback" else []
        assert case.said() == [*failed, ("emit", barrier), ("ack", barrier)]
    assert isinstance(case.user, Keeps)
    assert (case.states.said, case.user.hooks, case.user.seen) == (state, hooks, [])


@pytest.mark.parametrize("bolt", [Keeps(), AckOnly()])
def test_a_task_that_began_anew_fails_a_prepare(bolt: RichBolt) -> None:
    """So everybody rolls back, and what the dead task lost is counted nowhere; with or without a state."""
    case = Case(bolt)
    barrier = case.barrier("prepare", 3)
    assert case.said()[-1] == ("fail", barrier)
    assert case.states.said == []
    case.barrier("initstate", 2)
    barrier = case.barrier("prepare", 3)
    assert case.said()[-1] == ("ack", barrier)


def test_acks_go_out_only_after_the_commit() -> None:
    """What was acked after the prepare belongs to the next transaction; a rollback fails both."""
    case = Case()
    case.barrier("initstate", -1)
    first = case.data("a")
    case.barrier("prepare", 0)
    second = case.data("b")
    assert ("ack", first) not in case.said()
    case.barrier("commit", 0)
    said = case.said()
    assert ("ack", first) in said
    assert ("ack", second) not in said
    case.barrier("prepare", 1)
    third = case.data("c")
    case.said()
    case.barrier("rollback", 1)
    assert case.said()[:2] == [("fail", second), ("fail", third)]
    case.barrier("commit", 1)
    assert [what for what, _ in case.said()] == ["emit", "ack"]


def test_x13_checkpoint_from_two_upstream_tasks() -> None:
    """Three copies, one action, anchored to the last; what comes behind a copy waits; older transactions do nothing."""
    case = Case(sources=("u", "v"))
    assert isinstance(case.user, Keeps)
    for task in (1, 2, 3):
        case.barrier("initstate", 4, task, new=task == 1)
    case.said()
    copies = [case.barrier("prepare", 5, task, new=task == 1) for task in (1, 2)]
    case.data("behind", 1)
    case.data("before", 3)
    assert case.said() == [("ack", copies[0]), ("ack", copies[1])]
    assert (case.user.seen, case.states.said) == (["before"], [])
    last = case.barrier("prepare", 5, 3, new=False)
    assert case.said() == [("emit", last), ("ack", last)]
    assert (case.user.seen, case.states.said) == (["before", "behind"], [("prepare", 5)])
    stale = [case.barrier("commit", 4, task, new=task == 1) for task in (1, 2, 3)]
    assert case.said() == [("ack", each) for each in stale]


def test_what_waited_behind_an_abandoned_barrier_comes_before_the_next_one() -> None:
    """A rollback then undoes it, as it undoes what its siblings did."""
    case = Case(sources=("u", "v"))
    assert isinstance(case.user, Keeps)
    for task in (1, 2, 3):
        case.barrier("initstate", 4, task, new=task == 1)
    case.barrier("prepare", 5, 1)
    waited = case.data("waited", 1)
    for task in (1, 2):
        case.barrier("rollback", 5, task, new=task == 1)
    assert case.user.seen == ["waited"]
    case.said()
    case.barrier("rollback", 5, 3, new=False)
    assert case.said()[0] == ("fail", waited)


def test_an_error_in_a_checkpoint_fails_it_and_the_bolt_survives() -> None:
    """It is reported, and nothing is forwarded."""

    class Unwilling(Keeps):
        def pre_prepare(self, txid: int) -> None:
            raise RuntimeError("not now")

    case = Case(Unwilling())
    case.barrier("initstate", 0)
    case.said()
    barrier = case.barrier("prepare", 1)
    assert case.said() == [("report", "not now"), ("fail", barrier)]
    assert case.states.said == []


@pytest.mark.parametrize("second", [Count(), AckOnly()])
def test_g9_wiring_of_the_checkpoint_stream(second: RichBolt) -> None:
    """A bolt hears the coordinator if it reads a spout, and every bolt that it reads; with a state or without."""
    builder = TopologyBuilder()
    builder.set_spout("s1", FeedSpout())
    builder.set_spout("s2", FeedSpout())
    builder.set_bolt("b1", Count()).shuffle_grouping("s1").shuffle_grouping("s2")
    builder.set_bolt("b2", second).shuffle_grouping("s1")
    builder.set_bolt("b3", Count()).shuffle_grouping("b1").shuffle_grouping("b2")
    graph = builder.build().graph.components
    inputs = {name: [(each.component, each.stream) for each in graph[name].inputs] for name in ("b1", "b2", "b3")}
    assert {name for name, each in graph.items() if each.kind == "spout"} == {"s1", "s2", CHECKPOINT_SPOUT}
    assert inputs == {
        "b1": [("s1", "default"), ("s2", "default"), (CHECKPOINT_SPOUT, CHECKPOINT_STREAM)],
        "b2": [("s1", "default"), (CHECKPOINT_SPOUT, CHECKPOINT_STREAM)],
        "b3": [("b1", "default"), ("b2", "default"), ("b1", CHECKPOINT_STREAM), ("b2", CHECKPOINT_STREAM)],
    }


def test_a_topology_without_stateful_bolts_has_no_checkpoints() -> None:
    """It is wired as it was declared."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout())
    builder.set_bolt("b", AckOnly()).shuffle_grouping("s")
    assert set(builder.build().graph.components) == {"s", "b"}
    with pytest.raises(TopologyError, match="reserved"):
        builder.set_bolt(CHECKPOINT_SPOUT, AckOnly())


def test_an_emit_that_names_no_anchors_is_refused() -> None:
    """In every bolt of a stateful topology; None is an answer."""

    class Forgets(Identity):
        def execute(self, input: Tuple) -> None:
            self.collector.emit(input.values, None)
            self.collector.emit(input.values)

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout())
    builder.set_bolt("b", Forgets()).shuffle_grouping("s")
    builder.set_bolt("count", Count()).shuffle_grouping("b")
    topology = running(builder, MemoryStateProvider())
    topology.feed("s", ["a"])
    with pytest.raises(UsageError, match="pass anchors"):
        topology.settle()
    assert topology.emitted("b") == [["a"]]


def test_a_value_that_no_state_can_store_is_one_tuples_affair() -> None:
    """Its task dies of it as of any exception; the topology and the tuples after it go on."""
    topology = running(chain(Count()))
    topology.feed("s", [Unstorable.ONE], message_id="bad")
    topology.advance(2)
    topology.feed("s", ["a"], message_id="good")
    topology.advance(25)
    assert [str(error) for error in topology.errors("b1") if isinstance(error, StateError)]
    assert (topology.acks("s"), topology.fails("s")) == (["good"], ["bad"])
