"""Spouts of a topology: what users subclass, and the collector they emit through.

Source: Storm's `spout/ISpout`, `topology/IRichSpout`, `spout/SpoutOutputCollector`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.topology.bolts import _Component
from reliable_spark.topology.context import TopologyContext


class SpoutOutputCollector(Protocol):
    """What a spout emits through. Source: Storm's `SpoutOutputCollectorImpl`."""

    def emit(
        self, values: Sequence[Any], stream: str = DEFAULT_STREAM, message_id: Hashable | None = None
    ) -> list[int]:
        """Send a tuple; with a message id its tree is tracked.

        Guarantee: at most one of `ack` and `fail` is called per tracked emit, on the task that emitted. Ids need not
        be unique: two emits are two trees. Without ackers `ack` is called before this method returns.

        Returns:
            The receiving tasks' ids; none when nobody subscribes: a tracked tuple is then acked.

        Raises:
            UsageError: the stream is not declared or is direct, or the values are not as many as its fields.
        """
        ...

    def emit_direct(
        self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM, message_id: Hashable | None = None
    ) -> None:
        """Send a tuple to one task by its id; see `OutputCollector.emit_direct`."""
        ...

    def pending_count(self) -> int:
        """How many tracked tuples of this spout's executor have no answer yet."""
        ...

    def report_error(self, error: BaseException) -> None:
        """Show an error to whoever watches the topology; nothing else happens."""
        ...


class Spout(_Component):
    """A source of tuples. Every task has its own copy of the object given to the builder.

    All methods of a task are called one after the other. An exception that leaves one of them kills the task: it
    starts again from a fresh copy, and its trees are forgotten, so the source must redeliver.
    """

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Called once per task before anything else; keep the collector."""

    def close(self) -> None:
        """Called when the topology is closed, not when the task dies."""

    def activate(self) -> None:
        """Called before the first `next_tuple`, and when the topology is activated again."""

    def deactivate(self) -> None:
        """Called when the topology is deactivated; acks and fails still come."""

    def next_tuple(self) -> None:
        """Emit one tuple, or none if none is there, and return at once."""
        raise NotImplementedError

    def ack(self, message_id: Any) -> None:
        """Everything that was derived from the tuple is done."""

    def fail(self, message_id: Any) -> None:
        """Something derived from the tuple failed or timed out; nothing but the spout itself emits it again."""
