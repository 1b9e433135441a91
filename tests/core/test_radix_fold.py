"""Many rows of one key are combined as few are, whatever the keys, the blocks and the threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from reliable_spark.core import radix_fold
from reliable_spark.core.ids import Longs
from reliable_spark.core.radix_fold import Columns, combined

OPERATIONS: dict[str, np.ufunc] = {"value": np.bitwise_xor, "most": np.maximum, "any": np.logical_or}
ROWS = 300_000
KEYS: dict[str, Callable[[np.random.Generator], Longs]] = {
    "hashes": lambda random: random.integers(-(2**63), 2**63 - 1, 20_000),
    "small numbers": lambda random: np.arange(-5_000, 5_000),
    "alike in their upper bits": lambda random: random.integers(0, 2**20, 20_000) + (7 << 40),
    "the ends": lambda random: np.array([-(2**63), 2**63 - 1, 0, -1, 1 << 56, -(1 << 56)]),
}


def by_one_sort(key: Longs, columns: Columns) -> tuple[Longs, Columns]:
    """What is wanted, by the plainest way."""
    order = np.argsort(key, kind="stable")
    keys, starts = np.unique(key[order], return_index=True)
    wanted: Columns = {}
    for name, column in columns.items():
        wanted[name] = OPERATIONS[name].reduceat(column[order], starts)
    return keys, wanted


def rows_of(keys: Longs, random: np.random.Generator) -> tuple[Longs, Columns]:
    """Every key several times, in any order, with columns."""
    columns: Columns = {
        "value": random.integers(-(2**63), 2**63 - 1, ROWS),
        "most": random.integers(-1, 100, ROWS, dtype=np.int32),
        "any": random.random(ROWS) < 0.01,
    }
    return random.choice(keys, ROWS), columns


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize(("threads", "divided_from"), [(1, ROWS), (2, ROWS), (1, ROWS + 1)])
def test_many_rows_are_combined_as_by_one_sort(
    kind: str, threads: int, divided_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys come out distinct and ascending, each column combined by its operation and of its type."""
    monkeypatch.setattr(radix_fold, "_BLOCK_ROWS", 70_000)
    monkeypatch.setattr(radix_fold, "_DIVIDED_ROWS_MIN", divided_from)
    random = np.random.default_rng(5)
    key, columns = rows_of(KEYS[kind](random), random)
    wanted_keys, wanted = by_one_sort(key, columns)
    with ThreadPoolExecutor(threads) as pool:
        keys, done = combined(key, columns, OPERATIONS, pool.map if threads > 1 else map)
    assert np.array_equal(keys, wanted_keys)
    for name, column in wanted.items():
        assert np.array_equal(done[name], column)
        assert done[name].dtype == columns[name].dtype


def test_a_column_of_zeros_stays_one() -> None:
    """What nobody has said is nothing for any key."""
    key = np.array([3, -1, 3])
    keys, done = combined(key, {"value": np.zeros(3, dtype=np.int64), "any": np.zeros(3, dtype=np.bool_)}, OPERATIONS)
    assert keys.tolist() == [-1, 3]
    assert {name: column.tolist() for name, column in done.items()} == {"value": [0, 0], "any": [False, False]}
