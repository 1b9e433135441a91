"""Watch which stages of a job ran more than once: what was observed below such a stage may be counted twice."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

_EVENTS_WAIT_MS = 30_000


class Stages:
    """A context in which all Spark jobs are remembered, to ask afterwards whether a stage of them was retried.

    Args:
        spark: a classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._tag = f"reliable_spark-{uuid.uuid4().hex}"

    def __enter__(self) -> Stages:
        self._dead_before = self._dead_executors()
        self._context.addJobTag(self._tag)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.removeJobTag(self._tag)

    def any_ran_twice(self) -> bool:
        """True when a task of these jobs may have run more than once, or when that cannot be known.

        A stage's attempt tells of a failed fetch; more finished tasks than there are tell of tasks that ran
        again within one attempt, since an executor was lost; and outputs that are lost between two jobs of an
        adaptive plan run again in a stage of another number, so with a shuffle any lost executor counts.
        """
        spark_context = self._context._jsc.sc()
        try:
            # what the jobs did is known once their events have been handled
            spark_context.listenerBus().waitUntilEmpty(_EVENTS_WAIT_MS)
        except Py4JJavaError:
            return True
        tracker = spark_context.statusTracker()
        jobs = [job.get() for job in map(tracker.getJobInfo, tracker.getJobIdsForTag(self._tag)) if not job.isEmpty()]
        has_shuffle = any(len(job.stageIds()) > 1 for job in jobs)
        if has_shuffle and self._dead_executors() != self._dead_before:
            return True
        stages = [tracker.getStageInfo(stage_id) for job in jobs for stage_id in job.stageIds()]
        return any(_ran_twice(stage.get()) for stage in stages if stage.isDefined())

    def _dead_executors(self) -> int:
        executors = self._context._jsc.sc().statusStore().executorList(False)
        return sum(not executors.apply(index).isActive() for index in range(executors.size()))


def _ran_twice(stage: Any) -> bool:
    return bool(stage.currentAttemptId() > 0 or stage.numCompletedTasks() > stage.numTasks())
