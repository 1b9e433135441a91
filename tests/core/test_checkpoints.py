"""The table of the checkpoint's phases, and laws of the alignment of barriers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.barriers import Alignment, Arrival
from reliable_spark.core.checkpoints import Action, CheckpointState, Phase, last_seen, next_action, next_state


@pytest.mark.parametrize(
    ("phase", "recovering", "action", "then"),
    [
        (Phase.COMMITTED, False, Action.PREPARE, (8, Phase.PREPARING)),
        (Phase.PREPARING, False, Action.PREPARE, (7, Phase.COMMITTING)),
        (Phase.COMMITTING, False, Action.COMMIT, (7, Phase.COMMITTED)),
        (Phase.COMMITTED, True, Action.INITSTATE, (7, Phase.COMMITTED)),
        (Phase.PREPARING, True, Action.ROLLBACK, (6, Phase.COMMITTED)),
        (Phase.COMMITTING, True, Action.COMMIT, (7, Phase.COMMITTED)),
    ],
)
def test_the_table(phase: Phase, recovering: bool, action: Action, then: tuple[int, Phase]) -> None:
    """Each row of Storm's `CheckPointState`."""
    state = CheckpointState(7, phase)
    assert (next_action(state, recovering), next_state(state, recovering)) == (action, then)


@given(st.integers(-1, 10**6), st.sampled_from(Phase))
def test_recovery_ends(txid: int, phase: Phase) -> None:
    """From every state it reaches INITSTATE in two steps at most, and never commits what was not prepared by all."""
    state = CheckpointState(txid, phase)
    actions: list[Action] = []
    while not actions or actions[-1] is not Action.INITSTATE:
        actions.append(next_action(state, recovering=True))
        state = next_state(state, recovering=True)
    assert len(actions) <= 2
    assert (Action.COMMIT in actions) == (phase is Phase.COMMITTING)


def test_a_rolled_back_transaction_may_come_again() -> None:
    """After a rollback the transaction before it is the last one seen."""
    assert (last_seen(Action.ROLLBACK, 5), last_seen(Action.COMMIT, 5)) == (4, 5)


@given(st.permutations(range(4)))
def test_a_barrier_is_complete_on_its_last_input(order: list[int]) -> None:
    """Whatever the order; until then exactly the inputs that brought it are blocked, then none."""
    alignment = Alignment(range(4))
    for place, channel in enumerate(order[:-1], 1):
        assert alignment.arrive(channel, (1, 1)) is Arrival.WAITING
        assert {each for each in range(5) if alignment.is_blocked(each)} == set(order[:place])
    assert alignment.arrive(order[-1], (1, 1)) is Arrival.COMPLETE
    assert not any(alignment.is_blocked(each) for each in range(5))


def test_what_is_left_of_an_abandoned_attempt_counts_for_nothing() -> None:
    """Storm's counters survive a recovery: there the next prepare would act on its first copy."""
    alignment = Alignment([1, 2])
    assert alignment.arrive(1, (1, 1)) is Arrival.WAITING
    assert alignment.arrive(1, (1, 2)) is Arrival.WAITING
    assert alignment.arrive(2, (1, 1)) is Arrival.STALE
    assert alignment.arrive(2, (1, 2)) is Arrival.COMPLETE
    assert alignment.arrive(1, (1, 1)) is Arrival.STALE
    assert alignment.arrive(1, (2, 1)) is Arrival.WAITING
