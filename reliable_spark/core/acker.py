"""The acker: a tree is acked exactly when the XOR of everything said about it is zero.

Storm's `daemon/Acker` takes one message at a time; here a batch is folded per tree, merged with the pending
trees and decided in whole arrays. XOR ignores order, so the answers are Storm's except where order within one
batch matters: of a fail and a zero, zero wins; a message after the zero (an ack sent twice) leaves the tree
open, to time out; a reset before its init is answered. Applying a batch twice corrupts the values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from reliable_spark.core.ids import Longs
from reliable_spark.core.radix_fold import Each, Places, Sparse, xored
from reliable_spark.core.timeouts import check_buckets

if TYPE_CHECKING:
    from typing_extensions import Self

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

NO_TASK = -1  # the spout task of a tree whose init has not come
_OPEN = -1
_DTYPES: dict[str, type[np.generic]] = {
    "anchor": np.int64, "ack_val": np.int64, "value": np.int64, "task": np.int32, "generation": np.int32,
    "kind": np.int8, "verdict": np.int8, "failed": np.bool_, "reset": np.bool_,
}  # fmt: skip
_NULL_MEANS: dict[str, int | bool] = {"ack_val": 0, "task": NO_TASK, "failed": False, "reset": False}


class Kind(IntEnum):
    """What a message to the acker says (Storm's streams `__ack_init`, `_ack`, `_fail`, `_reset_timeout`)."""

    INIT = 0
    ACK = 1
    FAIL = 2
    RESET = 3


class Verdict(IntEnum):
    """What the acker answers to the spout task; only RESET leaves the tree pending."""

    ACKED = 0
    FAILED = 1
    RESET = 2
    TIMED_OUT = 3


@dataclass(frozen=True, eq=False)
class _Columns:
    """Columns of one length and fixed types; arrays that fit are kept, not copied, and never written to."""

    anchor: Longs

    def __post_init__(self) -> None:
        shape = (len(self.anchor),)
        for name, column in self._columns().items():
            fitting = np.asarray(column).astype(_DTYPES[name], casting="same_kind", copy=False)
            if fitting.shape != shape:
                raise ValueError(f"{name} must have shape {shape} like anchor, got {fitting.shape}")
            object.__setattr__(self, name, fitting)

    def __len__(self) -> int:
        return len(self.anchor)

    @property
    def nbytes(self) -> int:
        """Memory held by the columns, bytes."""
        return sum(column.nbytes for column in self._columns().values())

    @classmethod
    def empty(cls) -> Self:
        """No rows."""
        return cls(**{field.name: np.empty(0, dtype=_DTYPES[field.name]) for field in fields(cls)})

    def to_arrow(self) -> pa.Table:
        """The same columns under the same names; numbers share memory with this object, flags are copied."""
        return pa.table(self._columns())

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _rows(self, chosen: Flags | Places) -> Self:
        return replace(self, **{name: column[chosen] for name, column in self._columns().items()})


@dataclass(frozen=True, eq=False)
class Messages(_Columns):
    """What was said to the acker, in any order; ValueError for an unknown kind or an INIT without a task."""

    kind: Bytes  # a Kind
    value: Longs  # INIT: XOR of the ids emitted; ACK: XOR of own id and children's ids; else ignored
    task: Ints  # INIT: the spout task, 0 or more; else ignored

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.any((self.kind < Kind.INIT) | (self.kind > Kind.RESET) | (self.kind == Kind.INIT) & (self.task < 0)):
            raise ValueError("kind must be a Kind, and the task of an INIT 0 or more")

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, int]]) -> Messages:
        """Messages written out as (kind, anchor, value, task); for tests and examples."""
        kind, anchor, value, task = np.array(list(rows), dtype=np.int64).reshape(-1, 4).T
        return cls(anchor, kind.astype(np.int8), value, task.astype(np.int32))


@dataclass(frozen=True, eq=False)
class Folded(_Columns):
    """All that a set of messages says about each tree: one row per distinct anchor, ascending."""

    ack_val: Longs  # XOR of the values
    task: Ints  # the spout task, NO_TASK when no init is among the messages
    failed: Flags
    reset: Flags

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Folded:
        """The fold of a table with these columns in any order, rows of one anchor combined.

        Null `ack_val` means 0, null `task` NO_TASK, a null flag False (Spark's aggregates of nothing); a null
        anchor is a ValueError, no such column a KeyError. Cost: no copy of numbers if ascending, else a sort.
        """
        columns = _from_arrow(table, cls)
        return cls(**columns) if _ascending(columns["anchor"]) else _reduced(**columns)


