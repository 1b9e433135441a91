"""Group K, the pure part: what may be committed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.offsets import OffsetTracker


def tracked(start: int, emitted: list[int], acked: list[int]) -> OffsetTracker:
    tracker = OffsetTracker(start)
    for offset in emitted:
        tracker.emit(offset)
    for offset in acked:
        assert tracker.ack(offset)
    return tracker


@pytest.mark.parametrize(
    ("emitted", "acked", "expected"),
    [([], [], None), ([0], [0], 1), ([1, 0], [1, 0], 2), ([0, 1], [0], 1), ([0, 1], [1], None)],
)
def test_k1_only_the_contiguous_part_is_committable(emitted: list[int], acked: list[int], expected: int | None) -> None:
    """In whatever order they were acked."""
    assert tracked(0, emitted, acked).next_commit() == expected


def test_k3_gap_that_never_existed_is_skipped() -> None:
    """A missing offset holds nothing up, one that is in flight does."""
    assert tracked(0, [0, 2], [0, 2]).next_commit() == 3
    middle = tracked(0, [0, 1, 2, 5, 6], [0, 1, 2, 6])
    assert middle.next_commit() == 3
    middle.ack(5)
    assert middle.next_commit() == 7
    before = tracked(0, [5, 6], [6])
    assert before.next_commit() is None
    before.ack(5)
    assert before.next_commit() == 7


def test_k5_nth_uncommitted() -> None:
    """Counted from one; there is no fifth of four."""
    tracker = tracked(0, [1, 2, 5, 30], [])
    assert (tracker.nth_uncommitted(3), tracker.nth_uncommitted(4)) == (5, 30)
    for number in (0, 5):
        with pytest.raises(IndexError, match="there are 4 uncommitted"):
            tracker.nth_uncommitted(number)


def test_k5_ack_below_the_start() -> None:
    """It is refused; nothing below the start is ever committed."""
    tracker = OffsetTracker(10)
    with pytest.raises(ValueError, match="offset 0 is below 10"):
        tracker.emit(0)
    assert not tracker.ack(0)
    assert tracker.next_commit() is None


def test_k17_contiguous_positions_of_a_file_reader() -> None:
    """The position is the last line of the acked run; acking a line twice changes nothing."""
    tracker, positions = OffsetTracker(1), []
    tracker.emit(1)
    assert tracker.next_commit() is None
    for line in range(2, 8):
        tracker.emit(line)
    for line in (1, 2, 5, 4, 3, 6, 6, 7):
        tracker.ack(line)
        position = tracker.next_commit()
        assert position is not None
        positions.append(position - 1)
    assert positions == [1, 2, 2, 2, 5, 6, 6, 7]


def test_k17_acked_out_of_order_from_the_start() -> None:
    """Line 3 before lines 1 and 2: nothing is committable, and the position never falls back."""
    tracker = tracked(1, [1, 2, 3], [3])
    assert tracker.next_commit() is None
    tracker.ack(1)
    assert tracker.next_commit() == 2


@given(st.sets(st.integers(0, 30)), st.data())
def test_the_commit_is_the_first_offset_in_flight(emitted: set[int], data: st.DataObject) -> None:
    """Everything below the commit that was emitted is acked, and it is as high as can be; commits never go back."""
    tracker, acked, committed = OffsetTracker(0), set(), 0
    for offset in data.draw(st.permutations(sorted(emitted))):
        tracker.emit(offset)
    for offset in data.draw(st.permutations(sorted(emitted))):
        tracker.ack(offset)
        acked.add(offset)
        done = [each for each in sorted(emitted) if all(low in acked for low in emitted if low <= each)]
        after = tracker.next_commit()
        if data.draw(st.booleans()) and after is not None:
            forgotten = sum(committed <= each < after for each in emitted)
            assert tracker.commit(after) == forgotten
            committed = after
            assert tracker.next_commit() is None
        else:
            assert (after or committed) == (done[-1] + 1 if done else 0)
        assert tracker.uncommitted == sum(each >= committed for each in emitted)
    assert (tracker.next_commit() or committed) == (max(emitted) + 1 if emitted else 0)
