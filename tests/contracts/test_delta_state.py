"""What is particular to states in Delta tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from reliable_spark.errors import StateError
from reliable_spark.state import delta
from reliable_spark.state.delta import DeltaStateProvider


def test_rows_are_compacted_and_the_state_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task's table does not grow with time, only with its pairs; other tasks' rows stay where they are."""
    monkeypatch.setattr(delta, "COMPACT_EVERY", 6)
    provider = DeltaStateProvider(str(tmp_path))
    other = provider.state("b-1")
    other.put("a", "other")
    other.prepare_commit(1)
    state = provider.state("b-0")
    for txid in range(20):
        state.put("a", txid)
        state.put(txid, txid)
        state.delete(txid - 1)
        state.prepare_commit(txid)
        state.commit(txid)
    rows = DeltaTable(str(tmp_path / "b")).to_pyarrow_table().to_pylist()
    assert len([row for row in rows if row["namespace"] == "b-0"]) <= 5 + 6 * 4
    assert dict(provider.state("b-0")) == {"a": 19, 19: 19}
    assert dict(provider.state("b-1")) == {"a": "other"}
    state.put("b", 1)
    state.prepare_commit(20)
    assert dict(provider.state("b-0")) == {"a": 19, 19: 19, "b": 1}


def test_a_task_that_was_replaced_cannot_write(tmp_path: Path) -> None:
    """Its successor's step is the same one, and only one of the two can have it."""
    provider = DeltaStateProvider(str(tmp_path))
    zombie, successor = provider.state("b-0"), provider.state("b-0")
    successor.put("a", 1)
    successor.prepare_commit(1)
    zombie.put("a", 2)
    with pytest.raises(StateError, match="another task has written to it"):
        zombie.prepare_commit(1)
    assert provider.state("b-0").get("a") == 1


@pytest.mark.parametrize("compact_every", [delta.COMPACT_EVERY, 2])
def test_two_tasks_write_one_table(compact_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is in the way of the other, though both read the same version; nor when one compacts its rows."""
    monkeypatch.setattr(delta, "COMPACT_EVERY", compact_every)
    provider = DeltaStateProvider(str(tmp_path))
    states = [provider.state(f"b-{task}") for task in range(3)]
    for txid in range(3):
        for task, state in enumerate(states):
            state.put("a", (task, txid))
            state.prepare_commit(txid)
        for state in states:
            state.commit(txid)
    assert [provider.state(f"b-{task}").get("a") for task in range(3)] == [(0, 2), (1, 2), (2, 2)]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """With what was tried."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot create the state table .*file/b"):
        DeltaStateProvider(str(tmp_path / "file")).state("b-0")
