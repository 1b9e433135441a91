"""What a bolt is given: rows as dicts, and what it may know about the tuples behind them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from reliable_spark.bolts import BatchContext, Bolt, TupleRow
from reliable_spark.engine.columns import ATTEMPT, MESSAGE_ID


def context_of(batch: pa.RecordBatch) -> BatchContext:
    """The message ids and attempts; empty for a bolt that takes none, where they may have been left out."""
    ids, attempts = (
        batch.column(name) if name in batch.schema.names else pa.nulls(0) for name in (MESSAGE_ID, ATTEMPT)
    )
    return BatchContext(ids, attempts)


def tuple_rows(rows: pa.RecordBatch, context: BatchContext) -> Iterator[TupleRow]:
    """The rows as dicts, each of which knows its place."""
    names = rows.schema.names
    columns = [_values_of(column) for column in rows.columns]
    values = zip(*columns, strict=True) if columns else iter([()] * rows.num_rows)
    for position, value in enumerate(values):
        row = TupleRow(zip(names, value))  # noqa: B905 - a value has as many parts as there are columns
        row.context, row.position = context, position
        yield row


def _values_of(column: pa.Array) -> list[Any]:
    # asked for dicts, Arrow makes every value in Python: only where there is a map
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict") if "map<" in str(column.type) else column.to_pylist()
    return values


def part_of(context: BatchContext, start: int, length: int | None) -> BatchContext:
    """What may be known about some of the rows."""
    return BatchContext(context.message_ids.slice(start, length), context.attempts.slice(start, length))


def takes_context(bolt: Bolt) -> bool:
    """Tell whether a bolt wants to know message ids and attempts; a row bolt may always ask its rows for them."""
    function = bolt.function
    if bolt.kind == "row":
        return True
    code = getattr(function, "__code__", None)
    required = code.co_argcount - len(getattr(function, "__defaults__", None) or ()) if code else 1
    return required - (1 if hasattr(function, "__self__") else 0) >= 2
