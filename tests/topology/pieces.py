"""Spouts and bolts that the cases share, and a short way to start a topology."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from reliable_spark import (
    BasicBolt,
    BasicOutputCollector,
    OutputCollector,
    OutputFieldsDeclarer,
    RichBolt,
    Settings,
    Spout,
    SpoutOutputCollector,
    TopologyBuilder,
    TopologyContext,
    Tuple,
)
from reliable_spark.testing import AckOnly, FeedSpout, Identity, TestTopology


def started(builder: TopologyBuilder, engine: str = "process", **storm: Any) -> TestTopology:
    """The topology under Storm's keys; `timeout=10` and `ackers=0` stand for the two that matter most."""
    short = {"timeout": "topology.message.timeout.secs", "ackers": "topology.acker.executors"}
    keys = {short.get(name, f"topology.{name.replace('_', '.')}"): value for name, value in storm.items()}
    return TestTopology(builder, Settings.from_storm(keys), engine)


def line(*bolts: RichBolt | BasicBolt) -> TopologyBuilder:
    """A FeedSpout "s", then the bolts "b1", "b2" and so on in a row."""
    return line_from(FeedSpout(["value"]), *bolts)


def line_from(spout: Spout, *bolts: RichBolt | BasicBolt) -> TopologyBuilder:
    """A spout "s", then the bolts "b1", "b2" and so on in a row."""
    builder = TopologyBuilder()
    builder.set_spout("s", spout, 1)
    for number, bolt in enumerate(bolts, 1):
        builder.set_bolt(f"b{number}", bolt, 1).shuffle_grouping("s" if number == 1 else f"b{number - 1}")
    return builder


def feed(topology: TestTopology, *ids: Any) -> None:
    """Feed one value per id, the id itself, and settle."""
    for each in ids:
        topology.feed("s", [each], message_id=each)
    topology.settle()


class Does(RichBolt):
    """Runs an action on every tuple; keeps what the action puts into its state."""

    def __init__(self, action: Callable[[Does, Tuple], object], fields: Sequence[str] = ("value",)) -> None:
        self.action = action
        self.fields = fields
        self.state: list[Any] = []
        self.collector: OutputCollector
        self.context: TopologyContext

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.fields)

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        self.collector, self.context = collector, context

    def execute(self, input: Tuple) -> None:
        self.action(self, input)


def keep(bolt: Does, input: Tuple) -> None:
    """Keep the tuple, neither ack nor fail."""
    bolt.state.append(input)


def keep_values(bolt: Does, input: Tuple) -> None:
    """Keep the values and ack."""
    bolt.state.append(input.values)
    bolt.collector.ack(input)


def fail(bolt: Does, input: Tuple) -> None:
    """Fail every tuple."""
    bolt.collector.fail(input)


class Raises(BasicBolt):
    """Raises on every tuple."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.error = error

    def execute(self, input: Tuple, collector: BasicOutputCollector) -> None:
        raise self.error("no")


class CountingSpout(Spout):
    """Emits 0, 1, 2 and so on for ever, the value being the message id; `state` tells what it saw."""

    def __init__(self, per_call: int = 1, limit: int | None = None) -> None:
        self.per_call = per_call
        self.limit = limit
        self.state: dict[str, Any] = {"emitted": 0, "acked": [], "failed": [], "calls": [], "most_pending": 0}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(["value"])

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        self.collector, self.context = collector, context

    def activate(self) -> None:
        self.state["calls"].append("activate")

    def deactivate(self) -> None:
        self.state["calls"].append("deactivate")

    def close(self) -> None:
        self.state["calls"].append("close")

    def next_tuple(self) -> None:
        for _ in range(self.per_call):
            if self.limit is None or self.state["emitted"] < self.limit:
                number = self.state["emitted"]
                self.state["emitted"] += 1
                self.collector.emit([number], message_id=number)
        self.state["most_pending"] = max(self.state["most_pending"], self.collector.pending_count())

    def ack(self, message_id: Any) -> None:
        self.state["acked"].append(message_id)

    def fail(self, message_id: Any) -> None:
        self.state["failed"].append(message_id)


__all__ = [
    "AckOnly",
    "CountingSpout",
    "Does",
    "FeedSpout",
    "Identity",
    "Raises",
    "TestTopology",
    "TopologyBuilder",
    "TopologyContext",
    "fail",
    "feed",
    "keep",
    "keep_values",
    "line",
    "line_from",
    "started",
]
