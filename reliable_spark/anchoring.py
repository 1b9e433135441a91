"""`anchored`, as a function and as a method of every DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyspark.sql
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from reliable_spark.engine.arguments import check_name
from reliable_spark.engine.batch import Source
from reliable_spark.engine.columns import ANCHOR, ATTEMPT, MESSAGE_ID, TUPLE_ID
from reliable_spark.engine.lineage import check_message_id, check_reserved, repeated
from reliable_spark.engine.plan import Node, Spout
from reliable_spark.errors import ColumnError, UsageError
from reliable_spark.frame import AnchoredFrame

_LINEAGE_FIELDS = [
    T.StructField(ANCHOR, T.LongType()),
    T.StructField(TUPLE_ID, T.LongType()),
    T.StructField(ATTEMPT, T.IntegerType()),
    T.StructField(MESSAGE_ID, T.StringType()),
]


def anchored(df: Any, message_id: str | Sequence[str], *, spout: str = "spout") -> AnchoredFrame:
    """Track every row of a DataFrame until everything derived from it is done.

    Guarantee: each row is answered once, acked or dead. Rows with the same message id in one batch are told
    apart and each gets its own answer; a row without one (null in every id column) is dead at once.

    Args:
        df: a static or streaming DataFrame.
        message_id: the column, or the columns, that identify a row, such as ["topic", "partition", "offset"].
        spout: how the ledger calls the source.

    Raises:
        ColumnError: an id column is missing, or a column's name is reserved.
        SchemaError: a column has a type that the ledger cannot store.

    Cost: one hash per row. Source: Storm's spout emitting with a message id.
    """
    if isinstance(df, AnchoredFrame):
        raise UsageError("anchored(): the frame is anchored already")
    if not isinstance(df, DataFrame):
        raise UsageError(f"anchored() takes a DataFrame, not {type(df).__name__}")
    check_reserved(df.columns)
    twice = repeated(df.columns)
    if twice:
        raise ColumnError(f"anchored(): the frame has column {twice!r} twice: rename one of them")
    names = (message_id,) if isinstance(message_id, str) else message_id
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError("anchored() takes the name of a message id column, or a list of names")
    check_name("anchored(spout=...)", spout)
    origin = Spout(spout, df, check_message_id(df.schema, names))
    Source.of([origin]).payload_arrow()
    schema = T.StructType([*df.schema.fields, *_LINEAGE_FIELDS])
    return AnchoredFrame(Node(origin), df.sparkSession, schema)


def register() -> None:
    """Make `anchored` a method of `pyspark.sql.DataFrame`, the parent of classic and Connect frames.

    Raises:
        UsageError: somebody else has put a method of that name there.
    """
    there = pyspark.sql.DataFrame.__dict__.get("anchored")
    if there is not None and getattr(there, "__module__", "") != __name__:
        raise UsageError("pyspark.sql.DataFrame has a method 'anchored' already, which is not reliable_spark's")
    pyspark.sql.DataFrame.anchored = anchored  # type: ignore[attr-defined]
