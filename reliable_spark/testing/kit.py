"""The spout and the bolts of Storm's own reliability tests. Source: Storm's `TopologyIntegrationTest`."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.errors import UsageError, nearest
from reliable_spark.topology.bolts import OutputCollector, RichBolt
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.spouts import Spout, SpoutOutputCollector
from reliable_spark.topology.tuples import Tuple

_FIELDS = ("value",)


class Fed(NamedTuple):
    """A value that waits to be emitted."""

    values: list[Any]
    message_id: Hashable | None
    stream: str


class Feed(deque[Fed]):
    """What waits to be emitted: one queue for all tasks of a spout, which outlives each of them like any source."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Feed:
        """Itself: a spout is copied for every task, its source is not."""
        return self


class FeedSpout(Spout):
    """Emits what a test feeds it, one value per `next_tuple`, in order. It replays nothing by itself.

    Args:
        fields: the fields of the stream "default".
        streams: further streams, by id, with their fields.
    """

    def __init__(self, fields: Sequence[str] = _FIELDS, streams: Mapping[str, Sequence[str]] | None = None) -> None:
        self._streams = {DEFAULT_STREAM: fields, **(streams or {})}
        self._feed = Feed()

    def fed_by(self, feed: Feed) -> FeedSpout:
        """The same spout over another source."""
        spout = FeedSpout()
        spout._streams, spout._feed = self._streams, feed
        return spout

    def check(self, fed: Fed) -> None:
        """Raise UsageError for values that the spout could not emit."""
        if fed.stream not in self._streams:
            raise UsageError(f"the spout has no stream {fed.stream!r}{nearest(fed.stream, self._streams)}")
        fields = self._streams[fed.stream]
        count = 1 if isinstance(fields, str) else len(fields)
        if len(fed.values) != count:
            raise UsageError(f"stream {fed.stream!r} has the fields {fields}, not {len(fed.values)} values")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """As the test says."""
        for stream, fields in self._streams.items():
            declarer.declare_stream(stream, fields)

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Keep the collector."""
        self._collector = collector

    def next_tuple(self) -> None:
        """Emit the value that has waited longest."""
        if self._feed:
            fed = self._feed.popleft()
            self._collector.emit(fed.values, fed.stream, fed.message_id)


class _KitBolt(RichBolt):
    """A bolt that keeps its collector, and declares one field."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """One field."""
        declarer.declare(_FIELDS)

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Keep the collector."""
        self.collector = collector


class Identity(_KitBolt):
    """Emits every tuple's values anchored to it, then acks it. Its fields are those of its first input."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """The fields of the first input."""
        declarer.declare(declarer.input_fields or _FIELDS)

    def execute(self, input: Tuple) -> None:
        """Pass it on."""
        self.collector.emit(input.values, anchors=input)
        self.collector.ack(input)


class AckOnly(_KitBolt):
    """Acks every tuple and emits nothing."""

    def execute(self, input: Tuple) -> None:
        """Done."""
        self.collector.ack(input)


class Branch(_KitBolt):
    """Emits n tuples anchored to each one it gets, with the values 0 to n - 1, then acks it.

    Args:
        n: how many.
    """

    def __init__(self, n: int) -> None:
        self._n = n

    def execute(self, input: Tuple) -> None:
        """Branch out."""
        for number in range(self._n):
            self.collector.emit([number], anchors=input)
        self.collector.ack(input)


class Aggregate(_KitBolt):
    """Holds tuples; of every n it emits one tuple anchored to all of them, acks each, and forgets them.

    Args:
        n: how many.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self.state: list[Tuple] = []

    def execute(self, input: Tuple) -> None:
        """Hold it, or let all go."""
        self.state.append(input)
        if len(self.state) == self._n:
            held, self.state = self.state, []
            self.collector.emit([self._n], anchors=held)
            for each in held:
                self.collector.ack(each)


class AckEveryOther(_KitBolt):
    """Acks the first tuple, the third, the fifth, and leaves the others alone."""

    def __init__(self) -> None:
        self.state = 0

    def execute(self, input: Tuple) -> None:
        """Ack it if it is its turn."""
        self.state += 1
        if self.state % 2:
            self.collector.ack(input)


class DupAnchor(_KitBolt):
    """Emits one tuple that names its input twice as anchor, then acks the input."""

    def execute(self, input: Tuple) -> None:
        """Anchor twice."""
        self.collector.emit([1], anchors=[input, input])
        self.collector.ack(input)
