"""A queue between two stages: a Delta table of rows with their lineage, and what its writer and its reader need."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from reliable_spark.engine.admission import UNLIMITED
from reliable_spark.engine.batch import Source
from reliable_spark.engine.columns import LINEAGE, MESSAGE_ID, TUPLE_ID
from reliable_spark.engine.lineage import column, quoted
from reliable_spark.engine.observed import OBSERVATION_WAIT_S, observed_values
from reliable_spark.engine.operators import Projection
from reliable_spark.engine.plan import Node, Spout
from reliable_spark.ledger.tables import ledger_errors
from reliable_spark.sinks.base import Prepared
from reliable_spark.sinks.delta import DeltaSink

BATCH_ID: Final = "_batch_id"
_COPY: Final = "__rs_queued"
_LINEAGE_TYPES: Final = dict(zip(LINEAGE, (T.LongType(), T.LongType(), T.IntegerType(), T.StringType()), strict=True))


def queue_schema(user: T.StructType) -> T.StructType:
    """The columns of a queue: the batch that wrote a row, its lineage, then the user's."""
    own = [T.StructField(BATCH_ID, T.LongType()), *(T.StructField(*each) for each in _LINEAGE_TYPES.items())]
    return T.StructType([*own, *user.fields])


def user_schema(queue: T.StructType) -> T.StructType:
    """The user's columns of a queue."""
    return T.StructType([field for field in queue.fields if field.name not in (BATCH_ID, *LINEAGE)])


def with_lineage_kept(node: Node) -> Node:
    """The graph with one more step, which copies the lineage to where a sink sees it."""
    copies = {f"{_COPY}{name}": column(name) for name in LINEAGE}
    return Node(Projection("stage", lambda frame: frame.withColumns(copies)), (node,))


@dataclass(frozen=True)
class Put:
    """What the last evaluation has written for the queue: the rows, and the XOR of their ids."""

    rows: int = 0
    xor: int = 0


class QueueSink(DeltaSink):
    """Appends leaves to a queue, each with its lineage and the number of the batch.

    Attributes:
        batch_id: the number that the next rows get.
        put: what was written, counted and folded in the very job that wrote it.
    """

    def __init__(self, path: str, spark: SparkSession) -> None:
        super().__init__(path, spark)
        self.batch_id = -1
        self.put = Put()

    def prepare(self, rows: DataFrame) -> Prepared:
        """Write the files; nobody sees them."""
        own = [F.lit(self.batch_id).cast("long").alias(BATCH_ID)]
        own += [column(f"{_COPY}{name}").alias(name) for name in LINEAGE]
        user = [column(name) for name in rows.columns if not name.startswith(_COPY)]
        seen = Observation()
        queued = rows.select(*own, *user).observe(
            seen, F.count(F.lit(1)).alias("rows"), F.expr(f"bit_xor({TUPLE_ID})").alias("xor")
        )
        prepared = super().prepare(queued)
        values = observed_values(seen, time.monotonic() + OBSERVATION_WAIT_S)
        # a plan that is proved empty gives none; had it rows nevertheless, the next stage's count would not agree
        self.put = Put(values["rows"], values["xor"] or 0) if values else Put()
        return prepared


class QueueSource(Source):
    """The rows of a queue, which have their lineage already; several of them may belong to one tree."""

    has_whole_trees = False

    @classmethod
    def of_node(cls, node: Node) -> Source:
        """The one spout of a graph that begins at a queue."""
        source = Source.of_node(node)
        return cls(source.spouts, source.frame)

    def first_attempt(self, frame: DataFrame) -> DataFrame:
        """Take over the lineage that the rows have."""
        user = [quoted(name) for name in frame.columns if name not in (BATCH_ID, *LINEAGE)]
        return frame.selectExpr(*user, *LINEAGE)

    def payload_arrow(self) -> pa.DataType:
        """Of a failed row only its root matters, and whether it may be tried again: the source has the rest."""
        return pa.struct([("retry", pa.bool_())])


def last_batch_before(path: str, offset: str) -> int:
    """The last batch whose rows a stream over a queue has read when it stands at an offset; -1 when none has rows.

    Args:
        path: the queue.
        offset: as Delta's source writes it; a whole version, since the stream takes no part of one.
    """
    place = json.loads(offset)
    version = place["reservoirVersion"] - (place["index"] < 0)
    return max(batch_of_files(path, version), default=-1)


def batch_of_files(path: str, version: int | None = None) -> list[int]:
    """The batch that wrote each file of a queue. Cost: 5 ms, no data is read.

    Args:
        path: the queue.
        version: as of which version; the newest when None.
    """
    with ledger_errors("read", path):
        actions = pa.table(DeltaTable(path, version=version).get_add_actions(flatten=True))
    name = f"max.{BATCH_ID}"
    return pc.drop_null(actions[name]).to_pylist() if name in actions.column_names else []


def forget_taken(path: str, upto: int) -> bool:
    """Delete the batches of a queue that its stage has taken, and their files.

    Only files that a commit has removed are deleted: what a writer has prepared and not committed stays. A writer that
    commits at the very moment comes first, and the next call deletes.

    Returns:
        False when a writer came first. Cost: 50 to 100 ms, no data is read.
    """
    with ledger_errors("clean", path):
        table = DeltaTable(path)
        try:
            table.delete(f"{BATCH_ID} <= {upto}")
        except CommitFailedError:
            return False
        table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=False)
    return True


def queue_stream(spark: SparkSession, path: str, files: int = UNLIMITED) -> DataFrame:
    """A queue as a stream whose batches are whole commits; rows that were deleted after their use do not disturb it.

    Args:
        spark: a classic session.
        path: the queue.
        files: how many the first batch takes: those of whole commits.
    """
    options = {"ignoreDeletes": "true", "maxFilesPerTrigger": str(files), "startingVersion": "0"}
    return spark.readStream.format("delta").options(**options).load(path)


def queue_spout(name: str, frame: DataFrame) -> Spout:
    """A queue as the beginning of a graph."""
    return Spout(name, frame, (MESSAGE_ID,))
