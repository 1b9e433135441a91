"""Where the tasks of a step run: on Spark's workers, or here, through the same packing."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from reliable_spark.engine.causes import Blame, blame, explain
from reliable_spark.errors import OperatingError
from reliable_spark.microbatch.apart import run_work_apart
from reliable_spark.microbatch.orders import Done, Step, Work
from reliable_spark.microbatch.pickling import unpacked
from reliable_spark.microbatch.work import run_work
from reliable_spark.session import session

_LOG = logging.getLogger("reliable_spark.topology")


class Cluster(Protocol):
    """Runs the tasks of one step, all of them at the same time if it can."""

    def run(self, recipe: bytes, step: Step, works: Sequence[Work]) -> list[Done]:
        """What came of each, in any order."""
        ...


class Here:
    """This process and thread; for tests of the packing that need no JVM."""

    def run(self, recipe: bytes, step: Step, works: Sequence[Work]) -> list[Done]:
        """One after the other."""
        return [unpacked(run_work(recipe, step, pickle.dumps(work))) for work in works]


class SparkCluster:
    """Spark's Python workers: one Arrow row is one task, so no shuffle is needed to bring its tuples together.

    Cost: one job without a shuffle per step.

    Args:
        spark: the session; the active one or a new one by default.
    """

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._spark = spark or session("topology")

    def run(self, recipe: bytes, step: Step, works: Sequence[Work]) -> list[Done]:
        """One job; a task that Spark runs twice gives the same twice.

        Where a worker died, everything runs again with each task in a process of its own.

        Raises:
            OperatingError: the job failed, and no single task is to blame.
        """
        try:
            try:
                return self._run_job(recipe, step, works)
            except Exception as error:
                if blame(error) is not Blame.CRASH:
                    raise
            return self._run_job(recipe, step, works, is_apart=True)
        except Exception as error:
            _LOG.debug("the job of step %d failed", step.number, exc_info=True)
            raise OperatingError(f"a topology's job on Spark failed: {': '.join(explain(error))}") from None

    def _run_job(self, recipe: bytes, step: Step, works: Sequence[Work], is_apart: bool = False) -> list[Done]:
        def run_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            is_retry = context is not None and context.attemptNumber() > 0  # perhaps since the worker died
            run = run_work_apart if is_apart or is_retry else run_work
            for batch in batches:
                done = [run(recipe, step, work.as_py()) for work in batch.column(0)]
                yield pa.RecordBatch.from_pydict({"done": pa.array(done, pa.binary())})

        rows = pa.table({"work": pa.array([pickle.dumps(work) for work in works], pa.binary())})
        table = self._spark.createDataFrame(rows).mapInArrow(run_rows, "done binary").toArrow()
        return [unpacked(done.as_py()) for done in table.column("done")]
