"""Cut a graph at its stages, and start each part as a query of its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.streaming.query import StreamingQuery

from reliable_spark.engine.admission import UNLIMITED
from reliable_spark.engine.batch import Source
from reliable_spark.engine.definition import empty
from reliable_spark.engine.operators import Aggregate, Unanchor
from reliable_spark.engine.outcome import Outcome
from reliable_spark.engine.plan import Node, Spout, spouts, walk
from reliable_spark.engine.query import Query, start
from reliable_spark.engine.run import Job, Parts
from reliable_spark.errors import LedgerError, UsageError, nearest
from reliable_spark.ledger.tables import DeltaTables
from reliable_spark.sinks.files import located
from reliable_spark.stages.acks import Acks
from reliable_spark.stages.admission import SourceAdmission, StageAdmission, whole_commits
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.places import check_name, queue_path, stage_ledger
from reliable_spark.stages.queue import (
    BATCH_ID,
    QueueSink,
    QueueSource,
    queue_schema,
    queue_spout,
    queue_stream,
    user_schema,
    with_lineage_kept,
)
from reliable_spark.stages.source_loop import SourceLoop
from reliable_spark.stages.stage_loop import StageBatches, StageLoop, StageTracer


@dataclass(frozen=True, eq=False)
class Stage(Spout):
    """A queue, as the beginning of what comes after it.

    Attributes:
        before: the end of what writes it; None when another job does.
        schema: the user's columns.
        capacity: rows that may wait in it before its writer has to.
    """

    before: Node | None = None
    schema: T.StructType = field(default_factory=T.StructType)
    capacity: int = 0


def cut(node: Node, name: str, capacity: int, user: T.StructType, spark: SparkSession) -> Node:
    """Let what follows a node begin at a queue.

    Raises:
        UsageError: the name or the capacity is wrong, or a row there has no root, or several.
    """
    check_name(name)
    if type(capacity) is not int or capacity < 1:
        raise UsageError(f"stage(): capacity is a number of rows, 1 or more, not {capacity!r}")
    steps = [each.step for each in walk(node)]
    if any(isinstance(step, Aggregate) for step in steps):
        raise UsageError("stage(): a group has many roots: put the aggregate into the last stage")
    if any(isinstance(step, Unanchor) for step in steps):
        raise UsageError("stage(): rows that are not tracked have no answer to wait for: put unanchored() after it")
    before: Node | None = node
    names = [name]
    while before is not None:
        stage = stage_of(before)
        if stage is not None and stage.name in names:
            raise UsageError(f"stage(): there are two stages called {stage.name!r}")
        names += [stage.name] if stage is not None else []
        before = stage.before if stage is not None else None
    rows = empty(spark, queue_schema(user))
    return Node(Stage(name, rows, queue_spout(name, rows).message_id, node, user, capacity))


def stage_of(node: Node) -> Stage | None:
    """The stage that a graph begins at; None when it begins at a source.

    Raises:
        UsageError: a stage is united with something else.
    """
    beginnings = [each.step for each in spouts(node)]
    stages = [each for each in beginnings if isinstance(each, Stage)]
    if stages and len(beginnings) > 1:
        raise UsageError(f"what follows the stage {stages[0].name!r} reads its queue alone: union before stage()")
    return stages[0] if stages else None


def stage_node(spark: SparkSession, ledger: str, name: str) -> tuple[Node, T.StructType]:
    """The beginning of a graph at a queue that another job writes, and the columns it has there.

    Raises:
        LedgerError: the ledger has no such queue (yet).
    """
    check_name(name)
    if not DeltaTables(ledger).exists(f"queues/{name}"):
        files, place = located(spark, f"{ledger.rstrip('/')}/queues")
        there = [each.getPath().getName() for each in files.listStatus(place)] if files.exists(place) else []
        raise LedgerError(
            f"the ledger {ledger} has no stage {name!r}{nearest(name, there) if there else ''}: start the job first "
            "that writes it"
        )
    frame = queue_stream(spark, queue_path(ledger, name))
    user = user_schema(frame.schema)
    return Node(Stage(name, frame, queue_spout(name, frame).message_id, None, user)), user


def with_lineage(user: T.StructType) -> T.StructType:
    """The user's columns and the lineage's."""
    lineage = [field for field in queue_schema(T.StructType()).fields if field.name != BATCH_ID]
    return T.StructType([*user.fields, *lineage])


class ChainQuery(Query):
    """The running queries of a chain: the source's, and those of the stages in this process.

    Obtained from `AnchoredFrame.start` of a frame with stages. Also a context manager that stops them.
    """

    def __init__(self, queries: list[Query]) -> None:
        self.queries = queries

    @property
    def streaming_query(self) -> StreamingQuery:
        """Spark's own query of the first part."""
        return self.queries[0].streaming_query

    @property
    def is_active(self) -> bool:
        """Whether all of them are running."""
        return all(query.is_active for query in self.queries)

    def outcome(self) -> Outcome:
        """The counts of the first query's ledger: of the source, if it is here."""
        return self.queries[0].outcome()

    def redrive(self, where: Column | str | None = None) -> int:
        """Take dead letters of the source back, as `Query.redrive`: they go through all stages again."""
        return self.queries[0].redrive(where)

    def stop(self) -> None:
        """Stop each after the batch in hand; what is on its way stays in the queues for the next start."""
        for query in self.queries:
            query.stop()

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the first query has ended: with an available-now trigger, until every row has its answer.

        The stages behind it are stopped then.

        Returns:
            False when the time was up first.

        Raises:
            ReliableSparkError: what ended one of them; the others are stopped.
        """
        try:
            return self._await(timeout_s)
        except Exception:
            self.stop()  # the others, whose ledgers the next start needs
            raise

    def _await(self, timeout_s: float | None) -> bool:
        waited_s = 0.0
        while not self.queries[0].await_termination(_TURN_S):
            waited_s += _TURN_S
            for query in self.queries[1:]:
                if not query.is_active:
                    self.stop()
                    query.await_termination()
            if timeout_s is not None and waited_s >= timeout_s:
                return False
        for query in self.queries[1:]:
            query.stop()
            query.await_termination()
        return True


_TURN_S = 0.5


def has_stages(node: Node) -> bool:
    """Whether a graph begins at a stage."""
    return stage_of(node) is not None


def start_chain(job: Job, trigger: dict[str, Any]) -> ChainQuery:
    """Start every part of a chain that this frame has; each runs from one queue, or the source, to the next.

    A stage at the very end with no sink behind it is for another job to read.
    """
    if job.settings.delivery == "exactly_once":
        raise UsageError("delivery='exactly_once' holds within one query, not over stages: use at_least_once")
    parts = _parts(job)
    queries: list[Query] = []
    try:
        for part in parts:
            queries.append(start(_job_of(part, job, Acks(job.ledger)), {} if queries else trigger))
    except BaseException:
        for query in queries:
            query.stop()
        raise
    return ChainQuery(queries)


@dataclass(frozen=True)
class Part:
    """What runs as one query: from a queue, or the source, to a queue, or the sink."""

    node: Node
    schema: T.StructType
    reads: Stage | None
    writes: Stage | None


def _parts(job: Job) -> list[Part]:
    """The parts of a chain, the first one first."""
    parts: list[Part] = []
    node: Node | None = job.node
    schema, writes = job.schema, None
    while node is not None:
        reads = stage_of(node)
        is_for_another = isinstance(node.step, Stage) and writes is None and job.sink is None
        if not is_for_another or reads is None or reads.before is None:
            parts.append(Part(node, schema, reads, writes))
        node, writes = (reads.before, reads) if reads is not None else (None, None)
        schema = reads.schema if reads is not None else schema
    return parts[::-1]


def _job_of(part: Part, job: Job, acks: Acks) -> Job:
    """A part as an ordinary job."""
    spark = _spark(job.node)
    node, schema, sink = part.node, part.schema, job.sink
    backlog = None
    if part.writes is not None:
        node, schema = with_lineage_kept(node), queue_schema(schema)
        sink = QueueSink(queue_path(job.ledger, part.writes.name), spark)
        backlog = Backlog(part.writes.name, part.writes.capacity, acks)
    if part.reads is None:
        assert backlog is not None
        loop: Any = partial(SourceLoop, acks=acks, backlog=backlog)
        return replace(job, node=node, schema=schema, sink=sink, parts=Parts(loop=loop, admission=SourceAdmission))
    name = part.reads.name
    queue = queue_path(job.ledger, name)
    # what has piled up while the stage was down is not one batch, if batches are to be short
    files = UNLIMITED if job.settings.target_batch_s is None else whole_commits(queue, acks.taken(name), 1)
    read = _reading(node, part.reads, queue_stream(spark, queue, files))
    loop = partial(StageLoop, stage=name, queue=queue, acks=acks, backlog=backlog)
    parts = Parts(QueueSource.of_node, StageBatches, StageTracer, loop, StageAdmission)
    settings = job.settings.model_copy(update={"max_attempts": 1})
    ledger = stage_ledger(job.ledger, name)
    return replace(job, node=read, schema=schema, sink=sink, ledger=ledger, settings=settings, parts=parts)


def _spark(node: Node) -> SparkSession:
    return Source.of_node(node).spark


def _reading(node: Node, stage: Stage, stream: DataFrame) -> Node:
    """The same graph, over the queue as it is now."""
    made: dict[int, Node] = {}
    for each in walk(node):
        if each.step is stage:
            made[id(each)] = Node(queue_spout(stage.name, stream))
        else:
            made[id(each)] = Node(each.step, tuple(made[id(parent)] for parent in each.inputs))
    return made[id(node)]
