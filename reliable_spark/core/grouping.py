"""Rows of one key combined into one: a radix sort whose second step happens in the cache.

The rows are divided by the key's top byte, then each part is ordered by the 16 bits below it. Among hashes these 24
bits leave little in disorder, which a stable sort puts right in about one pass; any keys are ordered right, and only
the time differs. numpy's own sort of 64-bit numbers takes four times as long where its AVX-512 form meets an AMD
processor, and no parts of it run side by side. Rows that fit into the cache are not divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reliable_spark.core.ids import Longs

Places = npt.NDArray[np.intp]
Columns = dict[str, npt.NDArray[Any]]
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or the `map` of a pool of threads."""

_PARTS = 256
_BLOCK_ROWS = 1 << 20
_DIVIDED_ROWS_MIN = 1 << 20
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

    def of_part(rows: Places) -> tuple[Longs, Columns]:
        keys = key.take(rows)
        order = _order_of(keys, shift)
        keys = keys.take(order)
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        done = {name: np.zeros(len(starts), dtype=column.dtype) for name, column in columns.items()}
        for name in said:
            done[name] = operations[name].reduceat(columns[name].take(rows).take(order), starts)
        return keys.take(starts), done

    divided = len(key) >= _DIVIDED_ROWS_MIN
    shift = 40 if divided else 48
    parts = list(each(of_part, _parts_of(key, each) if divided else [np.arange(len(key))]))
    return (
        np.concatenate([keys for keys, _ in parts]),
        {name: np.concatenate([done[name] for _, done in parts]) for name in columns},
    )


def _parts_of(key: Longs, each: Each) -> list[Places]:
    """Divide rows into parts, none of them empty: every key of one is less than any key of the next."""
    blocks = each(lambda first: _divided(key, first), range(0, len(key), _BLOCK_ROWS))
    parts = (np.concatenate(pieces) for pieces in zip(*blocks, strict=True))
    return [part for part in parts if len(part)]


def _divided(key: Longs, first: int) -> list[Places]:
    """The places of one block of rows, by the top byte of their keys."""
    top = _bits(key[first : first + _BLOCK_ROWS], 56, np.uint8)
    ends = np.cumsum(np.bincount(top, minlength=_PARTS))
    return np.split(np.argsort(top, kind="stable") + first, ends[:-1])


def _order_of(key: Longs, shift: int) -> Places:
    """The order that sorts keys: by 16 of their bits first, the others after that."""
    order = np.argsort(_bits(key, shift, np.uint16), kind="stable")
    return order.take(np.argsort(key.take(order), kind="stable"))


def _bits(key: Longs, shift: int, kind: type[np.unsignedinteger[Any]]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The bits of the keys from there on, as many as the type has; in the order of the keys, negative ones too."""
    return ((key ^ _LEAST) >> shift).astype(kind)
