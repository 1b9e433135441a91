"""What a run needs before it starts, and running a graph to its end over static rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, SparkSession
from pyspark.sql import types as T
from pyspark.sql.utils import is_remote

from reliable_spark.clock import Clock
from reliable_spark.engine.admission import Admission
from reliable_spark.engine.batch import Source, check_spouts
from reliable_spark.engine.batches import SparkBatches
from reliable_spark.engine.checkpoint import Checkpoint
from reliable_spark.engine.evaluation import Evaluator
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.outcome import Outcome
from reliable_spark.engine.plan import Node, may_fail, needs_tracing, spouts, stateful_steps
from reliable_spark.engine.progress import Progress
from reliable_spark.engine.protocol import Origin
from reliable_spark.engine.redrive import redrive as take_back
from reliable_spark.engine.rounds import BackoffRounds
from reliable_spark.engine.settlement import retry_policy
from reliable_spark.engine.states import States
from reliable_spark.engine.tracing import Tracer
from reliable_spark.errors import LedgerError, UsageError
from reliable_spark.ledger.journal import OpenRun
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.ledger.tables import DeltaTables
from reliable_spark.settings import Settings
from reliable_spark.sinks.base import LastBatch, Sink, hand_over, resolve_sink


@dataclass(frozen=True)
class Parts:
    """What a query is made of; a stage of a chain has parts of its own.

    Attributes:
        source: finds the rows of a graph.
        batches: makes and evaluates batches, from a tracer and settings.
        tracer: evaluates tree by tree.
        loop: puts the effects in order.
        admission: says how much a micro-batch takes.
    """

    source: Callable[[Node], Source] = Source.of_node
    batches: Callable[[Tracer, Settings], SparkBatches] = SparkBatches
    tracer: type[Tracer] = Tracer
    loop: Callable[[SparkBatches, Ledger, Sink, Settings, Clock], Loop] = Loop
    admission: Callable[[Loop, SparkSession], Admission] = Admission


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
        parts: what the query is made of.
    """

    node: Node
    schema: T.StructType
    sink: object
    ledger: str
    settings: Settings
    clock: Clock
    parts: Parts = Parts()


def prepare_loop(job: Job, source: Source, *, streaming: bool) -> Loop:
    """Open the ledger and the sink, and check that they fit the graph, before anything runs.

    Raises:
        UsageError: the frame is not of the kind that is asked for.
        LedgerError: the ledger cannot be opened.
        SinkError: the sink would not take these rows.
    """
    _check_kind(job, streaming)
    settings, spark = job.settings, source.spark
    sink = resolve_sink(job.sink, spark, settings.delivery, job.ledger)
    ackers = spark.sparkContext.defaultParallelism if settings.ackers is None else settings.ackers
    if ackers == 0 and stateful_steps(job.node):
        raise UsageError("stateful() needs ackers: without them no row is known to have been counted once")
    evaluator = Evaluator(job.node, source, sink, ackers, settings.delivery == "exactly_once")
    tracer = job.parts.tracer(evaluator, None if streaming else _rounds(job, evaluator))
    # the sink is asked first: a ledger belongs to one source schema from the moment it is made
    sink.open(job.schema)
    ledger = Ledger.open(job.ledger, source.payload_arrow())
    try:
        if streaming:
            Checkpoint(spark, checkpoint_path(job.ledger)).check_belongs_to(ledger)
        check_spouts(source, ledger.pending, job.ledger)
        last = last_batch(ledger)
        sink.bind(ledger.ledger_id, last)
        last = hand_over(sink, last, spark, ledger.ledger_id, job.ledger)
        loop = job.parts.loop(job.parts.batches(tracer, settings), ledger, sink, settings, job.clock)
        evaluator.states = States(job.node, spark, job.ledger, ledger.ledger_id, ledger.last_batch_id)
        loop.finish(last)
        evaluator.states.divide()
        return loop
    except BaseException:
        ledger.close()
        raise


def _check_kind(job: Job, streaming: bool) -> None:
    """Refuse a Connect session, and a frame of the other kind."""
    if is_remote():
        raise UsageError("run() and start() need a classic session: Connect has no access to Delta's transactions")
    for node in spouts(job.node):
        if node.step.frame.isStreaming != streaming:  # type: ignore[union-attr]
            raise UsageError(
                "run() takes static DataFrames: use start() for a stream"
                if not streaming
                else "start() takes a streaming DataFrame: use run() for a static one"
            )


