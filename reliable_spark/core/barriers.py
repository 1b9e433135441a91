"""Checkpoint barriers: which streams carry them through the graph, and when a task has seen one on every input.

Source: Storm's `topology/TopologyBuilder` (wiring), `topology/BaseStatefulBoltExecutor` (counting). Stricter than
Storm: inputs are aligned, and a barrier says which attempt it is of, so that what is left of an abandoned one
counts for nothing (Storm's counters survive it, and the next checkpoint acts on too few copies).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from reliable_spark.core.checkpoints import Action
from reliable_spark.core.graph import CHECKPOINT_SPOUT, CHECKPOINT_STREAM, Component, Stream, Subscription
from reliable_spark.core.groupings import Grouping, GroupingKind

BARRIER_FIELDS = ("txid", "action", "attempt")
Attempt = tuple[int, int]
"""(start of the coordinator, number since then): ascending over everything that was ever sent."""

_STREAMS = {CHECKPOINT_STREAM: Stream(BARRIER_FIELDS)}


class Barrier(NamedTuple):
    """What a checkpoint tuple says."""

    txid: int
    action: Action
    attempt: Attempt


class Arrival(Enum):
    """What the arrival of a barrier means to a task."""

    STALE = "of an attempt that was abandoned"
    WAITING = "not yet on every input"
    COMPLETE = "now on every input: act"


class Alignment:
    """The inputs of one task that have brought the barrier in hand. What comes after it on these has to wait.

    Args:
        channels: the tasks that send barriers to this one.
    """

    def __init__(self, channels: Iterable[int]) -> None:
        self._channels = frozenset(channels)
        self._arrived: set[int] = set()
        self._attempt: Attempt = (-1, -1)

    def abandon_before(self, attempt: Attempt) -> None:
        """Unblock every input if the barrier in hand is of an older attempt, which nobody waits for any more."""
        if attempt > self._attempt:
            self._attempt, self._arrived = attempt, set()

    def arrive(self, channel: int, attempt: Attempt) -> Arrival:
        """Take one barrier."""
        self.abandon_before(attempt)
        if attempt < self._attempt:
            return Arrival.STALE
        self._arrived.add(channel)
        if not self._arrived >= self._channels:
            return Arrival.WAITING
        self._arrived = set()
        return Arrival.COMPLETE

    def is_blocked(self, channel: int) -> bool:
        """Whether a tuple from this task belongs behind a barrier that other inputs still owe."""
        return channel in self._arrived


def with_checkpoint_streams(components: Mapping[str, Component]) -> dict[str, Component]:
    """The graph with its coordinator, and with the barriers' way from there through every bolt.

    A bolt hears the coordinator if it reads a spout, and each bolt that it reads.
    """
    wired = {CHECKPOINT_SPOUT: Component(CHECKPOINT_SPOUT, "spout", 1, 1, streams=_STREAMS)}
    for name, component in components.items():
        wired[name] = component if component.kind == "spout" else _listening(component, components)
    return wired


def barrier_channels(component: Component, tasks: Mapping[str, Iterable[int]]) -> list[int]:
    """The tasks that send barriers to each task of a bolt."""
    return [task for each in component.inputs if each.stream == CHECKPOINT_STREAM for task in tasks[each.component]]


def _listening(bolt: Component, components: Mapping[str, Component]) -> Component:
    sources = {each.component for each in bolt.inputs}
    senders = sorted(name for name in sources if components[name].kind == "bolt")
    if len(senders) < len(sources) or not sources:
        senders.insert(0, CHECKPOINT_SPOUT)
    barriers = [Subscription(name, CHECKPOINT_STREAM, Grouping(GroupingKind.ALL)) for name in senders]
    return replace(bolt, inputs=(*bolt.inputs, *barriers), streams={**bolt.streams, **_STREAMS})
