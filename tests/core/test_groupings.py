"""Laws of the groupings."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import ip_address, ip_network
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.groupings import (
    fields_target,
    key_hash,
    partial_key_candidates,
    partial_key_target,
    random_target,
    round_robin_target,
    shuffled,
    text_hash,
)
from reliable_spark.errors import OperatingError


class OwnUUID(UUID):
    """As drivers of databases have theirs."""


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4) | st.binary(max_size=4)
)
KEYS = st.lists(st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=5), max_size=3)
COUNTS = st.integers(1, 20)


@given(KEYS, KEYS, COUNTS)
def test_a_key_has_one_task_and_equal_keys_the_same(key: list[Any], other: list[Any], count: int) -> None:
    """In range; what Python calls equal goes to the same task."""
    assert 0 <= fields_target(key, count) < count
    assert fields_target(key, count) == fields_target(list(key), count)
    assert (key_hash(key) == key_hash(other)) == (key == other)


@pytest.mark.parametrize(
    "equal",
    [
        [1, 1.0, True, Decimal(1), Fraction(1), np.int64(1), np.float32(1)],
        [b"a", bytearray(b"a"), memoryview(b"a")],
        [[1, 2], (1, 2), np.array([1, 2])],
        [{1, 2}, frozenset([2, 1])],
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [
            datetime(2026, 1, 1, 12, tzinfo=timezone.utc),
            datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ],
        [
            timedelta(hours=25),
            timedelta(days=1, seconds=3600),
            np.timedelta64(25 * 3_600_000, "ms"),
            pd.Timedelta("25h"),
        ],
        [UUID(int=7), UUID(UUID(int=7).hex), OwnUUID(int=7)],
    ],
)
def test_equal_values_of_different_types_are_one_key(equal: list[Any]) -> None:
    """Equal numbers, bytes, sequences, sets, mappings and instants hash alike."""
    assert len({key_hash([each]) for each in equal}) == 1


@given(st.text(max_size=80))
def test_a_remembered_text_has_the_hash_of_its_key(text: str) -> None:
    """Remembering it changes nobody's task."""
    assert text_hash(text) == text_hash(text) == key_hash([text])


def test_different_content_is_told_apart() -> None:
    """Type, order and nesting count."""
    keys: list[Any] = [None, "", b"", 0, "0", [], [[]], ["a", "b"], ["ab"], ["b", "a"], {1}, {1: 2}, float("inf")]
    keys += [UUID(int=1), UUID(int=2), timedelta(1), timedelta(0, 1), timedelta(0, 0, 1), timedelta(-1)]
    keys += [ip_address("10.0.0.1"), ip_network("10.0.0.1/32"), ip_address("::1"), "10.0.0.1"]
    assert len({key_hash([key]) for key in keys}) == len(keys)


def test_what_cannot_be_hashed_the_same_everywhere_is_refused() -> None:
    """An object's hash would differ from process to process."""
    with pytest.raises(OperatingError, match="cannot hash a object"):
        key_hash([object()])


@given(COUNTS, st.integers(0, 2**32), st.integers(1, 5))
def test_a_shuffle_is_exact(count: int, seed: int, rounds: int) -> None:
    """After k * n tuples each of n targets has exactly k."""
    order = shuffled(count, seed)
    picks = Counter(round_robin_target(order, number) for number in range(rounds * count))
    assert picks == dict.fromkeys(range(count), rounds)


def test_shuffles_of_different_seeds_differ() -> None:
    """Two emitters do not begin with the same task."""
    assert len({shuffled(6, seed) for seed in range(20)}) > 10


@given(KEYS, st.integers(2, 20), st.integers(1, 30))
def test_partial_key_spreads_one_key_over_two_tasks(key: list[Any], count: int, tuples: int) -> None:
    """Two different tasks, always the same two, whose loads differ by one at most."""
    candidates = partial_key_candidates(key, count)
    assert len(set(candidates)) == 2
    assert all(0 <= each < count for each in candidates)
    used: Counter[int] = Counter()
    for _ in range(tuples):
        used[partial_key_target(candidates, used)] += 1
    assert set(used) <= set(candidates)
    assert used[candidates[0]] - used[candidates[1]] in (0, 1)


def test_partial_key_with_one_task() -> None:
    """There is nothing to choose."""
    assert partial_key_candidates(["a"], 1) == (0, 0)


@given(st.integers(0, 2**32))
def test_random_targets_reach_everyone(seed: int) -> None:
    """Of 200 tuples each of four targets gets some."""
    assert {random_target(4, seed, number) for number in range(200)} == {0, 1, 2, 3}