def last_batch(ledger: Ledger) -> LastBatch:
    """What a sink has to know of the last settled batch."""
    last = ledger.last
    if last is None:
        return LastBatch(sink=ledger.journal.sink)
    accepted = ledger.journal.accepted_version
    version = last["sink_version"] if accepted is None else max(accepted, last["sink_version"] or 0)
    return LastBatch(last["batch_id"], tuple(last["sink_actions"] or ()), version, ledger.journal.sink)


def begin_stream(loop: Loop) -> None:
    """Write down which sink is used, and that a run that was interrupted is over: what it has pending is ours now."""
    ledger, now = loop.ledger, loop.clock.now()
    opened = ledger.journal.open_run()
    if opened is not None and (opened.is_redrive or not ledger.is_run_settled()):
        # nothing of its own is settled, and the batches that the stream settles must not be taken for that
        ledger.journal.end_run(ledger.last_batch_id + 1, now)
    _give_up_begun(loop, streaming=True)
    ledger.journal.use_sink(ledger.last_batch_id + 1, loop.sink.identity, now)


def _begin_run(loop: Loop, is_redrive: bool) -> None:
    """Write down which sink is used, and that a run begins, unless one is gone on with."""
    ledger, sink, now = loop.ledger, loop.sink.identity, loop.clock.now()
    is_run_settled = ledger.is_run_settled()
    _give_up_begun(loop, streaming=False)
    following, begun = ledger.last_batch_id + 1, ledger.begun
    if is_run_settled:
        ledger.journal.use_sink(following, sink, now)
    else:
        is_replay_first = begun is not None and begun.kind == "replay"
        ledger.journal.begin_run(OpenRun(following + is_replay_first, is_redrive), sink, now)


def _give_up_begun(loop: Loop, streaming: bool) -> None:
    """Settle a stream's batch that a run finds begun, or a run's that a stream finds, as an empty one.

    It is not given again here, and every replay would wait for it. Its rows come again under another id.
    """
    begun, now = loop.ledger.begun, loop.clock.now()
    if begun is not None and begun.kind == "source" and (begun.query_id is not None) != streaming:
        loop.ledger.settle(BatchRecord(begun.batch_id, "source", now, now, sink_version=loop.sink.version))


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
    try:
        _begin_run(loop, is_redrive=False)
        with Progress.of(loop, "rows"):
            if not loop.ledger.is_run_settled():
                loop.run_source(source.frame, Origin())
            return _to_the_end(loop, source)
    finally:
        loop.ledger.close()


def redrive(job: Job, where: Column | str | None) -> Outcome:
    """Try dead letters again until each is acked or dead; source rows are not read.

    Guarantee: as `run`; a redrive that was interrupted is gone on with by the next `run` or `redrive`.
    """
    if job.node.barriers:
        raise UsageError(
            "redrive(): what died above groupBy().agg() cannot be added to groups that are made: run() it all again, "
            "with a ledger of its own"
        )
    if not DeltaTables(job.ledger).exists("batches"):
        raise LedgerError(f"redrive(): there is no ledger at {job.ledger}")
    source = Source.of_node(job.node)
    if source.frame.isStreaming:
        raise UsageError("redrive(): of a stream it is a method of the running query: start(), then query.redrive()")
    loop = prepare_loop(job, source, streaming=False)
    try:
        if loop.ledger.is_run_unsettled():
            raise UsageError("redrive(): the last run was interrupted before its rows were settled: run() it first")
        _begin_run(loop, is_redrive=True)
        with Progress.of(loop, "rows"):
            take_back(loop, where)
            return _to_the_end(loop, source)
    finally:
        loop.ledger.close()


def _to_the_end(loop: Loop, source: Source) -> Outcome:
    """Replay until nothing is pending, and end the run."""
    never = threading.Event()
    while (wait_s := loop.seconds_until_due()) is not None:
        loop.clock.wait(wait_s, never)
        loop.run_due()
    loop.ledger.journal.end_run(loop.ledger.last_batch_id + 1, loop.clock.now())
    return Outcome.of(loop.ledger, source.spark)
