"""Many rows of one key are combined as few are, whatever the keys, the blocks and the threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from reliable_spark.core import radix_fold
from reliable_spark.core.ids import Longs
from reliable_spark.core.radix_fold import Column, Sparse, xored

ROWS = 300_000
KEYS: dict[str, Callable[[np.random.Generator], Longs]] = {
    "hashes": lambda random: random.integers(-(2**63), 2**63 - 1, 20_000),
    "small numbers": lambda random: np.arange(-5_000, 5_000),
    "alike in their upper bits": lambda random: random.integers(0, 2**20, 20_000) + (7 << 40),
    "the ends": lambda random: np.array([-(2**63), 2**63 - 1, 0, -1, 1 << 56, -(1 << 56)]),
}


def by_one_sort(key: Longs, value: Longs, sparse: list[Sparse]) -> tuple[Longs, list[Column]]:
    """What is wanted, by the plainest way."""
    order = np.argsort(key, kind="stable")
    keys, starts = np.unique(key[order], return_index=True)
    wanted: list[Column] = [np.bitwise_xor.reduceat(value[order], starts)]
    for column in sparse:
        filled = np.where(column.has, column.values, column.values.dtype.type(column.nothing))
        wanted.append(column.operation.reduceat(filled[order], starts))
    return keys, wanted


def rows_of(keys: Longs, random: np.random.Generator) -> tuple[Longs, Longs, list[Sparse]]:
    """Every key several times, in any order, with columns; also one in which no row has a value."""
    numbers = random.integers(0, 100, ROWS, dtype=np.int32)
    flags = random.random(ROWS) < 0.01
    sparse = [
        Sparse(random.random(ROWS) < 0.1, numbers, np.maximum, -1),
        Sparse(flags, flags, np.logical_or, False),
        Sparse(np.zeros(ROWS, dtype=np.bool_), numbers, np.maximum, -1),
    ]
    return random.choice(keys, ROWS), random.integers(-(2**63), 2**63 - 1, ROWS), sparse


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(("threads", "divided_from"), [(1, ROWS), (2, ROWS), (1, ROWS + 1)])
def test_many_rows_are_combined_as_by_one_sort(
    kind: str, threads: int, divided_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys come out distinct and ascending, each column combined by its operation and of its type."""
    monkeypatch.setattr(radix_fold, "_BLOCK_ROWS", 70_000)
    monkeypatch.setattr(radix_fold, "_DIVIDED_ROWS_MIN", divided_from)
    random = np.random.default_rng(5)
    key, value, sparse = rows_of(KEYS[kind](random), random)
    wanted_keys, wanted = by_one_sort(key, value, sparse)
    with ThreadPoolExecutor(threads) as pool:
        keys, done = xored(key, value, sparse, pool.map if threads > 1 else map)
    assert np.array_equal(keys, wanted_keys)
    for column, expected, given in zip(done, wanted, [value, *(each.values for each in sparse)], strict=True):
        assert np.array_equal(column, expected)
        assert column.dtype == given.dtype


def test_no_rows_are_no_keys() -> None:
    """Nothing comes of nothing, in the columns' types."""
    flags = np.empty(0, dtype=np.bool_)
    nothing = np.empty(0, dtype=np.int64)
    keys, done = xored(nothing, nothing, [Sparse(flags, flags, np.logical_or, False)])
    assert (len(keys), [len(column) for column in done]) == (0, [0, 0])
    assert [column.dtype for column in done] == [np.int64, np.bool_]
