"""Laws of a topology's messages: every one has exactly one final answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.messages import Message, Messages

ROOTS = st.integers(1, 6)
STEPS = st.lists(
    st.tuples(st.sampled_from(["emit", "ack", "failed", "lost", "take"]), st.integers(1, 3), ROOTS), max_size=60
)


def emit(messages: Messages, root: int, message_id: int, at_s: float = 0.0) -> None:
    messages.emitted(root, Message("s", str(message_id), "default", [message_id], at_s, at_s, id_type="int"))


@given(STEPS)
def test_the_books_balance_after_every_step(steps: list[tuple[str, int, int]]) -> None:
    """Whatever spouts and ackers say, in any order, of whatever ids, also after the counts were taken."""
    messages, sums, buried = Messages(), {"anchored": 0, "acked": 0}, 0
    emits = 0
    for step, message_id, root in [*steps, ("bury", 0, 0), ("take", 0, 0)]:
        if step == "emit":
            emits += 1
            emit(messages, emits, message_id)
        elif step == "ack":
            messages.acked(root)
        elif step == "bury":
            buried = len(messages.bury())
        elif step == "take":
            counts = messages.take_counts()
            sums = {name: sums[name] + counts[name] for name in sums}
            assert sums["anchored"] == sums["acked"] + buried + len(list(messages.pending()))
        else:
            messages.ended(root, "failed" if step == "failed" else "lost")


def test_a_failed_message_that_comes_again_is_the_same_one() -> None:
    """It is anchored once, keeps the time when it was first seen, and is acked once."""
    messages = Messages()
    emit(messages, 10, 1, at_s=1.0)
    messages.ended(10, "failed")
    assert [each.ending for each in messages.pending()] == ["failed"]
    emit(messages, 11, 1, at_s=5.0)
    [again] = messages.pending()
    assert (again.attempts, again.first_seen_s, again.emitted_at_s, again.ending) == (2, 1.0, 5.0, None)
    messages.acked(11)
    messages.acked(11)
    assert messages.take_counts() == {"anchored": 1, "failed": 1, "replayed": 1, "acked": 1}


def test_only_what_failed_is_buried() -> None:
    """What has no answer, or whose spout's task died, may still come again from its source."""
    messages = Messages()
    for root, message_id in enumerate((1, 2, 3, 2)):
        emit(messages, root, message_id)
    messages.ended(0, "failed")
    messages.ended(1, "lost")
    messages.ended(3, "failed")
    assert [each.message_id for each in messages.bury()] == ["1", "2"]
    assert sorted((each.message_id, each.ending) for each in messages.pending()) == [("2", "lost"), ("3", None)]
    assert messages.bury() == []


def test_an_answer_is_for_the_tree_that_was_answered() -> None:
    """Of two open emits of one id the second may be acked and the first fail."""
    messages = Messages()
    for root, value in ((10, "bad"), (11, "good")):
        messages.emitted(root, Message("s", "1", "default", [value], 0.0, id_type="int"))
    messages.acked(11)
    messages.ended(10, "failed")
    assert [each.values for each in messages.bury()] == [["bad"]]


def test_ids_of_two_types_are_two_ids() -> None:
    """1 does not replay "1"; either replays what an earlier run left, of which the text alone was kept."""
    messages = Messages()
    messages.emitted(10, Message("s", "1", "default", ["text"], 0.0, id_type="str"))
    messages.ended(10, "failed")
    emit(messages, 11, 1)
    assert messages.take_counts() == {"anchored": 2, "failed": 1}
    messages.remember(Message("s", "2", "default", [2], 0.0))
    emit(messages, 12, 2)
    assert messages.take_counts() == {"replayed": 1}