@dataclass(frozen=True, eq=False)
class Trees(_Columns):
    """The pending trees, one row per anchor, ascending; 25 bytes each however many tuples a tree has."""

    ack_val: Longs  # XOR so far
    task: Ints  # the owning spout task; NO_TASK for a stray, which can notify nobody
    failed: Flags  # a fail came before the init
    generation: Ints  # the count of rotations at the last put

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Trees:
        """The trees written by `to_arrow`, in any order; a repeated anchor is a ValueError."""
        trees = cls(**_from_arrow(table, cls))
        if not _ascending(trees.anchor):
            trees = trees._rows(np.argsort(trees.anchor))
        if not _ascending(trees.anchor):
            raise ValueError("pending trees must have distinct anchors")
        return trees


@dataclass(frozen=True, eq=False)
class Answers(_Columns):
    """What the spout tasks are told: at most one answer per tree, ascending by anchor."""

    verdict: Bytes  # a Verdict
    task: Ints  # the spout task to tell


def fold(messages: Messages, each: Each = map) -> Folded:
    """The sum of what the messages say about each tree, whatever their order; of two inits the higher task.

    `each` runs the parts of the work: `map` of a pool of threads runs them side by side.
    Cost: a radix sort of n anchors, no Python per tree. Source: the XORs of `Acker.execute`, taken together.
    """
    kind, value = messages.kind, messages.value
    flags = {}
    if kind.max(initial=Kind.INIT) > Kind.ACK:
        value = np.where(kind <= Kind.ACK, value, 0)
        flags = {"failed": kind == Kind.FAIL, "reset": kind == Kind.RESET}
    task = Sparse(kind == Kind.INIT, messages.task, np.maximum, NO_TASK)
    return _combined(messages.anchor, value, task, flags, each)


def combine(first: Folded, second: Folded) -> Folded:
    """The fold of both sets together: associative, commutative, empty is neutral. Cost: one sort of both."""
    return _reduced(**_stacked(first, second))


def merge(trees: Trees, folded: Folded, generation: int, high_water: int | None = None) -> tuple[Trees, Answers]:
    """Each tree whose spout task is known is answered at most once, by Storm 2's rules.

    A tree is created if absent, values are XORed, an init sets the task and overwrites nothing. Then, if the
    task is known: zero is ACKED and dropped; else failed is FAILED and dropped; else a reset is answered.
    Creation, fail and reset put into the newest generation; progress does not extend life.

    `folded` was said since; `generation` counts rotations so far. `high_water` is FsShelter's bound: a new
    tree that finds more than 2 * high_water entries is FAILED and not stored. Trees that end in this batch
    need no place and free theirs first, new strays take theirs first, the rest by ascending anchor.
    Returns the trees now pending, messages about ended trees among them as strays, and the answers.
    Cost: O(pending + m log pending), m trees folded. Source: `daemon/Acker.execute`; FsShelter `mkAcker`.
    """
    known, home = _found(trees.anchor, folded.anchor)
    touched = _touched(trees, folded, known, home, generation)
    verdict = _verdicts(touched, folded.reset)
    if high_water is not None:
        held = len(trees) - int(np.sum(_ends(verdict[known])))
        _refuse(verdict, touched, ~known, 2 * high_water + 1 - held)
    others = np.ones(len(trees), dtype=np.bool_)
    others[home] = False
    kept = Trees(**_stacked(trees._rows(others), touched._rows(~_ends(verdict))))
    answered = verdict != _OPEN
    answers = Answers(touched.anchor[answered], verdict[answered], touched.task[answered])
    # Two sorted runs: a stable sort merges them in linear time.
    return kept._rows(np.argsort(kept.anchor, kind="stable")), answers


