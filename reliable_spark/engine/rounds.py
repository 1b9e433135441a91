"""Retries inside one evaluation: what stands above an aggregate is answered before the groups are made."""

from __future__ import annotations

import threading

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.clock import Clock
from reliable_spark.core.retries import RetryPolicy, delay_s
from reliable_spark.engine.columns import ANCHOR, FAILURE, HELD
from reliable_spark.engine.lineage import column


class BackoffRounds:
    """Tries failed units again after the policy's delay, until they succeed or their attempts are used up.

    Args:
        policy: how often, and how long to wait.
        message_timeout_s: how long to wait for units that are held.
        clock: the time.
    """

    def __init__(self, policy: RetryPolicy, message_timeout_s: float, clock: Clock) -> None:
        self._policy, self._timeout_s, self._clock = policy, message_timeout_s, clock
        self._never = threading.Event()

    def again(self, incomplete: DataFrame, attempt: int) -> DataFrame | None:
        """Choose the units to try again, and wait until they may be.

        Returns:
            Their anchors; None when none is left to try.
        """
        if attempt >= self._policy.max_attempts:
            return None
        retried = incomplete.where(F.coalesce(column(FAILURE)["retry"], F.lit(True)))
        counted = retried.agg(F.count(F.lit(1)).alias("all"), F.count_if(F.col("status") == HELD).alias("held")).first()
        assert counted is not None
        if not counted["all"]:
            return None
        wait_s = float(delay_s(self._policy, np.zeros(1, np.int64), np.array([attempt]))[0])
        self._clock.wait(max(wait_s, self._timeout_s) if counted["held"] else wait_s, self._never)
        return retried.select(ANCHOR)
