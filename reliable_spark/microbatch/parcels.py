"""Tuples on their way between tasks: packed by emitter and receiver, in an order that all agree on.

In one process what is sent first arrives first. Here many send at once, so every tuple carries the place, in its own
step, of the tuple that caused it, and its number among what its emitter sent: sorted by both, the tuples stand as they
would in the one queue. Only these numbers are looked at on the way; the content is opened by the receiver.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from reliable_spark.core.graph import SYSTEM, Graph
from reliable_spark.core.ids import Longs
from reliable_spark.microbatch.pickling import packed, unpacked
from reliable_spark.topology.tuples import Tuple

To = TypeVar("To")

LAST = 1 << 62
"""The place of what no tuple caused: ticks, and what spouts emit when nothing else is queued."""
_LOST = -(1 << 63)


class Address(NamedTuple):
    """Whom a tuple is for; ticks travel on their own, since they outlive the task they are sent to."""

    task: int
    is_tick: bool = False


@dataclass(frozen=True, eq=False)
class Parcel(Generic[To]):
    """What one emitter sent to one address in one step.

    Attributes:
        to: where it goes.
        parents: per tuple, the place of the tuple that caused it.
        numbers: per tuple, its number among all that the emitter sent.
        content: the tuples, packed.
    """

    to: To
    parents: Longs
    numbers: Longs
    content: bytes

    def without_those_before(self, parent: int) -> Parcel[To]:
        """The same, but what was caused before a place is lost on the way."""
        return replace(self, parents=np.where(self.parents < parent, _LOST, self.parents))


class Arrival(NamedTuple):
    """A parcel with the place of each of its tuples among all of its step; -1 for a lost one."""

    places: Longs
    content: bytes


class Outbox(Generic[To]):
    """Collects what is sent, by address."""

    def __init__(self) -> None:
        self._boxes: defaultdict[To, tuple[list[int], list[int], list[Any]]] = defaultdict(lambda: ([], [], []))
        self._numbers = count()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self._boxes)

    def put(self, to: To, parent: int, content: Any) -> None:
        """Send something."""
        parents, numbers, contents = self._boxes[to]
        parents.append(parent)
        numbers.append(next(self._numbers))
        contents.append(content)

    def take(self, lose: Callable[[Any, Exception], object]) -> list[Parcel[To]]:
        """Everything, packed; the box is empty then.

        Args:
            lose: is told of each content that cannot be packed, and why; the others go without it.
        """
        parcels = [_parcel(to, box, lose) for to, box in self._boxes.items()]
        self._boxes.clear()
        return parcels


def _parcel(
    to: To, box: tuple[list[int], list[int], list[Any]], lose: Callable[[Any, Exception], object]
) -> Parcel[To]:
    parents, numbers, contents = box
    try:
        content = packed(contents)
    except Exception:  # a value's own code may raise anything
        fit = [place for place, each in enumerate(contents) if _can_be_packed(each, lose)]
        parents, numbers = [parents[place] for place in fit], [numbers[place] for place in fit]
        content = packed([contents[place] for place in fit])
    return Parcel(to, np.array(parents, np.int64), np.array(numbers, np.int64), content)


def lose_silently(content: Any, error: Exception) -> None:
    """For what is sent elsewhere too, and reported there."""


def _can_be_packed(content: Any, lose: Callable[[Any, Exception], object]) -> bool:
    try:
        packed(content)
    except Exception as error:
        lose(content, error)
        return False
    return True


def arrivals(parcels: Sequence[Parcel[To]]) -> list[Arrival]:
    """Every parcel with its places. Cost: one sort of as many pairs of numbers as there are tuples."""
    if not parcels:
        return []
    parents = np.concatenate([each.parents for each in parcels])
    numbers = np.concatenate([each.numbers for each in parcels])
    places = np.empty(len(parents), dtype=np.int64)
    places[np.lexsort((numbers, parents))] = np.arange(len(parents))
    places[parents == _LOST] = -1
    ends = np.cumsum([len(each.parents) for each in parcels])
    return [Arrival(part, each.content) for part, each in zip(np.split(places, ends[:-1]), parcels, strict=True)]


def opened(arrived: Iterable[Arrival]) -> list[tuple[int, Any]]:
    """The contents with their places, in order, without the lost."""
    contents = [
        (place, content)
        for each in arrived
        for place, content in zip(each.places.tolist(), unpacked(each.content), strict=True)
        if place >= 0
    ]
    return sorted(contents, key=itemgetter(0))


def flat(sent: Tuple) -> tuple[Any, ...]:
    """A tuple as it travels: plain values, the shorter to pack."""
    return sent.values, dict(sent.edges), sent.source_component, sent.source_stream, sent.source_task


def upright(content: tuple[Any, ...], graph: Graph) -> Tuple:
    """A tuple as it arrives, a delivery of its own."""
    values, edges, component, stream, task = content
    if component == SYSTEM:
        return Tuple(values, ("rate_secs",), component, stream, task)
    declared = graph.components[component].streams.get(stream)
    return Tuple(values, declared.fields if declared else (), component, stream, task, edges)
