"""Group E: groupings between tasks, several streams, direct streams."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reliable_spark import OutputFieldsDeclarer, TopologyContext, Tuple, UsageError
from reliable_spark.core.groupings import GroupingKind
from reliable_spark.process.outbound import chooser
from reliable_spark.testing import Branch
from tests.topology.pieces import (
    AckOnly,
    Does,
    FeedSpout,
    Identity,
    TestTopology,
    TopologyBuilder,
    feed,
    keep,
    keep_values,
    started,
)


def spread(grouping: str, *arguments: Any, tasks: int = 4, fields: Sequence[str] = ("value",)) -> TopologyBuilder:
    """Spout "s" to a bolt "b" of several tasks."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(fields), 1)
    getattr(builder.set_bolt("b", Does(keep_values), tasks), grouping)("s", *arguments)
    return builder


def seen(topology: TestTopology, component: str, tasks: int) -> list[list[Any]]:
    return [topology.state(component, task) for task in range(tasks)]


def test_e1_round_robin_shuffle_is_exact() -> None:
    """After 30 000 picks each of six tasks has 5 000; ten threads on one grouping give 50 000 each."""
    choose = chooser(GroupingKind.SHUFFLE, [], range(6), seed=1)
    assert Counter(choose([None])[0] for _ in range(30_000)) == dict.fromkeys(range(6), 5_000)
    with ThreadPoolExecutor(10) as threads:
        picks = threads.map(lambda _: Counter(choose([None])[0] for _ in range(30_000)), range(10))
        assert sum(picks, Counter()) == dict.fromkeys(range(6), 50_000)


@pytest.mark.parametrize("grouping", ["shuffle_grouping", "local_or_shuffle_grouping"])
def test_e1_shuffle_between_tasks_is_exact(grouping: str) -> None:
    """Twelve tuples over four tasks: three each, whatever they hold."""
    topology = started(spread(grouping))
    feed(topology, *[7] * 12)
    assert [topology.executed("b", task=task) for task in range(4)] == [3, 3, 3, 3]


def test_none_grouping_reaches_every_task() -> None:
    """Uniformly spread: of 400 tuples no task of four has fewer than 60, and not all the same."""
    topology = started(spread("none_grouping"))
    feed(topology, *range(400))
    counts = [topology.executed("b", task=task) for task in range(4)]
    assert (sum(counts), min(counts) >= 60, len(set(counts)) > 1) == (400, True, True)


def count_words(bolt: Does, input: Tuple) -> None:
    bolt.state.append(input["word"])
    bolt.collector.emit([input["word"], bolt.state.count(input["word"])], anchors=input)
    bolt.collector.ack(input)


def test_e2_fields_grouping_the_same_key_always_the_same_task() -> None:
    """Counts kept inside each task are right: 24 of each of two byte keys from four spout tasks."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["word"]), 4)
    builder.set_bolt("count", Does(count_words, ["word", "count"]), 6).fields_grouping("s", ["word"])
    topology = started(builder)
    feed(topology, *[b"a", b"b"] * 24)
    expected = [[word, number] for word in (b"a", b"b") for number in range(1, 25)]
    assert sorted(topology.emitted("count")) == expected
    assert len(topology.acks("s")) == 48


def test_e2_one_key_on_two_streams_is_one_task() -> None:
    """A tracker with key groupings on two streams sees every key in exactly one of its tasks."""

    def split(bolt: Does, input: Tuple) -> None:
        bolt.collector.emit([input["value"] % 5, "left"], anchors=input)
        bolt.collector.emit([input["value"] % 5], anchors=input, stream="right")
        bolt.collector.ack(input)

    class Splitter(Does):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(["key", "side"])
            declarer.declare_stream("right", ["key"])

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("split", Splitter(split), 2).shuffle_grouping("s")
    tracker = builder.set_bolt("track", Does(keep_values), 4)
    tracker.fields_grouping("split", ["key"]).fields_grouping("split", ["key"], stream="right")
    topology = started(builder)
    feed(topology, *range(200))
    keys = [{values[0] for values in each} for each in seen(topology, "track", 4)]
    assert sum(len(each) for each in keys) == 5
    assert set().union(*keys) == set(range(5))
    assert topology.executed("track") == 400
    assert len(topology.acks("s")) == 200


def test_e2_the_same_placement_in_another_process() -> None:
    """Python's own hash of a text differs between processes; the grouping's does not."""
    program = "from reliable_spark.core.groupings import fields_target as f; print([f([k], 97) for k in 'abcdefgh'])"
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


class FirstTasks:
    """The first n of the receiving tasks."""

    def __init__(self, n: int) -> None:
        self.n = n

    def prepare(self, context: TopologyContext, stream: tuple[str, str], tasks: Sequence[int]) -> None:
        assert stream == (context.component, "default")
        self.tasks = tasks[: self.n]

    def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
        return self.tasks


def test_e3_custom_grouping_to_several_tasks() -> None:
    """Each value reaches two and three tasks, and is acked only when all five have acked it."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("x", Identity(), 4).custom_grouping("s", FirstTasks(2))
    builder.set_bolt("y", Identity(), 6).custom_grouping("s", FirstTasks(3))
    topology = started(builder)
    feed(topology, "a", "b")
    assert sorted(topology.emitted("x")) == [["a"], ["a"], ["b"], ["b"]]
    assert sorted(topology.emitted("y")) == [["a"]] * 3 + [["b"]] * 3
    assert topology.acks("s") == ["a", "b"]

    holding = TopologyBuilder()
    holding.set_spout("s", FeedSpout(["value"]), 1)
    holding.set_bolt("x", Identity(), 4).custom_grouping("s", FirstTasks(2))
    holding.set_bolt("y", Does(hold_in_third_task), 6).custom_grouping("s", FirstTasks(3))
    topology = started(holding, timeout=10)
    feed(topology, "a")
    assert (topology.acks("s"), topology.pending("s")) == ([], 1)
    topology.advance(20)
    assert topology.fails("s") == ["a"]


