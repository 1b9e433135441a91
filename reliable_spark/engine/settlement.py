"""What becomes of the trees that are not done: another attempt, a timeout, or a dead letter. Pure, over Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_spark.core.retries import RetryPolicy, delay_s, is_dead
from reliable_spark.core.timeouts import expires_at_s
from reliable_spark.engine.columns import HELD
from reliable_spark.ledger.counts import LOST
from reliable_spark.ledger.schema import dead_letters_schema, pending_schema
from reliable_spark.settings import Settings

TIMEOUT: Final = "timeout"
LOST_REASON: Final = "lost: a part of the tree disappeared without an answer, so its ack val did not reach 0"
HIGH_WATER: Final = "high_water"
HIGH_WATER_REASON: Final = "high water: more trees wait without an answer than twice the acker's high-water mark"
HELD_REASON: Final = "held: neither acked nor failed"
TIMEOUT_REASON: Final = "timeout: no answer within the message timeout"


@dataclass(frozen=True)
class Moment:
    """When a batch is settled, and under which rules.

    Attributes:
        batch_id: the ledger's number of the batch.
        begun_at: when its rows were emitted.
        now: when it is settled.
        policy: how failed trees are tried again.
        message_timeout_s: how long a held tree may stay without an answer.
        phase_s: when the timeouts tick, as seconds since the epoch: at phase + n * timeout.
        held_room: how many more trees may be held; those beyond fail at once.
    """

    batch_id: int
    begun_at: datetime
    now: datetime
    policy: RetryPolicy
    message_timeout_s: float
    phase_s: float = 0.0
    held_room: int | None = None


@dataclass(frozen=True)
class Settlement:
    """The incomplete trees of a batch, divided.

    Attributes:
        pending: rows for the ledger's `pending`.
        dead: rows for its `dead_letters`.
        failed, lost, held: how many trees were found that way.
        dead_count: how many of them died.
    """

    pending: pa.Table
    dead: pa.Table
    failed: int = 0
    lost: int = 0
    held: int = 0
    dead_count: int = 0


def retry_policy(settings: Settings) -> RetryPolicy:
    """How often and when a tree is tried again; at most once means one attempt."""
    attempts = 1 if settings.delivery == "at_most_once" else settings.max_attempts
    return RetryPolicy(attempts, settings.backoff_initial_s, settings.backoff_max_s)


def divided(pending: pa.Table, due_before: datetime, *, held: bool) -> tuple[pa.Table, pa.Table]:
    """Divide what is pending into what is due by then, of the held or of the failed, and the rest."""
    is_held = pc.equal(pending["status"], HELD)
    is_due = pc.less_equal(pending["due_at"], pa.scalar(due_before, pa.timestamp("us", tz="UTC")))
    is_due = pc.and_(is_due, is_held if held else pc.invert(is_held))
    return pending.filter(is_due), pending.filter(pc.invert(is_due))


def settle_trees(found: pa.Table, moment: Moment) -> Settlement:
    """Divide incomplete trees into those that wait and those that died.

    Args:
        found: anchor, ack_val, spout, message_id, attempt, status, bolt, error_class, error, traceback, retry,
            first_seen_at, payload; one row per tree.
        moment: when, and by which rules.

    Returns:
        The rows for the ledger. Cost: vectorised, linear in the trees.
    """
    payload = found.schema.field("payload").type
    found = _below_high_water(found, moment.held_room)
    status = _column(found, "status")
    attempts = found["attempt"].to_numpy().astype(np.int64)
    retry = pc.fill_null(found["retry"], True).to_numpy(zero_copy_only=False).astype(bool)
    held = status == HELD
    dead = is_dead(moment.policy, attempts, retry) & ~held
    described = _described(found, moment)
    due_at = _due_at(found, moment, held, attempts)
    waiting = described.append_column("emitted_at", _repeated(moment.begun_at, found.num_rows))
    waiting = waiting.append_column("due_at", due_at).filter(pa.array(~dead))
    died = described.append_column("attempts", found["attempt"]).append_column(
        "died_at", _repeated(moment.now, found.num_rows)
    )
    return Settlement(
        pending=_arranged(waiting, pending_schema(payload)),
        dead=_arranged(died.filter(pa.array(dead)), dead_letters_schema(payload)),
        failed=int(np.sum(status == "failed")),
        lost=int(np.sum(status == LOST)),
        held=int(held.sum()),
        dead_count=int(dead.sum()),
    )


def _below_high_water(found: pa.Table, room: int | None) -> pa.Table:
    """Fail the held trees for which no room is left, as an acker beyond its high-water mark does."""
    status = _column(found, "status")
    refused = status == HIGH_WATER
    if room is not None:
        is_held = status == HELD
        refused |= is_held & (np.cumsum(is_held) > room)
    if not refused.any():
        return found
    mask = pa.array(refused)
    values = {"status": "failed", "error_class": HIGH_WATER, "error": HIGH_WATER_REASON}
    for name, value in values.items():
        replaced = pc.if_else(mask, pa.scalar(value, found[name].type), found[name])
        found = found.set_column(found.schema.get_field_index(name), name, replaced)
    return found


def time_out(expired: pa.Table, moment: Moment) -> Settlement:
    """Fail the held trees whose timeout has come: the ordinary retries, or death.

    Args:
        expired: rows of `pending`.
        moment: when, and by which rules.
    """
    count = expired.num_rows
    replaced = {
        "status": _repeated("failed", count),
        "bolt": expired["bolt"],
        "error_class": _repeated(TIMEOUT, count),
        "error": _repeated(TIMEOUT_REASON, count),
        "traceback": pa.nulls(count, pa.string()),
        "retry": _repeated(True, count),
    }
    kept = ("anchor", "ack_val", "spout", "message_id", "attempt", "first_seen_at", "payload")
    return settle_trees(pa.table({**{name: expired[name] for name in kept}, **replaced}), moment)


def taken_back(dead_letters: pa.Table, batch_id: int, now: datetime) -> pa.Table:
    """Dead letters as rows of `pending` that are due at once, with all of their attempts before them.

    Their next attempt has a new root, as any attempt has, so nothing of the ones before can answer for it.

    Args:
        dead_letters: rows of the ledger's `dead_letters`.
        batch_id: the batch that takes them back.
        now: when.
    """
    count, payload = dead_letters.num_rows, dead_letters.schema.field("payload").type
    columns = {name: dead_letters[name] for name in dead_letters.column_names}
    waiting = {
        "batch_id": _repeated(batch_id, count),
        "ack_val": _repeated(0, count),
        "attempt": _repeated(0, count),
        "status": _repeated("failed", count),
        "emitted_at": dead_letters["died_at"],
        "due_at": _repeated(now, count),
    }
    return _arranged(pa.table({**columns, **waiting}), pending_schema(payload))


def _described(found: pa.Table, moment: Moment) -> pa.Table:
    status = found["status"]
    is_lost, is_held = pc.equal(status, LOST), pc.equal(status, HELD)
    error_class = pc.if_else(is_lost, LOST, pc.if_else(is_held, HELD, found["error_class"]))
    error = pc.if_else(is_lost, LOST_REASON, pc.if_else(is_held, HELD_REASON, found["error"]))
    first_seen_at = pc.coalesce(found["first_seen_at"], pa.scalar(moment.begun_at, pa.timestamp("us", tz="UTC")))
    columns = {name: found[name] for name in found.column_names if name not in ("error_class", "error", "retry")}
    described = {**columns, "error_class": error_class, "error": error, "first_seen_at": first_seen_at}
    return pa.table({"batch_id": _repeated(moment.batch_id, found.num_rows), **described})


def _due_at(found: pa.Table, moment: Moment, held: Any, attempts: Any) -> pa.Array:
    delays = delay_s(moment.policy, found["anchor"].to_numpy().astype(np.int64), attempts)
    retried_at_s = moment.now.timestamp() + delays
    expired_at_s = expires_at_s(moment.begun_at.timestamp(), moment.message_timeout_s, moment.phase_s)
    due_at_us = np.where(held, expired_at_s, retried_at_s) * 1e6
    return pa.array(np.ceil(due_at_us).astype(np.int64)).cast(pa.timestamp("us", tz="UTC"))


def _column(table: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.object_]]:
    values: np.ndarray[Any, np.dtype[np.object_]] = table[name].to_numpy(zero_copy_only=False)
    return values


def _repeated(value: Any, count: int) -> pa.Array:
    kind = pa.timestamp("us", tz="UTC") if isinstance(value, datetime) else None
    return pa.repeat(pa.scalar(value, kind), count)


def _arranged(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return rows.select(schema.names).cast(schema)
