from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.timeouts import RotatingMap, expires_at_s


@pytest.mark.parametrize(
    ("emitted_at_s", "expired_at_s"),
    [(11.0, 30.0), (0.0, 20.0), (9.999, 20.0), (10.0, 30.0), (19.0, 30.0), (-5.0, 10.0)],
)
def test_unacked_tuple_fails_between_t_and_2t(emitted_at_s: float, expired_at_s: float) -> None:
    """With T = 10 and ticks at 10, 20, 30 a tuple fed at 11 fails at 30 (age 19), one fed at 0 at 20 (B1)."""
    assert expires_at_s(emitted_at_s, period_s=10.0) == expired_at_s


def test_put_on_a_tick_counts_as_after_it() -> None:
    """An entry put exactly on a tick lives the full number of periods."""
    assert expires_at_s(30.0, period_s=10.0, buckets=3) == 60.0
    assert expires_at_s(33.0, period_s=10.0, phase_s=3.0, buckets=3) == 63.0


def test_array_gives_an_array_of_the_same_times() -> None:
    """A float64 array is answered element by element, a float by a float."""
    emitted = np.array([0.0, 11.0, 20.0])
    expired = expires_at_s(emitted, 10.0, phase_s=1.0, buckets=2)
    assert expired.dtype == np.float64
    assert expired.tolist() == [expires_at_s(float(each), 10.0, 1.0) for each in emitted] == [11.0, 31.0, 31.0]
    assert isinstance(expires_at_s(3.0, 10.0), float)


@given(
    emitted=st.integers(-(10**6), 10**6),
    period=st.integers(1, 1000),
    phase=st.integers(-1000, 1000),
    buckets=st.integers(2, 5),
)
def test_age_at_expiry_in_whole_seconds(emitted: int, period: int, phase: int, buckets: int) -> None:
    """The age at expiry lies in ((n - 1) * T, n * T] and the expiry is on a tick, exactly."""
    expired = expires_at_s(float(emitted), float(period), float(phase), buckets)
    assert (buckets - 1) * period < expired - emitted <= buckets * period
    assert (expired - phase) % period == 0


@given(
    emitted=st.floats(0, 4e9),
    period=st.floats(0.1, 86_400),
    phase=st.floats(-1e5, 1e5),
    buckets=st.integers(2, 4),
)
def test_age_at_expiry_in_any_fraction(emitted: float, period: float, phase: float, buckets: int) -> None:
    """Rounding moves the bounds of the age by no more than the resolution of the clock."""
    age = expires_at_s(emitted, period, phase, buckets) - emitted
    resolution = 8 * np.spacing(4e9)
    assert (buckets - 1) * period - resolution < age <= buckets * period + resolution


@pytest.mark.parametrize("period_s", [0.05, 0.1, 0.3, 1 / 3, 0.7])
@pytest.mark.parametrize("phase_s", [0.0, 0.1, 17.3])
def test_rounding_never_moves_an_entry_across_a_tick(period_s: float, phase_s: float) -> None:
    """Put on a computed tick or one float before it, an entry leaves at its own tick, however rounded."""
    tick = np.arange(0, 100_000_000, 4_999)
    on_tick: npt.NDArray[np.float64] = phase_s + tick * np.float64(period_s)
    expected = phase_s + (tick + 2) * period_s
    assert np.array_equal(expires_at_s(on_tick, period_s, phase_s), expected)
    before = expires_at_s(np.nextafter(on_tick, -np.inf).astype(np.float64), period_s, phase_s)
    assert np.array_equal(before, phase_s + (tick + 1) * period_s)


@pytest.mark.parametrize(("period_s", "buckets"), [(0.0, 2), (-1.0, 2), (float("nan"), 2), (10.0, 1), (10.0, 0)])
def test_impossible_rotation_is_refused(period_s: float, buckets: int) -> None:
    """A period that is not positive or fewer than two buckets is an error."""
    with pytest.raises(ValueError, match="must be"):
        expires_at_s(0.0, period_s, buckets=buckets)


def test_map_with_one_bucket_is_refused() -> None:
    """One bucket would expire an entry at age 0, so it is an argument error (X5)."""
    with pytest.raises(ValueError, match="2 or more"):
        RotatingMap(1)


@pytest.mark.parametrize("buckets", [2, 3, 4])
def test_key_is_reported_by_the_nth_rotation(buckets: int) -> None:
    """A key put between ticks survives n - 1 rotations and is returned by the n-th, once (X5)."""
    pending: RotatingMap[str, int] = RotatingMap(buckets)
    pending.put("a", 1)
    assert [pending.rotate() for _ in range(buckets + 1)] == [{}] * (buckets - 1) + [{"a": 1}, {}]
    assert "a" not in pending


@pytest.mark.parametrize("buckets", [2, 3])
def test_put_again_counts_from_there(buckets: int) -> None:
    """A second put renews the life, overwrites the value silently and leaves one entry (X5)."""
    pending: RotatingMap[str, int] = RotatingMap(buckets)
    pending.put("a", 1)
    assert pending.rotate() == {}
    pending.put("a", 2)
    assert len(pending) == 1
    assert [pending.rotate() for _ in range(buckets)] == [{}] * (buckets - 1) + [{"a": 2}]


def test_removed_key_is_never_reported() -> None:
    """A removed key gives its value back once and no rotation returns it (X5)."""
    pending: RotatingMap[str, int] = RotatingMap()
    pending.put("a", 1)
    pending.rotate()
    assert (pending.remove("a"), pending.remove("a")) == (1, None)
    assert [pending.rotate() for _ in range(3)] == [{}] * 3


def test_lookup_sees_all_buckets_and_extends_nothing() -> None:
    """get, contains and len look at every bucket and leave the key where it is."""
    pending: RotatingMap[str, int] = RotatingMap(2)
    pending.put("old", 1)
    pending.rotate()
    pending.put("new", 2)
    assert (pending.get("old"), pending.get("new"), pending.get("none"), pending.get("none", 9)) == (
        1,
        2,
        None,
        9,
    )
    assert ("old" in pending, "none" in pending, len(pending)) == (True, False, 2)
    assert pending.rotate() == {"old": 1}


def test_one_rotation_per_tick_for_many_tasks() -> None:
    """One tick rotates a map that five tasks share once, so what any of them just emitted stays (B4)."""
    pending: RotatingMap[str, int] = RotatingMap(2)
    for task in range(1, 6):
        pending.put(f"from {task}", task)
    assert pending.rotate() == {}
    assert len(pending) == 5
    assert sorted(pending.rotate().values()) == [1, 2, 3, 4, 5]


@given(
    steps=st.lists(st.tuples(st.sampled_from(["put", "remove", "rotate"]), st.integers(0, 4)), max_size=60),
    buckets=st.integers(2, 4),
)
def test_map_agrees_with_ages(steps: list[tuple[str, int]], buckets: int) -> None:
    """The map drops exactly the keys whose last put is n rotations old, for any sequence of calls."""
    pending: RotatingMap[int, int] = RotatingMap(buckets)
    put_at: dict[int, int] = {}
    tick = 0
    for action, key in steps:
        if action == "put":
            pending.put(key, tick)
            put_at[key] = tick
        elif action == "remove":
            assert pending.remove(key) == put_at.pop(key, None)
        else:
            tick += 1
            expired = {key: at for key, at in put_at.items() if at == tick - buckets}
            assert pending.rotate() == expired
            put_at = {key: at for key, at in put_at.items() if key not in expired}
        assert len(pending) == len(put_at)
