"""Any acyclic topology: every tracked message is acked or failed exactly once, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_spark import BasicBolt, RichBolt, TopologyBuilder, Tuple
from reliable_spark.testing import AckEveryOther, AckOnly, Aggregate, Branch, DupAnchor, Identity, TestTopology
from tests.topology.pieces import Does, FeedSpout, Raises, started


def fail_some(bolt: Does, input: Tuple) -> None:
    bolt.state.append(None)
    (bolt.collector.fail if len(bolt.state) % 3 == 0 else bolt.collector.ack)(input)


def die_sometimes(bolt: Does, input: Tuple) -> None:
    bolt.state.append(None)
    if len(bolt.state) == 4:
        raise RuntimeError("dead")
    bolt.collector.emit([0], anchors=input)
    bolt.collector.ack(input)


SOUND = [Identity, AckOnly, lambda: Branch(2), DupAnchor, lambda: Branch(0)]
UNSOUND = [lambda: Aggregate(3), AckEveryOther, lambda: Does(fail_some), lambda: Does(die_sometimes), Raises]
GROUPINGS = ["shuffle_grouping", "fields_grouping", "all_grouping", "global_grouping", "none_grouping"]


@st.composite
def topologies(draw: st.DrawFn, bolts: Sequence[Any]) -> TopologyBuilder:
    """Up to three spouts and six bolts; every bolt subscribes to one or two components before it that emit."""
    builder = TopologyBuilder()
    emitting = []
    for number in range(draw(st.integers(1, 3))):
        emitting.append(f"s{number}")
        builder.set_spout(f"s{number}", FeedSpout(["value"]), draw(st.integers(1, 2)))
    for number in range(draw(st.integers(1, 6))):
        bolt: RichBolt | BasicBolt = draw(st.sampled_from(bolts))()
        declarer = builder.set_bolt(f"b{number}", bolt, draw(st.integers(1, 3)))
        for source in draw(st.lists(st.sampled_from(emitting), min_size=1, max_size=2, unique=True)):
            grouping = draw(st.sampled_from(GROUPINGS))
            arguments = [["value"]] if grouping == "fields_grouping" else []
            getattr(declarer, grouping)(source, *arguments)
        if not isinstance(bolt, Raises):
            emitting.append(f"b{number}")
    return builder


def run(
    builder: TopologyBuilder, feeds: list[int], kills: list[int], ackers: int, **storm: Any
) -> tuple[TestTopology, list[Any]]:
    """Feed each spout in turn, kill bolts and ackers on the way, then wait until nothing can be pending."""
    topology = started(builder, timeout=10, ackers=ackers, **storm)
    components = builder.build().graph.components
    spouts = [name for name, each in components.items() if each.kind == "spout"]
    mortal = [name for name, each in components.items() if each.kind == "bolt"] + ["__acker"]
    for number, choice in enumerate(feeds):
        topology.feed(spouts[choice % len(spouts)], [choice], message_id=number)
        topology.advance(choice % 4)
        if number in kills:
            topology.kill_task(mortal[choice % len(mortal)], 0)
    topology.settle()
    topology.advance(20)
    answers = [("acked", each) for spout in spouts for each in topology.acks(spout)]
    answers += [("failed", each) for spout in spouts for each in topology.fails(spout)]
    assert [topology.pending(spout) for spout in spouts] == [0] * len(spouts)
    return topology, answers


FEEDS = st.lists(st.integers(0, 11), min_size=1, max_size=12)


@settings(max_examples=80)
@given(topologies(SOUND + UNSOUND), FEEDS, st.lists(st.integers(0, 11), max_size=3), st.integers(1, 3))
def test_every_message_is_acked_or_failed_exactly_once(
    builder: TopologyBuilder, feeds: list[int], kills: list[int], ackers: int
) -> None:
    """Whatever the bolts do, and whoever of bolts and ackers dies."""
    topology, answers = run(builder, feeds, kills, ackers)
    assert Counter(message_id for _, message_id in answers) == dict.fromkeys(range(len(feeds)), 1)
    topology.advance(100)
    assert all(
        not topology.acks(name) + topology.fails(name) for name in builder.build().graph.components if name[0] == "s"
    )


@settings(max_examples=80)
@given(topologies(SOUND), FEEDS, st.integers(1, 3))
def test_with_sound_bolts_every_message_is_acked(builder: TopologyBuilder, feeds: list[int], ackers: int) -> None:
    """And at once: none needs a timeout."""
    _, answers = run(builder, feeds, [], ackers)
    assert sorted(answers) == [("acked", number) for number in range(len(feeds))]
