"""States kept in memory: they outlive their tasks, not their process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reliable_spark.state.layers import Changes, LayeredState, Stored, folded
from reliable_spark.state.serializers import JsonSerializer, Serializer


class MemoryStore:
    """One namespace: dicts that are replaced, never changed, so that no two layers are ever the same object."""

    def __init__(self) -> None:
        self._stored = Stored()
        self._pairs: dict[bytes, bytes] = {}

    def load(self) -> Stored:
        """What is prepared, and both txids."""
        return self._stored

    def get(self, key: bytes) -> bytes | None:
        """A committed value."""
        return self._pairs.get(key)

    def scan(self) -> Iterable[tuple[bytes, bytes]]:
        """The committed pairs."""
        return list(self._pairs.items())

    def prepare(self, txid: int, changes: Changes) -> None:
        """Replace whatever was prepared."""
        self._stored = Stored(self._stored.committed, txid, dict(changes))

    def commit(self, txid: int) -> None:
        """Fold what is prepared."""
        self._pairs = folded(self._pairs, self._stored.changes)
        self._stored = Stored(txid)

    def rollback(self) -> None:
        """Drop what is prepared."""
        self._stored = Stored(self._stored.committed)


class MemoryStateProvider:
    """Keeps states for as long as the object lives. Unlike Storm's, a task that starts again finds its state.

    Args:
        serializer: how keys and values are stored; also memory stores bytes, so that a value changed after `put`
            changes no state.
    """

    def __init__(self, serializer: Serializer | None = None) -> None:
        self._serializer = serializer or JsonSerializer()
        self._stores: dict[str, MemoryStore] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> MemoryStateProvider:
        """Itself: tasks are copied, what they remember is not."""
        return self

    def state(self, namespace: str) -> LayeredState[Any, Any]:
        """The state of a namespace as it was prepared and committed last."""
        store = self._stores.setdefault(namespace, MemoryStore())
        return LayeredState(namespace, store, self._serializer, self._serializer)
