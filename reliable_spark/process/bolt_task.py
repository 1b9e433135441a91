"""One task of a bolt: the collector that tracks what it does, and the calls into the user's code.

Source: Storm's `executor/bolt/BoltExecutor`, `executor/bolt/BoltOutputCollectorImpl`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.core.statistics import Metric
from reliable_spark.errors import UsageError
from reliable_spark.process.outbound import Outbound
from reliable_spark.process.world import World
from reliable_spark.topology.bolts import Anchors, RichBolt
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.tuples import Tuple


class BoltCollector:
    """Implements `topology.bolts.OutputCollector`; it remembers nothing about a tuple but what the tuple carries."""

    def __init__(self, world: World, context: TopologyContext) -> None:
        self._world = world
        self._context = context
        self._outbound = Outbound(world, context)

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> list[int]:
        """Send a tuple to the tasks that the stream's groupings choose."""
        parents = _as_anchors(anchors)
        targets = self._outbound.targets(values, stream)
        self._outbound.send(values, stream, targets, lambda: self._new_edges(parents))
        return targets

    def emit_direct(
        self, task: int, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Send a tuple to one task by its id."""
        parents = _as_anchors(anchors)
        targets = self._outbound.direct_targets(task, values, stream)
        self._outbound.send(values, stream, targets, lambda: self._new_edges(parents))

    def ack(self, input: Tuple) -> None:
        """Take the tuple out of its trees and announce what was anchored to it, in one message per tree."""
        if not self._world.is_tracking:
            return
        for root, edge in input.edges.items():
            self._outbound.tell_acker("__ack_ack", [root, edge ^ input.children_val])
        self._count(Metric.ACKED, input)
        self._count(Metric.PROCESS_MS, input, (self._world.now_s - input.executed_at_s) * 1000)

    def fail(self, input: Tuple) -> None:
        """Fail every tree of the tuple."""
        if not self._world.is_tracking:
            return
        for root in input.edges:
            self._outbound.tell_acker("__ack_fail", [root])
        self._count(Metric.FAILED, input)

    def reset_timeout(self, input: Tuple) -> None:
        """Let the timeout of every tree of the tuple begin anew."""
        for root in input.edges:
            self._outbound.tell_acker("__ack_reset_timeout", [root])

    def report_error(self, error: BaseException) -> None:
        """Keep the error for whoever looks."""
        self._world.report(self._context.component, error)

    def _count(self, metric: Metric, input: Tuple, amount: float = 1) -> None:
        self._world.count(self._context.task, metric, (input.source_component, input.source_stream), amount)

    def _new_edges(self, anchors: Sequence[Tuple]) -> Mapping[int, int]:
        """One delivery's share of each tree; a tuple named twice as anchor gives two ids that do not cancel."""
        edges: dict[int, int] = {}
        for anchor in anchors:
            if anchor.edges:
                edge = self._world.new_id()
                anchor.children_val ^= edge
                for root in anchor.edges:
                    edges[root] = edges.get(root, 0) ^ edge
        return edges


class BoltTask:
    """A task that runs a user's bolt.

    Args:
        world: what the tasks share.
        context: which task it is.
        bolt: its own copy of the user's bolt.
        configuration: the Storm keys that hold for it.
    """

    def __init__(
        self, world: World, context: TopologyContext, bolt: RichBolt, configuration: Mapping[str, Any]
    ) -> None:
        self.user = bolt
        self._world = world
        self._context = context
        bolt.prepare(configuration, context, BoltCollector(world, context))

    def deliver(self, input: Tuple) -> None:
        """Execute one tuple; whatever the user's code raises comes through."""
        world, task = self._world, self._context.task
        key = (input.source_component, input.source_stream)
        input.executed_at_s = world.now_s
        world.count(task, Metric.EXECUTED, key)
        try:
            self.user.execute(input)
        finally:
            world.count(task, Metric.EXECUTE_MS, key, (world.now_s - input.executed_at_s) * 1000)

    def close(self) -> None:
        """Let the user's bolt clean up."""
        self.user.cleanup()


def _as_anchors(anchors: Anchors) -> Sequence[Tuple]:
    """The anchors as a list.

    Raises:
        UsageError: one of them is no tuple.
    """
    if anchors is None:
        return ()
    parents = (anchors,) if isinstance(anchors, Tuple) else tuple(anchors)
    for each in parents:
        if not isinstance(each, Tuple):
            raise UsageError(f"an anchor is a tuple that the bolt received, not {type(each).__name__}")
    return parents
