"""Checks at definition time of a bolt with a state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import types as T

from reliable_spark.bolts import Bolt, kind_of
from reliable_spark.engine.definition import output_schema
from reliable_spark.engine.lineage import check_reserved, plain_columns
from reliable_spark.engine.plan import Node, stateful_steps
from reliable_spark.engine.stateful import Stateful
from reliable_spark.errors import UsageError

Names = str | Sequence[str]


def stateful_step(
    bolt: Callable[..., Any],
    columns: T.StructType,
    by: tuple[Names, Names],
    schema: str | T.StructType,
    name: str | None,
) -> Stateful:
    """Check what `stateful` was given.

    Args:
        bolt: a function, or an object that is given its state.
        columns: what there is.
        by: the key, and the order of the rows of a batch.
        schema: what the bolt returns.
        name: the bolt's name; its own if None.

    Raises:
        ColumnError: a column is missing, or a key column is nested.
        SchemaError: the schema does not parse.
        UsageError: there is no key, or the bolt cannot be called.
    """
    if not hasattr(bolt, "init_state") and not callable(bolt):
        raise UsageError(
            "stateful() takes a function of (row, state), or an object with init_state(state) and execute(row), "
            f"not {type(bolt).__name__}"
        )
    if kind_of(bolt) != "row":
        raise UsageError("stateful() takes rows one by one: a bolt marked @rs.arrow or @rs.pandas has no state")
    key, order_by = (tuple([each] if isinstance(each, str) else each) for each in by)
    if not key:
        raise UsageError("stateful() needs a key: the columns whose rows share a state")
    declared = output_schema(schema)
    check_reserved(declared.fieldNames())
    names = plain_columns(columns, key, "stateful", "a key is made")
    kept_by = ", ".join(f"{each.lower()} {columns[each].dataType.simpleString()}" for each in names)
    label = str(name or getattr(bolt, "__name__", type(bolt).__name__))
    return Stateful(
        Bolt(label, bolt, "row"),
        names,
        declared,
        plain_columns(columns, order_by, "stateful", "an order is made"),
        kept_by,
    )


def refuse_same_state(step: Stateful, node: Node) -> Stateful:
    """Refuse a second state of the same name.

    Returns:
        The step.

    Raises:
        UsageError: both bolts would write to one table.
    """
    if any(step.name == other.name for other in stateful_steps(node)):
        raise UsageError(f"stateful(): there is a state of the name {step.name!r} already: choose another with name=")
    return step
