"""The three-phase checkpoint as a table: what the coordinator asks of all bolts next, and where their answer leads.

    phase          normally                              recovering
    COMMITTED(t)   PREPARE(t + 1) from PREPARING(t + 1)  INITSTATE(t), then recovery is over
    PREPARING(t)   PREPARE(t)     to COMMITTING(t)       ROLLBACK(t) to COMMITTED(t - 1)
    COMMITTING(t)  COMMIT(t)      to COMMITTED(t)        COMMIT(t)   to COMMITTED(t)

Source: Storm's `spout/CheckPointState`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Phase(str, Enum):
    """How far the transaction got that was begun last."""

    PREPARING = "preparing"
    COMMITTING = "committing"
    COMMITTED = "committed"


class Action(str, Enum):
    """What a checkpoint tuple asks of a bolt."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    INITSTATE = "initstate"


class CheckpointState(NamedTuple):
    """What the coordinator stores before it acts, so that whoever comes after it knows what may have happened."""

    txid: int
    phase: Phase


FIRST = CheckpointState(-1, Phase.COMMITTED)
"""The state of a topology that never ran."""


def next_action(state: CheckpointState, recovering: bool) -> Action:
    """What is asked of all bolts in this state."""
    if state.phase is Phase.COMMITTING:
        return Action.COMMIT
    if state.phase is Phase.PREPARING:
        return Action.ROLLBACK if recovering else Action.PREPARE
    return Action.INITSTATE if recovering else Action.PREPARE


def next_state(state: CheckpointState, recovering: bool) -> CheckpointState:
    """The state once all bolts did the action; a committed one is first followed by the next one's preparing."""
    if state.phase is Phase.COMMITTING:
        return CheckpointState(state.txid, Phase.COMMITTED)
    if state.phase is Phase.PREPARING:
        return (
            CheckpointState(state.txid - 1, Phase.COMMITTED) if recovering else state._replace(phase=Phase.COMMITTING)
        )
    return state if recovering else CheckpointState(state.txid + 1, Phase.PREPARING)


def last_seen(action: Action, txid: int) -> int:
    """The transaction a bolt has behind it after an action: what is older than that is stale."""
    return txid - 1 if action is Action.ROLLBACK else txid
