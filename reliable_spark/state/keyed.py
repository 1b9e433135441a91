"""The state that a bolt of a frame sees: that of the key of the row in hand.

Values are changed in memory; a row that fails takes back what it has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple, Protocol

from reliable_spark.state.local_copy import Group, check_name
from reliable_spark.state.serializers import JsonSerializer, canonical_key

_DELETED: Final = object()
_UNKNOWN: Final = object()
_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str, bytes, Decimal, date, datetime, timedelta})
_JSON: Final = JsonSerializer()

Name = str | bytes
"""What a key of the state is known by: itself where it is a text, else as it is stored."""


class Stored(Protocol):
    """What the state was before."""

    def get(self, group: Group, name: bytes) -> bytes | None:
        """The value of a name in a group."""
        ...

    def scan(self, group: Group) -> Iterator[tuple[bytes, bytes]]:
        """The names of a group and their values."""
        ...


class _Packed(NamedTuple):
    """A value that could be changed in place: kept as it was stored."""

    content: bytes


class KeyedState:
    """A `KeyValueState` for each key of a frame, of which one at a time can be seen.

    Guarantee: what is put is seen at once by later rows of the same key, and by nobody else; `undo` takes it back.
    Values keep their types. Keys that Python calls equal, such as 1 and 1.0, are one key.

    Args:
        stored: what the state was before.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._changed: dict[Group, dict[Name, Any]] = {}
        self._read: dict[tuple[Group, Name], Any] = {}
        self._undo: list[tuple[dict[Name, Any], Name, Any]] = []
        self._group: Group = None
        self._own: dict[Name, Any] = {}

    # ------------------------------------------------------------------------------------- what a bolt calls

    def get(self, key: Any, default: Any = None) -> Any:
        """A key's value, or the default."""
        name = key if type(key) is str else _name(key)
        value = self._own.get(name, _UNKNOWN)
        if value is _UNKNOWN:
            value = self._find(name)
        if type(value) is _Packed:
            return _JSON.deserialize(value.content)
        return default if value is _DELETED else value

    def put(self, key: Any, value: Any) -> None:
        """Set a key's value. Who changes a list got from a state puts it back.

        Raises:
            UsageError: the key or the value is of a type that cannot be stored.
        """
        name = key if type(key) is str else _name(key)
        self._set(name, value if type(value) in _IMMUTABLE else _Packed(_JSON.serialize(value)))

    def delete(self, key: Any) -> Any:
        """Remove a key and return what it had, or None."""
        old = self.get(key)
        self._set(key if type(key) is str else _name(key), _DELETED)
        return old

    def __contains__(self, key: Any) -> bool:
        """Whether the key has a value."""
        return self._find(key if type(key) is str else _name(key)) is not _DELETED

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        """Every key with its newest value, once, in no order: `dict(state)` is a copy."""
        names = {_known(name): None for name, _ in self._stored.scan(self._group)}
        for name in {**names, **self._own}:
            key = name if type(name) is str else _JSON.deserialize(name)  # type: ignore[arg-type]
            if key in self:
                yield key, self.get(key)

    # ---------------------------------------------------------------------------------- what its keeper calls

    def turn_to(self, group: Group) -> None:
        """From now on, be the state of this key of the frame."""
        self._group = group
        own = self._changed.get(group)
        if own is None:
            own = self._changed[group] = {}
        self._own = own

    def mark(self) -> int:
        """A point to go back to."""
        return len(self._undo)

    def undo(self, mark: int) -> None:
        """Take back everything that was changed after a mark."""
        while len(self._undo) > mark:
            own, name, before = self._undo.pop()
            if before is _UNKNOWN:
                del own[name]
            else:
                own[name] = before

    def keep(self) -> None:
        """Forget all marks: what has been changed stays."""
        self._undo.clear()

    def changes(self) -> dict[tuple[Group, bytes], bytes | None]:
        """Everything that was changed, as it is stored; None: deleted."""
        return {
            (group, _stored_name(name)): None if value is _DELETED else _content(value)
            for group, own in self._changed.items()
            for name, value in own.items()
        }

    def _find(self, name: Name) -> Any:
        value = self._own.get(name, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        place = (self._group, name)
        value = self._read.get(place, _UNKNOWN)
        if value is _UNKNOWN:
            content = self._stored.get(self._group, _stored_name(name))
            value = self._read[place] = _DELETED if content is None else _value(content)
        return value

    def _set(self, name: Name, value: Any) -> None:
        own = self._own
        before = own.get(name, _UNKNOWN)
        if before is _UNKNOWN:
            check_name(_stored_name(name))
        self._undo.append((own, name, before))
        own[name] = value


def _name(key: Any) -> Name:
    canonical = canonical_key(key)
    return canonical if type(canonical) is str else _JSON.serialize(canonical)


def _known(stored: bytes) -> Name:
    key = _JSON.deserialize(stored)
    return key if type(key) is str else stored


def _stored_name(name: Name) -> bytes:
    return name if type(name) is bytes else _JSON.serialize(name)


def _content(value: Any) -> bytes:
    if type(value) is int:
        # by far the most frequent one, at a tenth of the cost
        return b"%d" % value
    return value.content if type(value) is _Packed else _JSON.serialize(value)


def _value(content: bytes) -> Any:
    value = _JSON.deserialize(content)
    return value if type(value) in _IMMUTABLE else _Packed(content)
