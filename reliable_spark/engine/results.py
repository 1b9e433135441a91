"""What a bolt returned, read as Arrow columns of the declared types. Nothing is lost: what does not fit raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from reliable_spark.engine.columns import PARENT

Parents = np.ndarray[Any, np.dtype[np.int64]]
"""For each returned row, the position of the row that it came from."""


def array_of(values: list[Any], output: pa.Field) -> pa.Array:
    """One output column of the values that a row bolt returned.

    Raises:
        TypeError: a value does not fit the declared column.
    """
    try:
        array = pa.array(values, type=output.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"column {output.name!r} is declared as {output.type}: {error}") from None
    if not output.nullable and array.null_count:
        raise TypeError(f"column {output.name!r} is declared NOT NULL, but the bolt returned null")
    return array


def _fit(array: Any, output: pa.Field) -> pa.Array:
    """Cast a column that a batch function returned to the declared type, losing nothing."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    try:
        fitted = array.cast(output.type)
    except pa.ArrowException as error:
        raise TypeError(f"column {output.name!r} is declared as {output.type}: {error}") from None
    if not output.nullable and fitted.null_count:
        raise TypeError(f"column {output.name!r} is declared NOT NULL, but the bolt returned null")
    return fitted


def read_arrow(result: Any, row_count: int, output: pa.Schema) -> tuple[Parents, list[pa.Array]]:
    """The parents and columns of what an arrow bolt returned for that many rows.

    Raises:
        TypeError, KeyError, ValueError, IndexError: it does not fit what was declared.
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
        raise ValueError(
            f"an arrow bolt that returns {result.num_rows} rows for {row_count} needs a column {PARENT!r} "
            "that says which row each one came from"
        )
    return parents, [_fit(result.column(wanted.name), wanted) for wanted in output]


def read_pandas(frame: Any, row_count: int, output: pa.Schema) -> tuple[Parents, list[pa.Array]]:
    """The parents and columns of what a pandas bolt returned for that many rows; its index names the parents.

    Raises:
        TypeError, KeyError, IndexError: it does not fit what was declared.
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
            raise TypeError(f"column {wanted.name!r} is declared as {wanted.type}: {error}") from None
        columns.append(_fit(array, wanted))
    return parents, columns


def _require(output: pa.Schema, names: list[str]) -> None:
    missing = [name for name in output.names if name not in names]
    if missing:
        raise KeyError(f"the bolt returned no column {missing[0]!r}")


def _checked_parents(parents: Any, row_count: int) -> Parents:
    positions = np.asarray(parents)
    if positions.size and not np.issubdtype(positions.dtype, np.integer):
        raise TypeError(f"the parents of a batch bolt's rows must be whole numbers, not {positions.dtype}")
    positions = positions.astype(np.int64)
    if positions.size and (positions.min() < 0 or positions.max() >= row_count):
        raise IndexError(f"a batch bolt named a parent row outside 0..{row_count - 1}")
    return positions
