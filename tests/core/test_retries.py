from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.ids import xxhash64
from reliable_spark.core.retries import RetryPolicy, delay_s, is_dead

anchors = st.integers(-(2**63), 2**63 - 1)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 10),
    backoff_initial_s=st.floats(0, 1e6, allow_subnormal=False),
    backoff_max_s=st.floats(0, 1e9, allow_subnormal=False),
)


def delays(policy: RetryPolicy, anchor: int, attempts: list[int]) -> list[float]:
    """The delays after these attempts of one tree, seconds."""
    found: list[float] = delay_s(policy, np.full(len(attempts), anchor), np.array(attempts)).tolist()
    return found


def test_delay_grows_to_the_cap() -> None:
    """Initial 100, doubling, cap 2000: at most a quarter below 100, 200, 400, 800, 1600, 2000, 2000 (J6)."""
    policy = RetryPolicy(max_attempts=10, backoff_initial_s=100.0, backoff_max_s=2000.0)
    plain = np.array([100.0, 200.0, 400.0, 800.0, 1600.0, 2000.0, 2000.0])
    for anchor in range(-50, 50):
        found = np.array(delays(policy, anchor, list(range(1, 8))))
        assert np.all(0.75 * plain <= found)
        assert np.all(found <= plain)
        # Not ready at half time.
        assert np.all(found > plain / 2)


def test_initial_zero_retries_at_once() -> None:
    """Without an initial delay every retry is due at once."""
    assert delays(RetryPolicy(3, 0.0, 10.0), 7, [1, 2, 1000]) == [0.0, 0.0, 0.0]


def test_thousandth_attempt_does_not_overflow() -> None:
    """However many attempts failed, the delay is the cap with its jitter, without a warning."""
    for attempt in (64, 1_000, 1_025, 2**31, 2**62):
        (found,) = delays(RetryPolicy(5, 1e-300, 60.0), 7, [attempt])
        assert 0.0 <= found <= 60.0
    assert 45.0 <= delays(RetryPolicy(5, 0.001, 60.0), 7, [1_000])[0] <= 60.0


def test_smallest_delay_saturates_too() -> None:
    """Even the smallest positive initial delay reaches the cap in the end."""
    assert delays(RetryPolicy(5, 5e-324, 1e308), 7, [3_000])[0] >= 0.75e308


def test_jitter_spreads_trees_that_failed_together() -> None:
    """The factors of many trees fill the range [0.75, 1.0] evenly."""
    count = 10_000
    found = delay_s(RetryPolicy(3, 1.0, 1.0), np.arange(count), np.ones(count, dtype=np.int64))
    assert len(np.unique(found)) == count
    occupancy, _ = np.histogram(found, bins=10, range=(0.75, 1.0))
    assert occupancy.sum() == count
    assert occupancy.min() > 0.08 * count


def test_jitter_is_the_hash_of_tree_and_attempt() -> None:
    """The factor is 1 - h / 4 with h the hash of (anchor, attempt) as a fraction of 2**64, in any process."""
    fractions = [(xxhash64(-9, attempt) % 2**64) / 2**64 for attempt in (1, 2, 3)]
    expected = [100.0 * 2.0**power * (1.0 - fraction / 4.0) for power, fraction in enumerate(fractions)]
    assert delays(RetryPolicy(3, 100.0, 2000.0), -9, [1, 2, 3]) == pytest.approx(expected, rel=1e-12)


@given(policy=policies, anchor=anchors, attempt=st.integers(1, 5_000))
def test_delay_is_deterministic_and_capped(policy: RetryPolicy, anchor: int, attempt: int) -> None:
    """Asked twice, alone or among others, a tree gets the same delay, never above the cap nor below zero."""
    (alone,) = delays(policy, anchor, [attempt])
    others = delay_s(policy, np.array([anchor ^ 1, anchor, 5]), np.array([1, attempt, 2]))
    assert alone == others[1]
    assert 0.0 <= alone <= policy.backoff_max_s


@given(policy=policies, anchor=anchors)
def test_delay_grows_until_the_cap(policy: RetryPolicy, anchor: int) -> None:
    """Each delay exceeds the one before while the cap is not reached, and then stays within its jitter."""
    found = delays(policy, anchor, list(range(1, 60)))
    for attempt, (before, after) in enumerate(pairwise(found), start=1):
        if policy.backoff_initial_s * 2.0**attempt <= policy.backoff_max_s:
            assert after > before or policy.backoff_initial_s == 0.0
        assert after >= 0.75 * before


def test_attempt_zero_is_refused() -> None:
    """A message that has not failed has no delay: a state error."""
    with pytest.raises(ValueError, match="1 or more"):
        delay_s(RetryPolicy(3, 1.0, 1.0), np.array([1, 2]), np.array([1, 0]))


def test_nothing_failed_gives_nothing() -> None:
    """Empty arrays are answered by empty arrays."""
    none = np.array([], dtype=np.int64)
    assert delay_s(RetryPolicy(3, 1.0, 1.0), none, none).shape == (0,)
    assert is_dead(RetryPolicy(3, 1.0, 1.0), none, np.array([], dtype=np.bool_)).shape == (0,)


def test_dead_when_not_retryable_or_out_of_attempts() -> None:
    """A tree dies with its last allowed attempt, or at once when the failure forbids a retry."""
    attempt = np.array([1, 2, 3, 4, 1])
    retry = np.array([True, True, True, True, False])
    assert is_dead(RetryPolicy(3, 1.0, 1.0), attempt, retry).tolist() == [False, False, True, True, True]
    assert is_dead(RetryPolicy(1, 1.0, 1.0), attempt, retry).all()


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("max_attempts", (0, 1.0, 1.0)),
        ("backoff_initial_s", (1, -1.0, 1.0)),
        ("backoff_initial_s", (1, float("nan"), 1.0)),
        ("backoff_max_s", (1, 1.0, float("inf"))),
        ("backoff_max_s", (1, 1.0, -0.5)),
    ],
)
def test_impossible_policy_is_refused(field: str, values: tuple[int, float, float]) -> None:
    """A policy out of range never exists, and the error names the field."""
    with pytest.raises(ValueError, match=field):
        RetryPolicy(*values)
