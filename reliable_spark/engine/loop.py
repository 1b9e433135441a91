"""The one place where the effects of a batch are put in order.

A batch takes these steps; each can be repeated under the same batch id, and this is what a crash after it
leaves behind and how the next start mends it:

1. evaluate      the sink's files are written, or the rows materialised; nobody sees them.
                 Crash: nothing happened; the source gives the batch again.
2. settle        the ledger stores pending trees, dead letters, counts, and the list of the sink's files.
                 Crash within: `Ledger.open` undoes what its last row does not name. Crash after: step 3 is due.
3. commit        the sink's files become visible under the batch's transaction id.
                 Crash before: `Sink.recover` commits them from the stored list. Crash after: nothing is left to do.

For a sink that is a function, 3 comes before 2: it must be called again when nobody knows whether it was.
Replays and timeouts are batches of their own with the same steps.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_spark.clock import Clock
from reliable_spark.core.retries import JITTER, RetryPolicy
from reliable_spark.engine.answers import DRIVER_ROWS_MAX, is_every_tree_found, settle_in_spark, with_payloads
from reliable_spark.engine.batch import Batch
from reliable_spark.engine.columns import HELD
from reliable_spark.engine.evaluation import Evaluation
from reliable_spark.engine.settlement import Moment, Settlement, settle_trees, time_out
from reliable_spark.engine.tracing import Tracer
from reliable_spark.errors import OperatingError, TooManyFailures
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.settings import Settings

BAD_RATIO_ROWS_MIN: Final = 100
"""Smaller source batches are not judged by `max_bad_ratio`."""

log = logging.getLogger("reliable_spark")


@dataclass(frozen=True)
class Origin:
    """Which batch of which streaming query a source batch is."""

    query_id: str | None = None
    source_batch_id: int | None = None


@dataclass(frozen=True)
class Evaluated:
    """An evaluation and the incomplete trees that it found, with their source rows."""

    evaluation: Evaluation
    trees: pa.Table | None = None
    trees_in_spark: DataFrame | None = None


class Loop:
    """Runs batches against one ledger and one sink, one at a time.

    Args:
        tracer: evaluates a batch tree by tree; its evaluator does it at once.
        ledger: open for writing.
        settings: the rules.
        clock: the time.
    """

    def __init__(self, tracer: Tracer, ledger: Ledger, settings: Settings, clock: Clock) -> None:
        self.tracer, self.evaluator = tracer, tracer.evaluator
        self.ledger, self.settings, self.clock = ledger, settings, clock
        self.policy = RetryPolicy(settings.max_attempts, settings.backoff_initial_s, settings.backoff_max_s)
        self.phase_s = clock.now().timestamp()
        self.payload = self.evaluator.source.payload_arrow()
        self.lock = threading.RLock()
        self._error: BaseException | None = None
        self.on_settled: Callable[[BatchRecord], None] = lambda record: None
        self.evaluator.sink.recover(ledger.last_batch_id, ledger.last_sink_actions)

    def run_source(self, frame: DataFrame, origin: Origin) -> None:
        """Run a batch of source rows, unless the ledger has settled it already.

        Raises:
            TooManyFailures: over `max_bad_ratio`; nothing was written.
            OperatingError: the sink or the ledger refused; the batch is not settled.
        """
        with self.lock:
            if origin.query_id and self.ledger.is_settled(origin.query_id, origin.source_batch_id or 0):
                return
            rows = self.evaluator.source.first_attempt(frame)
            batch = Batch(self.ledger.last_batch_id + 1, "source", rows, self.clock.now())
            self._run(batch, origin, self.ledger.pending)

    def run_due(self) -> bool:
        """Fail what has timed out and replay what is due, each as a batch of its own.

        Returns:
            True when there was something to do.
        """
        with self.lock:
            timed_out = self._time_out()
            due, rest = self._due(held=False)
            if not due.num_rows:
                return timed_out
            rows = self.evaluator.source.next_attempt(self.evaluator.source.spark.createDataFrame(due))
            batch = Batch(self.ledger.last_batch_id + 1, "replay", rows, self.clock.now())
            self._run(batch, Origin(), rest)
            return True

    def seconds_until_due(self) -> float | None:
        """How long until the next replay or timeout; None when nothing is pending.

        Trees that fail together are due a little apart: the answer is when the last of them is, so that they
        make one batch.
        """
        with self.lock:
            due_at = self.ledger.pending["due_at"]
            first: datetime | None = pc.min(due_at).as_py()
            if first is None:
                return None
            together = first + timedelta(seconds=JITTER * self.settings.backoff_initial_s)
            last: datetime = pc.max(due_at.filter(pc.less_equal(due_at, pa.scalar(together, due_at.type)))).as_py()
            return (last - self.clock.now()).total_seconds()

    def _run(self, batch: Batch, origin: Origin, untouched: pa.Table) -> None:
        """Take a batch through the steps of this module's docstring; after an error only a new start goes on."""
        if self._error is not None:
            raise OperatingError(f"an earlier batch failed, start again: {self._error}") from self._error
        try:
            record = self._take_steps(batch, origin, untouched)
        except BaseException as error:
            self._error = error
            raise
        self.tracer.release()
        self.on_settled(record)

    def _take_steps(self, batch: Batch, origin: Origin, untouched: pa.Table) -> BatchRecord:
        # Step 1: evaluate
        evaluated = self._evaluate(batch)
        prepared, sink = evaluated.evaluation.prepared, self.evaluator.sink
        if not sink.settles_first:
            # Step 3 before step 2: a function is called again when nobody knows whether it was
            sink.commit(prepared, batch.batch_id)
        # Step 2: settle
        record = self._settle(batch, origin, evaluated, untouched)
        if sink.settles_first:
            # Step 3: commit
            sink.commit(prepared, batch.batch_id)
        return record

    def _evaluate(self, batch: Batch) -> Evaluated:
        """Evaluate in one job where that proves every tree, else tree by tree."""
        if self.evaluator.ackers == 0:
            return Evaluated(self.evaluator.untracked(batch))
        if not self.evaluator.must_trace:
            evaluation = self.evaluator.once(batch, DRIVER_ROWS_MAX)
            if evaluation is not None:
                self._guard(batch, evaluation)
                evaluated = self._with_trees(evaluation)
                if evaluated.trees is None or is_every_tree_found(evaluated.trees, evaluation):
                    return evaluated
                self.evaluator.sink.discard(evaluation.prepared)
        log.info("batch %d is evaluated tree by tree", batch.batch_id)
        evaluation = self.tracer.trace(batch)
        if evaluation.duplicates:
            log.warning("batch %d: %d rows repeat a message id", batch.batch_id, evaluation.duplicates)
        self._guard(batch, evaluation)
        return self._with_trees(evaluation)

    def _with_trees(self, evaluation: Evaluation) -> Evaluated:
        found = with_payloads(evaluation, self.evaluator.source.columns, self.payload)
        if found is None:
            return Evaluated(evaluation)
        if evaluation.incomplete_count > DRIVER_ROWS_MAX:
            return Evaluated(evaluation, trees_in_spark=found)
        return Evaluated(evaluation, trees=found.toArrow())

    def _guard(self, batch: Batch, evaluation: Evaluation) -> None:
        bad, rows, limit = evaluation.incomplete_count, evaluation.rows, self.settings.max_bad_ratio
        if batch.kind == "source" and rows >= BAD_RATIO_ROWS_MIN and bad > limit * rows:
            self.evaluator.sink.discard(evaluation.prepared)
            raise TooManyFailures(
                f"{bad:,} of {rows:,} rows of batch {batch.batch_id} failed, more than max_bad_ratio={limit}: "
                "nothing of the batch was written; fix the cause or raise max_bad_ratio, and start again"
            )

    def _settle(self, batch: Batch, origin: Origin, evaluated: Evaluated, untouched: pa.Table) -> BatchRecord:
        evaluation, moment = evaluated.evaluation, self._moment(batch.batch_id, batch.begun_at)
        settlement = Settlement(untouched.slice(0, 0), untouched.slice(0, 0))
        if evaluated.trees is not None:
            settlement = settle_trees(evaluated.trees, moment)
        elif evaluated.trees_in_spark is not None:
            self.ledger.mark(batch.batch_id, untouched)
            settlement = settle_in_spark(evaluated.trees_in_spark, moment, self.payload, self.ledger)
            self.ledger.reload()
        is_source = batch.kind == "source"
        incomplete = settlement.failed + settlement.lost + settlement.held
        record = BatchRecord(
            batch_id=batch.batch_id,
            kind=batch.kind,
            begun_at=batch.begun_at,
            settled_at=moment.now,
            query_id=origin.query_id,
            source_batch_id=origin.source_batch_id,
            anchored=evaluation.rows if is_source else 0,
            replayed=evaluation.retried + (0 if is_source else evaluation.rows),
            acked=evaluation.rows - incomplete,
            failed=settlement.failed + evaluation.retried,
            lost=settlement.lost,
            held=settlement.held,
            dead=settlement.dead_count,
            emitted=evaluation.emitted,
            duplicates=evaluation.duplicates,
            checksum_ok=evaluation.checksum_ok,
            sink_actions=evaluation.prepared.actions,
        )
        is_changed = settlement.pending.num_rows > 0 or not is_source
        pending = pa.concat_tables([untouched, settlement.pending]) if is_changed else None
        self.ledger.settle(record, None if evaluated.trees_in_spark is not None else pending, settlement.dead)
        return record

    def _time_out(self) -> bool:
        """Fail the held trees whose time has come, as a batch of its own."""
        expired, rest = self._due(held=True)
        if not expired.num_rows:
            return False
        batch_id = self.ledger.last_batch_id + 1
        moment = self._moment(batch_id, self.clock.now())
        settlement = time_out(expired, moment)
        record = BatchRecord(
            batch_id=batch_id,
            kind="timeout",
            begun_at=moment.begun_at,
            settled_at=moment.now,
            timed_out=expired.num_rows,
            dead=settlement.dead_count,
        )
        self.ledger.settle(record, pa.concat_tables([rest, settlement.pending]), settlement.dead)
        self.on_settled(record)
        return True

    def _due(self, *, held: bool) -> tuple[pa.Table, pa.Table]:
        """Divide what is pending into what is due now, of the held or of the failed, and the rest."""
        pending = self.ledger.pending
        now = pa.scalar(self.clock.now(), pa.timestamp("us", tz="UTC"))
        is_held = pc.equal(pending["status"], HELD)
        wanted = is_held if held else pc.invert(is_held)
        is_due = pc.and_(pc.less_equal(pending["due_at"], now), wanted)
        return pending.filter(is_due), pending.filter(pc.invert(is_due))

    def _moment(self, batch_id: int, begun_at: datetime) -> Moment:
        now = self.clock.now()
        return Moment(batch_id, begun_at, now, self.policy, self.settings.message_timeout_s, self.phase_s)
