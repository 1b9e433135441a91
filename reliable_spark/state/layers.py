"""A key-value state in three layers: what was changed, over what was prepared, over what was committed.

Source: storm-redis' `state/RedisKeyValueState`, `state/RedisKeyValueStateIterator`; one implementation for every
store, so that they cannot differ in when a transaction is in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, cast

from reliable_spark.errors import StateError
from reliable_spark.state.base import K, V
from reliable_spark.state.serializers import Serializer, canonical_key

Changes = Mapping[bytes, bytes | None]
"""Key -> value; None marks a key that was deleted, until the commit removes it."""


class Stored(NamedTuple):
    """What a store remembers beside the committed pairs.

    Attributes:
        committed: the txid that was committed last; None before the first.
        prepared: the txid that is prepared; None when none is.
        changes: what is prepared under it.
    """

    committed: int | None = None
    prepared: int | None = None
    changes: Changes = MappingProxyType({})


class Store(Protocol):
    """The durable part of one namespace. Each write happens wholly or not at all, and may be repeated.

    Raises (every method):
        StateError: the store cannot be reached.
    """

    def load(self) -> Stored:
        """What is prepared, and both txids."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """A committed value."""
        ...

    def scan(self) -> Iterable[tuple[bytes, bytes]]:
        """The committed pairs; one may come twice."""
        ...

    def prepare(self, txid: int, changes: Changes) -> None:
        """Replace whatever was prepared."""
        ...

    def commit(self, txid: int) -> None:
        """Fold what is prepared, if anything, into the committed pairs, and keep the txid."""
        ...

    def rollback(self) -> None:
        """Drop what is prepared."""
        ...


class LayeredState(Generic[K, V]):
    """Implements `KeyValueState` over a store. Reads of uncommitted keys never reach the store.

    Args:
        namespace: for messages.
        store: the durable part.
        keys: how keys become bytes.
        values: how values become bytes.
    """

    def __init__(self, namespace: str, store: Store, keys: Serializer, values: Serializer) -> None:
        self._namespace = namespace
        self._store = store
        self._keys = keys
        self._values = values
        self._changed: dict[bytes, bytes | None] = {}
        self._stored = store.load()
        if self._stored.prepared == self._unphased:
            self.commit()  # one without phases was interrupted

    def get(self, key: K, default: Any = None) -> Any:
        """A key's value, or the default."""
        content = self._find(self._key(key))
        return default if content is None else self._values.deserialize(content)

    def put(self, key: K, value: V) -> None:
        """Set a key's value."""
        self._changed[self._key(key)] = self._values.serialize(value)

    def delete(self, key: K) -> V | None:
        """Remove a key and return what it had."""
        old = self.get(key)
        self._changed[self._key(key)] = None
        return cast("V | None", old)

    def __contains__(self, key: K) -> bool:
        """Whether the key has a value."""
        return self._find(self._key(key)) is not None

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Every key with its newest value, once."""
        layers = (list(self._changed.items()), list(self._stored.changes.items()), self._store.scan())
        for key, content in newest(*layers):
            yield self._keys.deserialize(key), self._values.deserialize(content)

    def prepare_commit(self, txid: int) -> None:
        """Keep what was changed; a repeat adds what was changed since."""
        committed, prepared, _ = self._stored
        self._check(committed is None or txid > committed, f"prepare {txid} comes after commit {committed}")
        self._check(prepared in (None, txid), f"prepare {txid} comes before prepared {prepared} is committed")
        self._prepare(txid)

    def commit(self, txid: int | None = None) -> None:
        """Make what was prepared final; a repeat changes nothing."""
        committed, prepared, _ = self._stored
        if txid is None:
            txid = self._unphased
            self._check(prepared in (None, txid), f"commit without a txid comes while {prepared} is prepared")
            self._prepare(txid)
        elif txid == committed and prepared is None:
            return
        else:
            self._check(committed is None or txid > committed, f"commit {txid} comes after commit {committed}")
            self._check(prepared in (None, txid), f"commit {txid} comes while {prepared} is prepared")
        self._store.commit(txid)
        self._stored = Stored(txid)

    def rollback(self) -> None:
        """Back to what was committed."""
        self._store.rollback()
        self._stored = Stored(self._stored.committed)
        self._changed = {}

    @property
    def _unphased(self) -> int:
        """What a commit without a txid is prepared under: no transaction that is still to come."""
        return -1 if self._stored.committed is None else self._stored.committed

    def _prepare(self, txid: int) -> None:
        """Write first, forget after: a failed write loses nothing that was changed."""
        changes = {**self._stored.changes, **self._changed}
        self._store.prepare(txid, changes)
        self._stored = Stored(self._stored.committed, txid, changes)
        self._changed = {}

    def _find(self, key: bytes) -> bytes | None:
        for layer in (self._changed, self._stored.changes):
            if key in layer:
                return layer[key]
        return self._store.get(key)

    def _key(self, key: K) -> bytes:
        return self._keys.serialize(canonical_key(key))

    def _check(self, is_in_turn: bool, what: str) -> None:
        if not is_in_turn:
            raise StateError(f"state {self._namespace!r}: {what}")


def newest(*layers: Iterable[tuple[bytes, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
    """Merge layers, newest first: each key once with its newest value; a deleted key hides older layers."""
    seen: set[bytes] = set()
    for layer in layers:
        for key, content in layer:
            if key not in seen:
                seen.add(key)
                if content is not None:
                    yield key, content


def folded(pairs: Mapping[bytes, bytes], changes: Changes) -> dict[bytes, bytes]:
    """Committed pairs after a commit of changes."""
    return {key: content for key, content in {**pairs, **changes}.items() if content is not None}
