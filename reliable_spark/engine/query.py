"""Running a graph: to its end over static rows, or as a streaming query that replays between the batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from reliable_spark.clock import Clock
from reliable_spark.engine.batch import Source
from reliable_spark.engine.batches import SparkBatches
from reliable_spark.engine.checkpoint import Checkpoint
from reliable_spark.engine.evaluation import Evaluator
from reliable_spark.engine.loop import Loop, last_batch, retry_policy
from reliable_spark.engine.outcome import Outcome
from reliable_spark.engine.plan import Node, may_fail, needs_tracing, spouts
from reliable_spark.engine.progress import Progress
from reliable_spark.engine.protocol import Origin
from reliable_spark.engine.rounds import BackoffRounds
from reliable_spark.engine.tracing import Tracer
from reliable_spark.errors import OperatingError, UsageError
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.settings import Settings
from reliable_spark.sinks.base import hand_over, resolve_sink

IDLE_POLL_S = 0.2
PENDING_BYTES_MAX = 1024 * 1024 * 1024
"""Pending trees with larger payloads than this together make the source wait, however few they are."""


@dataclass(frozen=True)
class Job:
    """What `run` and `start` are told.

    Attributes:
        node: the end of the graph.
        schema: the columns that its rows have there.
        sink: a Delta path, a function of (DataFrame, batch id), or None.
        ledger: where the ledger lies.
        settings: the rules.
        clock: the time.
    """

    node: Node
    schema: T.StructType
    sink: object
    ledger: str
    settings: Settings
    clock: Clock


def prepare_loop(job: Job, source: Source, *, streaming: bool) -> Loop:
    """Open the ledger and the sink, and check that they fit the graph, before anything runs.

    Raises:
        UsageError: the frame is not of the kind that is asked for.
        LedgerError: the ledger cannot be opened.
        SinkError: the sink would not take these rows.
    """
    if is_remote():
        raise UsageError("run() and start() need a classic session: Connect has no access to Delta's transactions")
    for node in spouts(job.node):
        if node.step.frame.isStreaming != streaming:  # type: ignore[union-attr]
            raise UsageError(
                "run() takes static DataFrames: use start() for a stream"
                if not streaming
                else "start() takes a streaming DataFrame: use run() for a static one"
            )
    settings, spark = job.settings, source.spark
    sink = resolve_sink(job.sink, spark, settings.delivery, job.ledger)
    ackers = spark.sparkContext.defaultParallelism if settings.ackers is None else settings.ackers
    evaluator = Evaluator(job.node, source, sink, ackers, settings.delivery == "exactly_once")
    tracer = Tracer(evaluator, None if streaming else _rounds(job, evaluator))
    # the sink is asked first: a ledger belongs to one source schema from the moment it is made
    sink.open(job.schema)
    ledger = Ledger.open(job.ledger, source.payload_arrow())
    try:
        if streaming:
            Checkpoint(spark, checkpoint_path(job.ledger)).check_belongs_to(ledger)
        last = last_batch(ledger)
        sink.bind(ledger.ledger_id, last)
        last = hand_over(sink, last, spark, ledger.ledger_id, job.ledger)
        loop = Loop(SparkBatches(tracer, settings), ledger, sink, settings, job.clock)
        loop.finish(last)
        ledger.journal.use_sink(ledger.last_batch_id + 1, sink.identity, job.clock.now())
        return loop
    except BaseException:
        ledger.close()
        raise


def checkpoint_path(ledger: str) -> str:
    """Where Spark's checkpoint of a ledger's streaming query lies."""
    return f"{ledger.rstrip('/')}/checkpoint"


def _rounds(job: Job, evaluator: Evaluator) -> BackoffRounds | None:
    """What stands above an aggregate has to be answered before it; no single job can do that."""
    if not job.node.barriers:
        return None
    above = range(1, len(job.node.barriers) + 1)
    evaluator.must_trace = needs_tracing(job.node) or any(may_fail(job.node, level) for level in above)
    return BackoffRounds(retry_policy(job.settings), job.settings.message_timeout_s, job.clock)


def run(job: Job) -> Outcome:
    """Run static rows until every one of them is acked or dead.

    Guarantee: on return the ledger balances with nothing pending. A run that was interrupted is gone on
    with: what its ledger has settled is not run again.
    """
    source = Source.of_node(job.node)
    loop = prepare_loop(job, source, streaming=False)
    ledger = loop.ledger
    try:
        with Progress.of(loop, "rows"):
            if not ledger.is_run_settled():
                if ledger.begun is None:
                    ledger.journal.begin_run(ledger.last_batch_id + 1, job.clock.now())
                loop.run_source(source.frame, Origin())
            never = threading.Event()
            while (wait_s := loop.seconds_until_due()) is not None:
                job.clock.wait(wait_s, never)
                loop.run_due()
            ledger.journal.end_run(ledger.last_batch_id + 1, job.clock.now())
        return Outcome.of(ledger, source.spark)
    finally:
        ledger.close()


class Query:
    """A running streaming query, its replays included.

    Obtained from `AnchoredFrame.start`. Also a context manager that stops it.
    """

    def __init__(
        self, loop: Loop, checkpoint: Checkpoint, start: Callable[[Query], StreamingQuery], *, ends: bool
    ) -> None:
        self._loop, self._checkpoint = loop, checkpoint
        self._spark = checkpoint.spark
        self._ends = ends
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._streaming = start(self)
        self._replayer = threading.Thread(target=self._replay, name="reliable_spark-replays", daemon=True)
        self._replayer.start()

    @property
    def streaming_query(self) -> StreamingQuery:
        """Spark's own query, for its progress and its status."""
        return self._streaming

    @property
    def is_active(self) -> bool:
        """Whether the source is read or replays are still to come."""
        return self._replayer.is_alive()

    def outcome(self) -> Outcome:
        """The ledger's counts as of the last settled batch."""
        with self._loop.lock:
            return Outcome.of(self._loop.ledger, self._spark)

    def stop(self) -> None:
        """Stop after the batch in hand; what is pending stays in the ledger for the next start."""
        self._stop.set()
        self._streaming.stop()
        self._replayer.join()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query has ended: with an available-now trigger, until nothing is pending either.

        Returns:
            False when the time was up first.

        Raises:
            ReliableSparkError: what ended the query.
        """
        self._replayer.join(timeout_s)
        if self._replayer.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def __enter__(self) -> Query:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def on_batch(self, frame: DataFrame, source_batch_id: int) -> None:
        """Run one micro-batch; Spark calls this."""
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            self._admit()
            if not self._stop.is_set():
                offsets = self._checkpoint.offsets(source_batch_id)
                self._loop.run_source(frame, Origin(query_id, source_batch_id, offsets))
        except BaseException as error:
            self._error = self._error or error
            raise
        if self._stop.is_set():
            # the batch was perhaps not run: Spark must not think that it was
            raise OperatingError("the query was stopped")

    def _admit(self) -> None:
        """Let the source wait while too many trees are pending (Storm's max spout pending), or too large ones."""
        while not self._stop.is_set() and self._is_full():
            wait_s = self._loop.seconds_until_due() or 0.0
            self._loop.clock.wait(min(max(wait_s, 0.0), IDLE_POLL_S), self._stop)
            self._loop.run_due()

    def _is_full(self) -> bool:
        pending = self._loop.ledger.pending
        return bool(pending.num_rows >= self._loop.settings.max_pending or pending.nbytes >= PENDING_BYTES_MAX)

    def _replay(self) -> None:
        """Replay what is due, also while the source is idle, until the query ends."""
        try:
            with Progress.of(self._loop, "rows"):
                self._replay_to_the_end()
        except BaseException as error:
            self._error = self._error or error
            self._streaming.stop()
        finally:
            self._loop.ledger.close()

    def _replay_to_the_end(self) -> None:
        while not self._stop.is_set():
            source_is_active = self._streaming.isActive
            self._loop.run_due()
            wait_s = self._loop.seconds_until_due()
            if not source_is_active:
                self._raise_streaming_error()
                if not self._ends or wait_s is None:
                    return
            self._pause(wait_s, source_is_active)

    def _pause(self, wait_s: float | None, source_is_active: bool) -> None:
        if source_is_active:
            # real time, whatever the clock: Spark's query runs in real time too
            self._stop.wait(IDLE_POLL_S if wait_s is None else min(max(wait_s, 0.001), IDLE_POLL_S))
        elif wait_s is not None:
            self._loop.clock.wait(wait_s, self._stop)

    def _raise_streaming_error(self) -> None:
        error = self._streaming.exception()
        if self._error is not None:
            raise self._error
        if error is not None:
            raise OperatingError(f"the streaming query failed: {error}") from error


def start(job: Job, trigger: dict[str, Any]) -> Query:
    """Start a streaming query; its checkpoint lies inside the ledger's directory."""
    source = Source.of_node(job.node)
    loop, frame = prepare_loop(job, source, streaming=True), source.frame
    checkpoint = Checkpoint(frame.sparkSession, checkpoint_path(job.ledger))

    def begin(query: Query) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(query.on_batch)
        writer = writer.option("checkpointLocation", checkpoint.path)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.queryName(f"reliable_spark-{loop.ledger.ledger_id[:8]}").start()

    try:
        return Query(loop, checkpoint, begin, ends=bool(trigger.get("availableNow") or trigger.get("once")))
    except BaseException:
        loop.ledger.close()
        raise
