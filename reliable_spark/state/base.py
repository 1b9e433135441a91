"""What a state and whoever keeps it promise.

Source: Storm's `state/State`, `state/KeyValueState`, `state/StateProvider`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class State(Protocol):
    """Something that changes all at once, in two phases, or not at all.

    Guarantee: what was prepared under a txid survives the task from `prepare_commit` on, and after `commit` it is
    what every later task of the namespace finds. Every call may be repeated: the same txid twice is once.

    Raises (every method):
        StateError: the store failed, or the txid is out of turn; nothing is lost by it, the call may be repeated.
    """

    def prepare_commit(self, txid: int) -> None:
        """Keep everything changed so far, to be committed or rolled back; not while another txid is prepared."""
        ...

    def commit(self, txid: int | None = None) -> None:
        """Make what was prepared under the txid final; without one, whatever was changed, now and without phases."""
        ...

    def rollback(self) -> None:
        """Forget what was prepared and what was changed since: the state is what was committed last."""
        ...


class KeyValueState(State, Protocol[K, V]):
    """A mapping that is a state. What is put is seen at once by the bolt itself, and by others once committed.

    Keys that Python calls equal, such as 1 and 1.0, are one key. A value is stored as it is when it is put: who
    changes a list got from a state puts it back.

    Raises (every method):
        UsageError: a key or value is of a type that the state's serializer cannot store.
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...

    def put(self, key: K, value: V) -> None:
        """Set a key's value."""
        ...

    def delete(self, key: K) -> V | None:
        """Remove a key.

        Returns:
            What it had, or None.
        """
        ...

    def __contains__(self, key: K) -> bool:
        """Whether the key has a value."""
        ...

    def __iter__(self) -> Iterator[tuple[K, V]]:
        """Every key with its newest value, once, in no order: `dict(state)` is a copy."""
        ...


class StateProvider(Protocol):
    """Where states are kept. One object serves all tasks of a worker.

    A provider may give bolts a `State` of its own kind. For the checkpoints' own namespace, `$checkpointspout-0`, and
    those of windows, `$windows-<component>-<number of the task>`, it gives a `KeyValueState`.
    """

    def state(self, namespace: str) -> State:
        """The state of a namespace as it was prepared and committed last.

        Args:
            namespace: `<component>-<number of the task within it>`; nobody else writes to it.
        """
        ...
