"""Find the rows for which Catalyst itself raises, such as a failed cast, instead of losing the whole job to one.

Guarantee: a guarded frame does not fail because of what a projection computes from a row. The row stays, is
marked, and keeps every column that was only handed on. What a row does not raise for is computed as ever.

The columns that one projection computes become one struct below Catalyst's own `TryEval`, which turns any
`java.lang.Exception` into a null; the struct has no other reason to be null. Two things keep it in its place:

* It stands in one branch of an `if`. Spark computes what several expressions share once, ahead of them all, and
  so outside of the `TryEval` that was to catch it; from a branch that might not be taken nothing is moved out.
* The condition of that `if` is not deterministic for Spark, although it always holds. So no rule copies the
  struct, into a filter for one, and each row is computed once; and no later filter comes before it, not even
  one that a scan could have used to skip rows.

An `Error`, such as a stack overflow in a regular expression or a heap that is full, is not caught: it is about
the process, not about the row, and Spark ends the executor for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

RAISED: Final = "__rs_raised"
"""The column that marks the rows for which an expression raised."""

_TRIED: Final = "__rs_tried"

_NOT_GUARDED: Final = ("PYTHON_UDF", "WINDOW_EXPRESSION", "GENERATOR", "AGGREGATE_EXPRESSION", "PLAN_EXPRESSION")
"""Spark's names for what is not computed from one row inside the projection: it is moved to a node of its own."""


def guarded(before: DataFrame, after: DataFrame) -> DataFrame | None:
    """Mark, instead of failing for it, each row that the projections between two frames raise for.

    Args:
        before: the rows as they come in; what computes them is not guarded.
        after: `before` with projections on top: select, withColumn, drop and the like.

    Returns:
        A frame with the columns of `after` and with RAISED, which is never null: true where one of the computed
        columns raised. There, the columns handed on from `before` are as they were, and others may be null; so
        every computed column is nullable. Columns that are computed on the way, but that no column of `after`
        comes from, are not computed. An expression that is constant and raises, which fails an unguarded frame
        before it runs, raises for every row.

        None when something else than projections is between the two, or when one of them holds what cannot be
        guarded: a Python function, a window, a generator, an aggregate or a subquery.
    """
    assert RAISED not in after.columns, "guarded already"
    if not hasattr(after, "_jdf"):
        return None
    start, end = (frame._jdf.queryExecution().analyzed() for frame in (before, after))
    projections = _between(start, end)
    if projections is None:
        return None
    catalyst = _Catalyst(after)
    steps = catalyst.merged(projections, start.output())
    if any(catalyst.holds_unguarded(step) for step in steps):
        return None
    plan, raised = start, None
    for step in steps:
        outputs = end.output() if step is steps[-1] else step.output()
        plan = catalyst.guarded(step, plan, raised, outputs)
        raised = plan.output().last()
    return catalyst.frame(plan if steps else catalyst.marked(start, end.output(), None, None))


def _between(start: Any, end: Any) -> list[Any] | None:
    """The projections that lead from one analysed plan to another, first to last."""
    found: list[Any] = []
    while not end.fastEquals(start):
        kind = end.nodeName()
        if kind == "Project":
            found.insert(0, end)
        elif kind != "SubqueryAlias":
            return None
        end = end.child()
    return found


