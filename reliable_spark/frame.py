"""The DataFrame front door: `df.anchored("id")` gives this frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import Column, SparkSession

from reliable_spark.clock import Clock, SystemClock
from reliable_spark.engine.definition import trigger_options
from reliable_spark.engine.outcome import Outcome
from reliable_spark.engine.query import Query, start
from reliable_spark.engine.run import Job, redrive, run
from reliable_spark.errors import UsageError
from reliable_spark.operations import TrackedFrame
from reliable_spark.settings import Settings, given_settings
from reliable_spark.sinks.base import absolute, refuse_overlap
from reliable_spark.stages.starting import cut, has_stages, stage_node, start_chain, with_lineage


class AnchoredFrame(TrackedFrame):
    """A DataFrame of which every source row is tracked until everything derived from it is done.

    Guarantee: a row that is filtered is acked; one that fails is replayed, then a dead letter; one that
    disappears is found. What a method is given is checked when it is called, against the columns there are.

    Made by `anchored`; every method returns a new frame. Names and arguments are PySpark's where PySpark
    has the method.
    """

    def run(
        self,
        sink: object = None,
        ledger: str | Path | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Outcome:
        """Run static rows until every one of them is acked or dead.

        Args:
            sink: a Delta path, or a function of (DataFrame, batch id); None evaluates and writes nothing.
            ledger: the ledger's directory. A run that was interrupted goes on; one that ended is appended to.
            settings: how failures are answered; `Settings.from_spark` of the session if not given.
            clock: the time, for tests.

        Returns:
            The ledger's counts.

        Raises:
            UsageError: the frame is a stream, there is no ledger path, or the sink lies over it.
            OperatingError: the sink or the ledger refused, or too much failed; start it again.
        """
        if has_stages(self._node):
            raise UsageError("run() takes no stages: they join streaming queries, use start()")
        return run(self._job(sink, ledger, settings, clock))

    def redrive(
        self,
        sink: object = None,
        ledger: str | Path | None = None,
        where: Column | str | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> Outcome:
        """Try dead letters of a finished run again, through this frame's steps: after a bolt was mended, say.

        Guarantee: each becomes a new tree with all its attempts before it, and is acked or dead again on return.
        Source rows are not read. The ledger balances at any moment; a crash leaves each of them dead or pending, and
        the next `run` or `redrive` goes on.

        Args:
            sink: as for `run`.
            ledger: the ledger's directory.
            where: which ones, over the columns of `dead_letters`, for example "bolt = 'parse'"; all if not given.
            settings: how failures are answered.
            clock: the time, for tests.

        Returns:
            The ledger's counts. Cost: the dead letters are rewritten on the driver.

        Raises:
            ColumnError: there is no such column.
            LedgerError: there is no ledger, or not one of these rows.
            UsageError: the frame is a stream or has an aggregate, the last run is to be finished first, or more match
                than `max_pending` leaves room for.
        """
        if has_stages(self._node):
            raise UsageError("redrive() takes no stages: call it on the running query")
        return redrive(self._job(sink, ledger, settings, clock), where)

    def start(
        self,
        sink: object = None,
        ledger: str | Path | None = None,
        settings: Settings | None = None,
        trigger: dict[str, Any] | str | None = None,
        clock: Clock | None = None,
    ) -> Query:
        """Start a streaming query; of a frame with stages, one for each part.

        Args:
            sink: a Delta path, or a function of (DataFrame, batch id).
            ledger: the ledger's directory; Spark's checkpoint lies in it.
            settings: how failures are answered; `Settings.from_spark` of the session if not given.
            trigger: PySpark's trigger arguments as a dict, a processing time such as "5 seconds", or
                "availableNow".
            clock: the time, for tests.
        """
        job = self._job(sink, ledger, settings, clock)
        return (start_chain if has_stages(self._node) else start)(job, trigger_options(trigger))

    def stage(self, name: str, *, capacity: int = 100_000) -> AnchoredFrame:
        """Cut the chain here: what follows runs as a streaming query of its own, in this process or in another job.

        Guarantee: a row of the source is acked when the last of its descendants is done in the last stage; what fails
        in a later stage is replayed from the source. A stage that is down loses nothing.

        Args:
            name: how the ledger calls the queue between the two, and the stage that reads it.
            capacity: rows that may wait there; the query before it waits while there are as many, so the queue never
                holds more than this and one batch.

        Returns:
            A frame that begins at the queue. When it is started with a sink, or with more steps and stages, both sides
            are started; without any, what follows is for `from_stage` in another job.

        Raises:
            UsageError: a row here has several roots or none, or the name is taken.
        """
        user = self.schema
        node = cut(self._node, name, capacity, user, self._spark)
        return AnchoredFrame(node, self._spark, with_lineage(user))

    def _job(self, sink: object, ledger: str | Path | None, settings: Settings | None, clock: Clock | None) -> Job:
        if ledger is None:
            raise UsageError("a ledger directory is needed: it is where every row's answer is kept")
        chosen = Settings.from_spark(self._spark) if settings is None else given_settings(settings)
        place = absolute(ledger)
        refuse_overlap(sink, place)
        return Job(self._node, self.schema, sink, place, chosen, clock or SystemClock())


def from_stage(spark: SparkSession, ledger: str | Path, name: str) -> AnchoredFrame:
    """The rows of a stage that another job writes, with their lineage: they stay parts of the source's trees.

    Args:
        spark: a classic session.
        ledger: the directory of the source's ledger; `start` this frame with the same.
        name: the stage.

    Raises:
        LedgerError: there is no such stage: its writer has to be started first.
    """
    node, user = stage_node(spark, absolute(ledger), name)
    return AnchoredFrame(node, spark, with_lineage(user))
