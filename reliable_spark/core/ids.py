"""Ids are computed, never drawn: Spark may evaluate a row twice and both evaluations must agree.

Every id is a signed 64-bit hash of where a tuple comes from, equal to what Catalyst's `xxhash64` gives,
so the JVM side and this module may compute any id independently. An id is 0 with probability 2**-64.
Source: `org.apache.spark.sql.catalyst.expressions.XXH64` for the hash; Storm's `tuple/MessageId.generateId`
draws its ids at random instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, count

import numpy as np
import numpy.typing as npt
import xxhash

SEED = 42
"""The seed of Spark's `xxhash64`."""

Longs = npt.NDArray[np.int64]
"""A one-dimensional array of signed 64-bit numbers."""

_MASK = (1 << 64) - 1
_IDS_PER_BLOCK = 512
_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5_PLUS_LENGTH = np.uint64(0x27D4EB2F165667C5 + 8)


def xxhash64(*values: int | str | bool, seed: int = SEED) -> int:
    """The same signed 64-bit number as Spark's `xxhash64` over the same values.

    Args:
        values: an int is hashed as a Java long, a str as UTF-8, a bool as a Java int 1 or 0; each value's
            hash is the seed of the next. No values, which Spark refuses, give the seed.
        seed: signed or unsigned 64-bit start.

    Raises:
        TypeError: for any other type; Spark skips nulls, so a None must be told apart by the caller.
        OverflowError: for an int that is no long.

    Cost: one call of libxxhash per value. Source: Spark's `XxHash64Function`.
    """
    state = seed & _MASK
    for value in values:
        state = xxhash.xxh64_intdigest(_bytes_as_spark(value), state)
    return _signed(state)


def root_id(spout: str, message_id: Sequence[str | None], attempt: int) -> int:
    """The id of a tree: a function of the source row alone, different for every attempt.

    Args:
        spout: name of the source.
        message_id: the id columns as text, in order; None and "" are different ids.
        attempt: 1 for the first emission.

    Raises:
        TypeError: when `message_id` is a bare string, which would be hashed letter by letter.

    Cost: 2 * len(message_id) + 2 hashes. Source: Storm's `SpoutOutputCollectorImpl` draws it instead.
    """
    if isinstance(message_id, str):
        raise TypeError(f"message_id must be a sequence; write [{message_id!r}] for a single column")
    columns = [part for text in message_id for part in (text is None, text or "")]
    return xxhash64(spout, *columns, attempt)


def replay_id(previous: int, attempt: int) -> int:
    """The id of a replayed tree: a new one, so late answers to an old attempt touch nothing.

    Args:
        previous: the anchor of the attempt before.
        attempt: number of the new attempt; 1 for a dead letter that is tried again.

    Raises:
        ValueError: for an attempt below 1.

    Cost: two hashes. Source: Storm re-emits under a new random root id (`spout/ISpout.fail`).
    """
    if attempt < 1:
        raise ValueError(f"attempt must be 1 or more, got {attempt}")
    return xxhash64("replay", previous, attempt)


def share(parent: int, index: int, count: int) -> int:
    """The id of one of `count` children: all of them XOR to the parent's id, no proper subset does.

    `h(p, i) ^ h(p, i + 1)` with `h(p, 0) = p` and `h(p, count) = 0` telescopes, so a child needs to know
    only its own place. A single child keeps the parent's id.

    Args:
        parent: id of the tuple that is split.
        index: place of the child, 0 to count - 1.
        count: number of children, 1 or more.

    Raises:
        ValueError: when there is no such child.

    Cost: at most four hashes. Source: none in Storm, which draws the ids and sends an ack per inner tuple.
    """
    if not 0 <= index < count:
        raise ValueError(f"index must be in 0..count-1, got index {index} of count {count}")
    low = parent if index == 0 else xxhash64(parent, index)
    high = 0 if index + 1 == count else xxhash64(parent, index + 1)
    return low ^ high


def child_shares(parents: Longs, index: Longs, counts: Longs) -> Longs:
    """`share` for children in any order.

    Args:
        parents: int64 array of the parent's id of each child.
        index: int64 array of the child's place among its siblings.
        counts: int64 array of how many of them there are.

    Cost: two vectorised hashes per pair of parent and place.
    """
    low: Longs = np.where(index == 0, parents, hash_pairs(parents, index))
    high: Longs = np.where(index + 1 == counts, 0, hash_pairs(parents, index + 1))
    divided: Longs = low ^ high
    return divided


def numbered_ids(seed: int = SEED) -> Iterator[int]:
    """`xxhash64(1, seed=seed)`, `xxhash64(2, seed=seed)` and so on without end.

    Cost: 0.1 microseconds an id, since they are computed in blocks.
    """
    return chain.from_iterable(map(partial(_block_of_ids, seed), count()))


def _block_of_ids(seed: int, number: int) -> list[int]:
    first = 1 + number * _IDS_PER_BLOCK
    ids: list[int] = hash_longs(np.arange(first, first + _IDS_PER_BLOCK), seed).tolist()
    return ids


def hash_pairs(first: Longs, second: Longs) -> Longs:
    """`xxhash64(first, second)` of each pair of longs.

    Args:
        first: int64 array.
        second: int64 array of the same length.

    Cost: two vectorised hashes per pair.
    """
    return hash_longs(second, hash_longs(first))


def hash_longs(values: Longs, seeds: Longs | int = SEED) -> Longs:
    """`xxhash64(value, seed=seed)` of each long, without a Python call per value.

    Args:
        values: int64 array.
        seeds: one seed, or an int64 array of as many.

    Cost: about 15 passes over 8 bytes per value. Source: XXH64 for an input of 8 bytes.
    """
    words = np.ascontiguousarray(values, dtype=np.int64).view(np.uint64)
    state = np.ascontiguousarray(seeds, dtype=np.int64).view(np.uint64) + _PRIME_5_PLUS_LENGTH
    state = state ^ (_rotated_left(words * _PRIME_2, 31) * _PRIME_1)
    state = _rotated_left(state, 27) * _PRIME_1 + _PRIME_4
    state ^= state >> np.uint64(33)
    state *= _PRIME_2
    state ^= state >> np.uint64(29)
    state *= _PRIME_3
    state ^= state >> np.uint64(32)
    hashes: Longs = state.view(np.int64)
    return hashes


def _rotated_left(words: npt.NDArray[np.uint64], bits: int) -> npt.NDArray[np.uint64]:
    """Each word rotated left by `bits`."""
    rotated: npt.NDArray[np.uint64] = (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
    return rotated


def _bytes_as_spark(value: int | str | bool) -> bytes:
    """The bytes over which Spark hashes a value of this type."""
    # bool first: in Python it is an int, in Spark it is hashed over 4 bytes.
    if isinstance(value, (bool, np.bool_)):
        return int(value).to_bytes(4, "little")
    if isinstance(value, (int, np.integer)):
        return int(value).to_bytes(8, "little", signed=True)
    if isinstance(value, str):
        return value.encode("utf-8")
    raise TypeError(f"xxhash64 takes int, str and bool, got {type(value).__name__}")


def _signed(number: int) -> int:
    """An unsigned 64-bit number read as two's complement."""
    return number - (1 << 64) if number >> 63 else number