def hold_in_third_task(bolt: Does, input: Tuple) -> None:
    if bolt.context.task_index != 2:
        bolt.collector.ack(input)


def test_each_emitter_has_its_own_custom_grouping() -> None:
    """What one emitting task's grouping remembers the other's does not."""

    class Alternating(FirstTasks):
        def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
            self.n += 1
            return [self.tasks[self.n % 2]]

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 2)
    builder.set_bolt("b", Does(keep_values), 2).custom_grouping("s", Alternating(2))
    topology = started(builder)
    feed(topology, 1, 2)
    assert sorted(topology.executed("b", task=task) for task in range(2)) == [0, 2]


def test_a_custom_grouping_may_choose_no_task_but_no_strangers() -> None:
    """Nobody gets the tuple and its tree is complete; a task of another component is refused."""

    class Strangers(FirstTasks):
        def choose_tasks(self, task: int, values: Sequence[Any]) -> Sequence[int]:
            return [task]

    nobody = started(spread("custom_grouping", FirstTasks(0)))
    feed(nobody, 1)
    assert (nobody.acks("s"), nobody.executed("b")) == ([1], 0)
    with pytest.raises(UsageError, match="custom grouping chose task"):
        feed(started(spread("custom_grouping", Strangers(1))), 1)


@pytest.mark.parametrize(("arguments", "fields"), [((), ["value"]), ((["key"],), ["key"])])
def test_e4_partial_key_grouping_alternates_two_tasks(arguments: tuple[Any, ...], fields: list[str]) -> None:
    """The same key goes to p, q, p, one task per pick, by the first value or by a named field."""
    topology = started(spread("partial_key_grouping", *arguments, tasks=6, fields=fields))
    picks = []
    for _ in range(3):
        before = [topology.executed("b", task=task) for task in range(6)]
        feed(topology, "same")
        after = [topology.executed("b", task=task) for task in range(6)]
        picks.append([low != high for low, high in zip(before, after, strict=True)])
    assert [sum(each) for each in picks] == [1, 1, 1]
    assert picks[0] == picks[2] != picks[1]


def test_e6_all_grouping_more_tasks_than_executors() -> None:
    """Every one of six tasks on three executors gets the tuple; it is acked once, after all six."""

    def tell(bolt: Does, input: Tuple) -> None:
        bolt.collector.emit([bolt.context.task_index], anchors=input)
        bolt.collector.ack(input)

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("b", Does(tell), 3).set_num_tasks(6).all_grouping("s")
    builder.set_bolt("last", Does(keep), 1).shuffle_grouping("b")
    topology = started(builder)
    feed(topology, 1)
    assert sorted(topology.emitted("b")) == [[0], [1], [2], [3], [4], [5]]
    assert topology.acks("s") == []
    held = topology.state("last")
    assert len({value for each in held for value in each.edges.values()}) == 6

    acking = TopologyBuilder()
    acking.set_spout("s", FeedSpout(["value"]), 1)
    acking.set_bolt("b", AckOnly(), 3).set_num_tasks(6).all_grouping("s")
    topology = started(acking)
    feed(topology, 1)
    assert (topology.acks("s"), topology.executed("b")) == ([1], 6)


