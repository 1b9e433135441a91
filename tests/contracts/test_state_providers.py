"""The contract of every state provider: cases G10 to G13, X15, crashes at every point, and a model to compare with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from reliable_spark import StateError
from reliable_spark.core.groupings import key_hash
from reliable_spark.state import KeyValueState, MemoryStateProvider
from reliable_spark.state.layers import newest
from tests.contracts.conftest import FailingStore, Reopen


def opened(reopen: Reopen, namespace: str = "b-0") -> KeyValueState[Any, Any]:
    state: Any = reopen().state(namespace)
    return state  # type: ignore[no-any-return] # these providers keep key-value states


def abc(state: KeyValueState[Any, Any]) -> list[Any]:
    return [state.get(key) for key in "abc"]


def test_g10_key_value_basics(reopen: Reopen) -> None:
    """put, get, delete and the value that was deleted."""
    state = opened(reopen)
    state.put("a", 1)
    state.put("b", 2)
    assert abc(state) == [1, 2, None]
    assert (state.delete("a"), state.delete("a"), state.get("a", 0)) == (1, None, 0)
    assert ("a" in state, "b" in state, dict(state)) == (False, True, {"b": 2})


def test_g10_prepare_commit_rollback_sequence(reopen: Reopen) -> None:
    """Storm's sequence, value by value."""
    state = opened(reopen)

    def put(**values: int) -> None:
        for key, value in values.items():
            state.put(key, value)

    put(a=1, b=2)
    state.prepare_commit(1)
    put(c=3)
    assert abc(state) == [1, 2, 3]
    state.rollback()
    assert abc(state) == [None, None, None]
    put(a=1, b=2)
    state.prepare_commit(1)
    state.commit(1)
    put(c=3)
    assert abc(state) == [1, 2, 3]
    state.rollback()
    assert abc(state) == [1, 2, None]
    put(c=3)
    assert (state.delete("b"), state.delete("c")) == (2, 3)
    assert abc(state) == [1, None, None]
    state.prepare_commit(2)
    assert abc(state) == [1, None, None]
    state.commit(2)
    assert abc(state) == [1, None, None]
    put(b=2)
    state.prepare_commit(3)
    put(c=3)
    assert abc(state) == [1, 2, 3]
    state.rollback()
    assert abc(state) == [1, None, None]


def test_g12_iteration_over_layers_in_chunks(reopen: Reopen) -> None:
    """More pairs than a chunk, each once; none where there are none."""
    state = opened(reopen)
    assert list(state) == []
    for number in range(250):
        state.put(f"key{number}", number)
    state.prepare_commit(1)
    state.commit(1)
    state.put("key7", "new")
    pairs = list(state)
    assert len(pairs) == 250
    assert dict(pairs) == {f"key{number}": number for number in range(250)} | {"key7": "new"}


def test_g13_newest_layer_wins_tombstones_hide() -> None:
    """Storm's layers: what was changed, what is prepared, what is committed, in chunks that overlap."""
    changed = [(b"key0", b"0"), (b"key1", None)]
    prepared = [(b"key1", b"1"), (b"key2", b"2")]
    committed = [(b"key2", b"old"), (b"key3", b"3"), (b"key3", b"3"), (b"key4", b"4")]
    assert list(newest(changed, prepared, committed)) == [
        (b"key0", b"0"),
        (b"key2", b"2"),
        (b"key3", b"3"),
        (b"key4", b"4"),
    ]


def test_g13_in_every_store(reopen: Reopen) -> None:
    """The same layers, made by transactions."""
    state = opened(reopen)
    for key in ("key1", "key2", "key3", "key4"):
        state.put(key, "committed")
    state.prepare_commit(1)
    state.commit(1)
    state.put("key1", "prepared")
    state.put("key2", "prepared")
    state.delete("key4")
    state.prepare_commit(2)
    state.put("key0", "changed")
    state.delete("key1")
    expected = {"key0": "changed", "key2": "prepared", "key3": "committed"}
    assert (dict(state), len(list(state))) == (expected, 3)


