"""Moves the keys of a stateful bolt to the tasks they belong to, when there are more or fewer tasks than there were.

A move is a checkpoint of its own: it is prepared and committed by the same table, so that a crash in the middle goes
back or forward like any other. It happens before the first task starts. Storm has nothing like it: there a changed
parallelism loses or misplaces the state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from reliable_spark.core.checkpoints import CheckpointState, Phase, next_state
from reliable_spark.errors import StateError, TopologyError
from reliable_spark.state.base import KeyValueState, State, StateProvider
from reliable_spark.topology.checkpoint_spout import NAMESPACE, store_checkpoint, stored_checkpoint

_TASKS = "__tasks"
"""Bolt -> the number of tasks that its state is spread over."""
_TARGET = "__target"
"""The same for a move that has begun."""

Layout = Mapping[str, int]


class Sharding(NamedTuple):
    """How a stateful bolt spreads its keys.

    Attributes:
        tasks: over how many tasks.
        shard_of: the task, from 0, of a key when there are so many.
        refusal: why its keys cannot be moved; None: they can.
    """

    tasks: int
    shard_of: Callable[[Hashable, int], int]
    refusal: str | None = None


def reshard(provider: StateProvider, bolts: Mapping[str, Sharding]) -> None:
    """Bring every state to where the tasks will look for it; nothing happens while the numbers stay the same.

    Guarantee: every committed key is with exactly one task, the one `shard_of` says. May be repeated after a crash.

    Args:
        provider: where the states are.
        bolts: the stateful bolts as they will run.

    Raises:
        StateError: the store failed, or a bolt's own kind of state has no keys to move.
        TopologyError: a bolt's keys cannot be moved; nothing is.
    """
    store = cast("KeyValueState[str, Any]", provider.state(NAMESPACE))
    wanted = {bolt: each.tasks for bolt, each in bolts.items()}
    _finish(provider, store, wanted)
    old: Layout = store.get(_TASKS, {})
    moved = {bolt: each for bolt, each in bolts.items() if old.get(bolt, each.tasks) != each.tasks}
    for each in moved.values():
        if each.refusal is not None:
            raise TopologyError(each.refusal)
    if moved:
        _move(provider, store, moved)
    elif any(bolt not in old for bolt in wanted):
        store.put(_TASKS, {**old, **wanted})
        store.commit()


def _finish(provider: StateProvider, store: KeyValueState[str, Any], wanted: Layout) -> None:
    """End what the last run left open, unless its tasks are all there to do it themselves."""
    old: Layout = store.get(_TASKS, {})
    target: Layout = store.get(_TARGET, {})
    if not target and all(wanted.get(bolt, tasks) == tasks for bolt, tasks in old.items()):
        return
    checkpoint = stored_checkpoint(store)
    for state in _states(provider, old, target):
        if checkpoint.phase is Phase.PREPARING:
            state.rollback()
        elif checkpoint.phase is Phase.COMMITTING:
            state.commit(checkpoint.txid)
    if checkpoint.phase is Phase.COMMITTING:
        store.put(_TASKS, {**old, **target})
    store.delete(_TARGET)
    store_checkpoint(store, next_state(checkpoint, recovering=True))


def _move(provider: StateProvider, store: KeyValueState[str, Any], moved: Mapping[str, Sharding]) -> None:
    """Run one transaction over the states of the bolts that changed."""
    old: Layout = store.get(_TASKS, {})
    target = {bolt: each.tasks for bolt, each in moved.items()}
    checkpoint = next_state(stored_checkpoint(store), recovering=False)
    store.put(_TARGET, target)
    store_checkpoint(store, checkpoint)
    states: list[State] = []
    for bolt, sharding in moved.items():
        shards = _states(provider, {bolt: old[bolt]}, {bolt: sharding.tasks})
        _spread(bolt, shards, sharding)
        states += shards
    for state in states:
        state.prepare_commit(checkpoint.txid)
    store_checkpoint(store, CheckpointState(checkpoint.txid, Phase.COMMITTING))
    for state in states:
        state.commit(checkpoint.txid)
    store.put(_TASKS, {**old, **target})
    store.delete(_TARGET)
    store_checkpoint(store, CheckpointState(checkpoint.txid, Phase.COMMITTED))


def _spread(bolt: str, shards: Sequence[State], sharding: Sharding) -> None:
    """Put each key into the state of its task, and take it out of the one where it was."""
    for place, state in enumerate(shards):
        if not (hasattr(state, "put") and hasattr(state, "delete") and hasattr(state, "__iter__")):
            raise StateError(
                f"bolt {bolt!r} has another number of tasks than its state, which is no KeyValueState and has no keys "
                "to move: run it with as many tasks as before"
            )
        source = cast("KeyValueState[Hashable, Any]", state)
        for key, value in list(source):
            home = sharding.shard_of(key, sharding.tasks)
            if home != place:
                cast("KeyValueState[Hashable, Any]", shards[home]).put(key, value)
                source.delete(key)


def _states(provider: StateProvider, old: Layout, target: Layout) -> list[State]:
    """Every state that has, or will have, a task."""
    return [
        provider.state(f"{bolt}-{task}")
        for bolt in sorted({*old, *target})
        for task in range(max(old.get(bolt, 0), target.get(bolt, 0)))
    ]
