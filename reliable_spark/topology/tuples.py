"""A tuple as a bolt receives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reliable_spark.core.graph import SYSTEM, TICK_STREAM
from reliable_spark.errors import ColumnError, nearest

UNTRACKED: Mapping[int, int] = {}
"""The edges of what nothing tracks: one mapping for all, since there are many such tuples."""


@dataclass(eq=False, slots=True)
class Tuple:
    """One delivery of one emitted tuple to one task. Two are equal only when they are the same object.

    Attributes:
        values: what was emitted, in the order of `fields`.
        fields: the names that the source declared for its stream.
        source_component: who emitted it.
        source_stream: on which of its streams.
        source_task: by which task; -1 for the system.
        edges: root id -> this delivery's share of that tree; empty when nothing tracks it.
        children_val: XOR of the ids of what was emitted anchored to it (Storm: `outAckVal`).
        executed_at_s: when the bolt got it; for the process latency.

    Source: Storm's `tuple/TupleImpl` and `tuple/MessageId`.
    """

    values: list[Any]
    fields: Sequence[str]
    source_component: str
    source_stream: str
    source_task: int
    edges: Mapping[int, int] = field(default_factory=dict)
    children_val: int = 0
    executed_at_s: float = 0.0

    def __getitem__(self, key: int | str) -> Any:
        """A value by its place or by its field.

        Raises:
            ColumnError: there is no such field; the nearest one is named.
        """
        if isinstance(key, int):
            return self.values[key]
        try:
            return self.values[self.fields.index(key)]
        except ValueError:
            raise ColumnError(
                f"the tuple from {self.source_component!r} has no field {key!r}{nearest(key, self.fields)}"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """The values by field."""
        return dict(zip(self.fields, self.values, strict=True))

    def detached(self) -> Tuple:
        """A copy that belongs to no tree: its values, and where they came from."""
        return Tuple(list(self.values), self.fields, self.source_component, self.source_stream, self.source_task)

    @property
    def is_tick(self) -> bool:
        """Whether it is a tick of the system's clock. Source: `utils/TupleUtils.isTick`."""
        return (self.source_component, self.source_stream) == (SYSTEM, TICK_STREAM)
