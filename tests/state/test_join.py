"""The join of two streams: who is answered when, and what becomes of what finds no match."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_spark import JoinBolt, JoinSide, RichBolt, Settings, TopologyBuilder, TopologyError, UsageError
from reliable_spark.testing import AckOnly, FeedSpout, TestTopology
from tests.topology.pieces import Does, fail


def join(**options: Any) -> JoinBolt:
    select = ["id", "left:name", "right:amount"]
    return JoinBolt(
        JoinSide("names", ["id"]), JoinSide("amounts", ["id"]), options.pop("within_s", 5), select, **options
    )


def joined(bolt: JoinBolt, after: RichBolt | None = None, tasks: int = 1, **values: Any) -> TestTopology:
    builder = TopologyBuilder()
    builder.set_spout("names", FeedSpout(["id", "name"]))
    builder.set_spout("amounts", FeedSpout(["id", "amount"]))
    builder.set_bolt("join", bolt, tasks).fields_grouping("names", ["id"]).fields_grouping("amounts", ["id"])
    builder.set_bolt("end", after or AckOnly()).shuffle_grouping("join")
    return TestTopology(builder, Settings(**values))


def feed(topology: TestTopology, spout: str, id: Any, value: Any) -> None:
    topology.feed(spout, [id, value], message_id=value)
    topology.settle()


def test_both_sides_are_pending_until_matched() -> None:
    """Then one tuple goes out, and both are acked when it is done."""
    topology = joined(join())
    feed(topology, "names", 1, "ada")
    feed(topology, "amounts", 2, 20)
    topology.advance(4)
    assert (topology.acks("names"), topology.pending("names"), topology.pending("amounts")) == ([], 1, 1)
    feed(topology, "amounts", 1, 10)
    assert topology.emitted("join") == [[1, "ada", 10]]
    assert (topology.acks("names"), topology.acks("amounts")) == (["ada"], [10])


def test_what_is_emitted_is_anchored_to_both() -> None:
    """Its failure fails both."""
    topology = joined(join(), after=Does(fail))
    feed(topology, "names", 1, "ada")
    feed(topology, "amounts", 1, 10)
    assert (topology.fails("names"), topology.fails("amounts")) == (["ada"], [10])


def test_what_finds_no_match_fails_when_its_time_is_over() -> None:
    """Its spout may emit it again, and it may find its match then."""
    topology = joined(join())
    feed(topology, "names", 1, "ada")
    topology.advance(5)
    assert topology.fails("names") == ["ada"]
    feed(topology, "amounts", 1, 10)
    assert topology.emitted("join") == []
    feed(topology, "names", 1, "ada")
    assert (topology.emitted("join"), topology.acks("names")) == ([[1, "ada", 10]], ["ada"])


def test_or_goes_to_a_stream() -> None:
    """As a copy that says where it came from; it is acked."""
    topology = joined(join(unmatched_stream="alone"))
    feed(topology, "amounts", 1, 10)
    topology.advance(5)
    [[alone]] = topology.emitted("join", "alone")
    assert (alone.as_dict(), alone.source_component) == ({"id": 1, "amount": 10}, "amounts")
    assert (topology.acks("amounts"), topology.fails("amounts")) == ([10], [])


def test_a_tuple_matches_once_the_oldest_first() -> None:
    """Of two equal keys the second waits for a match of its own."""
    topology = joined(join())
    for name in ("ada", "eva"):
        feed(topology, "names", 1, name)
    feed(topology, "amounts", 1, 10)
    assert (topology.emitted("join"), topology.acks("names")) == ([[1, "ada", 10]], ["ada"])
    feed(topology, "amounts", 1, 11)
    assert (topology.emitted("join"), topology.acks("names")) == ([[1, "eva", 11]], ["eva"])


def test_or_all_that_come_in_time() -> None:
    """Then what matched is acked when its time is over, and what did not still fails."""
    topology = joined(join().with_all_matches())
    feed(topology, "names", 1, "ada")
    feed(topology, "names", 2, "eva")
    feed(topology, "amounts", 1, 10)
    topology.advance(3)
    feed(topology, "amounts", 1, 11)
    assert topology.emitted("join") == [[1, "ada", 10], [1, "ada", 11]]
    assert topology.acks("names") == []
    topology.advance(2)
    assert (topology.acks("names"), topology.acks("amounts"), topology.fails("names")) == (["ada"], [10], ["eva"])
    topology.advance(3)
    assert topology.acks("amounts") == [11]


def test_a_dead_tasks_tuples_come_again() -> None:
    """They time out, like all that a dead task held."""
    topology = joined(join(), message_timeout_s=10)
    feed(topology, "names", 1, "ada")
    topology.kill_task("join", 0)
    topology.advance(20)
    assert topology.fails("names") == ["ada"]


def test_joins_that_cannot_work_are_refused() -> None:
    """What would time out while it waits, a side that is not read, a selection of neither side."""
    with pytest.raises(TopologyError, match=r"up to 31.* s, longer than topology\.message\.timeout\.secs=30"):
        joined(join(within_s=30))
    joined(join(within_s=29))
    builder = TopologyBuilder()
    builder.set_spout("names", FeedSpout(["id", "name"]))
    builder.set_bolt("join", join()).shuffle_grouping("names")
    with pytest.raises(TopologyError, match="does not subscribe to its side"):
        TestTopology(builder)
    builder = TopologyBuilder()
    for name in ("names", "amounts", "others"):
        builder.set_spout(name, FeedSpout(["id", name.removesuffix("s")]))
    builder.set_bolt("join", join()).all_grouping("names").all_grouping("amounts").all_grouping("others")
    with pytest.raises(TopologyError, match=r"subscribes to \('others', 'default'\), which is none of its sides"):
        TestTopology(builder)
    with pytest.raises(UsageError, match=r"both sides of a join are \('a', 'default'\)"):
        JoinBolt(JoinSide("a", "id"), JoinSide("a", "id"), 5, ["left:id"])
    with pytest.raises(UsageError, match="as many fields on both sides"):
        JoinBolt(JoinSide("a", "id"), JoinSide("b", ["id", "at"]), 5, ["left:id"])
    with pytest.raises(UsageError, match="a side of a join is a JoinSide, not str"):
        JoinBolt("a", JoinSide("b", "id"), 5, ["left:id"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'left:field'"):
        JoinBolt(JoinSide("a", "id"), JoinSide("b", "id"), 5, ["middle:id"])
    for within_s in (0, -1, 1e-9, float("nan"), float("inf"), "5", None):
        with pytest.raises(UsageError, match=r"within_s is a number of seconds, 0\.000001 or more, not "):
            join(within_s=within_s)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([1, [2]], (1, (2,))),
        (numpy.array([1, 2]), [1, 2]),
        ({"a": [1]}, {"a": (1,)}),
        ({1, 2}, frozenset([2, 1])),
        (bytearray(b"a"), b"a"),
    ],
    ids=str,
)
def test_collections_are_keys_as_they_are_for_a_grouping(left: Any, right: Any) -> None:
    """Which takes these for one, and sends them to one task."""
    topology = joined(join(), tasks=2)
    feed(topology, "names", left, "ada")
    feed(topology, "amounts", [9], 90)
    feed(topology, "amounts", right, 10)
    assert [values[1:] for values in topology.emitted("join")] == [["ada", 10]]
    assert (topology.acks("names"), topology.acks("amounts"), topology.errors("join")) == (["ada"], [10], [])


def test_what_cannot_be_a_key_fails_alone() -> None:
    """And says so; what waits goes on waiting."""

    @dataclass
    class Unhashable:
        number: int

    builder = TopologyBuilder()
    builder.set_spout("names", FeedSpout(["id", "name"]))
    builder.set_spout("amounts", FeedSpout(["id", "amount"]))
    builder.set_bolt("join", join()).global_grouping("names").global_grouping("amounts")
    topology = TestTopology(builder)
    feed(topology, "names", 1, "ada")
    feed(topology, "names", [Unhashable(1)], "eva")
    assert topology.fails("names") == ["eva"]
    [error] = topology.errors("join")
    assert "the key of a tuple from 'names' cannot be compared: unhashable type: 'Unhashable'" in str(error)
    feed(topology, "amounts", 1, 10)
    assert (topology.emitted("join"), topology.acks("names")) == ([[1, "ada", 10]], ["ada"])


@pytest.mark.parametrize(
    ("key", "select", "said"),
    [
        ("id", "left:nam", "join 'join' selects unknown field 'left:nam'; did you mean 'left:name'?"),
        ("id", "right:name", "join 'join' selects unknown field 'right:name'; did you mean 'right:amount'?"),
        ("id", "amuont", "join 'join' selects unknown field 'amuont'; did you mean 'amount'?"),
        ("ids", "id", "the key of ('names', 'default') in 'join' has no 'ids'; did you mean 'id'?"),
    ],
)
def test_a_field_that_is_in_no_side_is_refused(key: str, select: str, said: str) -> None:
    """When the topology starts, before anything has found its match."""
    with pytest.raises(TopologyError, match=f"^{re.escape(said)}$"):
        joined(JoinBolt(JoinSide("names", [key]), JoinSide("amounts", ["id"]), 5, [select]))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["names", "amounts"]), st.integers(0, 2), st.integers(0, 3)), max_size=15))
def test_every_tuple_is_answered_exactly_once(fed: list[tuple[str, int, int]]) -> None:
    """Acked with its one match, or failed without; as many of each side are matched, and never across keys."""
    topology = joined(join(), tasks=2)
    keys = {}
    for number, (spout, key, pause) in enumerate(fed):
        keys[number] = key
        feed(topology, spout, key, number)
        topology.advance(pause)
    topology.advance(10)
    pairs = [(left, right) for _, left, right in topology.emitted("join")]
    assert all(keys[left] == keys[right] for left, right in pairs)
    acked = Counter([*topology.acks("names"), *topology.acks("amounts")])
    failed = Counter([*topology.fails("names"), *topology.fails("amounts")])
    assert acked == Counter(each for pair in pairs for each in pair)
    assert acked + failed == Counter(range(len(fed)))
