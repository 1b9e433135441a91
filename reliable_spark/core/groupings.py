"""Groupings as pure functions: which of a bolt's tasks a tuple goes to, by content or by its number.

A target is a position in the sorted list of the bolt's tasks. What Storm draws at random is computed from a seed,
so a second evaluation agrees with the first. Source: Storm's `daemon/GrouperFactory` and the package `grouping`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import xxhash

from reliable_spark.core.ids import xxhash64
from reliable_spark.errors import OperatingError


class GroupingKind(Enum):
    """Storm's stream groupings."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    FIELDS = "fields"
    PARTIAL_KEY = "partial_key"
    ALL = "all"
    GLOBAL = "global"
    NONE = "none"
    DIRECT = "direct"
    CUSTOM = "custom"


@dataclass(frozen=True)
class Grouping:
    """How one subscription spreads its tuples.

    Attributes:
        kind: which rule.
        fields: the key of FIELDS and PARTIAL_KEY; for PARTIAL_KEY none means the first value.
        custom: for CUSTOM, an object with Storm's `prepare` and `choose_tasks`.
    """

    kind: GroupingKind
    fields: tuple[str, ...] = ()
    custom: Any = None


def key_hash(values: Sequence[object]) -> int:
    """A signed 64-bit hash of a key: the same in every process, and equal for values that Python calls equal.

    1, 1.0 and True are one key, as they are for a dict; a list and an array or tuple of the same content are one key.

    Args:
        values: the selected values; None, numbers, text, bytes, dates, durations, enum members, UUIDs, IP addresses,
            and lists, sets and mappings of these.

    Raises:
        OperatingError: for a value of another type, whose hash would differ from process to process. It is the data
            that is wrong, so what emitted it fails, not the program.

    Cost: one encoding and one xxhash. Source: `utils/TupleUtils.listHashCode`, a deep hash too.
    """
    number = xxhash.xxh64_intdigest(_encoded(list(values)))
    return number - (1 << 64) if number >> 63 else number


def fields_target(key: Sequence[object], count: int) -> int:
    """The one task of a key, always the same. Source: `TupleUtils.chooseTaskIndex`, a floor modulus of the hash."""
    return key_hash(key) % count


@lru_cache(maxsize=1 << 16)
def text_hash(text: str) -> int:
    """`key_hash` of a key that is one text, remembered: words come again and again, and hashing them is what costs."""
    return key_hash((text,))


def shuffled(count: int, seed: int) -> tuple[int, ...]:
    """A permutation of the targets, a function of the seed. Source: `grouping/ShuffleGrouping.prepare`."""
    return tuple(sorted(range(count), key=lambda target: xxhash64(seed, target)))


def round_robin_target(order: Sequence[int], number: int) -> int:
    """The target of an emitter's tuple by its number: after k * n tuples each of n targets has exactly k."""
    return order[number % len(order)]


def random_target(count: int, seed: int, number: int) -> int:
    """A uniformly spread target, computed from the tuple's number. Source: `GrouperFactory.NoneGrouper`."""
    return xxhash64(seed, number) % count


def partial_key_candidates(key: Sequence[object], count: int) -> tuple[int, int]:
    """The two tasks a key may go to: always the same two, and different ones when there are two tasks.

    Source: `grouping/PartialKeyGrouping.RandomTwoTaskAssignmentCreator`.
    """
    seed = key_hash(key)
    first = xxhash64(seed, 1) % count
    if count == 1:
        return first, first
    return first, (first + 1 + xxhash64(seed, 2) % (count - 1)) % count


def partial_key_target(candidates: tuple[int, int], used: Mapping[int, int]) -> int:
    """Of a key's two tasks the one this emitter has used less, the first on a tie."""
    first, second = candidates
    return first if used.get(first, 0) <= used.get(second, 0) else second


def _encoded(value: Any) -> bytes:
    """Bytes that are equal exactly when the values count as one key."""
    if value is None:
        return b"n"
    if isinstance(value, bytes | bytearray | memoryview):
        return _framed(b"b", bytes(value))
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        value = value.tolist()
    if isinstance(value, str):
        return _framed(b"s", value.encode("utf-8", "surrogatepass"))
    return _encoded_number(value) if hasattr(value, "as_integer_ratio") else _encoded_other(value)


def _encoded_number(value: Any) -> bytes:
    """Numbers by their exact value, so that equal numbers of different types are one key."""
    try:
        numerator, denominator = value.as_integer_ratio()
    except (OverflowError, ValueError):
        return _framed(b"f", str(float(value)).encode())
    return _framed(b"i", f"{numerator}/{denominator}".encode())


def _encoded_other(value: Any) -> bytes:
    """Collections by their content, sets and mappings in no order."""
    if isinstance(value, Mapping):
        return _framed(b"m", b"".join(sorted(_encoded(pair) for pair in value.items())))
    if isinstance(value, Set):
        return _framed(b"c", b"".join(sorted(map(_encoded, value))))
    if isinstance(value, list | tuple):
        return _framed(b"l", b"".join(map(_encoded, value)))
    return _encoded_by_text(value)


def _encoded_by_text(value: Any) -> bytes:
    """Times by the instant, others by their name or the one text that they have."""
    if isinstance(value, Enum):
        return _framed(b"e", f"{type(value).__qualname__}.{value.name}".encode())
    if hasattr(value, "isoformat") and not hasattr(value, "total_seconds"):  # pandas' durations have both
        return _framed(b"t", _instant(value).encode())
    for kind in type(value).__mro__:
        if kind.__name__ in _TEXTS.get(kind.__module__, ()):
            return _framed(b"o", _TEXTS[kind.__module__][kind.__name__](value).encode())
    raise OperatingError(f"a grouping cannot hash a {type(value).__name__}: group by text, numbers, bytes or dates")


def _duration(value: Any) -> str:
    return f"P{value.days}D{value.seconds}.{value.microseconds:06}"


_TEXTS: Mapping[str, Mapping[str, Callable[[Any], str]]] = {
    "uuid": {"UUID": str},
    "datetime": {"timedelta": _duration},
    "ipaddress": dict.fromkeys(("IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network"), str),
}
"""Types of Python's own whose values have one text each, by module and name: this row imports none of them."""


def _instant(value: Any) -> str:
    """A date or time as text; aware ones in UTC, since equal instants are equal in Python."""
    offset = value.utcoffset() if hasattr(value, "astimezone") else None
    return str(value.isoformat()) if offset is None else f"{(value.replace(tzinfo=None) - offset).isoformat()}Z"


def _framed(mark: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (mark, len(content), content)