class _Catalyst:
    """Builds Catalyst's own expressions and plans.

    Args:
        frame: any frame of the session.
    """

    def __init__(self, frame: DataFrame) -> None:
        self._spark = frame.sparkSession
        java: Any = self._spark._jvm
        self._seq, self._option = java.PythonUtils.toSeq, java.scala.Option
        self._classic = java.org.apache.spark.sql.classic
        self._types = java.org.apache.spark.sql.types.DataTypes
        self._text = java.org.apache.spark.unsafe.types.UTF8String.fromString
        catalyst = java.org.apache.spark.sql.catalyst
        self._is, self._rules = catalyst.expressions, catalyst.optimizer
        self._plans, self._patterns = catalyst.plans.logical, catalyst.trees.TreePattern

    def frame(self, plan: Any) -> DataFrame:
        """The frame of a logical plan."""
        return DataFrame(self._classic.Dataset.ofRows(self._spark._jsparkSession, plan), self._spark)

    def merged(self, projections: Sequence[Any], inputs: Any) -> list[Any]:
        """As few projections as compute the same without computing anything twice, first to last.

        These are the rules by which Spark would drop and merge them too, had they not been guarded before.
        """
        leaf = self._plans.LocalRelation(inputs, self._seq([]), False, self._option.empty())
        plan = leaf
        for projection in projections:
            plan = self._plans.Project(projection.projectList(), plan)
        found = _between(leaf, self._rules.CollapseProject.apply(self._rules.ColumnPruning.apply(plan)))
        assert found is not None, "projections of projections are projections"
        return found

    def holds_unguarded(self, projection: Any) -> bool:
        """Tell whether a projection computes something that no `TryEval` could evaluate."""
        patterns = self._seq([getattr(self._patterns, name)() for name in _NOT_GUARDED])
        computed = [item.child() for item in _items(projection.projectList()) if not _is_handed_on(item)]
        together = self._is.CreateArray(self._seq(computed), False)  # never evaluated: one question for all
        return bool(together.containsAnyPattern(patterns))

    def guarded(self, projection: Any, child: Any, raised: Any, outputs: Any) -> Any:
        """The plan of one guarded projection; its last column is RAISED.

        Args:
            projection: what to compute.
            child: the plan below.
            raised: the column that marks what was raised below, or None.
            outputs: the columns as they are to be called.
        """
        items, names = _items(projection.projectList()), _items(outputs)
        computed = [index for index, item in enumerate(items) if not _is_handed_on(item)]
        # what draws numbers does so before anything can raise, so that no row changes the numbers of the next
        computed.sort(key=lambda index: bool(items[index].child().deterministic()))
        columns = [item for index, item in enumerate(items) if index not in set(computed)]
        tried = self._alias(self._tried([items[index].child() for index in computed]), _TRIED) if computed else None
        plan = self._project([*columns, *filter(None, (tried, raised))], child)
        struct = tried.toAttribute() if tried is not None else None
        for position, index in enumerate(computed):
            field = self._is.GetStructField(struct, position, self._option.empty())
            names[index] = self._alias(field, names[index].name(), names[index])
        return self.marked(plan, self._seq(names), struct, raised)

    def marked(self, child: Any, columns: Any, struct: Any, raised: Any) -> Any:
        """These columns and RAISED: whether the struct is null, or what is marked already.

        Args:
            child: the plan below.
            columns: the columns besides RAISED.
            struct: null where this projection raised; or None when it computes nothing.
            raised: the column that marks what was raised below, or None.
        """
        raised_here = self._is.IsNull(struct) if struct is not None else self._literal(False, self._types.BooleanType)
        mark = raised_here if raised is None else self._is.Or(raised, raised_here)
        return self._project([*_items(columns), self._alias(mark, RAISED)], child)

    def _tried(self, computed: list[Any]) -> Any:
        """A struct of the values, or null if one of them raises."""
        fields: list[Any] = []
        for position, value in enumerate(computed):
            fields += [self._literal(self._text(str(position)), self._types.StringType), value]
        struct = self._is.CreateNamedStruct(self._seq(fields))
        always = self._is.GreaterThanOrEqual(self._is.SparkPartitionID(), self._literal(0, self._types.IntegerType))
        return self._is.If(always, self._is.TryEval(struct), self._literal(None, struct.dataType()))

    def _project(self, columns: list[Any], child: Any) -> Any:
        return self._plans.Project(self._seq(columns), child)

    def _literal(self, value: Any, data_type: Any) -> Any:
        return self._is.Literal(value, data_type)

    def _alias(self, value: Any, name: str, like: Any = None) -> Any:
        """A column of this name, known to other plans by the same id as the column that it is like."""
        nothing = self._seq([])
        if like is None:
            return self._is.Alias(
                value, name, self._is.NamedExpression.newExprId(), nothing, self._option.empty(), nothing
            )
        metadata = self._option.apply(like.metadata())
        return self._is.Alias(value, name, like.exprId(), like.qualifier(), metadata, nothing)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


def _is_handed_on(item: Any) -> bool:
    """Tell whether a column is only handed on: as it is, under another name, or the same for all rows."""
    if item.nodeName() == "Alias":
        item = item.child()
    return item.nodeName() in ("AttributeReference", "Literal")
