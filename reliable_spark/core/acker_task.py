"""One acker task, one message at a time: Storm 2's `daemon/Acker.execute` with the exact order of events.

`core.acker` folds a batch of messages into the same answers; where the order within a batch matters (an ack sent
twice, a reset before its init), this module has Storm's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from reliable_spark.core.acker import NO_TASK, Kind, Verdict
from reliable_spark.core.timeouts import RotatingMap

_INIT, _ACK, _FAIL, _RESET = Kind.INIT, Kind.ACK, Kind.FAIL, Kind.RESET
"""By name, since every message is compared with them and looking up an enum's member takes longer than that."""


class Message(NamedTuple):
    """What is said about a tree: see `core.acker.Messages`."""

    kind: Kind
    anchor: int
    value: int = 0
    task: int = NO_TASK


class Answer(NamedTuple):
    """What the owning spout task is told; the age counts from the first message about the tree."""

    verdict: Verdict
    anchor: int
    task: int
    age_s: float


@dataclass(slots=True)
class _Tree:
    started_s: float
    ack_val: int = 0
    task: int = NO_TASK
    failed: bool = False


class AckerTask:
    """Each tree is answered at most once, exactly when its ack val is zero or it failed, and its spout is known.

    Memory is constant per tree, whatever the number of its tuples.

    Args:
        high_water: FsShelter's bound: an init that finds more than twice this many trees is failed at once and not
            stored; None means no bound.
        buckets: a tree leaves on this many rotations after its last put.
    """

    def __init__(self, high_water: int | None = None, buckets: int = 3) -> None:
        self._trees: RotatingMap[int, _Tree] = RotatingMap(buckets)
        self._high_water = high_water

    def __len__(self) -> int:
        """The number of trees held, strays included."""
        return len(self._trees)

    def take(self, message: Message, now_s: float) -> Answer | None:
        """Apply one message.

        Only creation, fail and reset put a tree into the newest bucket: progress does not extend its life.

        Returns:
            What the spout task is told now, if anything.
        """
        kind, anchor, value, task = message
        tree = self._trees.get(anchor)
        if tree is None:
            if kind is _INIT and value != 0 and self._is_full():
                return Answer(Verdict.FAILED, anchor, task, 0.0)
            tree = _Tree(now_s)
            self._trees.put(anchor, tree)
        elif kind is _FAIL or kind is _RESET:
            self._trees.put(anchor, tree)
        if kind is _INIT or kind is _ACK:
            tree.ack_val ^= value
        if kind is _INIT:
            tree.task = task
        if kind is _FAIL:
            tree.failed = True
        if tree.task == NO_TASK or (tree.ack_val != 0 and not tree.failed and kind is not _RESET):
            return None
        return self._answer(message, tree, now_s)

    def rotate(self) -> list[Answer]:
        """One tick: drop the oldest bucket.

        Returns:
            The owned trees that left. Storm tells nobody, since its spouts have timed them out before; FsShelter
            fails them.
        """
        dropped = self._trees.rotate()
        return [
            Answer(Verdict.TIMED_OUT, anchor, tree.task, 0.0)
            for anchor, tree in dropped.items()
            if tree.task != NO_TASK
        ]

    def _is_full(self) -> bool:
        return self._high_water is not None and len(self._trees) > 2 * self._high_water

    def _answer(self, message: Message, tree: _Tree, now_s: float) -> Answer:
        """Zero beats failed, and failed beats a reset."""
        verdict = Verdict.ACKED if tree.ack_val == 0 else Verdict.FAILED if tree.failed else Verdict.RESET
        if verdict is not Verdict.RESET:
            self._trees.remove(message.anchor)
        return Answer(verdict, message.anchor, tree.task, now_s - tree.started_s)
