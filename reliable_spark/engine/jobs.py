"""Watch a job's stages: what one that ran twice has observed may be counted twice, and a task may not be heard."""

from __future__ import annotations

import uuid
from collections import Counter
from functools import cached_property
from types import TracebackType
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from reliable_spark.engine.reports import Task

_EVENTS_WAIT_MS = 30_000


class Stages:
    """A context in which all Spark jobs are remembered, to ask afterwards what their stages have done.

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
        if self._stages_of_jobs is None:
            return True
        has_shuffle = any(len(stages) > 1 for stages in self._stages_of_jobs)
        if has_shuffle and self._dead_executors() != self._dead_before:
            return True
        stages = [stage for stages in self._stages_of_jobs for stage in stages.values()]
        return any(_ran_twice(stage) for stage in stages if stage is not None)

    def have_all_told(self, tasks: Counter[Task]) -> bool:
        """True when each task of one stage of these jobs is among those given, once; or when there were no tasks.

        Args:
            tasks: how often each task has told something.
        """
        if self._stages_of_jobs is None:
            return False
        stages = {stage_id: stage for stages in self._stages_of_jobs for stage_id, stage in stages.items()}
        if not tasks:
            return not any(map(_has_tasks, stages.values()))
        first, *others = {stage_id for stage_id, _ in tasks}
        stage = None if others else stages.get(first)
        return stage is not None and len(tasks) == stage.numTasks() and set(tasks.values()) == {1}

    @cached_property
    def _stages_of_jobs(self) -> list[dict[int, Any]] | None:
        """For each job its stages, of which Spark may have forgotten one; None when that cannot be known."""
        spark_context = self._context._jsc.sc()
        try:
            # what the jobs did is known once their events have been handled
            spark_context.listenerBus().waitUntilEmpty(_EVENTS_WAIT_MS)
        except Py4JJavaError:
            return None
        tracker = spark_context.statusTracker()
        jobs = [job.get() for job in map(tracker.getJobInfo, tracker.getJobIdsForTag(self._tag)) if not job.isEmpty()]
        found = [{stage_id: tracker.getStageInfo(stage_id) for stage_id in job.stageIds()} for job in jobs]
        return [{key: info.get() if info.isDefined() else None for key, info in stages.items()} for stages in found]

    def _dead_executors(self) -> int:
        executors = self._context._jsc.sc().statusStore().executorList(False)
        return sum(not executors.apply(index).isActive() for index in range(executors.size()))


def _ran_twice(stage: Any) -> bool:
    return bool(stage.currentAttemptId() > 0 or stage.numCompletedTasks() > stage.numTasks())


def _has_tasks(stage: Any) -> bool:
    return stage is None or bool(stage.numTasks())
