"""What follows a failed attempt: the next one after a growing delay, or death. Pure arithmetic, no clock.

Source: `KafkaSpoutRetryExponentialBackoff` and, for the growth, storm-kafka 1.x's
`ExponentialBackoffMsgRetryManager`; both overflow after some 40 failures, this saturates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reliable_spark.core.ids import Longs, hash_pairs

_LARGEST_EXPONENT = 2_200
"""Doubling any positive float64 this often is infinite, so higher exponents change nothing."""

JITTER = 0.25
"""The largest part of a delay that is taken off to spread trees that fail together."""


@dataclass(frozen=True)
class RetryPolicy:
    """A policy that exists is usable: every field is checked once, here.

    Args:
        max_attempts: attempts in all, the first one included, 1 or more.
        backoff_initial_s: seconds after the first failed attempt, 0 or more; 0 retries at once for ever.
        backoff_max_s: seconds no delay exceeds, 0 or more.

    Raises:
        ValueError: for a value out of its range.
    """

    max_attempts: int
    backoff_initial_s: float
    backoff_max_s: float

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be 1 or more, got {self.max_attempts}")
        for name in ("backoff_initial_s", "backoff_max_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be finite and not negative, got {value}")


def delay_s(policy: RetryPolicy, anchor: Longs, attempt: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
    """The wait before the next attempt: doubling up to the cap, spread by up to a quarter, always the same.

    After the n-th failed attempt `backoff_initial_s * 2**(n - 1)`, at most `backoff_max_s`, times a factor
    in [0.75, 1.0] computed from (anchor, attempt): trees that fail together do not return together, yet a
    second evaluation finds the same due time.

    Args:
        policy: the delays.
        anchor: int64 array of n root ids of the failed attempts.
        attempt: integer array of n numbers of failed attempts so far, 1 or more each.

    Returns:
        Seconds, float64 array of n.

    Raises:
        ValueError: for an attempt below 1 (nothing failed yet).

    Cost: two vectorised hashes per tree. Source: `KafkaSpoutRetryExponentialBackoff.nextTime`.
    """
    attempts = np.asarray(attempt, dtype=np.int64)
    if attempts.size and attempts.min() < 1:
        raise ValueError(f"attempt must be 1 or more, got {attempts.min()}")
    exponent = np.minimum(attempts - 1, _LARGEST_EXPONENT).astype(np.int32)
    with np.errstate(over="ignore"):
        grown = np.ldexp(np.float64(policy.backoff_initial_s), exponent)
    # 53 bits fill a float64 exactly, so the fraction stays below 1.
    bits = hash_pairs(anchor, attempts).view(np.uint64) >> np.uint64(11)
    factor = 1.0 - JITTER * np.ldexp(bits.astype(np.float64), -53)
    delay: npt.NDArray[np.float64] = np.minimum(grown, policy.backoff_max_s) * factor
    return delay


def is_dead(
    policy: RetryPolicy, attempt: npt.NDArray[np.integer], retry: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """True exactly where no further attempt will be made.

    Args:
        policy: `max_attempts` counts the first attempt too.
        attempt: integer array of n numbers of failed attempts so far.
        retry: bool array of n; False where the failure itself forbids a retry.

    Returns:
        Bool array of n.

    Cost: constant per tree. Source: `KafkaSpoutRetryExponentialBackoff.schedule`, which counts retries only.
    """
    return ~np.asarray(retry, dtype=np.bool_) | (np.asarray(attempt) >= policy.max_attempts)
