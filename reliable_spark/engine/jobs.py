"""Watch which stages of a job ran more than once: what was observed below such a stage may be counted twice."""

from __future__ import annotations

import uuid
from types import TracebackType

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
        self._context.addJobTag(self._tag)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.removeJobTag(self._tag)

    def any_ran_twice(self) -> bool:
        """True when a stage of these jobs had more than one attempt, or when that cannot be known."""
        spark_context = self._context._jsc.sc()
        try:
            # what the jobs did is known once their events have been handled
            spark_context.listenerBus().waitUntilEmpty(_EVENTS_WAIT_MS)
        except Py4JJavaError:
            return True
        tracker = spark_context.statusTracker()
        for job_id in tracker.getJobIdsForTag(self._tag):
            job = tracker.getJobInfo(job_id)
            if job.isEmpty():
                continue
            for stage_id in job.get().stageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage.isDefined() and stage.get().currentAttemptId() > 0:
                    return True
        return False