def rotate(trees: Trees, generation: int, buckets: int = 3) -> tuple[Trees, Answers]:
    """A tree leaves on the `buckets`-th rotation after its last put: aged (buckets - 1, buckets] ticks.

    `generation` counts this rotation too; fewer than 2 buckets are a ValueError. Returns the trees still
    pending and TIMED_OUT for each owned one that left. Cost: one pass. Source: `RotatingMap.rotate`.
    """
    check_buckets(buckets)
    leaving = trees.generation <= generation - buckets
    late = trees._rows(leaving & (trees.task >= 0))
    verdict = np.full(len(late), Verdict.TIMED_OUT, dtype=np.int8)
    return trees._rows(~leaving), Answers(late.anchor, verdict, late.task)


def _reduced(anchor: Longs, ack_val: Longs, task: Ints, failed: Flags, reset: Flags) -> Folded:
    """Rows of one anchor combined into one."""
    owned = Sparse(task != NO_TASK, task, np.maximum, NO_TASK)
    return _combined(anchor, ack_val, owned, {"failed": failed, "reset": reset})


def _combined(anchor: Longs, value: Longs, task: Sparse, flags: dict[str, Flags], each: Each = map) -> Folded:
    """Rows of one anchor combined into one; a flag that is not given is nobody's."""
    raised = [Sparse(flag, flag, np.logical_or, False) for flag in flags.values()]
    anchor, (ack_val, owner, *others) = xored(anchor, value, [task, *raised], each)
    lowered = {name: np.zeros(len(anchor), dtype=np.bool_) for name in ("failed", "reset")}
    return Folded(anchor, ack_val, owner, **lowered | dict(zip(flags, others, strict=True)))


def _touched(trees: Trees, folded: Folded, known: Flags, home: Places, generation: int) -> Trees:
    """The entries the messages are about, as they stand after them and before any verdict."""
    ack_val, task, failed = folded.ack_val.copy(), folded.task.copy(), folded.failed.copy()
    put = np.full(len(folded), generation, dtype=np.int32)
    ack_val[known] ^= trees.ack_val[home]
    task[known] = np.where(task[known] >= 0, task[known], trees.task[home])
    failed[known] |= trees.failed[home]
    renewed = (folded.failed | folded.reset)[known]
    put[known] = np.where(renewed, put[known], trees.generation[home])
    return Trees(folded.anchor, ack_val, task, failed, put)


def _verdicts(touched: Trees, reset: Flags) -> Bytes:
    """What each entry is owed now; the order of the assignments is Storm's precedence, zero last."""
    owned = touched.task >= 0
    verdict = np.full(len(touched), _OPEN, dtype=np.int8)
    verdict[owned & reset] = Verdict.RESET
    verdict[owned & touched.failed] = Verdict.FAILED
    verdict[owned & (touched.ack_val == 0)] = Verdict.ACKED
    return verdict


def _refuse(verdict: Bytes, touched: Trees, new: Flags, room: int) -> None:
    """Fail, in place, the new owned trees for which no room is left; new strays take theirs first."""
    owned = touched.task >= 0
    arriving = new & owned & ~_ends(verdict)
    verdict[arriving & (np.cumsum(arriving) > room - np.sum(new & ~owned))] = Verdict.FAILED


def _ends(verdict: Bytes) -> Flags:
    return np.isin(verdict, (Verdict.ACKED, Verdict.FAILED))


def _found(held: Longs, wanted: Longs) -> tuple[Flags, Places]:
    """Which of the wanted anchors are held, and where those are; both ascending."""
    place = np.searchsorted(held, wanted)
    known = place < len(held)
    known[known] = held[place[known]] == wanted[known]
    return known, place[known]


def _ascending(anchor: Longs) -> bool:
    return bool(np.all(anchor[1:] > anchor[:-1]))


def _stacked(first: _Columns, second: _Columns) -> dict[str, npt.NDArray[Any]]:
    below = second._columns()
    return {name: np.concatenate((column, below[name])) for name, column in first._columns().items()}


def _from_arrow(table: pa.Table, kind: type[_Columns]) -> dict[str, npt.NDArray[Any]]:
    """The columns of a table as arrays of this kind's types, nulls replaced where they have a meaning."""
    columns = {}
    for name in (field.name for field in fields(kind)):
        column = table.column(name)
        if column.null_count and name not in _NULL_MEANS:
            raise ValueError(f"{name} must not be null, got {column.null_count} nulls")
        column = column.fill_null(_NULL_MEANS[name]) if column.null_count else column
        columns[name] = column.cast(pa.from_numpy_dtype(_DTYPES[name])).to_numpy()
    return columns
