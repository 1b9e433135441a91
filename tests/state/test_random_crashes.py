"""Alignment and recovery on random graphs, with a crash after any delivery: the state is that of a clean run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_spark import RichBolt
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.state import MemoryStateProvider
from reliable_spark.testing import FeedSpout, Identity, TestTopology
from reliable_spark.topology import TopologyBuilder
from reliable_spark.topology.checkpoint_spout import NAMESPACE, stored_checkpoint
from tests.state.pieces import Count, running


class Passes(Identity):
    """Emits the first value, anchored."""

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare(["value", "count"])

    def execute(self, input: Any) -> None:
        self.collector.emit([input[0], 0], anchors=input)
        self.collector.ack(input)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[bool, int, list[int]]]:
    """Bolts in order: whether it has a state, its tasks, and which earlier ones it reads (-1 is the spout)."""
    count = draw(st.integers(2, 5))
    bolts = []
    for number in range(count):
        sources = draw(st.sets(st.integers(-1 if number < 2 else 0, number - 1), min_size=1, max_size=3))
        bolts.append((number == count - 1 or draw(st.booleans()), draw(st.integers(1, 3)), sorted(sources)))
    return bolts


def built(graph: list[tuple[bool, int, list[int]]]) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]))
    for number, (is_stateful, tasks, sources) in enumerate(graph):
        bolt: RichBolt = Count() if is_stateful else Passes()
        declarer = builder.set_bolt(f"b{number}", bolt, tasks)
        for source in sources:
            declarer.fields_grouping("s" if source < 0 else f"b{source}", ["value"])
    return builder


def counted(topology: TestTopology, graph: list[tuple[bool, int, list[int]]]) -> dict[str, Counter[Any]]:
    """What each stateful bolt counted, its tasks together."""
    totals = {}
    for number, (is_stateful, tasks, _) in enumerate(graph):
        if is_stateful:
            states = [dict(topology.state(f"b{number}", task)) for task in range(tasks)]
            totals[f"b{number}"] = sum((Counter(each) for each in states), Counter())
    return totals


class Killer:
    """Kills a task after so many deliveries."""

    def __init__(self, topology: TestTopology, after: int, victim: tuple[str, int]) -> None:
        engine: Any = topology._engine
        self.left, self.may_count_twice = after, False
        deliver = engine._deliver

        def counting(task: int, arrived: Any) -> None:
            deliver(task, arrived)
            self.left -= 1
            if self.left == 0:
                is_committing = engine.instance(CHECKPOINT_SPOUT, 0).state.phase == "committing"
                held = getattr(engine.instance(*victim), "_held", None)
                self.may_count_twice = is_committing or bool(held and held._prepared)
                engine.kill_task(*victim)

        engine._deliver = counting


def run(topology: TestTopology, values: list[str]) -> None:
    """Feed one by one, as time passes, until everything is acked."""
    for number, value in enumerate(values):
        topology.feed("s", [value], message_id=number)
        topology.advance(0.4)
    answer_all(topology, values)


def answer_all(topology: TestTopology, values: list[str]) -> None:
    """Feed again what fails, until everything is acked."""
    open_ids = set(range(len(values)))
    for _ in range(200):
        open_ids -= set(topology.acks("s"))
        for number in topology.fails("s"):
            topology.feed("s", [values[number]], message_id=number)
        if not open_ids:
            return
        topology.advance(1)
    raise AssertionError(f"never acked: {open_ids}")


@settings(max_examples=60)
@given(graphs(), st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.integers(1, 300), st.data())
def test_the_state_after_a_crash_is_that_of_a_clean_run(
    graph: list[tuple[bool, int, list[int]]], values: list[str], after: int, data: st.DataObject
) -> None:
    """Unless the task had prepared and died before its acks left: then tuples may count again, and none less."""
    clean = running(built(graph))
    run(clean, values)
    number = data.draw(st.integers(-1, len(graph) - 1))
    victim = (CHECKPOINT_SPOUT, 0) if number < 0 else (f"b{number}", data.draw(st.integers(0, graph[number][1] - 1)))
    provider = MemoryStateProvider()
    crashing = running(built(graph), provider)
    killer = Killer(crashing, after, victim)
    run(crashing, values)
    expected, found = counted(clean, graph), counted(crashing, graph)
    if killer.may_count_twice:
        assert all(found[name] >= expected[name] for name in expected)
    else:
        assert found == expected
    assert stored_checkpoint(provider.state(NAMESPACE)).txid >= 0


def test_a_tree_that_a_rollback_divides_is_counted_once() -> None:
    """One part of a tuple comes before a rollback and is taken back, the other after it: both fail, and come again."""
    graph = [(False, 1, [-1]), (True, 1, [-1, 0])]
    topology = running(built(graph), MemoryStateProvider())
    Killer(topology, 1, ("b0", 0))
    for number in range(4):
        if number % 2 == 0:
            topology._engine._world.clock.advance(0.5)  # type: ignore[attr-defined] # barriers and tuples leave together
        topology.feed("s", ["a"], message_id=number)
        if number % 2 == 1:
            topology.settle()
    answer_all(topology, ["a"] * 4)
    assert counted(topology, graph) == {"b1": Counter(a=8)}
