"""Retries inside one evaluation: what stands above an aggregate is answered before the groups are made."""

from __future__ import annotations

import itertools
import threading

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.clock import Clock
from reliable_spark.core.retries import RetryPolicy, delay_s
from reliable_spark.engine.columns import ANCHOR, FAILURE, HELD
from reliable_spark.engine.evaluation import Evaluation, Evaluator
from reliable_spark.engine.failures import Known, Tree, has_siblings
from reliable_spark.engine.lineage import column
from reliable_spark.engine.protocol import Batch


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
        self.wait(attempt, is_held=bool(counted["held"]))
        return retried.select(ANCHOR)

    def is_final(self, tree: Tree, attempt: int) -> bool:
        """Tell whether a tree that failed this attempt is not tried again."""
        return attempt >= self._policy.max_attempts or tree[FAILURE]["retry"] is False

    def wait(self, attempt: int, *, is_held: bool) -> None:
        """Wait until the attempt after this one may be made."""
        wait_s = float(delay_s(self._policy, np.zeros(1, np.int64), np.array([attempt]))[0])
        self._clock.wait(max(wait_s, self._timeout_s) if is_held else wait_s, self._never)


def once_in_rounds(evaluator: Evaluator, rounds: BackoffRounds, batch: Batch, failures_max: int) -> Evaluation | None:
    """Evaluate a batch at once, and all of it again with what failed one attempt further, until that is answered.

    Guarantee: of a tree that is not complete in the end nothing has gone into a group.

    Args:
        evaluator: the query's.
        rounds: what is tried again, and when.
        batch: the rows, at their first attempt.
        failures_max: more failures than this are not for the driver to handle.

    Returns:
        None when the batch has to be traced: it cannot be proved at once, or a row that had not failed before has.
        Cost: one evaluation, one more for each further attempt, and one more if a part of a dead tree had gone on.
    """
    poison, retried = evaluator.known, 0
    try:
        for attempt in itertools.count(1):
            evaluation = evaluator.once(batch, failures_max)
            if evaluation is None:
                return None
            new = [tree for tree in evaluation.trees if not _is_dead(evaluator.known.get(tree[ANCHOR]))]
            is_repeatable = attempt == 1 or all(tree[ANCHOR] in evaluator.known for tree in new)
            dead = [tree for tree in new if rounds.is_final(tree, attempt)]
            again = [tree for tree in new if not rounds.is_final(tree, attempt)]
            if is_repeatable and not again and not any(map(has_siblings, dead)):
                evaluation.retried = retried
                return evaluation
            evaluator.sink.discard(evaluation.prepared)
            if not is_repeatable:
                return None
            died = {tree[ANCHOR]: Known(attempt, tree[FAILURE]) for tree in dead}
            evaluator.known = evaluator.known | died | {tree[ANCHOR]: Known(attempt + 1) for tree in again}
            retried += len(again)
            if again:
                rounds.wait(attempt, is_held=any(tree["status"] == HELD for tree in again))
    finally:
        evaluator.known = poison
    return None


def _is_dead(known: Known | None) -> bool:
    return known is not None and known.failure is not None
