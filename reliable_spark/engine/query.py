"""A graph that runs as a streaming query, which replays between the batches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from types import TracebackType
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from reliable_spark.engine.admission import Admission
from reliable_spark.engine.checkpoint import Checkpoint
from reliable_spark.engine.outcome import Outcome
from reliable_spark.engine.progress import Progress
from reliable_spark.engine.protocol import Origin
from reliable_spark.engine.redrive import redrive
from reliable_spark.engine.run import Job, begin_stream, checkpoint_path, prepare_loop
from reliable_spark.errors import OperatingError, UsageError

IDLE_POLL_S = 0.2
STOP_WAIT_MS = 60_000
INTERRUPTED = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
"""By this text Spark knows a batch that its own stop has interrupted, and does not log it as an error. Source: its
`StreamExecution.isInterruptionException`, whose expression overflows the stack when the text is long."""


class Query:
    """A running streaming query, its replays included.

    Obtained from `AnchoredFrame.start`. Also a context manager that stops it.
    """

    def __init__(
        self, admission: Admission, checkpoint: Checkpoint, start: Callable[[Query], StreamingQuery], *, ends: bool
    ) -> None:
        self._loop, self._admission, self._checkpoint = admission.loop, admission, checkpoint
        self._spark = checkpoint.spark
        self._ends = ends
        self._stop = threading.Event()
        self._in_hand = threading.Lock()
        self._batch_thread: int | None = None
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
        """The ledger's counts as of the last settled batch, which does not wait for the evaluation of the one in hand.

        It waits for its commit: of a function that is called after the ledger is settled (exactly_once, at_most_once)
        until that returns, since nobody is told of an answer whose rows are not there yet.
        """
        return Outcome.of(self._loop.ledger, self._spark)

    def redrive(self, where: Column | str | None = None) -> int:
        """Take dead letters back and try them again, as new trees with all their attempts before them.

        Guarantee: the ledger balances at any moment; a crash leaves each of them dead or pending.

        Args:
            where: which ones, over the columns of `dead_letters`, for example "bolt = 'parse'"; all if not given.

        Returns:
            How many. They are replayed at once, beside the source. Cost: the dead letters are rewritten on the driver.

        Raises:
            ColumnError: there is no such column.
            UsageError: the query has ended, or more match than `max_pending` leaves room for.
            OperatingError: a micro-batch that was interrupted comes first.
        """
        if not self.is_active:
            raise UsageError("redrive(): the query has ended: start it again, and call it then")
        return redrive(self._loop, where)

    def stop(self) -> None:
        """Stop after the batch in hand; what is pending stays in the ledger for the next start.

        Does not wait when a sink function calls it, whose batch that is.
        """
        if threading.get_ident() in (self._batch_thread, self._replayer.ident):
            self._stop.set()
            return
        self._end_source()
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
        # what goes wrong in stopping must not hide why: under spark-submit, Ctrl-C may have ended Java already
        with suppress(Exception) if error is not None else nullcontext():
            self.stop()

    def on_batch(self, frame: DataFrame, source_batch_id: int) -> None:
        """Run one micro-batch; Spark calls this."""
        query_id = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        try:
            with self._in_hand:
                self._batch_thread = threading.get_ident()
                self._admit()
                if not self._stop.is_set():
                    offsets = self._checkpoint.offsets(source_batch_id)
                    self._admission.run(frame, Origin(query_id, source_batch_id, offsets))
                    return
        except BaseException as error:
            self._error = self._error or error
            raise
        finally:
            self._batch_thread = None
        # Spark must not think that the batch was run
        with suppress(Exception):
            self._wait_in_java()
        raise OperatingError(INTERRUPTED)

    def _wait_in_java(self) -> None:
        """Wait on the thread of Spark's query until its stop interrupts that."""
        java: Any = self._spark._jvm
        java.java.lang.Thread.sleep(STOP_WAIT_MS)

    def _end_source(self) -> None:
        """Let the batch in hand end, and take no other: Spark's own stop would interrupt it wherever it is."""
        self._stop.set()
        with self._in_hand:
            pass  # what comes after it finds that the query is to stop
        self._streaming.stop()

    def _admit(self) -> None:
        """Let the source wait while the loop is full."""
        while not self._stop.is_set() and self._loop.is_full():
            wait_s = self._loop.seconds_until_due() or 0.0
            self._loop.clock.wait(min(max(wait_s, 0.0), IDLE_POLL_S), self._stop)
            self._loop.run_due()

    def _replay(self) -> None:
        """Replay what is due, also while the source is idle, until the query ends."""
        try:
            with Progress.of(self._loop, "rows"):
                self._replay_to_the_end()
            if self._stop.is_set():
                self._end_source()  # told by a sink function, which could not wait for that
        except BaseException as error:
            self._error = self._error or error
            self._end_source()
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
    source = job.parts.source(job.node)
    loop, frame = prepare_loop(job, source, streaming=True), source.frame
    checkpoint = Checkpoint(frame.sparkSession, checkpoint_path(job.ledger))
    admission = job.parts.admission(loop, frame.sparkSession)

    def begin(query: Query) -> StreamingQuery:
        writer = frame.writeStream.foreachBatch(query.on_batch)
        writer = writer.option("checkpointLocation", checkpoint.path)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.queryName(f"reliable_spark-{loop.ledger.ledger_id[:8]}").start()

    try:
        begin_stream(loop)
        return Query(admission, checkpoint, begin, ends=bool(trigger.get("availableNow") or trigger.get("once")))
    except BaseException:
        loop.ledger.close()
        raise
