"""How much the next batch may take: the rule alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.admission import GROWTH_MAX, Bounds, Ran, next_size

SIZES = st.integers(1, 10**9)
RANS = st.builds(Ran, st.integers(0, 10**6), st.integers(0, 10**9), st.floats(0, 10**4))
BOUNDS = st.builds(Bounds, st.floats(1e-3, 10**4), st.integers(-10, 10**9), SIZES)


@given(SIZES, RANS, BOUNDS)
def test_it_is_never_nothing_never_above_the_users_limit_and_fits_into_the_room(
    size: int, ran: Ran, bounds: Bounds
) -> None:
    """One unit goes on even when there is no room: whether the batch may begin at all is not said here."""
    following = next_size(size, ran, bounds)
    assert 1 <= following <= bounds.most
    if ran.units and ran.rows:
        assert following == 1 or following * ran.rows <= bounds.room * ran.units


@given(SIZES, RANS, BOUNDS)
def test_it_grows_slowly(size: int, ran: Ran, bounds: Bounds) -> None:
    assert next_size(size, ran, bounds) <= max(size, GROWTH_MAX * ran.units)


@given(SIZES, RANS, BOUNDS, st.floats(1, 100), st.integers(0, 10**6))
def test_a_slower_batch_and_a_fuller_queue_never_make_it_larger(
    size: int, ran: Ran, bounds: Bounds, slower: float, less: int
) -> None:
    following = next_size(size, ran, bounds)
    assert next_size(size, replace(ran, seconds=ran.seconds * slower), bounds) <= following
    assert next_size(size, ran, replace(bounds, room=bounds.room - less)) <= following


@given(SIZES, RANS, BOUNDS)
def test_a_source_that_had_no_more_in_time_makes_it_no_smaller(size: int, ran: Ran, bounds: Bounds) -> None:
    in_time = replace(ran, units=min(ran.units, size), seconds=min(ran.seconds, bounds.target_s))
    free = replace(bounds, room=10**18)
    assert next_size(size, in_time, free) >= min(size, bounds.most)


@given(
    st.floats(0.001, 0.8),
    st.floats(0.0001, 2),
    st.integers(1, 10_000),
    st.floats(1, 60),
)
def test_batches_come_to_last_as_long_as_they_should(
    fixed_share: float, unit_share: float, size: int, target_s: float
) -> None:
    """Give or take a unit, from any size, for any cost per batch and per unit; less than one unit there is not."""
    bounds = Bounds(target_s, 10**18, 10**9)

    def lasts_s(units: int) -> float:
        return target_s * (fixed_share + unit_share * units)

    for _ in range(40):
        size = next_size(size, Ran(size, size, lasts_s(size)), bounds)
    assert size == 1 or lasts_s(size - 1) <= target_s
    assert lasts_s(size + 2) > target_s * 0.9
