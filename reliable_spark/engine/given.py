"""What a bolt is given: rows as dicts, and what it may know about the tuples behind them."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any, Final

import pyarrow as pa

from reliable_spark.bolts import BatchContext, Bolt, TupleRow
from reliable_spark.engine.columns import ATTEMPT, MESSAGE_ID, WORKING_PREFIX

Function = Callable[..., Any]

_UNREADABLE: Final = f"{WORKING_PREFIX}unreadable"
"""The only column of a row that cannot be read; it holds the error."""

_SUBSCRIPTS: Final = (("BINARY_SUBSCR", ""), ("BINARY_OP", "[]"))
_READING_METHODS: Final = ("get", "items", "keys", "values")
_SEES_ALL: Final = {"locals", "vars", "eval", "exec"}


def context_of(batch: pa.RecordBatch) -> BatchContext:
    """The message ids and attempts; empty for a bolt that takes none, where they may have been left out."""
    ids, attempts = (
        batch.column(name) if name in batch.schema.names else pa.nulls(0) for name in (MESSAGE_ID, ATTEMPT)
    )
    return BatchContext(ids, attempts)


def readable(rows: pa.RecordBatch, function: Function) -> tuple[list[dict[str, Any]], Function]:
    """The rows as dicts, and the function to call with each.

    Where a row holds what Python cannot represent, such as a timestamp after the year 9999, the function raises
    for that row instead of being called.
    """
    try:
        return plain_rows(rows), function
    except Exception:
        return [_row_or_error(rows.slice(position, 1)) for position in range(rows.num_rows)], _unless_unreadable(
            function
        )


def plain_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts: maps are dicts too, but lists of pairs in a column where a map's keys cannot be a dict's."""
    kinds = rows.schema.types
    # asked for dicts, Arrow makes every value in Python: only where there is a map
    has_map = any("map<" in str(kind) for kind in kinds)
    if not any(_has_nested_keys(kind) for kind in kinds):
        values: list[dict[str, Any]] = rows.to_pylist(maps_as_pydicts="strict" if has_map else None)
        return values
    columns = [
        column.to_pylist(maps_as_pydicts=None if _has_nested_keys(column.type) else "strict") for column in rows.columns
    ]
    return [dict(zip(rows.schema.names, each, strict=True)) for each in zip(*columns, strict=True)]


def _has_nested_keys(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return kind.key_type.num_fields > 0 or _has_nested_keys(kind.item_type)
    return any(_has_nested_keys(kind.field(place).type) for place in range(kind.num_fields))


def _row_or_error(row: pa.RecordBatch) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in row.schema.names:
        try:
            values |= plain_rows(row.select([name]))[0]
        except Exception as error:
            return {_UNREADABLE: ValueError(f"column {name!r} holds what Python cannot represent: {error}")}
    return values


def _unless_unreadable(function: Function) -> Function:
    def called(row: Any, *rest: Any) -> Any:
        if _UNREADABLE in row:
            raise row[_UNREADABLE]
        return function(row, *rest)

    return called


def tuple_rows(rows: Sequence[dict[str, Any]], context: BatchContext) -> Iterator[TupleRow]:
    """The rows, each of which knows its place."""
    for position, values in enumerate(rows):
        row = TupleRow(values)
        row.context, row.position = context, position
        yield row


def pandas_frame(rows: pa.RecordBatch) -> Any:
    """The rows as a pandas frame, with 64-bit integers as they are.

    Pandas makes floats of integers among nulls, and those above 2^53 would be others then: `Int64` keeps them.
    """
    import pandas as pd

    frame = rows.to_pandas()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if column.null_count and pa.types.is_int64(column.type):
            frame[name] = column.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame


def part_of(context: BatchContext, start: int, length: int | None) -> BatchContext:
    """What may be known about some of the rows."""
    return BatchContext(context.message_ids.slice(start, length), context.attempts.slice(start, length))


def takes_context(bolt: Bolt) -> bool:
    """Tell whether a bolt may want to know message ids and attempts: a row bolt can ask its rows for them."""
    function = bolt.function
    if bolt.kind == "row":
        return not only_takes_values(function)
    return _required_count(function) >= 2


def _required_count(function: Callable[..., Any]) -> int:
    """How many arguments a function cannot do without; a decorator that hands on all asks for what it decorates."""
    try:
        own = inspect.signature(function, follow_wrapped=False).parameters.values()
        hands_on = any(each.kind is each.VAR_POSITIONAL for each in own)
        parameters = inspect.signature(function).parameters.values() if hands_on else own
    except (TypeError, ValueError):  # some builtins do not tell
        return 1
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return sum(each.default is each.empty for each in positional)


def only_takes_values(function: Callable[..., Any]) -> bool:
    """Tell whether a function only reads its row's columns, as in `row["line"]`, `row.get("line")` or `{**row}`.

    Its bytecode says so. Where the row goes anywhere else, the answer is no.
    """
    if not isinstance(function, FunctionType) or not function.__code__.co_argcount:
        return False
    code = function.__code__
    row = code.co_varnames[0]
    if row in code.co_cellvars or _SEES_ALL.intersection(code.co_names):
        return False
    steps = list(dis.get_instructions(code))
    places = [place for place, step in enumerate(steps) if _is_about(step, row)]
    return all(_takes_value(steps[place : place + 3]) for place in places)


def _is_about(step: dis.Instruction, variable: str) -> bool:
    names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    return "FAST" in step.opname and variable in names


def _takes_value(steps: Sequence[dis.Instruction]) -> bool:
    load, following = steps[0], steps[1]
    if isinstance(load.argval, tuple) or not load.opname.startswith("LOAD_FAST"):
        return False
    if following.opname in ("LOAD_METHOD", "LOAD_ATTR"):
        return following.argval in _READING_METHODS
    is_key_taken = following.opname == "LOAD_CONST" and (steps[2].opname, steps[2].argrepr) in _SUBSCRIPTS
    return is_key_taken or following.opname == "DICT_UPDATE"
