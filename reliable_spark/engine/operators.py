"""The operators of a frame as data: each says what it does to a DataFrame that carries lineage columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from reliable_spark.bolts import Bolt
from reliable_spark.engine.columns import (
    ANCHOR,
    ATTEMPT,
    CHILD_COUNT,
    CHILD_INDEX,
    FAILURE,
    LINEAGE,
    MESSAGE_ID,
    TUPLE_ID,
)
from reliable_spark.engine.exits import Exits
from reliable_spark.engine.forked import ForkedTask
from reliable_spark.engine.lineage import FAILURE_TYPE, column, failure, user_columns, with_share
from reliable_spark.engine.static_side import StaticSide
from reliable_spark.engine.worker import BoltTask

FAILURE_BYTES_MAX = 4 * 1024 * 1024


class Context(Protocol):
    """What an operator needs of the evaluation it takes part in."""

    exits: Exits
    failure_bytes_max: int | None
    isolated: bool

    def guard(self, before: DataFrame, after: DataFrame, name: str, level: int) -> DataFrame:
        """`after`, projected from `before`; in isolation without the rows for which Spark raises there."""
        ...

    def static(self, side: StaticSide) -> DataFrame:
        """The numbered static side of a join, the same in every batch."""
        ...


class Operator(Protocol):
    """One step of a frame. `name` is how the ledger calls it."""

    @property
    def name(self) -> str:
        """How the ledger calls the step."""
        ...

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Apply the step.

        Args:
            inputs: one frame per incoming edge, with lineage columns.
            context: the evaluation.
            level: how many aggregates the rows have passed.
        """
        ...


@dataclass(frozen=True)
class Projection:
    """Rows in, the same rows out: select, withColumn, drop and the like."""

    name: str
    change: Callable[[DataFrame], DataFrame]

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Change the columns; the lineage columns stay."""
        return context.guard(inputs[0], self.change(inputs[0]), self.name, level)


@dataclass(frozen=True)
class Filter:
    """Rows for which the condition is not true are done: they are acked."""

    name: str
    condition: Column | str

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Evaluate the condition once, as a column, and let go of the rows that it does not hold for."""
        condition = F.expr(self.condition) if isinstance(self.condition, str) else self.condition
        marked = inputs[0].withColumn("__rs_kept", F.coalesce(condition, F.lit(False)))
        marked = context.guard(inputs[0], marked, self.name, level)
        return context.exits.leave(marked, ~column("__rs_kept"), None, level).drop("__rs_kept")


@dataclass(frozen=True)
class FailWhen:
    """Rows for which the condition is true fail."""

    name: str
    condition: Column | str
    reason: str | Column
    retry: bool

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Fail the rows that the condition holds for."""
        condition = F.expr(self.condition) if isinstance(self.condition, str) else self.condition
        marked = inputs[0].withColumn("__rs_failed", F.coalesce(condition, F.lit(False)))
        why = failure(self.name, "Fail", self.reason, self.retry)
        with_reason = marked.withColumn(FAILURE, F.when(column("__rs_failed"), why))
        with_reason = context.guard(inputs[0], with_reason, self.name, level)
        left = context.exits.leave(with_reason, column("__rs_failed"), column(FAILURE), level)
        return left.drop("__rs_failed", FAILURE)


@dataclass(frozen=True)
class Explode:
    """One child per element; a row without elements is done."""

    name: str
    array: Column
    alias: str

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Let the empty rows go first, so that the observation sees rows, not elements."""
        sized = context.guard(inputs[0], inputs[0].withColumn("__rs_elements", self.array), self.name, level)
        counted = sized.withColumn(CHILD_COUNT, F.greatest(F.coalesce(F.size("__rs_elements"), F.lit(0)), F.lit(0)))
        filled = context.exits.leave(counted, column(CHILD_COUNT) == 0, None, level)
        kept = [column(name) for name in filled.columns if name != "__rs_elements"]
        exploded = filled.select(*kept, F.posexplode("__rs_elements").alias(CHILD_INDEX, "__rs_element"))
        shared = with_share(exploded, column(CHILD_INDEX), column(CHILD_COUNT))
        users = [column(name) for name in user_columns(inputs[0]) if name != self.alias]
        return shared.select(*users, column("__rs_element").alias(self.alias), *LINEAGE)


