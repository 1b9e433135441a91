"""Keys and values as bytes. Source: Storm's `state/Serializer`, `state/DefaultStateEncoder`."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from importlib import import_module
from math import isfinite
from typing import Any, Protocol

from reliable_spark.errors import SettingsError, UnstorableError


class Serializer(Protocol):
    """Turns a value into bytes and back: `deserialize(serialize(value)) == value`, of the same type."""

    def serialize(self, value: Any) -> bytes:
        """The value as bytes: the same in every process.

        Raises:
            UnstorableError: values of this type cannot be stored.
        """
        ...

    def deserialize(self, content: bytes) -> Any:
        """The value that the bytes were made of."""
        ...


_TAG = "$"
_INT_DIGITS_MAX = 4300
"""Python makes no text of a longer int, so none could be a key."""
_WRITERS: dict[type, Callable[[Any], Any]] = {
    tuple: lambda value: [_plain(each) for each in value],
    set: lambda value: sorted((_plain(each) for each in value), key=_text),
    frozenset: lambda value: sorted((_plain(each) for each in value), key=_text),
    dict: lambda value: [[_plain(key), _plain(each)] for key, each in value.items()],
    bytes: bytes.hex,
    Decimal: str,
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda content: tuple(_value(each) for each in content),
    "set": lambda content: {_value(each) for each in content},
    "frozenset": lambda content: frozenset(_value(each) for each in content),
    "dict": lambda content: {_value(key): _value(each) for key, each in content},
    "bytes": bytes.fromhex,
    "Decimal": Decimal,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda content: timedelta(*content),
}


class JsonSerializer:
    """JSON that keeps Python's types: numbers, text, bytes, decimals, dates and times, and collections of these.

    Readable by others, and safe to read from a store that others may write to.
    """

    def serialize(self, value: Any) -> bytes:
        """The value as JSON text."""
        return _text(_plain(value)).encode("utf-8", "surrogatepass")

    def deserialize(self, content: bytes) -> Any:
        """The value back, with its types."""
        return _value(json.loads(content.decode("utf-8", "surrogatepass")))


class PickleSerializer:
    """Any Python value. Reading runs what was written, so use it only on a store that nobody else can write to.

    As a serializer of keys it needs keys that always pickle alike, such as text and numbers.
    """

    def serialize(self, value: Any) -> bytes:
        """The value as a pickle of a fixed protocol."""
        try:
            return pickle.dumps(value, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UnstorableError(f"a state cannot store a {type(value).__name__}: {error}") from error

    def deserialize(self, content: bytes) -> Any:
        """The value back."""
        return pickle.loads(content)


class TypedSerializer:
    """Takes values of one type only.

    Args:
        serializer: how they are stored.
        kind: the type.
    """

    def __init__(self, serializer: Serializer, kind: type) -> None:
        self._serializer = serializer
        self._kind = kind

    def serialize(self, value: Any) -> bytes:
        """The value as bytes, if it is of the type."""
        if not isinstance(value, self._kind):
            raise UnstorableError(f"the state takes values of type {self._kind.__name__}, not {type(value).__name__}")
        return self._serializer.serialize(value)

    def deserialize(self, content: bytes) -> Any:
        """The value back."""
        return self._serializer.deserialize(content)


def named(path: str) -> Any:
    """What "module:Name" means; a bare name is one of Python's own types.

    Raises:
        SettingsError: there is no such thing.
    """
    module, _, attributes = path.rpartition(":")
    try:
        found: Any = import_module(module or "builtins")
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"{path!r} cannot be found ({error}): name it 'package.module:Name'") from error
    return found


def canonical_key(key: Any) -> Any:
    """The one form of all keys that Python calls equal: 1 for 1, 1.0, True and Decimal("1.00"), UTC for times."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if isinstance(key, tuple | frozenset):
        parts = map(canonical_key, key)
        return tuple(parts) if isinstance(key, tuple) else frozenset(parts)
    if isinstance(key, bool | float):
        return int(key) if isfinite(key) and key == key // 1 else key
    if isinstance(key, Decimal):
        return _canonical_decimal(key)
    return _in_utc(key) if isinstance(key, datetime) else key


def _canonical_decimal(key: Decimal) -> Any:
    """A whole number or a float that is equal, else without zeros at its end; whatever the context's precision is."""
    if key.is_nan():
        return key  # equal to nothing; a signaling one may not even be compared
    if key.is_finite() and key.adjusted() < _INT_DIGITS_MAX and key == key.to_integral_value():
        return int(key)
    if Decimal.from_float(float(key)) == key:
        return float(key)
    return key.normalize(Context(len(key.as_tuple().digits), Emin=MIN_EMIN, Emax=MAX_EMAX))


def _in_utc(key: datetime) -> datetime:
    try:
        return key if key.tzinfo is None else key.astimezone(timezone.utc)
    except OverflowError:
        return key  # an instant before year 1 or after 9999 in UTC


def _text(plain: Any) -> str:
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """What JSON can say, with a tag where it cannot.

    Raises:
        UnstorableError: the type is none of those that can be stored; a subclass would come back as another type.
    """
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_plain(each) for each in value]
    if kind not in _WRITERS:
        raise UnstorableError(
            f"a state cannot store a {kind.__name__}: store numbers, text, bytes, dates or collections of these, "
            "or give the state provider another serializer"
        )
    return {_TAG: kind.__name__, "value": _WRITERS[kind](value)}


def _value(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_value(each) for each in plain]
    return _READERS[plain[_TAG]](plain["value"]) if isinstance(plain, Mapping) else plain
