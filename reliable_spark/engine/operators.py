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
from reliable_spark.engine.arguments import check_kind
from reliable_spark.engine.bolt_run import ANSWER, BoltRun
from reliable_spark.engine.columns import (
    ANCHOR,
    ATTEMPT,
    CHILD_COUNT,
    CHILD_INDEX,
    FAILURE,
    MESSAGE_ID,
    TUPLE_ID,
)
from reliable_spark.engine.exits import Exits, Leaving
from reliable_spark.engine.group_id import group_id
from reliable_spark.engine.lineage import column, failure, literal, quoted, share, with_share
from reliable_spark.engine.stateful_task import StateVersion
from reliable_spark.engine.static_side import StaticSide
from reliable_spark.engine.worker import BoltTask

FAILURE_BYTES_MAX = 4 * 1024 * 1024

_KEPT, _FAILED, _REASON = "__rs_kept", "__rs_failed", "__rs_reason"
_ELEMENTS, _ELEMENT = "__rs_elements", "__rs_element"


class Context(Protocol):
    """What an operator needs of the evaluation it takes part in.

    Attributes:
        exits: take what leaves.
        failure_bytes_max: how much text about failures one task may send back.
        isolated: a row of the batch has stopped the job before.
        last: the step whose rows are leaves, of which nobody needs the lineage; None where it is needed.
        ends_whole: each row that the last step gets is all of its tree.
    """

    exits: Exits
    failure_bytes_max: int | None
    isolated: bool
    last: object
    ends_whole: bool

    def guard(self, before: DataFrame, after: DataFrame, name: str, level: int) -> DataFrame:
        """`after`, projected from `before`; in isolation without the rows for which Spark raises there."""
        ...

    def static(self, side: StaticSide) -> DataFrame:
        """The numbered static side of a join, the same in every batch."""
        ...

    def state_version(self, name: str) -> StateVersion:
        """The state that a bolt starts from."""
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
        marked = inputs[0].withColumn(_KEPT, F.coalesce(condition, F.lit(False)))
        marked = context.guard(inputs[0], marked, self.name, level)
        return context.exits.leave(marked, Leaving(f"NOT {_KEPT}", level=level, drop=[_KEPT]))


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
        marked = inputs[0].withColumn(_FAILED, F.coalesce(condition, F.lit(False)))
        if isinstance(self.reason, str):
            reason = literal(self.reason)
        else:
            reason = _REASON
            marked = marked.withColumn(_REASON, F.when(column(_FAILED), self.reason))
        marked = context.guard(inputs[0], marked, self.name, level)
        why = failure(self.name, "Fail", reason, self.retry)
        return context.exits.leave(marked, Leaving(_FAILED, why, level, [_FAILED, _REASON]))


@dataclass(frozen=True)
class Explode:
    """One child per element; a row without elements is done."""

    name: str
    array: Column
    alias: str

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Let the empty rows go first, so that the observation sees rows, not elements."""
        made = context.guard(inputs[0], inputs[0].withColumn(_ELEMENTS, self.array), self.name, level)
        counted = made.selectExpr("*", f"greatest(coalesce(size({_ELEMENTS}), 0), 0) AS {CHILD_COUNT}")
        # split() gives an element for any text; outer, or else the optimizer adds a filter that splits once more
        skips = str(self.array).startswith("Column<'split(") and context.exits.skips_rare()
        filled = counted if skips else context.exits.leave(counted, Leaving(f"{CHILD_COUNT} = 0", level=level))
        elements = f"posexplode_outer({_ELEMENTS}) AS ({CHILD_INDEX}, {_ELEMENT})"
        exploded = filled.selectExpr(f"* EXCEPT ({_ELEMENTS})", elements).where(f"{CHILD_INDEX} IS NOT NULL")
        rest = f"* EXCEPT ({TUPLE_ID}, {CHILD_INDEX}, {CHILD_COUNT}, {_ELEMENT})"
        own_share = f"{share(TUPLE_ID, CHILD_INDEX, CHILD_COUNT)} AS {TUPLE_ID}"
        return exploded.selectExpr(rest, own_share, f"{_ELEMENT} AS {quoted(self.alias)}")


@dataclass(frozen=True)
class JoinStatic:
    """Each match with a static frame is a child."""

    name: str
    side: StaticSide

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Join LEFT, always: a row without a match is let go of knowingly, or kept with nulls."""
        joined = self.side.join(inputs[0], context.static(self.side))
        if self.side.drops_unmatched:
            joined = context.exits.leave(joined, Leaving(f"{CHILD_COUNT} = 0", level=level))
        return self.side.arrange(with_share(joined, CHILD_INDEX, CHILD_COUNT), inputs[0])


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
        shares = F.expr(f"coalesce(bit_xor({TUPLE_ID}), 0L) AS {TUPLE_ID}")
        grouped = inputs[0].groupBy(*self.keys).agg(*self.aggregates, shares)
        group = f"{group_id(grouped.schema.fields[: len(self.keys)])} AS {ANCHOR}"
        return grouped.selectExpr("*", group, f"1 AS {ATTEMPT}", f"CAST(NULL AS STRING) AS {MESSAGE_ID}")


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
        output = to_arrow_schema(self.schema, timezone="UTC")
        task = BoltTask(self.bolt, output, context.failure_bytes_max)
        is_last = context.last is self
        are_whole = is_last and context.ends_whole
        run = BoltRun(inputs[0], task, self.schema, context.isolated, level, is_last, are_whole)
        children = context.exits.reported(run)
        if children is not None:
            return children
        shared = with_share(run.answered(), CHILD_INDEX, CHILD_COUNT)
        return context.exits.leave(shared, Leaving(f"{CHILD_COUNT} = 0", FAILURE, level, ANSWER))


@dataclass(frozen=True)
class Unanchor:
    """What follows is not tracked: the trees are done with these rows."""

    name: str

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Account for the rows as done, then let them go on without ids."""
        done = context.exits.note(inputs[0], level)
        nothing = "CAST(NULL AS LONG)"
        return done.selectExpr(f"* EXCEPT ({ANCHOR}, {TUPLE_ID})", f"{nothing} AS {ANCHOR}", f"{nothing} AS {TUPLE_ID}")


@dataclass(frozen=True)
class Transform:
    """Any function from DataFrame to DataFrame that keeps anchor and tuple id; it may lose or copy rows."""

    name: str
    function: Callable[[DataFrame], DataFrame]

    def apply(self, inputs: Sequence[DataFrame], context: Context, level: int) -> DataFrame:
        """Apply the user's function; of a message id or an attempt that it drops nothing is known any more."""
        made = self.function(inputs[0])
        check_kind(f"{self.name}()", made, DataFrame, "a function that returns a DataFrame")
        result = context.guard(inputs[0], made, self.name, level)
        kinds = {ATTEMPT: "INT", MESSAGE_ID: "STRING"}
        dropped = {name: kind for name, kind in kinds.items() if name not in result.columns}
        if not dropped or not {ANCHOR, TUPLE_ID}.issubset(result.columns):
            return result
        return result.selectExpr("*", *(f"CAST(NULL AS {kind}) AS {name}" for name, kind in dropped.items()))
