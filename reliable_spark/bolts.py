"""What users write: row bolts, batch bolts, and the ways in which a bolt answers for a tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

BoltKind = Literal["row", "arrow", "pandas"]
Function = TypeVar("Function", bound=Callable[..., Any])

_KIND_ATTRIBUTE = "__reliable_spark_bolt_kind__"


class Fail(Exception):
    """Raise in a bolt to fail the tuple in hand.

    Guarantee: the tuple's tree is failed and nothing else; other rows of the batch go on.

    Args:
        reason: what is written into the ledger.
        retry: False makes the tree a dead letter at once; True sends it through the ordinary retries.

    Source: Storm's `OutputCollector.fail` and `FailedException`.
    """

    def __init__(self, reason: str = "failed", *, retry: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_fail, (self.reason, self.retry)


def _make_fail(reason: str, retry: bool) -> Fail:
    return Fail(reason, retry=retry)


class _Hold:
    """The one value that means: neither ack nor fail this tuple now."""

    def __repr__(self) -> str:
        return "HOLD"

    def __reduce__(self) -> str:
        return "HOLD"


HOLD: Final = _Hold()
"""Return it from a row bolt to answer nothing: the tree stays pending until its message timeout."""


@dataclass(frozen=True)
class BatchContext:
    """What a batch bolt may know about the rows in hand, when it takes a second argument.

    Attributes:
        message_ids: the message id of each row's root as text (pyarrow string array).
        attempts: the attempt number of each row's tree (pyarrow int32 array).
    """

    message_ids: Any
    attempts: Any


class TupleRow(dict[str, Any]):
    """A row as a row bolt sees it: a dict of its columns, with what the tree is known by beside it.

    Attributes:
        context: the batch that the row is in.
        position: where it is there.
    """

    __slots__ = ("context", "position")

    context: BatchContext
    position: int

    @property
    def message_id(self) -> str | None:
        """The message id of the tree's root as text; None below an aggregate."""
        message_id: str | None = self.context.message_ids[self.position].as_py()
        return message_id

    @property
    def attempt(self) -> int:
        """1 for the first try of the tree, 2 for its first replay, and so on."""
        attempt: int = self.context.attempts[self.position].as_py()
        return attempt


def arrow(function: Function) -> Function:
    """Mark a batch bolt: `pyarrow.RecordBatch` in, `RecordBatch` or `Table` out.

    The function returns as many rows as it got, in the same order, or a column `_parent` that holds
    for each row returned the position of the row it came from: absent means dropped, repeated means several
    children. An exception fails only the tuples it is about: the batch is halved until they are found.
    An answer of the wrong shape, such as one without a declared column, fails all of the batch.
    """
    setattr(function, _KIND_ATTRIBUTE, "arrow")
    return function


def pandas(function: Function) -> Function:
    """Mark a batch bolt: `pandas.DataFrame` in, `pandas.DataFrame` out.

    The index of the frame returned points at the parent row: absent means dropped, repeated means several
    children. An exception fails only the tuples it is about: the batch is halved until they are found.
    An answer of the wrong shape, such as one without a declared column, fails all of the batch.
    """
    setattr(function, _KIND_ATTRIBUTE, "pandas")
    return function


def kind_of(function: Callable[..., Any]) -> BoltKind:
    """Tell how a bolt function wants its rows: one by one unless it is marked."""
    kind: BoltKind = getattr(function, _KIND_ATTRIBUTE, "row")
    return kind


@dataclass(frozen=True)
class Bolt:
    """A bolt as data: the function, and what its exceptions mean.

    Attributes:
        name: how the bolt is called in the ledger.
        function: what the user wrote.
        kind: row, arrow or pandas.
        fatal: exception classes that make the tree a dead letter at once.
        retry: exception classes that are worth another attempt; all others are fatal.
    """

    name: str
    function: Callable[..., Any]
    kind: BoltKind
    fatal: tuple[type[BaseException], ...] = ()
    retry: tuple[type[BaseException], ...] = (Exception,)

    def is_retryable(self, error: BaseException) -> bool:
        """Decide whether a failure is worth another attempt: `Fail` says so itself, then fatal beats retry."""
        if isinstance(error, Fail):
            return error.retry
        return not isinstance(error, self.fatal) and isinstance(error, self.retry)


def children_of(result: Any) -> list[Mapping[str, Any]]:
    """Read what a row bolt returned as the list of its children.

    Args:
        result: a mapping, an object with `asDict` (a Spark Row), an iterable of either, or None.

    Raises:
        TypeError: it is something else; the message says what was expected.
    """
    if result is None:
        return []
    single = _as_mapping(result)
    if single is not None:
        return [single]
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise TypeError(f"a row bolt returns a dict, an iterable of dicts or None, not {type(result).__name__}")
    children = []
    for item in result:
        child = _as_mapping(item)
        if child is None:
            raise TypeError(f"a row bolt yields dicts, not {type(item).__name__}")
        children.append(child)
    return children


def _as_mapping(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    if hasattr(value, "asDict"):
        as_dict: Mapping[str, Any] = value.asDict()
        return as_dict
    return None
