"""Which row bolts are sent message ids and attempts: all but those whose bytecode shows that they cannot ask."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any

import pyarrow as pa
import pytest

from reliable_spark.bolts import Bolt, TupleRow, kind_of
from reliable_spark.engine.given import context_of, only_takes_values, plain_rows, takes_context, tuple_rows

Row = dict[str, Any]


def takes_by_name(row: Row) -> Row:
    """Take values out."""
    return {"total": row["first"] + row.get("second", 0), "row": "row"}


def unpacks(row: Row) -> Row:
    """Copy all values."""
    return {**row, "more": 1}


def gives_several(row: Row) -> Iterator[Row]:
    """Take values out, one answer after the other."""
    if row["first"] is None:
        raise ValueError(row["second"])
    for name, value in row.items():
        yield {"name": name, "value": value}


def asks(row: TupleRow) -> Row:
    """Ask for the attempt."""
    return {"attempt": row.attempt}


def asks_by_text(row: TupleRow) -> Row:
    """Ask for it by a text."""
    return {"attempt": getattr(row, "attempt")}  # noqa: B009 - that is what is tried


def asks_elsewhere(row: TupleRow) -> Row:
    """Let somebody else ask."""
    return asks(row)


def asks_under_another_name(row: TupleRow) -> Row:
    """Ask by another name of it."""
    same = row
    return {"attempt": same.attempt}


def asks_inside(row: TupleRow) -> Row:
    """Ask in a function of its own."""

    def ask() -> Row:
        return {"attempt": row.attempt}

    return ask()


def asks_all_there_is(row: TupleRow) -> Row:
    """Find the row among the variables."""
    return {"attempt": next(iter(locals().values())).attempt}


def asks_in_the_key(row: Any) -> Row:
    """Take a value by a name that is not fixed, from the row itself."""
    return {"value": row[row.message_id]}


class Asking:
    """A bolt with a memory."""

    def __call__(self, row: TupleRow) -> Row:
        """Ask."""
        return asks(row)

    def execute(self, row: TupleRow) -> Row:
        """Ask."""
        return asks(row)


def takes_none() -> None:
    """Nobody can call it with a row."""


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="bytecode is CPython's")
@pytest.mark.parametrize("function", [takes_by_name, unpacks, gives_several, lambda row: {"x": row["x"]}])
def test_a_function_that_only_reads_columns_is_not_sent_more(function: Callable[..., Any]) -> None:
    """Else two columns would go to the workers for nothing."""
    assert only_takes_values(function)
    assert not takes_context(Bolt("bolt", function, kind_of(function)))


@pytest.mark.parametrize(
    "function",
    [
        asks,
        asks_by_text,
        asks_elsewhere,
        asks_under_another_name,
        asks_inside,
        asks_all_there_is,
        asks_in_the_key,
        Asking(),
        Asking().execute,
        print,
        takes_none,
    ],
)
def test_a_function_that_may_ask_can(function: Callable[..., Any]) -> None:
    """Wherever the row goes out of sight, it takes all that it is asked for along."""
    assert takes_context(Bolt("bolt", function, kind_of(function)))


def test_rows_are_dicts_that_know_their_tree() -> None:
    """Maps are dicts in them too, and what their tree is known by is beside the columns."""
    counts = pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64()))
    columns = {"first": pa.array([1, None]), "counts": counts}
    lineage = {"_attempt": pa.array([1, 2], pa.int32()), "_message_id": pa.array(["x", None])}
    rows = list(
        tuple_rows(plain_rows(pa.RecordBatch.from_pydict(columns)), context_of(pa.RecordBatch.from_pydict(lineage)))
    )
    assert rows == [{"first": 1, "counts": {"a": 1}}, {"first": None, "counts": None}]
    assert [(row.attempt, row.message_id) for row in rows] == [(1, "x"), (2, None)]


def with_context(batch: Any, context: Any) -> Any:
    """A batch bolt that asks."""


def without_context(batch: Any, unit: str = "m") -> Any:
    """A batch bolt whose second parameter is its own."""


class OfBatches:
    """Batch bolts that are no functions."""

    def __call__(self, batch: Any, context: Any) -> Any:
        """Ask."""

    def alone(self, batch: Any) -> Any:
        """Do not ask."""


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hand on all that comes."""

    @wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return called


def completed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the second argument oneself."""

    @wraps(function)
    def called(batch: Any) -> Any:
        return function(batch, None)

    return called


@pytest.mark.parametrize(
    ("function", "is_asking"),
    [
        (with_context, True),
        (OfBatches(), True),
        (OfBatches().__call__, True),
        (decorated(with_context), True),
        (decorated(OfBatches().__call__), True),
        (partial(with_context), True),
        (without_context, False),
        (OfBatches().alone, False),
        (decorated(without_context), False),
        (completed(with_context), False),
        (partial(with_context, context=None), False),
        (print, False),
        (max, False),
    ],
)
def test_a_batch_bolt_asks_by_a_second_parameter(function: Callable[..., Any], is_asking: bool) -> None:
    """Whatever can be called says so by its signature; a parameter with a default is not for the context."""
    assert takes_context(Bolt("bolt", function, "arrow")) is is_asking
