"""Incomplete trees are divided into those that wait and those that died."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from reliable_spark.core.retries import RetryPolicy
from reliable_spark.engine.settlement import Moment, settle_trees, time_out

BEGUN = datetime(2026, 1, 1, tzinfo=timezone.utc)
NOW = BEGUN + timedelta(seconds=5)
MOMENT = Moment(7, BEGUN, NOW, RetryPolicy(3, 10.0, 100.0), message_timeout_s=30.0, phase_s=BEGUN.timestamp())
PAYLOAD = pa.struct([("id", pa.int64())])


def tree(status: str, attempt: int = 1, retry: bool | None = True, **other: Any) -> dict[str, Any]:
    return {
        "anchor": 1,
        "ack_val": 9,
        "spout": "spout",
        "message_id": "1",
        "attempt": attempt,
        "status": status,
        "bolt": "bolt" if status == "failed" else None,
        "error_class": "ValueError" if status == "failed" else None,
        "error": "bad" if status == "failed" else None,
        "traceback": None,
        "retry": retry,
        "first_seen_at": None,
        "payload": {"id": 1},
    } | other


def found(*trees: dict[str, Any]) -> pa.Table:
    text = ("spout", "message_id", "status", "bolt", "error_class", "error", "traceback")
    schema = pa.schema(
        [("anchor", pa.int64()), ("ack_val", pa.int64()), ("attempt", pa.int32()), ("retry", pa.bool_())]
        + [(name, pa.string()) for name in text]
        + [("first_seen_at", pa.timestamp("us", tz="UTC")), ("payload", PAYLOAD)]
    )
    return pa.Table.from_pylist(list(trees), schema=schema)


def test_a_failed_tree_waits_for_its_backoff() -> None:
    """A first failure is due again within the jitter of the initial backoff."""
    settlement = settle_trees(found(tree("failed")), MOMENT)
    (row,) = settlement.pending.to_pylist()
    assert NOW + timedelta(seconds=7.5) <= row["due_at"] <= NOW + timedelta(seconds=10)
    assert (row["attempt"], row["first_seen_at"], row["error"], row["batch_id"]) == (1, BEGUN, "bad", 7)
    assert (settlement.failed, settlement.dead_count, settlement.dead.num_rows) == (1, 0, 0)


def test_attempts_used_up_and_fatal_failures_are_dead() -> None:
    """The last allowed attempt and a failure that forbids a retry end in the dead letters."""
    settlement = settle_trees(found(tree("failed", attempt=3), tree("failed", retry=False)), MOMENT)
    assert [row["attempts"] for row in settlement.dead.to_pylist()] == [3, 1]
    assert {row["died_at"] for row in settlement.dead.to_pylist()} == {NOW}
    assert settlement.pending.num_rows == 0


def test_a_lost_tree_is_named_lost_and_retried() -> None:
    """A lost tree has no failure of its own: it gets the reason `lost` and the ordinary retries."""
    settlement = settle_trees(found(tree("lost", retry=None)), MOMENT)
    (row,) = settlement.pending.to_pylist()
    assert (row["error_class"], settlement.lost) == ("lost", 1)
    assert row["error"].startswith("lost")


def test_a_held_tree_never_dies_before_its_timeout() -> None:
    """A held tree is due between T and 2T after its emission, whatever its attempt."""
    settlement = settle_trees(found(tree("held", attempt=3)), MOMENT)
    (row,) = settlement.pending.to_pylist()
    assert timedelta(seconds=30) < row["due_at"] - BEGUN <= timedelta(seconds=60)


@pytest.mark.parametrize(("attempt", "dead"), [(1, 0), (3, 1)])
def test_a_timeout_is_a_failed_attempt(attempt: int, dead: int) -> None:
    """When its timeout has come a held tree is failed with the reason `timeout`: a retry, or death."""
    held = settle_trees(found(tree("held", attempt=attempt)), MOMENT).pending
    settlement = time_out(held, MOMENT)
    assert settlement.dead_count == dead
    rows = (settlement.dead if dead else settlement.pending).to_pylist()
    assert [row["error_class"] for row in rows] == ["timeout"]
