"""Timeouts by rotation: never before T, and without a timestamp or a timer per entry.

Source: Storm's `utils/RotatingMap` and `executor/spout/SpoutExecutor` (2 buckets for spouts, 3 for ackers).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar, overload

import numpy as np
import numpy.typing as npt

Key = TypeVar("Key")
Value = TypeVar("Value")
Seconds = npt.NDArray[np.float64]


@overload
def expires_at_s(emitted_at_s: float, period_s: float, phase_s: float = 0.0, buckets: int = 2) -> float: ...


@overload
def expires_at_s(emitted_at_s: Seconds, period_s: float, phase_s: float = 0.0, buckets: int = 2) -> Seconds: ...


def expires_at_s(
    emitted_at_s: float | Seconds, period_s: float, phase_s: float = 0.0, buckets: int = 2
) -> float | Seconds:
    """An entry never expires before (buckets - 1) * T and never after buckets * T: rotation as arithmetic.

    Ticks are at `phase_s + k * period_s` for every integer k; an entry leaves at the `buckets`-th tick after
    its put, and one put exactly on a tick counts as put after it. The age at expiry lies in
    ((buckets - 1) * T, buckets * T].

    Args:
        emitted_at_s: seconds, one or an array of n, on the clock of the ticks.
        period_s: T, seconds between ticks, more than 0.
        phase_s: time of some tick in seconds.
        buckets: 2 for Storm's spouts, 3 for its ackers.

    Returns:
        Seconds on the same clock; a float for a float, an array of n for an array.

    Raises:
        ValueError: for fewer than 2 buckets or a period that is not positive.

    Cost: constant per entry. Source: `SpoutExecutor.init` over `RotatingMap.rotate`.
    """
    check_buckets(buckets)
    if not period_s > 0:
        raise ValueError(f"period_s must be more than 0, got {period_s}")
    emitted = np.asarray(emitted_at_s, dtype=np.float64)
    tick = np.floor((emitted - phase_s) / period_s)
    # The quotient may be rounded across a tick, so the neighbouring ticks decide.
    tick = np.where(phase_s + tick * period_s > emitted, tick - 1, tick)
    tick = np.where(phase_s + (tick + 1) * period_s <= emitted, tick + 1, tick)
    leaving = phase_s + (tick + buckets) * period_s
    return float(leaving) if np.ndim(emitted_at_s) == 0 else leaving


class RotatingMap(Generic[Key, Value]):
    """A key survives `buckets - 1` rotations after its last put and leaves on the next one.

    Source: Storm's `utils/RotatingMap`; what its expiry callback is told, `rotate` returns.
    """

    def __init__(self, buckets: int = 3) -> None:
        """An empty map of `buckets` generations; fewer than 2 raise ValueError."""
        check_buckets(buckets)
        self._buckets: deque[dict[Key, Value]] = deque({} for _ in range(buckets))

    def put(self, key: Key, value: Value) -> None:
        """The key is in the newest bucket and in no other; a value it had is overwritten unreported."""
        self.remove(key)
        self._buckets[0][key] = value

    def get(self, key: Key, default: Value | None = None) -> Value | None:
        """The value of a key in any bucket, else the default; its life is not extended."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket[key]
        return default

    def remove(self, key: Key) -> Value | None:
        """The value taken out, which no later rotation reports; None when there is no such key."""
        for bucket in self._buckets:
            if key in bucket:
                return bucket.pop(key)
        return None

    def rotate(self) -> dict[Key, Value]:
        """Exactly the pairs that expire with this tick; cost constant. Call once per tick (STORM-3693)."""
        dropped = self._buckets.pop()
        self._buckets.appendleft({})
        return dropped

    def items(self) -> list[tuple[Key, Value]]:
        """The pairs of all buckets, newest bucket first."""
        return [pair for bucket in self._buckets for pair in bucket.items()]

    def __contains__(self, key: object) -> bool:
        """Whether any bucket has the key."""
        return any(key in bucket for bucket in self._buckets)

    def __len__(self) -> int:
        """Number of keys in all buckets."""
        return sum(len(bucket) for bucket in self._buckets)


def check_buckets(buckets: int) -> None:
    """Raise ValueError below 2: with one bucket an entry could expire at age 0."""
    if buckets <= 1:
        raise ValueError(f"buckets must be 2 or more, got {buckets}")
