"""Checks at definition time: every step is tried on an empty frame, and what Spark says is put in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from pyspark import cloudpickle
from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from reliable_spark.engine.columns import ANCHOR, TUPLE_ID
from reliable_spark.engine.context import EvaluationContext
from reliable_spark.engine.exits import PlainExits
from reliable_spark.engine.lineage import check_reserved, column, repeated, user_columns
from reliable_spark.engine.operators import Operator, Projection
from reliable_spark.engine.quiet import quiet
from reliable_spark.errors import ColumnError, ReliableSparkError, SchemaError, UsageError, nearest

_TRIGGERS: Final = ("availableNow", "once", "processingTime")
_PERIOD: Final = re.compile(
    r"(interval\s+)?(\s*\d+(\.\d+)?\s+((micro|milli)?second|minute|hour|day|week)s?)+", re.IGNORECASE
)
_NESTED_STAR: Final = re.compile(r"(?<=[(,])\s*\*\s*(?=[,)])")
_COUNT_STAR: Final = re.compile(r"count\(\s*\*\s*\)", re.IGNORECASE)
_NAMES_IN_ERRORS: Final = ("objectName", "colName", "fieldName")
_MISSING_GROUP_BY: Final = ("MISSING_GROUP_BY", "MISSING_AGGREGATION")


def tried(operator: Operator, inputs: Sequence[DataFrame]) -> DataFrame:
    """Apply a step to empty frames: Spark analyses it, and nothing runs."""
    context = EvaluationContext(PlainExits(), None, {}, numbered=False)
    return operator.apply(inputs, context, 0)


def defined(operator: Operator, inputs: Sequence[DataFrame]) -> T.StructType:
    """Try a step, and check what comes out of it.

    Args:
        operator: the step.
        inputs: empty frames with the columns that it gets.

    Returns:
        The columns that it gives.

    Raises:
        ColumnError: a column cannot be resolved, is reserved, or would be there twice.
        UsageError: Spark refuses it, or the rows could not be tracked after it.
    """
    result = analysed(operator.name, user_columns(inputs[0]), lambda: tried(operator, inputs))
    refuse_generators(operator, result)
    missing = [name for name in (ANCHOR, TUPLE_ID) if name not in result.columns]
    if missing:
        raise UsageError(f"{operator.name}(): the result has no column {missing[0]!r}; keep the lineage columns")
    check_reserved(user_columns(result))
    twice = repeated(result.columns)
    if twice:
        raise ColumnError(f"{operator.name}(): column {twice!r} would be there twice: rename one of them")
    return result.schema


def element_type(frame: DataFrame, array: Column, given: object) -> T.DataType:
    """The type of an array's elements.

    Raises:
        ColumnError: the expression is no array; it is named as it was given.
    """
    kind = analysed("explode", user_columns(frame), lambda: frame.select(array.alias("array"))).schema[0].dataType
    if not isinstance(kind, T.ArrayType):
        raise ColumnError(f"explode(): {given!r} is a {kind.simpleString()}, not an array")
    return kind.elementType


def exceptions(name: str, given: Any) -> tuple[type[BaseException], ...]:
    """Read an argument of `bolt` that takes exception classes.

    Raises:
        UsageError: one of them is something else.
    """
    classes = given if isinstance(given, tuple | list) else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise UsageError(f"bolt({name}=...) takes exception classes, not {each!r}")
    return tuple(classes)


def analysed(doing: str, columns: Sequence[str], build: Callable[[], DataFrame]) -> DataFrame:
    """Build a frame and turn Spark's complaint into an error that names the column and the nearest valid one.

    Args:
        doing: the method that was called.
        columns: the columns there are.
        build: makes the frame.

    Raises:
        ColumnError: a column cannot be resolved.
        UsageError: anything else that Spark's analyser refuses.
    """
    try:
        with quiet():
            frame = build()
        frame.columns  # noqa: B018 - Connect analyses only when asked
    except ParseException as error:
        raise UsageError(f"{doing}(): the expression does not parse: {_first_line(error)}") from error
    except AnalysisException as error:
        raise _plain(doing, columns, error) from error
    except ReliableSparkError:
        raise
    except PySparkException as error:
        raise UsageError(f"{doing}(): {_first_line(error)}") from error
    return frame


def _plain(doing: str, columns: Sequence[str], error: AnalysisException) -> ReliableSparkError:
    condition = error.getCondition() or ""
    if condition.startswith(("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD")):
        said = error.getMessageParameters() or {}
        name = next((said[key] for key in _NAMES_IN_ERRORS if key in said), "").replace("`", "")
        return ColumnError(f"{doing}(): there is no column {name!r}{nearest(name, columns)}")
    if condition.startswith(_MISSING_GROUP_BY):
        return UsageError(f"{doing}(): an aggregate cannot be tracked here: use groupBy().agg() or agg()")
    return UsageError(f"{doing}(): {_first_line(error)}")


def no_attribute(name: str, columns: Sequence[str], attributes: Sequence[str]) -> str:
    """What to say about a method or column that an anchored frame does not have."""
    if hasattr(DataFrame, name):
        return (
            f"an anchored frame has no {name!r}, since its rows could not be tracked; "
            f"use transform(lambda df: df.{name}(...)) and what it loses is found"
        )
    methods = (each for each in attributes if not each.startswith("_"))
    return f"an anchored frame has no method or column {name!r}{nearest(name, [*columns, *methods])}"


def refuse_generators(operator: Operator, tried_frame: DataFrame) -> None:
    """Refuse a projection that multiplies rows, since its copies would all carry the same id.

    Raises:
        UsageError: the projection holds explode() or another generator.
    """
    if not isinstance(operator, Projection) or not hasattr(tried_frame, "_jdf"):
        return
    plan = tried_frame._jdf.queryExecution().analyzed().toString()
    if "Generate " in plan:
        raise UsageError(
            f"{operator.name}(): a generator such as F.explode makes several rows of one and cannot be tracked "
            "here: use the frame's own explode()"
        )


def expand_stars(cols: Sequence[Any], columns: Sequence[str]) -> list[Any]:
    """Replace `*` by the user's columns, so that the lineage columns are not selected with them.

    Raises:
        UsageError: a star stands inside an expression, where it cannot be replaced.
    """
    expanded: list[Any] = []
    for each in cols:
        text = each if isinstance(each, str) else _text(each)
        if text == "*":
            expanded += [column(name) for name in columns]
            continue
        refuse_nested_star("select", each)
        expanded.append(column_of(each, columns))
    return expanded


def refuse_nested_star(doing: str, *expressions: Any) -> None:
    """Refuse a star inside an expression, where it would take the lineage columns along.

    Raises:
        UsageError: there is one; `count(*)` is none.
    """
    for each in expressions:
        text = each if isinstance(each, str) else _text(each)
        if _NESTED_STAR.search(_COUNT_STAR.sub("", text)):
            raise UsageError(f"{doing}(): the star in {text!r} would take the lineage columns along: name the columns")


def column_of(each: Any, columns: Sequence[str]) -> Any:
    """A column given by name or as an expression; a name that is exactly a column's may hold dots."""
    return column(each) if isinstance(each, str) and each in columns else each


