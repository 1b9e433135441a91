"""A bolt with another number of tasks than its state: every key moves to the task that gets its tuples."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_spark.core.checkpoints import CheckpointState, Phase
from reliable_spark.core.groupings import fields_target
from reliable_spark.errors import StateError
from reliable_spark.state import MemoryStateProvider
from reliable_spark.testing import FeedSpout
from reliable_spark.topology import TopologyBuilder
from reliable_spark.topology.checkpoint_spout import NAMESPACE, store_checkpoint, stored_checkpoint
from reliable_spark.topology.resharding import Sharding, reshard
from tests.state.pieces import Count, feed, running
from tests.state.test_stateful_bolts import Recorded


def counting(tasks: int) -> TopologyBuilder:
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]))
    builder.set_bolt("count", Count(), tasks).fields_grouping("s", ["value"])
    return builder


def shard_of(key: Hashable, tasks: int) -> int:
    return fields_target([key], tasks)


@settings(max_examples=25)
@given(
    st.sets(st.one_of(st.text(max_size=3), st.integers(-5, 5), st.binary(max_size=2)), min_size=1, max_size=8),
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
)
def test_counts_go_on_with_any_number_of_tasks(values: set[Any], tasks: list[int]) -> None:
    """Run after run with as many tasks as may be; each value is counted by one task, from where it was."""
    provider = MemoryStateProvider()
    for run, count in enumerate(tasks, 1):
        topology = running(counting(count), provider)
        feed(topology, *values)
        topology.advance(1)
        assert set(topology.acks("s")) == values
        pairs = [pair for task in range(count) for pair in topology.state("count", task)]
        assert len(pairs) == len(values)
        assert dict(pairs) == dict.fromkeys(values, run)


class Pair(Count):
    """Counts pairs of values."""

    def execute(self, input: Any) -> None:
        pair = (input[0], input[1])
        self.counts.put(pair, self.counts.get(pair, 0) + 1)
        self.collector.ack(input)


@pytest.mark.parametrize("fields", [["value"], ["value", "other"]])
def test_a_tuple_is_one_value_of_one_field_and_several_of_several(fields: list[str]) -> None:
    """Each key goes on where the grouping sends it, though a value of its one field is a tuple."""
    provider, keys = MemoryStateProvider(), [("x", number) for number in range(12)]
    for count in (1, 3, 2):
        builder = TopologyBuilder()
        builder.set_spout("s", FeedSpout(fields))
        bolt = Count() if len(fields) == 1 else Pair()
        builder.set_bolt("count", bolt, count).fields_grouping("s", fields)
        topology = running(builder, provider)
        for key in keys:
            topology.feed("s", [key] if len(fields) == 1 else list(key), message_id=key)
        topology.settle()
        topology.advance(1)
    pairs = [pair for task in range(2) for pair in topology.state("count", task)]
    assert sorted(pairs) == [(key, 3) for key in keys]


class Crash(BaseException):
    """The process is gone."""


class Crashing:
    """Keeps states in memory until so many writes were made; the last of them is made or not."""

    def __init__(self, provider: MemoryStateProvider, writes: int, is_made: bool) -> None:
        self.provider, self.left, self.is_made = provider, writes, is_made

    def state(self, namespace: str) -> Any:
        state = self.provider.state(namespace)
        for name in ("prepare", "commit", "rollback"):
            setattr(state._store, name, self._counted(getattr(type(state._store), name), state._store))
        return state

    def _counted(self, write: Any, store: Any) -> Any:
        def counted(*arguments: Any) -> None:
            self.left -= 1
            if self.left != 0 or self.is_made:
                write(store, *arguments)
            if self.left == 0:
                raise Crash

        return counted


@pytest.mark.crash
@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
@pytest.mark.parametrize("phase", list(Phase))
def test_a_crash_at_every_write_loses_and_doubles_nothing(is_made: bool, before: int, after: int, phase: Phase) -> None:
    """Whatever the last run had left open, and though the number of tasks changes once more in between."""
    for writes in range(1, 100):
        provider = MemoryStateProvider()
        expected = left_by_a_run(provider, before, phase)
        bolts = {"b": Sharding(after, shard_of)}
        try:
            reshard(Crashing(provider, writes, is_made), bolts)
        except Crash:
            other = {"b": Sharding(after + 1, shard_of)}
            reshard(provider, other if writes % 2 else bolts)
            reshard(provider, bolts)
            assert found(provider, 5) == expected
            assert stored_checkpoint(provider.state(NAMESPACE)).phase is Phase.COMMITTED
        else:
            break
    assert writes > 5


def left_by_a_run(provider: MemoryStateProvider, tasks: int, phase: Phase) -> dict[int, int]:
    """Twenty keys, committed under 1; ten more, prepared under 2 and as far as the phase says."""
    reshard(provider, {"b": Sharding(tasks, shard_of)})
    states = [provider.state(f"b-{task}") for task in range(tasks)]
    for txid, keys in ((1, range(20)), (2, range(20, 30))):
        for key in keys:
            states[shard_of(key, tasks)].put(key, key)
        for task, state in enumerate(states):
            if txid == 1 or task > 0 or phase is not Phase.PREPARING:
                state.prepare_commit(txid)
            if txid == 1 or phase is Phase.COMMITTED or (phase is Phase.COMMITTING and task == 0):
                state.commit(txid)
    store_checkpoint(provider.state(NAMESPACE), CheckpointState(2, phase))
    return {key: key for key in range(20 if phase is Phase.PREPARING else 30)}


def found(provider: MemoryStateProvider, tasks: int) -> dict[int, int]:
    """Every key of every task; none may be with two."""
    pairs = [pair for task in range(tasks) for pair in provider.state(f"b-{task}")]
    assert len(pairs) == len(dict(pairs))
    return dict(pairs)


def test_as_many_tasks_as_before_leave_everything_to_the_recovery() -> None:
    """Nothing is read but the number."""
    provider = MemoryStateProvider()
    left_by_a_run(provider, 2, Phase.COMMITTING)
    reshard(provider, {"b": Sharding(2, shard_of)})
    assert stored_checkpoint(provider.state(NAMESPACE)) == (2, Phase.COMMITTING)


def test_a_state_without_keys_cannot_be_moved() -> None:
    """It says what to do."""

    class Own(MemoryStateProvider):
        def state(self, namespace: str) -> Any:
            return super().state(namespace) if namespace == NAMESPACE else Recorded()

    provider = Own()
    reshard(provider, {"b": Sharding(1, shard_of)})
    with pytest.raises(StateError, match="as many tasks as before"):
        reshard(provider, {"b": Sharding(2, shard_of)})


def test_keys_of_one_s_own() -> None:
    """A bolt whose keys are not the grouping's says where they belong."""

    class Prefixed(Count):
        def execute(self, input: Any) -> None:
            self.counts.put(f"seen {input[0]}", 1)
            self.collector.ack(input)

        def shard_of(self, key: Hashable, tasks: int) -> int:
            return fields_target([str(key).removeprefix("seen ")], tasks)

    provider = MemoryStateProvider()
    for tasks in (1, 3):
        builder = TopologyBuilder()
        builder.set_spout("s", FeedSpout(["value"]))
        builder.set_bolt("count", Prefixed(), tasks).fields_grouping("s", ["value"])
        topology = running(builder, provider)
        if tasks == 1:
            feed(topology, *"abcdef")
            topology.advance(1)
    for value in "abcdef":
        assert f"seen {value}" in topology.state("count", fields_target([value], 3))
