"""A bolt with a state, as an operator: rows are brought together by the shard of their key and meet its state there.

What the state becomes leaves by the same job: the task of a shard names the file of its changes in one more row, which
leaves the frame where failed rows do. So a state is that of the very evaluation whose rows are in the sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from reliable_spark.bolts import Bolt
from reliable_spark.engine.bolt_run import ANSWER, answer_schema
from reliable_spark.engine.columns import CHANGE, CHILD_COUNT, CHILD_INDEX, FAILURE
from reliable_spark.engine.exits import Leaving
from reliable_spark.engine.lineage import column, key_text, with_share
from reliable_spark.engine.mapped import map_in_arrow
from reliable_spark.engine.operators import Context
from reliable_spark.engine.stateful_task import KEY, SHARD, StatefulTask


@dataclass(frozen=True)
class Stateful:
    """A Python function over the rows and the state of their key.

    Attributes:
        bolt: what the user wrote; its name is the state's.
        key: the columns that the state is kept by.
        schema: the columns that the bolt returns.
        order: the columns in whose order the rows of a batch come to the bolt.
        kept_by: the key's columns with their types, to be kept with the state.
    """

    bolt: Bolt
    key: tuple[str, ...]
    schema: T.StructType
    order: tuple[str, ...] = ()
    kept_by: str = ""

    @property
    def name(self) -> str:
        """The bolt's name."""
        return self.bolt.name

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Shuffle by shard and map the bolt; let go of the rows that it dropped, that failed, that tell of changes."""
        frame = inputs[0]
        version = context.state_version(self.name)
        key = key_text(self.key, frame.schema)
        keyed = frame.selectExpr("*", f"{key} AS {KEY}")
        sharded = keyed.selectExpr("*", f"CAST(pmod(xxhash64({KEY}), {version.shards}) AS INT) AS {SHARD}")
        placed = sharded.repartitionById(version.shards, F.col(SHARD))
        ordered = placed.sortWithinPartitions(*map(column, self.order)) if self.order else placed
        output = to_arrow_schema(self.schema, timezone="UTC")
        task = StatefulTask(self.bolt, output, context.failure_bytes_max, state_name=self.name, version=version)
        returned = [*answer_schema(self.schema, frame), T.StructField(CHANGE, T.StringType())]
        # a row that tells of changes has no lineage
        wire = T.StructType([T.StructField(field.name, field.dataType) for field in returned])
        ran = map_in_arrow(ordered, task, wire)
        shared = with_share(ran, CHILD_INDEX, CHILD_COUNT)
        leaving = Leaving(f"{CHILD_COUNT} = 0", FAILURE, level, [*ANSWER, CHANGE], report=CHANGE)
        return context.exits.leave(shared, leaving)