def _text(col: Any) -> str:
    match = re.fullmatch(r"Column<'(.*)'>", str(col), re.DOTALL)
    return match.group(1) if match else ""


def refuse_unsendable(bolt: str, function: object) -> None:
    """Refuse a function that holds what cannot be pickled.

    Raises:
        UsageError: it does; the bolt and the reason are in the message.
    """
    try:
        cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise UsageError(
            f"bolt {bolt!r} cannot be sent to the workers: {_first_line(error)}; make connections and locks within it"
        ) from error


def output_schema(schema: str | T.StructType) -> T.StructType:
    """Read a bolt's declared columns.

    Raises:
        SchemaError: the text is no DDL, there are no columns, one is there twice, or of a type that Arrow lacks.
    """
    if isinstance(schema, str):
        try:
            parsed = cast(T.StructType, T.StructType.fromDDL(schema))
        except PySparkException as error:
            raise SchemaError(f"bolt(): the schema {schema!r} does not parse: {_first_line(error)}") from error
    elif isinstance(schema, T.StructType):
        parsed = schema
    else:
        raise SchemaError(f"bolt(): a schema is a DDL string or a StructType, not {type(schema).__name__}")
    twice = repeated(parsed.fieldNames())
    if not parsed.fields or twice:
        problem = f"has column {twice!r} twice" if twice else "has no columns"
        raise SchemaError(f"bolt(): the schema {schema!r} {problem}")
    try:
        to_arrow_schema(parsed, timezone="UTC")
    except PySparkException as error:
        raise SchemaError(f"bolt(): the schema {schema!r} cannot be used: {_first_line(error)}") from error
    return parsed


def trigger_options(trigger: dict[str, Any] | str | None) -> dict[str, Any]:
    """Read a trigger as PySpark's keyword arguments.

    Raises:
        UsageError: it is neither a dict, a text nor None, or none that a stream of micro-batches can have.
    """
    if trigger is None:
        return {}
    if isinstance(trigger, str):
        name = trigger.replace("_", "").replace("-", "").replace(" ", "").lower()
        trigger = {"availableNow": True} if name in ("availablenow", "once") else {"processingTime": trigger}
    if not isinstance(trigger, dict):
        raise UsageError(f"a trigger is a dict, a processing time or 'availableNow', not {type(trigger).__name__}")
    for name in trigger:
        if name not in _TRIGGERS:
            raise UsageError(f"there is no trigger {name!r}{nearest(str(name), _TRIGGERS)}")
    given = {name: value for name, value in trigger.items() if value is not None and value is not False}
    period = given.get("processingTime", "0 seconds")
    if len(given) != 1 or not isinstance(period, str) or not _PERIOD.fullmatch(period):
        raise UsageError(f"the trigger {trigger!r} is neither a processing time such as '5 seconds' nor 'availableNow'")
    return given


def empty(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """An empty frame with this schema, made in a fraction of the time that `createDataFrame` takes."""
    if not hasattr(spark, "_jsparkSession"):
        return spark.createDataFrame([], schema)
    classic: Any = spark
    java = classic._jsparkSession
    return DataFrame(java.createDataFrame(classic._jvm.java.util.ArrayList(), java.parseDataType(schema.json())), spark)


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else type(error).__name__
