"""Rows of one key combined into one: a radix sort whose second step happens in the cache.

The rows are divided by the key's top bits, then each part is ordered by the 16 bits below them. Among hashes these 23
bits leave little in disorder, which a stable sort puts right in about one pass; any keys are ordered right, and only
the time differs. numpy's own sort of 64-bit numbers takes four times as long where its AVX-512 form meets an AMD
processor, and no parts of it run side by side. Rows that fit into the cache are not divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from reliable_spark.core.ids import Longs

Places = npt.NDArray[np.intp]
Column = npt.NDArray[Any]
Rows = tuple[Longs, Column]
"""Keys, and a value of each."""
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
"""`map`, or the `map` of a pool of threads."""

_TOP_BITS = 7
_PARTS = 1 << _TOP_BITS
_SIGN = np.uint64(1 << 63)
_BLOCK_ROWS = 1 << 19
_DIVIDED_ROWS_MIN = 1 << 19


@dataclass(frozen=True, eq=False)
class Sparse:
    """A column that few rows have a value in.

    Attributes:
        has: which rows have one.
        values: of every row's length; what the other rows hold is ignored.
        operation: combines two values.
        nothing: what a key gets of which no row has a value; combined with a value it gives that value.
    """

    has: npt.NDArray[np.bool_]
    values: Column
    operation: np.ufunc
    nothing: int | bool

    def rows(self, key: Longs, block: slice) -> Rows:
        """The rows of a block that have a value."""
        places = np.flatnonzero(self.has[block])
        return key[block].take(places), self.values[block].take(places)

    def of_keys(self, keys: Longs, rows: Rows) -> Column:
        """The values of ascending keys, among which the rows' keys all are."""
        column = np.full(len(keys), self.nothing, dtype=self.values.dtype)
        self.operation.at(column, np.searchsorted(keys, rows[0]), rows[1])
        return column


def xored(key: Longs, value: Column, sparse: Sequence[Sparse] = (), each: Each = map) -> tuple[Longs, list[Column]]:
    """Combine the rows of one key: the values by XOR, and each sparse column by its operation.

    Args:
        key: any numbers, in any order.
        value: of the key's length.
        sparse: the columns in which few rows have a value.
        each: runs the parts of the work; `map` of a thread pool runs them side by side.

    Returns:
        The distinct keys, ascending, and the columns in the order given, that of the values first.
    """
    if not len(key):
        return key, [value, *(column.values for column in sparse)]
    is_divided = len(key) >= _DIVIDED_ROWS_MIN
    block_rows = _BLOCK_ROWS if is_divided else len(key)

    def rows_of(first: int) -> list[Rows]:
        block = slice(first, first + block_rows)
        return [(key[block], value[block]), *(column.rows(key, block) for column in sparse)]

    def of_part(part: list[Rows]) -> list[Column]:
        return _xored(part, sparse, 48 - _TOP_BITS if is_divided else 48)

    if not is_divided:
        keys, *columns = of_part(rows_of(0))
        return keys, columns
    parts = _each_part(rows_of, range(0, len(key), block_rows), of_part, each)
    keys, *columns = map(np.concatenate, zip(*parts, strict=True))
    return keys, columns


def _xored(part: list[Rows], sparse: Sequence[Sparse], shift: int) -> list[Column]:
    """The distinct keys of a part, and their columns."""
    (key, value), *others = part
    order = _order_of(key, shift)
    key = key.take(order)
    starts = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    keys = key.take(starts)
    xors = np.bitwise_xor.reduceat(value.take(order), starts)
    return [keys, xors, *(column.of_keys(keys, rows) for column, rows in zip(sparse, others, strict=True))]


def _each_part(
    rows_of: Callable[[int], list[Rows]], blocks: Iterable[int], work: Callable[[list[Rows]], Any], each: Each
) -> Iterable[Any]:
    """Divide rows into parts and work on each that is not empty; every key of one is less than any of the next."""
    divided = list(each(lambda first: [_divided(*rows) for rows in rows_of(first)], blocks))
    columns = range(len(divided[0]))

    def on_part(number: int) -> Any:
        return work([_joined([block[place] for block in divided], number) for place in columns])

    ends = [block[0][2] for block in divided]
    return each(on_part, [number for number in range(_PARTS) if any(of[number] < of[number + 1] for of in ends)])


def _divided(key: Longs, value: Column) -> tuple[Longs, Column, list[int]]:
    """Rows ordered by the top bits of their keys, and where each part begins and the last one ends."""
    top = _bits(key, 64 - _TOP_BITS, np.uint8)
    order = np.argsort(top, kind="stable")
    ends = np.cumsum(np.bincount(top, minlength=_PARTS))
    return key.take(order), value.take(order), [0, *ends.tolist()]


def _joined(blocks: list[tuple[Longs, Column, list[int]]], number: int) -> Rows:
    """One part of all blocks."""
    slices = [slice(ends[number], ends[number + 1]) for _, _, ends in blocks]
    key = np.concatenate([block[0][part] for block, part in zip(blocks, slices, strict=True)])
    return key, np.concatenate([block[1][part] for block, part in zip(blocks, slices, strict=True)])


def _order_of(key: Longs, shift: int) -> Places:
    """The order that sorts keys: by 16 of their bits first, the others after that."""
    order = np.argsort(_bits(key, shift, np.uint16), kind="stable")
    return order.take(np.argsort(key.take(order), kind="stable"))


def _bits(key: Longs, shift: int, kind: type[np.unsignedinteger[Any]]) -> npt.NDArray[np.unsignedinteger[Any]]:
    """The bits of the keys from there on, as many as the type has; in the order of the keys, negative ones too."""
    return ((key.view(np.uint64) ^ _SIGN) >> np.uint64(shift)).astype(kind)
