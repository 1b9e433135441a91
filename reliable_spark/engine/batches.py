"""The loop's batches on Spark: evaluated at once where that proves every tree, else tree by tree, else isolated."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from reliable_spark.engine.answers import (
    DRIVER_ROWS_MAX,
    MEASURED_ROWS_MIN,
    TreesInSpark,
    is_every_tree_found,
    is_too_much,
    with_payloads,
)
from reliable_spark.engine.causes import Blame, blame, explain
from reliable_spark.engine.evaluation import Evaluation
from reliable_spark.engine.failures import Known
from reliable_spark.engine.poison import explained, poison_rows, tried_again
from reliable_spark.engine.protocol import Batch, Evaluated
from reliable_spark.engine.quiet import quiet
from reliable_spark.engine.rounds import once_in_rounds, once_without_partial
from reliable_spark.engine.tracing import Tracer
from reliable_spark.errors import OperatingError, TooManyFailures
from reliable_spark.settings import Settings

BAD_RATIO_ROWS_MIN: Final = 100
"""Smaller source batches are not judged by `max_bad_ratio`."""

LOST_ROWS_MAX: Final = 3
"""How often a batch is evaluated again because materialised rows were lost with an executor."""

_LOST_ROWS: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

log = logging.getLogger("reliable_spark")


class SparkBatches:
    """Makes and evaluates the batches of one query.

    Guarantee: an error that Spark cannot keep to its row stops the job, but not the batch: the row is found and
    fails by itself. An error that is not about rows is raised.

    Args:
        tracer: evaluates a batch tree by tree; its evaluator does it at once.
        settings: the rules.
    """

    def __init__(self, tracer: Tracer, settings: Settings) -> None:
        self.tracer, self.evaluator, self.settings = tracer, tracer.evaluator, settings
        self.source = self.evaluator.source
        self.payload = self.source.payload_arrow()

    def of_source(self, rows: DataFrame, batch_id: int, begun_at: datetime) -> Batch:
        """A batch of source rows."""
        return Batch(batch_id, "source", self.source.first_attempt(rows), begun_at)

    def of_pending(self, trees: pa.Table, batch_id: int, begun_at: datetime) -> Batch:
        """The next attempt of pending trees."""
        rows = self.source.next_attempt(self.source.spark.createDataFrame(trees))
        return Batch(batch_id, "replay", rows, begun_at)

    def commit_states(self, changes: Sequence[str], batch_id: int) -> None:
        """Make the changes of a settled batch part of the states; nothing where they are already."""
        if self.evaluator.states:
            self.evaluator.states.commit(changes, batch_id)

    def upkeep(self) -> None:
        """Compact the states."""
        if self.evaluator.states:
            self.evaluator.states.upkeep()

    def release(self) -> None:
        """Free what the last evaluation has materialised."""
        self.tracer.release()

    def evaluate(self, batch: Batch) -> Evaluated:
        """Evaluate a batch; nothing of it is visible afterwards.

        Materialised rows die with the executor that holds them: the batch is then evaluated again as a whole.

        Raises:
            TooManyFailures: over `max_bad_ratio`.
            OperatingError: for a reason that is not about the rows.
        """
        for _ in range(LOST_ROWS_MAX):
            try:
                return self._evaluate_isolating(batch)
            except Exception as error:
                if _LOST_ROWS not in str(error):
                    raise
                log.warning(
                    "batch %d: an executor was lost with materialised rows; it is evaluated again", batch.batch_id
                )
                self.tracer.release()
                self.evaluator.statics.clear()
        return self._evaluate_isolating(batch)

    def _evaluate_isolating(self, batch: Batch) -> Evaluated:
        try:
            return self._evaluate(batch)
        except Exception as error:
            self._refuse_unless_about_rows(batch, error)
        try:
            return self._evaluate(batch, is_isolated=True)
        except Exception as error:
            self._refuse_unless_about_rows(batch, error)
        limit = None if batch.kind == "replay" else self.settings.max_bad_ratio
        poison, retried = poison_rows(self.evaluator, batch, limit), 0
        if self.tracer.rounds:
            poison, retried = tried_again(self.evaluator, self.tracer.rounds, batch, poison)
        evaluated = self._evaluate(batch, is_isolated=True, poison=poison)
        return replace(evaluated, retried=evaluated.retried + retried)

    def _refuse_unless_about_rows(self, batch: Batch, error: Exception) -> None:
        """Raise what isolating rows would not mend."""
        whose = blame(error)
        is_sparks = isinstance(error, PySparkException | Py4JError)
        if not is_sparks or whose is Blame.DEFINITION or self.evaluator.ackers == 0:
            raise error
        error_class, text = explain(error)
        if whose is Blame.WORLD:
            raise OperatingError(
                f"batch {batch.batch_id} failed, but not because of a row of it, so nothing of it was settled: "
                f"{error_class}: {text}"
            ) from error
        log.warning("batch %d: a row has stopped the job (%s); it is looked for", batch.batch_id, error_class)

    def _evaluate(
        self, batch: Batch, *, is_isolated: bool = False, poison: dict[int, Known] | None = None
    ) -> Evaluated:
        self.evaluator.is_isolated, self.evaluator.known = is_isolated, poison or {}
        try:
            with quiet():
                return self._once_or_traced(batch)
        finally:
            self.evaluator.is_isolated, self.evaluator.known = False, {}

    def _once_or_traced(self, batch: Batch) -> Evaluated:
        if self.evaluator.ackers == 0:
            return _evaluated(self.evaluator.untracked(batch))
        if not self.evaluator.must_trace:
            evaluation = self._once(batch)
            if evaluation is not None:
                self._guard(batch, evaluation)
                evaluated = self._with_trees(evaluation)
                if evaluated is not None:
                    return evaluated
                self.evaluator.sink.discard(evaluation.prepared)
        log.info("batch %d is evaluated tree by tree", batch.batch_id)
        evaluation = self.tracer.trace(batch)
        if evaluation.duplicates:
            log.warning("batch %d: %d rows repeat a message id", batch.batch_id, evaluation.duplicates)
        self._guard(batch, evaluation)
        traced = self._with_trees(evaluation)
        assert traced is not None
        return traced

    def _once(self, batch: Batch) -> Evaluation | None:
        """Evaluate at once, as often as what groups or keeps a state needs; None when the batch has to be traced."""
        if self.tracer.rounds:
            return once_in_rounds(self.evaluator, self.tracer.rounds, batch, DRIVER_ROWS_MAX)
        if self.evaluator.has_state:
            return once_without_partial(self.evaluator, batch, DRIVER_ROWS_MAX)
        return self.evaluator.once(batch, DRIVER_ROWS_MAX)

    def _with_trees(self, evaluation: Evaluation) -> Evaluated | None:
        """Add the incomplete trees with their payloads; None when a second read of the source gave other rows."""
        if evaluation.incomplete is None:
            return _evaluated(evaluation)
        found = with_payloads(evaluation, self.source)
        is_read_again = evaluation.roots_xor is not None
        if evaluation.incomplete_count > MEASURED_ROWS_MIN:
            # read once, and kept where it is until its size is known
            found.frame = self.tracer.keep(found.frame)
            if is_too_much(found.frame, evaluation.incomplete_count):
                return None if is_read_again else _evaluated(evaluation, many=TreesInSpark(found.frame, self.payload))
        trees = found.frame.toArrow()
        if is_read_again and not (found.is_same() and is_every_tree_found(trees, evaluation)):
            return None
        return _evaluated(evaluation, trees=explained(self.evaluator, trees))

    def _guard(self, batch: Batch, evaluation: Evaluation) -> None:
        bad, rows, limit = evaluation.incomplete_count, evaluation.rows, self.settings.max_bad_ratio
        if batch.kind == "source" and rows >= BAD_RATIO_ROWS_MIN and bad > limit * rows:
            self.evaluator.sink.discard(evaluation.prepared)
            raise TooManyFailures(
                f"{bad:,} of {rows:,} rows of batch {batch.batch_id} failed, more than max_bad_ratio={limit}: "
                f"nothing of the batch was written; fix the cause or raise max_bad_ratio, and start again"
            )


def _evaluated(evaluation: Evaluation, trees: pa.Table | None = None, many: TreesInSpark | None = None) -> Evaluated:
    return Evaluated(
        prepared=evaluation.prepared,
        rows=evaluation.rows,
        emitted=evaluation.emitted,
        retried=evaluation.retried,
        duplicates=evaluation.duplicates,
        checksum_ok=evaluation.checksum_ok,
        changes=evaluation.changes,
        trees=trees,
        many=many,
    )
