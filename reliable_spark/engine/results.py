"""What a bolt returned, read as Arrow columns of the declared types. Nothing is lost: what does not fit raises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, time
from numbers import Number
from typing import Any

import numpy as np
import pyarrow as pa

from reliable_spark.engine.columns import PARENT

Parents = np.ndarray[Any, np.dtype[np.int64]]
"""For each returned row, the position of the row that it came from."""


class ShapeError(ValueError):
    """A batch function's answer names the wrong parents: of a part of the batch they might be right by chance."""


@dataclass(frozen=True)
class Declared:
    """A column as a bolt declared it.

    Attributes:
        field: its name, its type, and which parts of it may be null.
        type: the same type with every part nullable: a null in one row must not break the others' way to Spark.
        has_required: the column or a part of it is NOT NULL, so its values are looked through.
    """

    field: pa.Field
    type: pa.DataType = field(init=False)
    has_required: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _nullable(self.field.type))
        object.__setattr__(self, "has_required", not self.field.nullable or _has_required(self.field.type))

    @property
    def name(self) -> str:
        """The column's name."""
        name: str = self.field.name
        return name

    def checked(self, array: pa.Array) -> pa.Array:
        """The values, none of which is null where the bolt said that none is.

        Raises:
            TypeError: one is; the message says where.
        """
        if self.has_required:
            _refuse_nulls(array, self.field, self.name)
        return array

    def misfit(self, error: object) -> TypeError:
        """What is raised for values of another type."""
        return TypeError(f"column {self.name!r} is declared as {self.field.type}: {error}")


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _nullable(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    return pa.list_(_nullable(kind.value_type)) if pa.types.is_list(kind) else kind


def _has_required(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        # Arrow itself refuses a null key
        return not kind.item_field.nullable or _has_required(kind.key_type) or _has_required(kind.item_type)
    parts = [kind.field(place) for place in range(kind.num_fields)]
    return any(not part.nullable or _has_required(part.type) for part in parts)


def _refuse_nulls(array: pa.Array, declared: pa.Field, where: str) -> None:
    if not declared.nullable and array.null_count:
        raise TypeError(f"column {where!r} is declared NOT NULL, but the bolt returned null")
    if _has_required(declared.type):
        for part, declared_part, place in _parts(array.drop_null(), declared.type):
            _refuse_nulls(part, declared_part, where + place)


def _parts(array: pa.Array, kind: pa.DataType) -> Iterator[tuple[pa.Array, pa.Field, str]]:
    """The values inside of nested values, none of which is null: with how they are declared, and where they are."""
    if pa.types.is_struct(kind):
        for part, values in zip(kind, array.flatten(), strict=True):
            yield values, part, f".{part.name}"
    elif pa.types.is_map(kind):
        start, end = (array.offsets[0].as_py(), array.offsets[-1].as_py()) if len(array) else (0, 0)
        yield array.keys[start:end], kind.key_field, ".key"
        yield array.items[start:end], kind.item_field, ".value"
    else:
        yield array.flatten(), kind.value_field, "[]"


def array_of(values: list[Any], output: Declared) -> pa.Array:
    """One output column of the values that a row bolt returned.

    Raises:
        TypeError: a value does not fit the declared column.
    """
    try:
        array = _exact(values, output.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise output.misfit(error) from None
    return output.checked(array)


def _exact(values: list[Any], kind: pa.DataType) -> pa.Array:
    """The values as Arrow has them; told a type, it would cut off the fractions of numbers, and the times of dates."""
    is_integer = pa.types.is_integer(kind)
    if not is_integer and not pa.types.is_date(kind):
        return pa.array(values, type=kind)
    if is_integer:
        # finding the type costs little more than being told, and less than looking at the values in Python
        with suppress(pa.ArrowException, TypeError, ValueError, OverflowError):
            found = pa.array(values)
            if pa.types.is_integer(found.type):
                return found.cast(kind)
    array = pa.array(values, type=kind)
    for value, kept in zip(values, array.to_pylist(), strict=True):
        if _is_cut(value, kept):
            raise ValueError(f"{value!r} would be cut to {kept}")
    return array


def _is_cut(value: Any, kept: Any) -> bool:
    if isinstance(value, datetime):
        return value.time() != time()
    return bool(value != kept) and isinstance(value, Number) and isinstance(kept, int)


def _fit(array: Any, output: Declared) -> pa.Array:
    """Cast a column that a batch function returned to the declared type, losing nothing."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    try:
        fitted = array.cast(output.type)
    except pa.ArrowException as error:
        raise output.misfit(error) from None
    return output.checked(fitted)


def read_arrow(result: Any, row_count: int, output: Sequence[Declared]) -> tuple[Parents, list[pa.Array]]:
    """The parents and columns of what an arrow bolt returned for that many rows.

    Raises:
        ShapeError: it says of rows that there are none of, or does not say of which.
        TypeError, KeyError: it does not fit what was declared.
    """
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise TypeError(f"an arrow bolt returns a RecordBatch or a Table, not {type(result).__name__}")
    names = result.schema.names
    _require(output, names)
    if PARENT in names:
        parents = _checked_parents(result.column(PARENT).to_numpy(zero_copy_only=False), row_count)
    elif result.num_rows == row_count:
        parents = np.arange(row_count, dtype=np.int64)
    else:
        raise ShapeError(
            f"an arrow bolt that returns {result.num_rows} rows for {row_count} needs a column {PARENT!r} "
            "that says which row each one came from"
        )
    return parents, [_fit(result.column(wanted.name), wanted) for wanted in output]


def read_pandas(frame: Any, row_count: int, output: Sequence[Declared]) -> tuple[Parents, list[pa.Array]]:
    """The parents and columns of what a pandas bolt returned for that many rows; its index names the parents.

    Raises:
        ShapeError: it says of rows that there are none of, or does not say of which.
        TypeError, KeyError: it does not fit what was declared.
    """
    if not hasattr(frame, "columns") or not hasattr(frame, "index"):
        raise TypeError(f"a pandas bolt returns a DataFrame, not {type(frame).__name__}")
    _require(output, list(frame.columns))
    parents = _checked_parents(frame.index.to_numpy(), row_count)
    columns = []
    for wanted in output:
        try:
            array = pa.Array.from_pandas(frame[wanted.name], type=wanted.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise wanted.misfit(error) from None
        columns.append(_fit(array, wanted))
    return parents, columns


def _require(output: Sequence[Declared], names: list[str]) -> None:
    missing = [wanted.name for wanted in output if wanted.name not in names]
    if missing:
        raise KeyError(f"the bolt returned no column {missing[0]!r}")


def _checked_parents(parents: Any, row_count: int) -> Parents:
    positions = np.asarray(parents)
    if positions.size and not np.issubdtype(positions.dtype, np.integer):
        raise TypeError(f"the parents of a batch bolt's rows must be whole numbers, not {positions.dtype}")
    positions = positions.astype(np.int64)
    if positions.size and (positions.min() < 0 or positions.max() >= row_count):
        raise ShapeError(f"a batch bolt named a parent row outside 0..{row_count - 1}")
    return positions
