from __future__ import annotations

from functools import reduce
from itertools import islice
from operator import xor
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.ids import (
    child_shares,
    hash_longs,
    hash_pairs,
    numbered_ids,
    replay_id,
    root_id,
    share,
    xxhash64,
)

longs = st.integers(-(2**63), 2**63 - 1)

# Printed by pyspark 4.2.0: F.xxhash64 of the same values, ints cast to long.
SPARK_HASHES: list[tuple[tuple[int | str | bool, ...], int]] = [
    ((0,), -5252525462095825812),
    ((1,), -7001672635703045582),
    ((-1,), 3858142552250413010),
    ((-(2**63),), -8619748838626508300),
    ((2**63 - 1,), -3246596055638297850),
    ((True,), -6698625589789238999),
    ((False,), 3614696996920510707),
    (("",), -7444071767201028348),
    (("a",), -8582455328737087284),
    (("zażółć 🙂",), 6177332720864229991),
    (("x" * 40,), -5348608777870439244),
    (("🙂é" * 50,), 7614452304596243275),
    ((100, 200), -8748874943586144144),
    ((True, 5), -7914094773237363514),
]


@pytest.mark.parametrize(("values", "expected"), SPARK_HASHES)
def test_xxhash64_equals_spark(values: tuple[int | str | bool, ...], expected: int) -> None:
    """The hash is bit for bit the one Spark 4.2 computes in Catalyst."""
    assert xxhash64(*values) == expected


@given(longs)
def test_numbered_ids_are_hashes_of_their_numbers(seed: int) -> None:
    """Also where one block of them ends and the next begins."""
    assert list(islice(numbered_ids(seed), 510, 515)) == [xxhash64(number, seed=seed) for number in range(511, 516)]


def test_xxhash64_of_nothing_is_the_seed() -> None:
    """No values leave the seed, and an unsigned seed means the same as a signed one."""
    assert xxhash64() == 42
    assert xxhash64(7, seed=-1) == xxhash64(7, seed=2**64 - 1)


@pytest.mark.parametrize("value", [None, 1.5, b"a"])
def test_xxhash64_refuses_other_types(value: object) -> None:
    """A null, which Spark would skip silently, and any other type are refused."""
    with pytest.raises(TypeError, match=type(value).__name__):
        xxhash64(value)  # type: ignore[arg-type]


def test_xxhash64_refuses_numbers_beyond_a_long() -> None:
    """An int that is no 64-bit number is refused instead of wrapped."""
    with pytest.raises(OverflowError):
        xxhash64(2**63)


def test_xxhash64_takes_numpy_scalars() -> None:
    """A numpy integer or bool hashes as the Python value does."""
    assert xxhash64(int(np.int64(5)), True) == xxhash64(np.int64(5), np.bool_(True))  # type: ignore[arg-type]


def test_root_id_equals_spark() -> None:
    """A root id is Spark's xxhash64 over spout, null flag and text per column, and attempt."""
    assert root_id("orders", ["42"], 1) == -420291079714680258
    assert root_id("orders", [None, "7"], 1) == -1321254863524354712


def test_root_id_tells_what_must_be_told_apart() -> None:
    """Spout, null against empty, column borders, column order and attempt all give different ids."""
    ids = [
        root_id("s", [""], 1),
        root_id("s", [None], 1),
        root_id("s", [None, None], 1),
        root_id("s", ["ab", "c"], 1),
        root_id("s", ["a", "bc"], 1),
        root_id("s", ["bc", "a"], 1),
        root_id("t", [""], 1),
        root_id("s", [""], 2),
    ]
    assert len(set(ids)) == len(ids)


def test_root_id_refuses_a_bare_string() -> None:
    """A string in place of the list of columns would be hashed by letters and is refused."""
    with pytest.raises(TypeError, match=r"write \['42'\]"):
        root_id("s", "42", 1)


def test_replay_id_chains_on_the_previous_anchor() -> None:
    """A replay's id follows from the anchor before and the attempt, and differs from both neighbours."""
    first = root_id("s", ["1"], 1)
    second = replay_id(first, 2)
    assert second == xxhash64("replay", first, 2)
    assert len({first, second, replay_id(second, 3), replay_id(first, 3), replay_id(second, 1)}) == 5
    with pytest.raises(ValueError, match="1 or more"):
        replay_id(first, 0)


@given(parent=longs, count=st.integers(1, 40))
def test_shares_xor_to_the_parent(parent: int, count: int) -> None:
    """All children of a tuple together XOR to its id, however many there are."""
    assert reduce(xor, (share(parent, index, count) for index in range(count))) == parent


@given(parent=longs, count=st.integers(2, 40), data=st.data())
def test_no_proper_subset_of_shares_is_the_parent(parent: int, count: int, data: st.DataObject) -> None:
    """Whichever children are missing, what is left XORs to something else than the parent's id."""
    lost = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    kept = [share(parent, index, count) for index in range(count) if index not in lost]
    assert reduce(xor, kept, 0) != parent or (not kept and parent == 0)


@given(parent=longs)
def test_a_single_child_keeps_the_id(parent: int) -> None:
    """One child is the same node of the tree, so it keeps the id."""
    assert share(parent, 0, 1) == parent


@given(parent=longs, counts=st.lists(st.integers(1, 5), max_size=4))
def test_nested_splits_telescope(parent: int, counts: list[int]) -> None:
    """Leaves of splits of splits still XOR to the root's id, so only leaves need to be acked."""
    leaves = [parent]
    for count in counts:
        leaves = [share(leaf, index, count) for leaf in leaves for index in range(count)]
    assert reduce(xor, leaves) == parent


@pytest.mark.parametrize(("index", "count"), [(0, 0), (-1, 2), (2, 2)])
def test_share_refuses_a_child_that_is_not(index: int, count: int) -> None:
    """A place outside 0..count-1 is an error, not an id."""
    with pytest.raises(ValueError, match="index"):
        share(7, index, count)


@given(pairs=st.lists(st.tuples(longs, longs), min_size=1, max_size=20))
def test_vectorised_hashes_equal_scalar_ones(pairs: list[tuple[int, int]]) -> None:
    """The numpy XXH64 of 8 bytes wraps exactly as libxxhash's does, alone and chained."""
    first, second = np.array(pairs, dtype=np.int64).T
    assert hash_longs(first).tolist() == [xxhash64(left) for left, _ in pairs]
    assert hash_longs(first, second).tolist() == [xxhash64(left, seed=right) for left, right in pairs]
    assert hash_pairs(first, second).tolist() == [xxhash64(left, right) for left, right in pairs]


@given(st.lists(st.tuples(longs, st.integers(1, 5)), max_size=20), st.randoms())
def test_shares_of_children_in_any_order_equal_scalar_ones(splits: list[tuple[int, int]], random: Random) -> None:
    """Each child is told from its own place alone."""
    places = [(parent, index, count) for parent, count in splits for index in range(count)]
    random.shuffle(places)
    columns = [np.array(values, dtype=np.int64) for values in zip(*places, strict=True)] or [np.empty(0, np.int64)] * 3
    assert child_shares(*columns).tolist() == [share(*place) for place in places]