@pytest.mark.parametrize("workers", [1, 2])
def test_e9_word_count_through_fields_global_and_a_chain(workers: int) -> None:
    """Counters by word, a global counter on the spout, and one on the counters' output: all exact, in order."""

    def count_all(bolt: Does, input: Tuple) -> None:
        bolt.state.append(input)
        bolt.collector.emit([len(bolt.state)], anchors=input)
        bolt.collector.ack(input)

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["word"]), 3)
    builder.set_bolt("count", Does(count_words, ["word", "count"]), 4).fields_grouping("s", ["word"])
    builder.set_bolt("all", Does(count_all), 1).global_grouping("s")
    builder.set_bolt("chain", Does(count_all), 1).global_grouping("count")
    topology = started(builder, workers=workers)
    feed(topology, "nathan", "bob", "joey", "nathan")
    assert sorted(topology.emitted("count")) == [["bob", 1], ["joey", 1], ["nathan", 1], ["nathan", 2]]
    assert topology.emitted("all") == topology.emitted("chain") == [[1], [2], [3], [4]]
    assert sorted(topology.acks("s")) == ["bob", "joey", "nathan", "nathan"]
    assert topology.executed("__acker", task=workers - 1) > 0
    with pytest.raises(UsageError, match="has the tasks"):
        topology.executed("__acker", task=workers)


def test_global_grouping_takes_the_lowest_task() -> None:
    """All tuples go to the first task."""
    topology = started(spread("global_grouping"))
    feed(topology, *range(5))
    assert [topology.executed("b", task=task) for task in range(4)] == [5, 0, 0, 0]


def test_a_direct_stream_goes_where_the_emitter_says() -> None:
    """`emit_direct` reaches the task that is named; a component that does not subscribe gets nothing."""

    class Director(Does):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(["value"], direct=True)

    def direct(bolt: Does, input: Tuple) -> None:
        component, place = input["value"]
        bolt.collector.emit_direct(bolt.context.component_tasks(component)[place], [place], anchors=input)
        bolt.collector.ack(input)

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("director", Director(direct), 1).shuffle_grouping("s")
    builder.set_bolt("target", Does(keep_values), 3).direct_grouping("director")
    builder.set_bolt("other", Does(keep_values), 3).shuffle_grouping("s")
    topology = started(builder)
    feed(topology, ("target", 2), ("target", 0), ("target", 2), ("other", 1))
    assert seen(topology, "target", 3) == [[[0]], [], [[2], [2]]]
    assert topology.acks("s") == [("target", 2), ("target", 0), ("target", 2), ("other", 1)]
    figures = topology.statistics("director").outputs["default"]
    assert (figures.emitted, figures.transferred) == (4, 3)


@pytest.mark.parametrize(
    ("is_subscribed", "emit", "said"),
    [
        (True, lambda bolt, input: bolt.collector.emit([1]), "is direct: use emit_direct"),
        (True, lambda bolt, input: bolt.collector.emit_direct(99, [1]), "there is no task 99"),
        (False, lambda bolt, input: bolt.collector.emit_direct(1, [1]), "no subscriber"),
    ],
)
def test_misuse_of_a_direct_stream(is_subscribed: bool, emit: Any, said: str) -> None:
    """What could reach nobody by mistake is refused."""

    class Director(Does):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare(["value"], direct=True)

    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("director", Director(emit), 1).shuffle_grouping("s")
    if is_subscribed:
        builder.set_bolt("target", AckOnly(), 1).direct_grouping("director")
    with pytest.raises(UsageError, match=said):
        feed(started(builder), 1)


def test_branch_emits_n_children() -> None:
    """Each of n children holds the tree up."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("branch", Branch(5), 1).shuffle_grouping("s")
    builder.set_bolt("sink", AckOnly(), 2).shuffle_grouping("branch")
    topology = started(builder)
    feed(topology, 1)
    assert topology.emitted("branch") == [[0], [1], [2], [3], [4]]
    assert (topology.executed("sink"), topology.acks("s")) == (5, [1])
