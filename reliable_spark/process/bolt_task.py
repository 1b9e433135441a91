"""One task of a bolt: the collector that tracks what it does, and the calls into the user's code.

Source: Storm's `executor/bolt/BoltExecutor`, `executor/bolt/BoltOutputCollectorImpl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.errors import UsageError
from reliable_spark.process.outbound import Outbound
from reliable_spark.process.world import World
from reliable_spark.topology.bolts import Anchors, BatchingBolt, RichBolt, innermost
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.tuples import Tuple


class BoltCollector:
    """Implements `topology.bolts.OutputCollector`; it remembers nothing about a tuple but what the tuple carries."""

    def __init__(self, world: World, context: TopologyContext) -> None:
        self._world = world
        self._context = context
        self._task = context.task
        self._outbound = Outbound(world, context)

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> list[int]:
        """Send a tuple to the tasks that the stream's groupings choose."""
        parents = (anchors,) if type(anchors) is Tuple else _as_anchors(anchors)
        return self._outbound.emit(values, stream, partial(self._new_edges, parents))

    def emit_direct(
        self, task: int, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Send a tuple to one task by its id."""
        self._outbound.emit_direct(task, values, stream, partial(self._new_edges, _as_anchors(anchors)))

    def ack(self, input: Tuple) -> None:
        """Take the tuple out of its trees and announce what was anchored to it, in one message per tree."""
        world = self._world
        ackers = world.ackers
        if type(input) is not Tuple:
            raise _no_tuple("what is acked", input)
        if not ackers:
            return
        took_s = world.read_time() - input.executed_at_s
        for root, edge in input.edges.items():
            self._outbound.tell(ackers[root % len(ackers)], "__ack_ack", [root, edge ^ input.children_val])
        counted = world.counts[self._task].fresh[input.source_component, input.source_stream]
        counted.acked += 1
        counted.process_ms += took_s * 1000

    def fail(self, input: Tuple) -> None:
        """Fail every tree of the tuple."""
        if type(input) is not Tuple:
            raise _no_tuple("what fails", input)
        if not self._world.is_tracking:
            return
        for root in input.edges:
            self._outbound.tell(self._world.acker_of(root), "__ack_fail", [root])
        self._world.counts[self._task].fresh[input.source_component, input.source_stream].failed += 1

    def reset_timeout(self, input: Tuple) -> None:
        """Let the timeout of every tree of the tuple begin anew."""
        if type(input) is not Tuple:
            raise _no_tuple("what gets more time", input)
        for root in input.edges:
            self._outbound.tell(self._world.acker_of(root), "__ack_reset_timeout", [root])

    def report_error(self, error: BaseException) -> None:
        """Keep the error for whoever looks."""
        self._world.report(self._context.component, error)

    def _new_edges(self, anchors: Sequence[Tuple]) -> Mapping[int, int]:
        """One delivery's share of each tree; a tuple named twice as anchor gives two ids that do not cancel."""
        edges: dict[int, int] = {}
        new_id = self._world.new_id
        for anchor in anchors:
            if anchor.edges:
                edge = new_id()
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
        self._task = context.task
        bolt.prepare(configuration, context, BoltCollector(world, context))

    def deliver(self, input: Tuple) -> None:
        """Execute one tuple, at the time that was read last; whatever the user's code raises comes through."""
        world, key = self._world, (input.source_component, input.source_stream)
        counts = world.counts[self._task]
        input.executed_at_s = world.read_at_s
        counts.fresh[key].executed += 1
        try:
            self.user.execute(input)
        finally:
            took_s = world.read_time() - input.executed_at_s
            counts.fresh[key].execute_ms += took_s * 1000

    def flush(self) -> bool:
        """Let a bolt that batches run what waits; says whether anything did."""
        user = innermost(self.user)
        if not isinstance(user, BatchingBolt):
            return False
        self._world.read_time()
        return user.flush()

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
    parents = tuple(anchors) if isinstance(anchors, Iterable) else (anchors,)
    for each in parents:
        if not isinstance(each, Tuple):
            raise _no_tuple("an anchor", each)
    return parents


def _no_tuple(what: str, given: Any) -> UsageError:
    return UsageError(f"{what} is a tuple that the bolt received, not {type(given).__name__}")
