"""Where a Python bolt runs: in Spark's worker, or, once a row may have killed one, in children of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from reliable_spark.engine.forked import ForkedTask
from reliable_spark.engine.worker import BoltTask


@dataclass
class IsolatedOnRetry:
    """A bolt in Spark's own worker, and in children of it when Spark runs the task again.

    Guarantee: a row that kills its worker fails in the very job that it killed, provided that Spark repeats failed
    tasks: on a cluster it does, in local mode with a master such as `local[*, 2]`. What the task that died had
    accounted for is not counted, since Spark takes observations from tasks that ended well only.

    Args:
        task: the bolt.
    """

    task: BoltTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map the bolt over the batches of one task."""
        context = TaskContext.get()
        is_retry = context is not None and context.attemptNumber() > 0
        return (ForkedTask(self.task) if is_retry else self.task)(batches)
