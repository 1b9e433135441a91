"""Stateful bolts that the cases share, and a short way to start a topology with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reliable_spark import OutputCollector, OutputFieldsDeclarer, RichBolt, Settings, TopologyContext, Tuple
from reliable_spark.settings import TopologySettings
from reliable_spark.state import KeyValueState, MemoryStateProvider
from reliable_spark.testing import FeedSpout, TestTopology
from reliable_spark.topology import StatefulBolt, TopologyBuilder


class Count(StatefulBolt[KeyValueState[Any, int]]):
    """Counts values, and passes each on with its count."""

    def __init__(self) -> None:
        self.hooks: list[Any] = []

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(["value", "count"])

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        self.collector = collector
        self.hooks.append("prepare")

    def init_state(self, state: KeyValueState[Any, int]) -> None:
        self.counts = state
        self.hooks.append("init_state")

    def execute(self, input: Tuple) -> None:
        count = self.counts.get(input[0], 0) + 1
        self.counts.put(input[0], count)
        self.collector.emit([input[0], count], anchors=input)
        self.collector.ack(input)

    def pre_prepare(self, txid: int) -> None:
        self.hooks.append(("prepare", txid))

    def pre_commit(self, txid: int) -> None:
        self.hooks.append(("commit", txid))

    def pre_rollback(self) -> None:
        self.hooks.append("rollback")


def chain(*bolts: RichBolt) -> TopologyBuilder:
    """A FeedSpout "s", then the bolts "b1", "b2" and so on in a row, grouped by their first field."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]))
    for number, bolt in enumerate(bolts, 1):
        builder.set_bolt(f"b{number}", bolt).fields_grouping("s" if number == 1 else f"b{number - 1}", ["value"])
    return builder


def running(builder: TopologyBuilder, provider: Any = None, **settings: Any) -> TestTopology:
    """The topology on a provider that another run may have filled."""
    own = TopologySettings(state_provider=provider or MemoryStateProvider())
    return TestTopology(builder, Settings(**{"message_timeout_s": 10, "topology": own, **settings}))


def feed(topology: TestTopology, *ids: Any) -> None:
    """Feed one value per id, the id itself, and settle."""
    for each in ids:
        topology.feed("s", [each], message_id=each)
    topology.settle()