@dataclass(frozen=True)
class JoinStatic:
    """Each match with a static frame is a child."""

    name: str
    side: StaticSide

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Join LEFT, always: a row without a match is let go of knowingly, or kept with nulls."""
        joined = self.side.join(inputs[0], context.static(self.side))
        if self.side.drops_unmatched:
            joined = context.exits.leave(joined, column(CHILD_COUNT) == 0, None, level)
        count = F.greatest(column(CHILD_COUNT), F.lit(1))
        return self.side.arrange(with_share(joined, column(CHILD_INDEX), count), inputs[0])


@dataclass(frozen=True)
class Union:
    """The rows of both frames."""

    name: str
    allow_missing_columns: bool

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Put the frames below each other by column name."""
        left, right = inputs
        return left.unionByName(right, allowMissingColumns=self.allow_missing_columns)


@dataclass(frozen=True)
class Aggregate:
    """Groups, each anchored to all of its inputs by the XOR of their shares."""

    name: str
    keys: tuple[Column, ...]
    aggregates: tuple[Column, ...]

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Aggregate, carrying one number per group instead of its inputs' ids."""
        shares = F.coalesce(F.bit_xor(column(TUPLE_ID)), F.lit(0).cast("long")).alias(TUPLE_ID)
        grouped = inputs[0].groupBy(*self.keys).agg(*self.aggregates, shares)
        users = [column(name) for name in user_columns(grouped)]
        return grouped.select(
            *users,
            self.group_id([column(name) for name in user_columns(grouped)[: len(self.keys)]]).alias(ANCHOR),
            column(TUPLE_ID),
            F.lit(1).cast("int").alias(ATTEMPT),
            F.lit(None).cast("string").alias(MESSAGE_ID),
        )

    def group_id(self, keys: Sequence[Column]) -> Column:
        """The id under which a group is known: a hash of its keys with nulls kept apart."""
        parts: list[Column] = [F.lit("group")]
        for key in keys:
            parts += [key.isNull(), key]
        return F.xxhash64(*parts)


@dataclass(frozen=True)
class RunBolt:
    """A Python function over the rows, in Arrow batches."""

    bolt: Bolt
    schema: T.StructType

    @property
    def name(self) -> str:
        """The bolt's name."""
        return self.bolt.name

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Map the function over Arrow batches; let go of the rows that it dropped or that failed."""
        frame = inputs[0]
        output = to_arrow_schema(self.schema, timezone="UTC")
        task = BoltTask(self.bolt, output, context.failure_bytes_max)
        columns = [column(name) for name in (*user_columns(frame), *LINEAGE)]
        mapped = ForkedTask(task) if context.isolated else task
        ran = frame.select(*columns).mapInArrow(mapped, self._wire_schema(frame))
        left = context.exits.leave(ran, column(CHILD_COUNT) == 0, column(FAILURE), level)
        shared = with_share(left, column(CHILD_INDEX), column(CHILD_COUNT))
        return shared.select(*(column(name) for name in self.schema.fieldNames()), *LINEAGE)

    def _wire_schema(self, frame: DataFrame) -> T.StructType:
        declared = [T.StructField(field.name, field.dataType) for field in self.schema.fields]
        lineage = [frame.schema[name] for name in LINEAGE]
        numbering = [T.StructField(CHILD_INDEX, T.LongType()), T.StructField(CHILD_COUNT, T.LongType())]
        return T.StructType([*declared, *lineage, *numbering, T.StructField(FAILURE, FAILURE_TYPE)])


@dataclass(frozen=True)
class Unanchor:
    """What follows is not tracked: the trees are done with these rows."""

    name: str

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Account for the rows as done, then let them go on without ids."""
        done = context.exits.note(inputs[0], level)
        nothing = F.lit(None).cast("long")
        return done.withColumn(ANCHOR, nothing).withColumn(TUPLE_ID, nothing)


@dataclass(frozen=True)
class Transform:
    """Any function from DataFrame to DataFrame that keeps the lineage columns; it may lose or copy rows."""

    name: str
    function: Callable[[DataFrame], DataFrame]

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Apply the user's function."""
        return context.guard(inputs[0], self.function(inputs[0]), self.name, level)
