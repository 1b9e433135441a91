"""Laws of a topology's messages: every one has exactly one final answer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.messages import Message, Messages

STEPS = st.lists(st.tuples(st.sampled_from(["emit", "ack", "failed", "lost", "take"]), st.integers(1, 3)), max_size=60)


def emit(messages: Messages, message_id: int, at_s: float = 0.0) -> None:
    messages.emitted(Message("s", str(message_id), "default", [message_id], at_s, at_s))


@given(STEPS)
def test_the_books_balance_after_every_step(steps: list[tuple[str, int]]) -> None:
    """Whatever spouts and ackers say, in any order, of whatever ids, also after the counts were taken."""
    messages, sums, buried = Messages(), {"anchored": 0, "acked": 0}, 0
    for step, message_id in [*steps, ("bury", 0), ("take", 0)]:
        if step == "emit":
            emit(messages, message_id)
        elif step == "ack":
            messages.acked(("s", str(message_id)))
        elif step == "bury":
            buried = len(messages.bury())
        elif step == "take":
            counts = messages.take_counts()
            sums = {name: sums[name] + counts[name] for name in sums}
            assert sums["anchored"] == sums["acked"] + buried + len(list(messages.pending()))
        else:
            messages.ended(("s", str(message_id)), "failed" if step == "failed" else "lost")


def test_a_failed_message_that_comes_again_is_the_same_one() -> None:
    """It is anchored once, keeps the time when it was first seen, and is acked once."""
    messages = Messages()
    emit(messages, 1, at_s=1.0)
    messages.ended(("s", "1"), "failed")
    assert [each.ending for each in messages.pending()] == ["failed"]
    emit(messages, 1, at_s=5.0)
    [again] = messages.pending()
    assert (again.attempts, again.first_seen_s, again.emitted_at_s, again.ending) == (2, 1.0, 5.0, None)
    messages.acked(("s", "1"))
    messages.acked(("s", "1"))
    assert messages.take_counts() == {"anchored": 1, "failed": 1, "replayed": 1, "acked": 1}


def test_only_what_failed_is_buried() -> None:
    """What has no answer, or whose spout's task died, may still come again from its source."""
    messages = Messages()
    for message_id in (1, 2, 3):
        emit(messages, message_id)
    messages.ended(("s", "1"), "failed")
    messages.ended(("s", "2"), "lost")
    assert [each.message_id for each in messages.bury()] == ["1"]
    assert sorted(each.message_id for each in messages.pending()) == ["2", "3"]
    assert messages.bury() == []