def test_x15_second_rollback(reopen: Reopen) -> None:
    """No rollback shares an object with the one before: Storm's in-memory state keeps c."""
    state = opened(reopen)
    state.put("a", 1)
    state.prepare_commit(1)
    state.commit(1)
    for key in ("b", "c"):
        state.put(key, 2)
        state.rollback()
    assert dict(state) == {"a": 1}


@pytest.mark.parametrize("reopening", [False, True])
def test_every_step_may_be_repeated(reopen: Reopen, reopening: bool) -> None:
    """By the same task or by one that started again: twice is once. Storm's second commit is an error for ever."""
    state = opened(reopen)

    def twice(step: Callable[[KeyValueState[Any, Any]], None]) -> None:
        nonlocal state
        step(state)
        state = opened(reopen) if reopening else state
        step(state)

    state.put("a", 1)
    twice(lambda state: state.prepare_commit(1))
    twice(lambda state: state.commit(1))
    assert dict(state) == {"a": 1}
    state.put("b", 2)
    state.prepare_commit(2)
    twice(lambda state: state.rollback())
    assert dict(state) == {"a": 1}


def test_transactions_out_of_turn_are_refused(reopen: Reopen) -> None:
    """An older one than the last, the next before this one is committed, another than the prepared one."""
    state = opened(reopen)
    state.commit(3)
    with pytest.raises(StateError, match="prepare 3 comes after commit 3"):
        state.prepare_commit(3)
    with pytest.raises(StateError, match="commit 2 comes after commit 3"):
        state.commit(2)
    state.prepare_commit(4)
    with pytest.raises(StateError, match="prepare 5 comes before prepared 4 is committed"):
        state.prepare_commit(5)
    with pytest.raises(StateError, match="commit 5 comes while 4 is prepared"):
        state.commit(5)
    with pytest.raises(StateError, match="without a txid comes while 4 is prepared"):
        state.commit()
    state.commit(4)


def test_a_commit_without_a_txid_is_kept_at_once(reopen: Reopen) -> None:
    """And leaves the transactions as they were."""
    opened(reopen).commit(7)
    state = opened(reopen)
    state.put("a", 1)
    state.commit()
    state = opened(reopen)
    state.rollback()
    assert dict(state) == {"a": 1}
    state.prepare_commit(8)


@pytest.mark.parametrize("fails", ["prepare before", "prepare after", "commit before", "commit after"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_commit_without_a_txid_that_was_interrupted(reopen: Reopen, fails: str, dies: bool) -> None:
    """It happened or not, and the state can be used on."""
    state: Any = opened(reopen)
    state.put("a", 1)
    state.commit()
    state.put("a", 2)
    state._store = FailingStore(state._store, *fails.split())
    with pytest.raises(StateError, match="dies here"):
        state.commit()
    state = opened(reopen) if dies else state
    assert state.get("a") == (1 if dies and fails == "prepare before" else 2)
    state.put("b", 1)
    state.commit()
    state.prepare_commit(0)
    state.commit(0)
    assert dict(opened(reopen)) == {"a": state.get("a"), "b": 1}


def test_namespaces_do_not_see_each_other(reopen: Reopen) -> None:
    """Nor does one whose name begins like another's."""
    for number, namespace in enumerate(("b-0", "b-1", "b-10", "it's-0", "a/b c-0", "$checkpointspout-0")):
        state = opened(reopen, namespace)
        assert dict(state) == {}
        state.put("a", number)
        state.prepare_commit(number)
        state.commit(number)
    assert opened(reopen, "b-1").get("a") == 1
    assert opened(reopen, "it's-0").get("a") == 3


def test_values_keep_their_types(reopen: Reopen) -> None:
    """What is read is equal to what was put, and of the same type, after a crash too."""
    values = [
        *(None, True, 1, 1.5, -(2**70), "ä\ud800", b"\x00\xff", Decimal("1.10"), (1, (2,)), [1, [2]], {1, 2}, set()),
        *(
            {"a": {1: (b"", None)}},
            {"$": "tuple", "value": []},
            {(1, 2): 3},
            frozenset({"x"}),
            timedelta(days=1, microseconds=1),
        ),
        datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc),
    ]
    state = opened(reopen)
    for number, value in enumerate(values):
        state.put(number, value)
    state.prepare_commit(1)
    state = opened(reopen)
    assert [state.get(number) for number in range(len(values))] == values
    assert [type(state.get(number)) for number in range(len(values))] == [type(value) for value in values]
    with pytest.raises(StateError, match="cannot store a object"):
        state.put("a", object())


def test_none_is_a_value(reopen: Reopen) -> None:
    """It is not what a deleted key has."""
    state = opened(reopen)
    state.put("a", None)
    state.commit(1)
    assert ("a" in state, state.get("a", 1), dict(state)) == (True, None, {"a": None})


def test_equal_keys_are_one(reopen: Reopen) -> None:
    """As they are for a dict and for a fields grouping."""
    state = opened(reopen)
    for number, key in enumerate((1, 1.0, True, Decimal("1.00"))):
        state.put(key, number)
    state.put((1.0, "a"), "pair")
    assert dict(state) == {1: 3, (1, "a"): "pair"}
    assert state.get(0.5) is None


EQUAL: list[list[Any]] = [
    [Decimal("1E30"), 10**30, Decimal("1.0E30")],
    [Decimal(10**38 - 1), 10**38 - 1],
    [Decimal("1E400"), 10**400],
    [Decimal("1.50"), 1.5, Decimal("1.5")],
    [Decimal("0.1"), Decimal("0.100")],
    [Decimal("1." + "1" * 36 + "0"), Decimal("1." + "1" * 36)],
    [Decimal("-0.0"), 0, -0.0, False],
    [Decimal("Infinity"), float("inf")],
    [frozenset({1}), frozenset({1.0}), frozenset({True})],
    [(frozenset({Decimal("2.00")}), 1.0), (frozenset({2}), 1)],
    [datetime(2026, 1, 1, 12, tzinfo=timezone.utc), datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))],
]


