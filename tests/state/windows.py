"""Windowed bolts that remember, and a short way to start a topology with one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from reliable_spark import (
    Duration,
    KeyValueState,
    ManualClock,
    OutputFieldsDeclarer,
    RichBolt,
    StatefulWindowedBolt,
    TopologyBuilder,
    TopologyContext,
    TupleWindow,
    WindowedCollector,
)
from reliable_spark.testing import AckOnly, FeedSpout, TestTopology


class Remembers(StatefulWindowedBolt[KeyValueState[str, Any]]):
    """Emits the first values of every window; its state has them all, in order."""

    def __init__(self, *late: str) -> None:
        self.late = late
        self.hooks: list[Any] = []

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(["values"])
        for stream in self.late:
            declarer.declare_stream(stream, ["tuple"])

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: WindowedCollector) -> None:
        self.collector = collector

    def init_state(self, state: KeyValueState[str, Any]) -> None:
        self.seen = state
        self.hooks.append("init_state")

    def execute(self, window: TupleWindow) -> None:
        values = [each[0] for each in window.items]
        self.seen.put("fired", [*self.seen.get("fired", []), values])
        self.collector.emit([values])

    def pre_prepare(self, txid: int) -> None:
        self.hooks.append(("prepare", txid))

    def pre_commit(self, txid: int) -> None:
        self.hooks.append(("commit", txid))

    def pre_rollback(self) -> None:
        self.hooks.append("rollback")


def windowed(bolt: StatefulWindowedBolt[Any], after: RichBolt | None = None, tasks: int = 1) -> TopologyBuilder:
    """A FeedSpout "s" of the field "ts", the bolt "w", and one "end" after it."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["ts"]))
    builder.set_bolt("w", bolt, tasks).fields_grouping("s", ["ts"])
    builder.set_bolt("end", after or AckOnly()).shuffle_grouping("w")
    return builder


def fired(topology: Any) -> list[list[Any]]:
    """The windows that the first task's state has seen."""
    found: list[list[Any]] = topology.state("w", 0).get("fired", [])
    return found


def clock_at(seconds: float) -> ManualClock:
    """A clock that is so far from where clocks of tests begin."""
    return ManualClock(datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds))


def feed(topology: TestTopology, *ids: Any) -> None:
    """Feed one value per id, and settle after each."""
    for each in ids:
        topology.feed("s", [each], message_id=each)
        topology.settle()


def by_events(*late: str) -> StatefulWindowedBolt[Any]:
    """Windows of 20 s every 10 s, by event time."""
    bolt = Remembers(*late).with_window(Duration(20), Duration(10))
    return bolt.with_timestamp("ts", lag_s=5, late_stream=late[0] if late else None)
