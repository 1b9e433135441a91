"""Rows of one key combined into one: a radix sort whose second step happens in the cache.

The rows are divided by the key's top byte, then each part is ordered by the 16 bits below it. Among hashes these 24
bits leave little in disorder, which a stable sort puts right in about one pass; any keys are ordered right, and only
the time differs. numpy's own sort of 64-bit numbers takes four times as long where its AVX-512 form meets an AMD
processor, and no parts of it run side by side. Rows that fit into the cache are not divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from reliable_spark.core.ids import Longs

Places = npt.NDArray[np.intp]
Rows = list[npt.NDArray[Any]]
"""The key and the columns that go with it."""
Columns = dict[str, npt.NDArray[Any]]
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or the `map` of a pool of threads."""

_PARTS = 256
_BLOCK_ROWS = 1 << 19
_DIVIDED_ROWS_MIN = 1 << 19
_LEAST = np.int64(-(2**63))


def combined(
    key: Longs, columns: Columns, operations: Mapping[str, np.ufunc], each: Each = map
) -> tuple[Longs, Columns]:
    """Combine the rows of one key, each column by its operation; for all of them 0 with 0 must be 0.

    Args:
        key: any numbers, in any order.
        columns: of the key's length.
        operations: for each column, what combines two of its values.
        each: runs the parts of the work; `map` of a thread pool runs them side by side.

    Returns:
        The distinct keys, ascending, and the columns.
    """
    if not len(key):
        return key, columns
    said = [name for name, column in columns.items() if column.any()]
    rows = [key, *(columns[name] for name in said)]
    is_divided = len(key) >= _DIVIDED_ROWS_MIN

    def of_part(part: Rows) -> tuple[Longs, Columns]:
        order = _order_of(part[0], 40 if is_divided else 48)
        keys, *values = (column.take(order) for column in part)
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        done = {name: np.zeros(len(starts), dtype=column.dtype) for name, column in columns.items()}
        for name, column in zip(said, values, strict=True):
            done[name] = operations[name].reduceat(column, starts)
        return keys.take(starts), done

    parts = list(_each_part(rows, of_part, each)) if is_divided else [of_part(rows)]
    return (
        np.concatenate([keys for keys, _ in parts]),
        {name: np.concatenate([done[name] for _, done in parts]) for name in columns},
    )


def _each_part(rows: Rows, work: Callable[[Rows], Any], each: Each) -> Iterable[Any]:
    """Divide rows into parts and work on each that is not empty; every key of one is less than any of the next."""
    blocks = list(each(partial(_divided, rows), range(0, len(rows[0]), _BLOCK_ROWS)))
    sizes = (sum(len(block[0][number]) for block in blocks) for number in range(_PARTS))

    def on_part(number: int) -> Any:
        return work([np.concatenate([block[place][number] for block in blocks]) for place in range(len(rows))])

    return each(on_part, [number for number, size in enumerate(sizes) if size])


def _divided(rows: Rows, first: int) -> list[Rows]:
    """One block of rows by the top byte of their keys: for each column its parts."""
    block = [column[first : first + _BLOCK_ROWS] for column in rows]
    top = _bits(block[0], 56, np.uint8)
    ends = np.cumsum(np.bincount(top, minlength=_PARTS))[:-1]
    order = np.argsort(top, kind="stable")
    return [np.split(column.take(order), ends) for column in block]


def _order_of(key: Longs, shift: int) -> Places:
    """The order that sorts keys: by 16 of their bits first, the others after that."""
    order = np.argsort(_bits(key, shift, np.uint16), kind="stable")
    return order.take(np.argsort(key.take(order), kind="stable"))


def _bits(key: Longs, shift: int, kind: type[np.unsignedinteger[Any]]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The bits of the keys from there on, as many as the type has; in the order of the keys, negative ones too."""
    return ((key ^ _LEAST) >> shift).astype(kind)
