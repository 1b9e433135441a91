"""Where the rows of trees in flight are: in the source, or in a queue."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.engine.answers import with_payloads
from reliable_spark.engine.batch import Source
from reliable_spark.engine.columns import ANCHOR, FAILURE
from reliable_spark.engine.evaluation import Evaluation
from reliable_spark.engine.failures import INCOMPLETE
from reliable_spark.sinks.base import Prepared
from reliable_spark.stages.flights import Failures
from reliable_spark.stages.places import queue_path
from reliable_spark.stages.queue import BATCH_ID
from reliable_spark.stages.reread import MicroBatch, Reader


class SourceRows:
    """Finds rows by their roots.

    Args:
        source: the source's rows, as a stream.
        checkpoint: of the query that reads it.
        ledger: the directory of its ledger.
    """

    def __init__(self, source: Source, checkpoint: str, ledger: str) -> None:
        self._source, self._ledger = source, ledger
        self._reader = Reader(source.frame, checkpoint, f"{ledger.rstrip('/')}/reread")

    def failed(self, batch: MicroBatch, failed: Failures) -> pa.Table:
        """The failed trees of one micro-batch with their source rows, in the columns that `settle_trees` reads."""
        found: list[pa.Table] = []
        known = pa.Table.from_pylist([_incomplete(each) for each in failed.values()], schema=INCOMPLETE)

        def find(rows: DataFrame) -> None:
            incomplete = rows.sparkSession.createDataFrame(known)
            roots = self._source.first_attempt(rows)
            evaluation = Evaluation(Prepared(), 0, 0, roots, incomplete=incomplete, incomplete_count=len(failed))
            trees = with_payloads(evaluation, self._source).frame
            found.append(trees.dropDuplicates(["anchor"]).toArrow())

        self._reader.read(batch, find)
        return found[0]

    def roots_of(self, batch: MicroBatch) -> set[int]:
        """The roots of all rows of one micro-batch."""
        roots: set[int] = set()

        def collect(rows: DataFrame) -> None:
            roots.update(row[0] for row in self._source.first_attempt(rows).select(ANCHOR).collect())

        self._reader.read(batch, collect)
        return roots

    def roots_in(self, queue: str, batch_id: int) -> set[int]:
        """The roots of the rows that one batch has in a queue."""
        table = self._source.spark.read.format("delta").load(queue_path(self._ledger, queue))
        return {row[0] for row in table.where(F.col(BATCH_ID) == batch_id).select(ANCHOR).distinct().collect()}


def _incomplete(tree: dict[str, Any]) -> dict[str, Any]:
    why = {name: tree[name] for name in ("bolt", "error_class", "error", "traceback", "retry")}
    return {ANCHOR: tree["anchor"], "ack_val": 0, "status": tree["status"], "attempts": None, FAILURE: why}
