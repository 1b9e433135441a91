"""What can be done with the rows of an anchored frame: PySpark's operators, each of which keeps the lineage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from reliable_spark.bolts import Bolt, kind_of
from reliable_spark.defined_frame import DefinedFrame
from reliable_spark.engine.arguments import at_positions, check_kind, check_name, check_same_columns
from reliable_spark.engine.columns import LINEAGE
from reliable_spark.engine.definition import (
    element_type,
    exceptions,
    expand_stars,
    output_schema,
    refuse_nested_star,
    refuse_unsendable,
)
from reliable_spark.engine.lineage import check_reserved
from reliable_spark.engine.operators import (
    Explode,
    FailWhen,
    Filter,
    JoinStatic,
    RunBolt,
    Transform,
    Unanchor,
    Union,
)
from reliable_spark.engine.plan import Node, check_union
from reliable_spark.engine.stateful_definition import refuse_same_state, stateful_step
from reliable_spark.engine.static_side import StaticSide, join_kind
from reliable_spark.errors import ColumnError, UsageError
from reliable_spark.grouped import GroupedFrame

if TYPE_CHECKING:
    from typing_extensions import Self


class TrackedFrame(DefinedFrame):
    """The operators of `AnchoredFrame`, which is what users see.

    Guarantee: what a method is given is checked when it is called, against the columns there are.
    """

    # ---------------------------------------------------------------------------------- rows stay as they are

    def select(self, *cols: Any) -> Self:
        """Choose or compute columns, as `DataFrame.select` does."""
        flat = cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols
        chosen = expand_stars(flat, self.columns)
        return self._project("select", lambda frame: frame.select(*chosen, *LINEAGE))

    def selectExpr(self, *expr: Any) -> Self:  # noqa: N802 - PySpark's name
        """Choose or compute columns by SQL expressions, as `DataFrame.selectExpr` does."""
        flat = expr[0] if len(expr) == 1 and isinstance(expr[0], list) else expr
        for text in flat:
            check_kind("selectExpr()", text, str, "SQL as text")
        chosen = expand_stars([F.expr(text) if text.strip() != "*" else text for text in flat], self.columns)
        return self._project("selectExpr", lambda frame: frame.select(*chosen, *LINEAGE))

    def withColumn(self, colName: str, col: Column) -> Self:  # noqa: N802, N803 - PySpark's names
        """Add or replace a column, as `DataFrame.withColumn` does."""
        return self.withColumns({colName: col})

    def withColumns(self, colsMap: dict[str, Column]) -> Self:  # noqa: N802, N803 - PySpark's names
        """Add or replace columns, as `DataFrame.withColumns` does."""
        check_kind("withColumns()", colsMap, dict, "a dict of columns by name")
        check_name("withColumn()", *colsMap)
        check_reserved(list(colsMap))
        refuse_nested_star("withColumn", *colsMap.values())
        return self._project("withColumn", lambda frame: frame.withColumns(colsMap))

    def withColumnRenamed(self, existing: str, new: str) -> Self:  # noqa: N802 - PySpark's name
        """Rename a column; one that is not there is an error, where PySpark says nothing."""
        check_name("withColumnRenamed()", new)
        self[existing]
        check_reserved([new])
        return self._project("withColumnRenamed", lambda frame: frame.withColumnRenamed(existing, new))

    def drop(self, *cols: str | Column) -> Self:
        """Drop columns."""
        for name in cols:
            if isinstance(name, str):
                self[name]
        return self._project("drop", lambda frame: frame.drop(*cols))

    # ------------------------------------------------------------------------------ rows leave, or multiply

    def where(self, condition: Column | str) -> Self:
        """Keep the rows for which the condition is true; the others are done, so acked."""
        refuse_nested_star("where", condition)
        return self._step(Filter("where", condition))

    filter = where

    def fail(self, condition: Column | str, reason: str | Column, retry: bool = True) -> Self:
        """Fail the rows for which the condition is true.

        Args:
            condition: a boolean expression.
            reason: what the ledger says about it.
            retry: False makes them dead letters at once.

        Raises:
            UsageError: `retry` is no bool.
        """
        if not isinstance(retry, bool):
            raise UsageError(f"fail(retry={retry!r}) takes True or False")
        refuse_nested_star("fail", condition, reason if isinstance(reason, Column) else "")
        return self._step(FailWhen("fail", condition, reason, retry))

    def explode(self, col: str | Column, alias: str = "col") -> Self:
        """Make one child of each element of an array column, which stays beside the new one.

        Args:
            col: an array column or expression; an empty or null array acks the row.
            alias: the name of the element column.

        Raises:
            ColumnError: it is not an array, or the alias is taken by another column.
        """
        check_kind("explode()", col, (str, Column), "an array column")
        check_name("explode(alias=...)", alias)
        check_reserved([alias])
        refuse_nested_star("explode", col)
        if alias.lower() in {name.lower() for name in self.columns}:
            raise ColumnError(f"explode(): column {alias!r} would be there twice: choose another alias")
        array = self[col] if isinstance(col, str) else col
        element = T.StructField(alias, element_type(self._empty, array, col))
        # nothing else can be wrong with it, so it need not be tried
        fields = T.StructType([*self._fields.fields, element])
        return type(self)(Node(Explode("explode", array, alias), (self._node,)), self._spark, fields)

    def join(self, other: Any, on: str | Sequence[str], how: str = "inner") -> Self:
        """Join with a static frame: k matches are k children.

        Args:
            other: a static DataFrame; read once, when the query starts.
            on: the name or names of the columns that both sides have.
            how: inner (a row without a match is done), left, semi or anti.

        Raises:
            UsageError: the other side is tracked or streaming, or the kind of join cannot be tracked.
            ColumnError: a column is missing or would be there twice.
        """
        if isinstance(other, TrackedFrame):
            raise UsageError("join() takes a static DataFrame; the other side of this one is anchored itself")
        if other.isStreaming:
            raise UsageError("join() takes a static DataFrame; the other side of this one is a stream")
        keys = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, list | tuple) else ()
        if not keys or not all(isinstance(key, str) for key in keys):
            raise UsageError("join(on=...) takes the names of the common columns: rename them alike on both sides")
        side = StaticSide(other, keys, join_kind(how))
        side.check(self._empty)
        return self._step(JoinStatic("join", side))

    def unionByName(self, other: Self, allowMissingColumns: bool = False) -> Self:  # noqa: N802, N803
        """Put the rows of another anchored frame below these, by column name."""
        if not isinstance(other, TrackedFrame):
            raise UsageError("unionByName() takes another anchored frame: call anchored() on it first")
        if not allowMissingColumns:
            check_same_columns("unionByName", self.columns, other.columns)
        check_union(self._node, other._node)
        return self._step(Union("unionByName", allowMissingColumns), other)

    def groupBy(self, *cols: Any) -> GroupedFrame[Self]:  # noqa: N802 - PySpark's name
        """Group the rows, as `DataFrame.groupBy` does; follow it by `agg` or `count`."""
        flat = cols[0] if len(cols) == 1 and isinstance(cols[0], list) else cols
        refuse_nested_star("groupBy", *flat)
        named = at_positions("groupBy", flat, self.columns)
        keys = tuple(self[each] if isinstance(each, str) else each for each in named)
        return GroupedFrame(self, keys)

    groupby = groupBy

    def agg(self, *exprs: Column) -> Self:
        """Aggregate all rows into one."""
        return self.groupBy().agg(*exprs)

    # -------------------------------------------------------------------------------------------- bolts

    def bolt(
        self,
        function: Callable[..., Any],
        schema: str | T.StructType,
        *,
        name: str | None = None,
        fatal: tuple[type[BaseException], ...] = (),
        retry: tuple[type[BaseException], ...] = (Exception,),
    ) -> Self:
        """Run a Python function on the rows.

        Guarantee: an exception fails the tuple it is about and no other.

        Args:
            function: a row function (dict-like row in; dict, iterable of dicts, generator or None out), or one
                marked `@rs.arrow` or `@rs.pandas`. A row has `attempt` and `message_id` as attributes.
            schema: the columns it returns, as DDL or a StructType; they replace those there are. A missing
                key is a failure, another one is ignored.
            name: how the ledger calls the bolt; the function's name if not given.
            fatal: exceptions that make the row a dead letter at once.
            retry: exceptions that are worth another attempt; all others are fatal.

        Raises:
            SchemaError: the schema does not parse.
            UsageError: the function cannot be sent to the workers.
        """
        if not callable(function):
            raise UsageError(f"bolt() takes a function, not {type(function).__name__}")
        declared = output_schema(schema)
        check_reserved(declared.fieldNames())
        label = str(name or getattr(function, "__name__", type(function).__name__))
        bolt = Bolt(label, function, kind_of(function), exceptions("fatal", fatal), exceptions("retry", retry))
        refuse_unsendable(label, function)
        lineage = [self._fields[column] for column in LINEAGE]  # as with an explode: it need not be tried
        fields = T.StructType([*declared.fields, *lineage])
        return type(self)(Node(RunBolt(bolt, declared), (self._node,)), self._spark, fields)

    def stateful(
        self,
        bolt: Callable[..., Any],
        *,
        key: str | Sequence[str],
        schema: str | T.StructType,
        order_by: str | Sequence[str] = (),
        name: str | None = None,
    ) -> Self:
        """Run a Python function on the rows that has a state for each key. Source: Storm's `topology/IStatefulBolt`.

        Guarantee: every acked tree is in the state once, and no other, in every delivery mode and after any crash.
        Cost: a shuffle by key, and what is changed; not what the state has grown to.

        Args:
            bolt: a function of (row, state), or an object with `init_state(state)` and `execute(row)`. Rows and
                answers are those of a row bolt; the state is the `KeyValueState` of the row's key.
            key: the column or columns whose rows share a state; null is a key.
            schema: the columns that are returned, as DDL or a StructType.
            order_by: columns in whose order the rows of a batch come.
            name: how the ledger calls the bolt, and its state's table below `state` in the ledger's directory.

        Raises:
            UsageError: a column is missing or nested, the schema does not parse, or the name is another state's.
        """
        return self._step(
            refuse_same_state(stateful_step(bolt, self.schema, (key, order_by), schema, name), self._node)
        )

    def transform(self, func: Callable[[DataFrame], DataFrame]) -> Self:
        """Apply any function from DataFrame to DataFrame that keeps the columns `_anchor` and `_tuple_id`.

        Guarantee: rows that it loses are found, and reported as `lost` with their message ids; copies of a
        row count as one. Cost: the batch is materialised and every tree is folded.

        Raises:
            UsageError: the function does not return a DataFrame that has the lineage columns.
        """
        check_kind("transform()", func, Callable, "a function of a DataFrame")  # type: ignore[arg-type]
        return self._step(Transform("transform", func))

    def unanchored(self) -> Self:
        """Stop tracking here: the rows are acked, and what becomes of them later touches no tree."""
        return self._step(Unanchor("unanchored"))
