"""Group X: the acker one message at a time, and that it agrees with the fold of `core.acker`."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.acker import NO_TASK, Kind, Messages, Trees, Verdict, fold, merge, rotate
from reliable_spark.core.acker_task import AckerTask, Message

INIT, ACK, FAIL, RESET = Kind.INIT, Kind.ACK, Kind.FAIL, Kind.RESET


def told(acker: AckerTask, *messages: Message) -> list[tuple[Verdict, int, int] | None]:
    answers = [acker.take(message, 0.0) for message in messages]
    return [None if answer is None else answer[:3] for answer in answers]


def test_x1_ack_before_init() -> None:
    """The ack is kept and the init finishes the tree; with a child open it waits for the child's ack."""
    acker = AckerTask()
    assert told(acker, Message(ACK, 7, 100), Message(INIT, 7, 100, 3)) == [None, (Verdict.ACKED, 7, 3)]
    said = told(acker, Message(ACK, 8, 100), Message(INIT, 8, 100 ^ 200, 3), Message(ACK, 8, 200))
    assert said == [None, None, (Verdict.ACKED, 8, 3)]
    assert len(acker) == 0


def test_x1_fail_before_init() -> None:
    """The fail goes out on init, unless the value is zero by then: zero beats failed."""
    acker = AckerTask()
    assert told(acker, Message(FAIL, 7), Message(INIT, 7, 100, 3))[-1] == (Verdict.FAILED, 7, 3)
    said = told(acker, Message(FAIL, 8), Message(ACK, 8, 100), Message(INIT, 8, 100, 3))
    assert said[-1] == (Verdict.ACKED, 8, 3)


def test_x3_an_init_of_zero_is_acked_at_once() -> None:
    """The tuple was delivered to nobody."""
    assert told(AckerTask(), Message(INIT, 7, 0, 3)) == [(Verdict.ACKED, 7, 3)]


def test_x4_reset() -> None:
    """A reset of an unknown tree notifies nobody; of a known one it is answered and renews its life."""
    acker = AckerTask()
    assert told(acker, Message(RESET, 7)) == [None]
    assert len(acker) == 1
    assert told(acker, Message(INIT, 7, 100, 3), Message(RESET, 7)) == [None, (Verdict.RESET, 7, 3)]
    acker.rotate()
    acker.rotate()
    assert told(acker, Message(RESET, 7)) == [(Verdict.RESET, 7, 3)]
    assert acker.rotate() == acker.rotate() == []
    assert told(acker, Message(ACK, 7, 100), Message(RESET, 7)) == [(Verdict.ACKED, 7, 3), None]
    assert [acker.rotate() for _ in range(3)] == [[], [], []]
    assert len(acker) == 0


def test_x4_progress_does_not_extend_life() -> None:
    """An ack leaves the tree in its bucket; it leaves at the third tick after its init."""
    acker = AckerTask()
    told(acker, Message(INIT, 7, 1, 3))
    acker.rotate()
    acker.rotate()
    told(acker, Message(ACK, 7, 2))
    assert [answer[:3] for answer in acker.rotate()] == [(Verdict.TIMED_OUT, 7, 3)]


def test_x7_a_second_ack_leaves_a_stray_that_expires_unheard() -> None:
    """It notifies nobody, not even when it expires."""
    acker = AckerTask()
    said = told(acker, Message(INIT, 7, 100, 3), Message(ACK, 7, 100), Message(ACK, 7, 100))
    assert said == [None, (Verdict.ACKED, 7, 3), None]
    assert len(acker) == 1
    assert [acker.rotate() for _ in range(3)] == [[], [], []]
    assert len(acker) == 0


def test_x16_bucketed_acker_corner_cases() -> None:
    """Expiry at the third tick; nothing for an unknown tree; nine are held with a high water of four."""
    acker = AckerTask(high_water=4)
    said = told(acker, *(Message(INIT, tree, 1, 3) for tree in range(10)))
    assert said == [None] * 9 + [(Verdict.FAILED, 9, 3)]
    assert [len(acker.rotate()) for _ in range(3)] == [0, 0, 9]
    assert told(acker, Message(ACK, 99, 5), Message(FAIL, 98)) == [None, None]


def test_the_age_counts_from_the_first_message() -> None:
    """Which need not be the init."""
    acker = AckerTask()
    acker.take(Message(ACK, 7, 100), 2.0)
    acker.take(Message(INIT, 7, 100 ^ 5, 3), 3.0)
    answer = acker.take(Message(ACK, 7, 5), 6.5)
    assert answer is not None
    assert answer.age_s == 4.5


TREES, VALUES = st.integers(1, 4), st.sampled_from([0, 1, 2, 3, 100, 200])
MESSAGES = st.one_of(
    st.builds(Message, st.just(INIT), TREES, VALUES, st.integers(0, 2)),
    st.builds(Message, st.just(ACK), TREES, VALUES, st.just(NO_TASK)),
    st.builds(Message, st.sampled_from([FAIL, RESET]), TREES, st.just(0), st.just(NO_TASK)),
    st.none(),
)


@given(st.lists(MESSAGES, max_size=40), st.sampled_from([None, 1]))
def test_one_at_a_time_agrees_with_the_fold(script: list[Message | None], high_water: int | None) -> None:
    """Message by message and tick by tick the two ackers give the same answers and hold as many trees."""
    acker, trees, generation = AckerTask(high_water), Trees.empty(), 0
    for step in script:
        if step is None:
            generation += 1
            trees, answers = rotate(trees, generation)
            said = acker.rotate()
        else:
            row = (step.kind, step.anchor, step.value, step.task if step.kind is INIT else NO_TASK)
            # A later init of Storm's takes the tree over, a fold keeps the higher task.
            trees, answers = merge(trees, fold(Messages.of([row])), generation, high_water)
            answer = acker.take(step, 0.0)
            said = [] if answer is None else [answer]
        folded = zip(answers.verdict.tolist(), answers.anchor.tolist(), answers.task.tolist(), strict=True)
        assert sorted(answer[:3] for answer in said) == sorted(folded)
        assert len(acker) == len(trees)
