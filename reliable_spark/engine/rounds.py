"""Retries inside one evaluation: what stands above an aggregate is answered before the groups are made."""

from __future__ import annotations

import logging
import threading
from typing import Final

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.clock import Clock
from reliable_spark.core.retries import RetryPolicy, delay_s, is_dead
from reliable_spark.engine.columns import ANCHOR, FAILURE, HELD
from reliable_spark.engine.evaluation import Evaluation, Evaluator
from reliable_spark.engine.failures import Known, Tree
from reliable_spark.engine.lineage import column
from reliable_spark.engine.protocol import Batch

_LOG = logging.getLogger(__name__)

EVALUATIONS_EXPECTED: Final = 3
"""Failures that depend on the rows are all known after two evaluations of a batch, and the third one has none."""


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
        if not self.has_more(attempt):
            return None
        retried = incomplete.where(F.coalesce(column(FAILURE)["retry"], F.lit(True)))
        counted = retried.agg(F.count(F.lit(1)).alias("all"), F.count_if(F.col("status") == HELD).alias("held")).first()
        assert counted is not None
        if not counted["all"]:
            return None
        self.wait(attempt, is_held=bool(counted["held"]))
        return retried.select(ANCHOR)

    def has_more(self, attempt: int) -> bool:
        """Tell whether there is an attempt after this one."""
        return attempt < self._policy.max_attempts

    def divided(self, trees: list[Tree], attempt: int) -> tuple[list[Tree], list[Tree]]:
        """Divide trees that failed this attempt into those that are dead and those to try again."""
        retry = np.array([tree[FAILURE]["retry"] is not False for tree in trees], dtype=np.bool_)
        dead = is_dead(self._policy, np.full(len(trees), attempt), retry).tolist()
        judged = list(zip(trees, dead, strict=True))
        return [tree for tree, is_last in judged if is_last], [tree for tree, is_last in judged if not is_last]

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
        attempt = 0
        while True:
            attempt += 1
            evaluation = evaluator.once(batch, failures_max)
            if evaluation is None:
                return None
            new = [tree for tree in evaluation.trees if not _is_dead(evaluator.known.get(tree[ANCHOR]))]
            is_repeatable = attempt == 1 or all(tree[ANCHOR] in evaluator.known for tree in new)
            dead, again = rounds.divided(new, attempt)
            if is_repeatable and not again and not any(map(evaluator.is_partial, dead)):
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


def once_without_partial(evaluator: Evaluator, batch: Batch, failures_max: int) -> Evaluation | None:
    """Evaluate a batch at once, and again without the trees that failed after a part of them had gone into a state.

    Guarantee: of a tree that is not complete nothing is in a state, nor in the sink.

    Args:
        evaluator: the query's.
        batch: the rows.
        failures_max: more failures than this are not for the driver to handle.

    Returns:
        None when the batch has to be traced. Cost: one evaluation, and one more whenever such trees were found: when
        these are others each time, by chance, that is said in the log.
    """
    poison = evaluator.known
    try:
        number = 0
        while True:
            number += 1
            if number > EVALUATIONS_EXPECTED and number & (number - 1) == 0:
                # at the 4th, the 8th, the 16th
                _LOG.warning(
                    "batch %d is evaluated for the %dth time, since each time other rows fail behind a state: let what "
                    "fails by chance, such as a call of a service, come before stateful()",
                    batch.batch_id,
                    number,
                )
            evaluation = evaluator.once(batch, failures_max)
            if evaluation is None:
                return None
            partial = [
                tree
                for tree in evaluation.trees
                if not _is_dead(evaluator.known.get(tree[ANCHOR])) and evaluator.is_partial(tree)
            ]
            if not partial:
                return evaluation
            evaluator.sink.discard(evaluation.prepared)
            evaluator.known = evaluator.known | {tree[ANCHOR]: Known(None, tree[FAILURE]) for tree in partial}
    finally:
        evaluator.known = poison


def _is_dead(known: Known | None) -> bool:
    return known is not None and known.failure is not None