@pytest.mark.parametrize("equal", EQUAL)
def test_equal_keys_are_one_in_every_state(equal: list[Any]) -> None:
    """Long decimals, sets and instants too: one entry, as the grouping has one task for them."""
    assert len(dict.fromkeys(equal)) == 1
    state: Any = MemoryStateProvider().state("b-0")
    for number, key in enumerate(equal):
        state.put(key, number)
        assert state.get(equal[0]) == number
    assert dict(state) == {equal[0]: len(equal) - 1}
    assert len({key_hash([key]) for key in equal}) == 1


def test_keys_that_are_equal_to_no_other_can_be_stored() -> None:
    """NaN of either kind, a number too long for an int, and an instant that UTC has no date for."""
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    state: Any = MemoryStateProvider().state("b-0")
    for key in (*map(Decimal, ("NaN", "sNaN", "1E999999", "1E-999999")), early, early.replace(tzinfo=None)):
        state.put(key, str(key))
        assert state.get(key) == str(key)


def test_a_value_that_is_changed_after_put_changes_no_state(reopen: Reopen) -> None:
    """Neither what is live nor what is committed."""
    state = opened(reopen)
    values = [1]
    state.put("a", values)
    values.append(2)
    state.commit(1)
    got = state.get("a")
    assert isinstance(got, list)
    got.append(3)
    assert state.get("a") == [1]


@pytest.mark.parametrize(
    ("crash_after", "recover", "expected"),
    [
        ("execute", "rollback", {"a": 1}),
        ("prepare", "rollback", {"a": 1}),
        ("prepare", "commit", {"a": 2, "b": 1}),
        ("commit", "commit", {"a": 2, "b": 1}),
        ("rollback", "rollback", {"a": 1}),
    ],
)
def test_crash_points(reopen: Reopen, crash_after: str, recover: str, expected: dict[str, int]) -> None:
    """Each row of the table of crash points, as one task sees it: gone, then recovered, then used again."""
    state = opened(reopen)
    state.put("a", 1)
    state.prepare_commit(1)
    state.commit(1)
    state.put("a", 2)
    state.put("b", 1)
    if crash_after != "execute":
        state.prepare_commit(2)
    if crash_after == "commit":
        state.commit(2)
    if crash_after == "rollback":
        state.rollback()
    state = opened(reopen)
    state.rollback() if recover == "rollback" else state.commit(2)
    assert dict(state) == expected
    state.put("c", 1)
    state.prepare_commit(3)
    state.commit(3)
    assert dict(opened(reopen)) == expected | {"c": 1}
