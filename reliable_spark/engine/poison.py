"""Rows that stop a Spark job: what Spark says about one of them alone, and the search for one that hides.

Guards and forked workers find nearly all of them inside one job. What those cannot see (an aggregate that
overflows on a single row, a user's own UDF) is found here by splitting the batch, which costs jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.engine.causes import explain
from reliable_spark.engine.columns import ANCHOR, RAISED
from reliable_spark.engine.evaluation import Evaluator
from reliable_spark.engine.failures import Known
from reliable_spark.engine.lineage import column
from reliable_spark.engine.protocol import Batch
from reliable_spark.engine.rounds import BackoffRounds
from reliable_spark.errors import OperatingError, TooManyFailures
from reliable_spark.sinks.function import release

EXPLAINED_MAX: Final = 100
"""Of more rows than these the ledger says where Spark raised, but not what."""

PARTS: Final = 8
PROBES_MAX: Final = 2_000
_ATTEMPTS_ALONE: Final = 2


def explained(evaluator: Evaluator, trees: pa.Table) -> pa.Table:
    """Replace the mark of guarded rows by what Spark says when such a row is evaluated alone.

    Args:
        evaluator: the query's.
        trees: incomplete trees with their source rows.

    Returns:
        The trees. Cost: the frame is planned once, then one tiny evaluation per row, for `EXPLAINED_MAX` of them;
        where no Python is in the frame the evaluation needs no job.
    """
    marked = np.flatnonzero(trees["error_class"].to_numpy(zero_copy_only=False) == RAISED)[:EXPLAINED_MAX]
    if not len(marked):
        return trees
    classes, texts = trees["error_class"].to_pylist(), trees["error"].to_pylist()
    one_by_one = OneByOne(evaluator, trees.take(pa.array(marked)))
    for index, place in enumerate(marked.tolist()):
        error = one_by_one.error_of(index)
        if error is not None:
            classes[place], texts[place] = explain(error)
    for name, values in (("error_class", classes), ("error", texts)):
        field = trees.schema.field(name)
        trees = trees.set_column(trees.schema.get_field_index(name), field, pa.array(values, field.type))
    return trees


class OneByOne:
    """Evaluates a frame for one row after the other, and plans it only once.

    Args:
        evaluator: the query's.
        trees: the rows, as incomplete trees.
    """

    def __init__(self, evaluator: Evaluator, trees: pa.Table) -> None:
        spark: Any = evaluator.source.spark
        given = spark.createDataFrame(trees)
        self._java, self._state = spark._jvm, spark._jsparkSession.sessionState()
        self._rows = given._jdf.queryExecution().analyzed()
        while self._rows.nodeName() == "Project":
            self._rows = self._rows.child()
        frame: Any = evaluator.compiled(evaluator.source.next_attempt(given))
        self._plan = frame._jdf.queryExecution().analyzed()

    def error_of(self, index: int) -> Exception | None:
        """The error that one row raises, if it does."""
        try:
            mode = self._java.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
            execution = self._state.executePlan(self._with_row(self._plan, index), mode)
            # Catalyst evaluates a local row while it optimises
            if execution.optimizedPlan().nodeName() != "LocalRelation":
                execution.toRdd().count()
        except Exception as error:
            return error
        return None

    def _with_row(self, plan: Any, index: int) -> Any:
        """The same plan over one of the rows."""
        if plan.nodeName() == "LocalRelation" and plan.data().equals(self._rows.data()):
            one = self._java.PythonUtils.toSeq([plan.data().apply(index)])
            relation = self._java.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
            return relation(plan.output(), one, False, self._java.scala.Option.empty())
        children = plan.children()
        if not children.size():
            return plan
        changed = [self._with_row(children.apply(number), index) for number in range(children.size())]
        return plan.withNewChildren(self._java.PythonUtils.toSeq(changed))


@dataclass
class Search:
    """A search for the rows that stop the job, by splitting.

    Attributes:
        evaluator: the query's, with guards on.
        probes: how many parts were evaluated.
    """

    evaluator: Evaluator
    probes: int = 0

    def among(self, rows: DataFrame, error: Exception, depth: int = 0) -> Iterator[tuple[int, Exception]]:
        """The anchors of the poison among rows that fail with an error, each with its own error."""
        anchors = rows.select(ANCHOR).distinct().limit(2).collect()
        if len(anchors) == 1:
            yield anchors[0][0], error
            return
        kept = rows.localCheckpoint(eager=True)
        is_found = False
        for part in range(PARTS):
            rest = kept.where(F.pmod(F.xxhash64(column(ANCHOR), F.lit(depth)), F.lit(PARTS)) == part)
            failed = self._fails(rest)
            if failed is not None:
                is_found = True
                yield from self.among(rest, failed, depth + 1)
        release(kept)
        if not is_found and self._fails(rows) is not None:
            raise OperatingError(
                f"a batch fails as a whole although each part of it passes, so no single row can be blamed: "
                f"{': '.join(explain(error))}"
            ) from error

    def failures(self, rows: DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
        """The anchors of the poison among some rows, with what the ledger says of each."""
        whole = self.evaluator.alone(rows)
        for anchor, error in self.among(rows, whole) if whole is not None else ():
            error_class, text = explain(error)
            yield (
                anchor,
                {"bolt": None, "error_class": error_class, "error": text, "traceback": None, "retry": True},
            )

    def _fails(self, rows: DataFrame) -> Exception | None:
        """The error of a part, if it fails each time."""
        error = None
        for _ in range(_ATTEMPTS_ALONE):
            self.probes += 1
            if self.probes > PROBES_MAX:
                raise OperatingError(f"a row that stops the job was not found in {PROBES_MAX:,} parts of the batch")
            error = self.evaluator.alone(rows)
            if error is None:
                return None
        return error


def poison_rows(evaluator: Evaluator, batch: Batch, bad_ratio_max: float | None) -> dict[int, Known]:
    """Find the rows of a batch that stop the job although everything is guarded.

    Args:
        evaluator: the query's.
        batch: it fails when it is evaluated.
        bad_ratio_max: give up beyond this share of the rows; None means never.

    Returns:
        Why each of the rows fails, by anchor. Cost: about `PARTS` jobs per row and level, so some fifty for one among
        a million.

    Raises:
        OperatingError: nothing at all fails as well, or only all of it together: it is not about rows.
        TooManyFailures: there are too many.
    """
    rows = batch.rows.localCheckpoint(eager=True)
    found_max = rows.count() * bad_ratio_max if bad_ratio_max is not None else float("inf")
    search = Search(evaluator)
    without_rows = evaluator.alone(rows.limit(0))
    if without_rows is not None:
        raise OperatingError(
            f"batch {batch.batch_id} fails even without any row: {': '.join(explain(without_rows))}"
        ) from without_rows
    found: dict[int, Known] = {}
    for anchor, failure in search.failures(rows):
        found[anchor] = Known(failure=failure)
        if len(found) > max(1.0, found_max):
            raise TooManyFailures(
                f"more than {bad_ratio_max:.0%} of the rows of batch {batch.batch_id} stop the job, the last one "
                f"with {failure['error_class']}: {failure['error']}"
            )
    release(rows)
    return found


def tried_again(
    evaluator: Evaluator, rounds: BackoffRounds, batch: Batch, poison: dict[int, Known]
) -> tuple[dict[int, Known], int]:
    """Try rows that stop the job again until they pass or are dead: a later batch would bring their groups once more.

    Args:
        evaluator: the query's, with guards on.
        rounds: how often, and when.
        batch: the rows, at their first attempt.
        poison: why rows of it failed that attempt, by anchor.

    Returns:
        The attempt at which each of them passes, or dies and of what; and how many attempts these were after the
        first. Cost: as `poison_rows`, among these rows, for each further attempt.
    """
    failing, answered, retried, attempt = poison, dict[int, Known](), 0, 1
    before = evaluator.known
    try:
        while failing and rounds.has_more(attempt):
            rounds.wait(attempt, is_held=False)
            attempt += 1
            retried += len(failing)
            answered |= {anchor: Known(attempt) for anchor in failing}
            evaluator.known = answered
            rows = batch.rows.where(column(ANCHOR).isin(list(failing))).localCheckpoint(eager=True)
            failing = {anchor: Known(failure=failure) for anchor, failure in Search(evaluator).failures(rows)}
            release(rows)
    finally:
        evaluator.known = before
    for anchor, row in failing.items():
        assert row.failure is not None
        answered[anchor] = Known(attempt, {**row.failure, "retry": False})
    return answered, retried
