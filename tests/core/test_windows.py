"""Windows as data: cases H1 and H2, and laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.windows import CountWindows, OrderedCountWindows, TimeWindows, Watermarks, Window


def test_h1_count_window() -> None:
    """Length 5, slide 2: what each of the values 1 to 8 fires."""
    windows: CountWindows[int] = CountWindows(5, 2)
    fired = {number: windows.add(number) for number in range(1, 9)}
    assert {number: each for number, each in fired.items() if each} == {
        2: [Window([1, 2], [1, 2], [])],
        4: [Window([1, 2, 3, 4], [3, 4], [])],
        6: [Window([2, 3, 4, 5, 6], [5, 6], [1])],
        8: [Window([4, 5, 6, 7, 8], [7, 8], [2, 3])],
    }


def test_h2_event_time_windows() -> None:
    """Length 20, slide 10, and a watermark of 636 - 5."""
    windows: TimeWindows[int] = TimeWindows(20, 10)
    for at in (603, 605, 607, 618, 626, 636):
        windows.add(at, at)
    fired = windows.advance(631)
    assert [each.items for each in fired] == [[603, 605, 607], [603, 605, 607, 618], [618, 626]]
    assert [each.new for each in fired] == [[603, 605, 607], [618], [626]]
    assert [each.expired for each in fired] == [[], [], [603, 605, 607]]
    assert [each.end for each in fired] == [610, 620, 630]


def test_h2_watermark_rules() -> None:
    """The newest less the lag, of the slowest stream, once all have spoken, and never back."""
    one = Watermarks({"s1"}, 5)
    assert one.advance() is None
    for at in (100, 110):
        assert one.accepts("s1", at)
    assert one.advance() == 105
    assert not one.accepts("s1", 104)
    assert one.advance() == 105
    assert [one.accepts("s1", at) for at in (105, 106, 115, 104)] == [True, True, True, False]
    assert one.advance() == 110
    two = Watermarks({"s1", "s2"}, 5)
    two.accepts("s1", 100)
    two.accepts("s1", 110)
    assert two.advance() is None
    two.accepts("s2", 95)
    two.accepts("s2", 98)
    assert two.advance() == 93


def test_what_is_as_new_as_the_watermark_finds_its_window() -> None:
    """It is not late, so the window that ends there must not have been its own."""
    windows: TimeWindows[str] = TimeWindows(10, 10)
    windows.add("before", 609)
    assert [each.items for each in windows.advance(610)] == [["before"]]
    windows.add("at", 610)
    assert [each.items for each in windows.advance(620)] == [["at"]]


def test_no_window_fires_where_nothing_is() -> None:
    """A long silence costs nothing; what is still held leaves at the next end."""
    windows: TimeWindows[str] = TimeWindows(10, 10)
    windows.add("a", 5)
    windows.add("b", 10**9 + 5)
    fired = windows.advance(10**9 + 10)
    assert [(each.items, each.expired) for each in fired] == [(["a"], []), ([], ["a"]), (["b"], [])]


def test_counts_by_event_time_go_by_the_order_of_the_timestamps() -> None:
    """As far as the watermark says that it is final."""
    windows: OrderedCountWindows[int] = OrderedCountWindows(CountWindows(2, 2))
    for at in (4, 1, 3, 2, 9):
        windows.add(at, at)
    assert [each.items for each in windows.advance(5)] == [[1, 2], [3, 4]]
    assert windows.advance(9) == []


def check_windows(items: list[int], fired: list[Window[int]]) -> None:
    """Each item is new once at most, leaves once at most, and is in no window after it left."""
    gone: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    for window in fired:
        gone.update(window.expired)
        seen.update(window.new)
        assert not any(gone[item] for item in window.items)
        assert set(window.new) <= set(window.items) <= set(items)
    assert all(count == 1 for count in [*gone.values(), *seen.values()])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 40))
def test_by_count_every_item_leaves_once_after_its_last_window(length: int, slide: int, count: int) -> None:
    """And every window has as many items as there are, up to its length."""
    windows: CountWindows[int] = CountWindows(length, slide)
    fired = [window for item in range(count) for window in windows.add(item)]
    check_windows(list(range(count)), fired)
    assert [each.items for each in fired] == [
        list(range(max(0, end - length), end)) for end in range(slide, count + 1, slide)
    ]
    last_end = count // slide * slide
    assert [item for each in fired for item in each.expired] == list(range(max(0, last_end - length)))


@given(
    st.sampled_from([0.1, 0.5, 1, 3, 7]),
    st.sampled_from([0.1, 0.3, 1, 3, 7]),
    st.lists(st.integers(0, 400), max_size=25),
    st.lists(st.integers(0, 60), max_size=8),
)
def test_by_time_every_item_leaves_once_after_its_last_window(
    length: float, slide: float, tenths: list[int], steps: list[int]
) -> None:
    """However time goes on; in the end everything has left, and was in every window that covers it."""
    windows: TimeWindows[int] = TimeWindows(length, slide)
    times = [each / 10 for each in sorted(tenths)]
    fired, added, now = [], 0, 0.0
    for step in [*steps, 1000]:
        now += step
        while added < len(times) and times[added] < now:
            windows.add(added, times[added])
            added += 1
        fired += windows.advance(now)
    check_windows(list(range(len(times))), fired)
    assert sorted(item for each in fired for item in each.expired) == list(range(len(times)))
    for window in fired:
        assert window.end is not None
        end, tenths_long = round(window.end * 10), round(length * 10)
        covered = [item for item, at in enumerate(sorted(tenths)) if end - tenths_long <= at < end]
        assert window.items == covered


@pytest.mark.parametrize("slide", [0.1, 0.7, 1.1])
def test_ends_are_multiples_without_drift(slide: float) -> None:
    """Each end once, however the products are rounded."""
    windows: TimeWindows[int] = TimeWindows(1000 * slide, slide)
    windows.add(0, 0)
    ends = [each.end for each in windows.advance(500 * slide)]
    assert ends == [round(number * slide, 6) for number in range(1, 501)]


@pytest.mark.parametrize(("at", "to"), [(1_700_000_000.0, 1_700_000_001.0), (1.9, 3.0)])
def test_a_start_is_the_end_before(at: float, to: float) -> None:
    """An item at what both are is in one window: not in none, as at the first time, nor in two, as at the second."""
    windows: TimeWindows[str] = TimeWindows(0.1, 0.1)
    windows.add("x", at)
    assert [each.items for each in windows.advance(to) if each.items] == [["x"]]


milliseconds = st.integers(1, 10_000)
now_ms = st.integers(1_699_999_990_000, 1_700_000_010_000)


@given(milliseconds, st.integers(1, 5), st.lists(now_ms, min_size=1, max_size=20), st.lists(now_ms, max_size=3))
def test_an_item_is_in_as_many_windows_as_slides_fit_into_one(
    slide_ms: int, slides: int, times_ms: list[int], stops_ms: list[int]
) -> None:
    """New in exactly one of them, for any slide and wherever time stops on the way, also to resume; then it leaves."""

    def made() -> TimeWindows[int]:
        return TimeWindows(slides * slide_ms / 1000, slide_ms / 1000)

    windows, fired = made(), []
    ordered_ms = sorted(times_ms)
    for item, at_ms in enumerate(ordered_ms):
        windows.add(item, at_ms / 1000)
    for stop_ms in [*sorted(stops_ms), 1_700_000_100_000]:
        fired += windows.advance(stop_ms / 1000)
        gone = {item for each in fired for item in each.expired}
        held = [(item, at_ms / 1000) for item, at_ms in enumerate(ordered_ms) if item not in gone]
        progress, windows = windows.progress, made()
        windows.resume(progress, held)
    once = dict.fromkeys(range(len(ordered_ms)), 1)
    assert Counter(item for each in fired for item in each.items) == dict.fromkeys(once, slides)
    assert Counter(item for each in fired for item in each.new) == once
    assert Counter(item for each in fired for item in each.expired) == once


@given(milliseconds, milliseconds, st.lists(now_ms, min_size=1, max_size=20))
def test_what_is_not_late_is_in_a_window(slide_ms: int, lag_ms: int, times_ms: list[int]) -> None:
    """However times, lag and watermark are rounded: an item is late only by whole milliseconds."""
    windows: TimeWindows[int] = TimeWindows(slide_ms / 1000, slide_ms / 1000)
    watermarks = Watermarks({"s"}, lag_ms / 1000)
    fired, taken, newest_ms = [], [], 0
    for item, at_ms in enumerate([*times_ms, 1_700_000_100_000]):
        is_in_time = watermarks.accepts("s", at_ms / 1000)
        assert is_in_time == (at_ms >= newest_ms - lag_ms)
        if is_in_time:
            windows.add(item, at_ms / 1000)
            taken.append(item)
        newest_ms = max(newest_ms, at_ms)
        watermark = watermarks.advance()
        assert watermark == (newest_ms - lag_ms) / 1000
        fired += windows.advance(watermark)
    assert sorted(item for each in fired for item in each.items) == taken[:-1]


def counted(length: int, slide: int) -> CountWindows[int]:
    return CountWindows(length, slide)


def timed(length: int, slide: int) -> TimeWindows[int]:
    return TimeWindows(length, slide)


def ordered(length: int, slide: int) -> OrderedCountWindows[int]:
    return OrderedCountWindows(CountWindows(length, slide))


@pytest.mark.parametrize("made", [counted, timed, ordered])
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), max_size=20),
    st.integers(0, 20),
)
def test_windows_that_resume_go_on_as_if_they_had_never_stopped(
    made: Callable[[int, int], Any], length: int, slide: int, steps: list[tuple[int, int]], stop: int
) -> None:
    """At any point, with nothing but their progress and what they held, in the order in which it came."""
    one, other, now = made(length, slide), made(length, slide), 0
    held: dict[int, float] = {}
    for number, (ahead, step) in enumerate(steps):
        if number == stop:
            other = made(length, slide)
            other.resume(one.progress, list(held.items()))
        held[number] = now + ahead
        fired = []
        for windows in (one, other):
            if isinstance(windows, CountWindows):
                fired.append(windows.add(number))
            else:
                windows.add(number, now + ahead)
                fired.append(windows.advance(now + step))
        now += step
        assert fired[0] == fired[1]
        for window in fired[0]:
            for item in window.expired:
                del held[item]


@pytest.mark.parametrize(("slide", "expected"), [(2, [8, 10]), (3, [9]), (7, [7])])
def test_windows_by_time_may_resume_with_another_slide(slide: float, expected: list[float]) -> None:
    """The next one is the first that ends after the last that fired."""
    windows: TimeWindows[str] = TimeWindows(4, slide)
    windows.resume(6, [("a", 6.5)])
    assert [each.end for each in windows.advance(10) if each.items] == expected


@pytest.mark.parametrize("slide", [0.1, 0.7, 1.1])
def test_no_window_fires_again_however_its_end_is_rounded(slide: float) -> None:
    """After each of them."""
    for number in range(1, 200):
        old: TimeWindows[str] = TimeWindows(10 * slide, slide)
        at = (number - 0.5) * slide
        old.add("a", at)
        assert len(old.advance(number * slide)) == 1
        new: TimeWindows[str] = TimeWindows(10 * slide, slide)
        new.resume(old.progress, [("a", at)])
        assert new.advance(number * slide) == []


@given(st.integers(1, 10_000), st.integers(0, 2_000_000))
def test_what_was_stored_as_a_product_of_floats_is_the_same_end(slide_ms: int, after: int) -> None:
    """As windows stored it before they counted in microseconds; so was an item's time, which is stored as it came."""
    slide = slide_ms / 1000
    number = 1_700_000_000_000 // slide_ms + after
    windows: TimeWindows[str] = TimeWindows(slide, slide)
    windows.resume(number * slide, [("inside", number * slide_ms / 1000), ("next", (number + 1) * slide_ms / 1000)])
    assert windows.advance(number * slide_ms / 1000) == []
    [window] = windows.advance((number + 1) * slide_ms / 1000)
    assert (window.items, window.new, window.expired) == (["inside"], ["inside"], [])


def test_watermarks_resume() -> None:
    """A stream that is gone counts for nothing; with a new one the watermark stays until that has spoken too."""
    old = Watermarks({"a", "gone"}, 5)
    assert old.accepts("a", 100)
    assert old.accepts("gone", 20)
    assert old.advance() == 15
    new = Watermarks({"a", "new"}, 5)
    new.resume(old.progress)
    assert (new.accepts("a", 14), new.advance()) == (False, 15)
    assert new.accepts("new", 90)
    assert new.advance() == 85
