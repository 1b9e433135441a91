"""What rows hold and what bolts return, whatever it is: it is given to the bolt, or its own row fails."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

import reliable_spark as rs
from tests.spark.running import Runner


@pytest.mark.parametrize("is_last", [True, False])
def test_a_null_inside_of_what_is_not_null_fails_its_row(spark: SparkSession, run: Runner, is_last: bool) -> None:
    """A null in an array of NOT NULL elements is about its row, not about the batch."""
    numbers = T.ArrayType(T.IntegerType(), containsNull=False)
    schema = T.StructType([T.StructField("id", T.LongType()), T.StructField("a", numbers)])
    frame = (
        spark.range(4).anchored("id").bolt(lambda r: {"id": r["id"], "a": [1, None] if r["id"] == 2 else [1]}, schema)
    )
    ran = run(frame if is_last else frame.where("id >= 0"), max_attempts=1)
    assert ran.counts("anchored", "acked", "dead") == (4, 3, 1)
    assert ran.dead == {"2": "column 'a[]' is declared NOT NULL, but the bolt returned null"}
    assert sorted(tuple(row) for row in ran.rows.all) == [(0, [1]), (1, [1]), (3, [1])]


def by_row(row: Any) -> Any:
    return {"id": row["id"], "c.d": row["a.b"] + row["`*"]}


@rs.arrow
def by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"id": batch["id"], "c.d": pc.add(batch["a.b"], batch["`*"])})


@rs.pandas
def by_pandas(frame: Any) -> Any:
    return frame.assign(**{"c.d": frame["a.b"] + frame["`*"]})


def with_state(row: Any, state: Any) -> Any:
    return by_row(row)


@pytest.mark.parametrize("bolt", [by_row, by_arrow, by_pandas, with_state])
def test_a_column_may_have_any_name(spark: SparkSession, run: Runner, bolt: Any) -> None:
    """Dots, backticks and stars in a column's name are nothing but letters to a bolt, in what it gets and returns."""
    numbers = spark.range(3).selectExpr("id", "struct(9 AS b) AS a", "id * 10 AS `a.b`", "1L AS ```*`")
    frame = numbers.anchored("id")
    schema = "id long, `c.d` long"
    made = frame.stateful(bolt, key="a.b", schema=schema) if bolt is with_state else frame.bolt(bolt, schema)
    ran = run(made)
    again = made.bolt(lambda row: {"id": row["id"], "e.f": row["c.d"]}, "id long, `e.f` long")
    assert sorted(tuple(row) for row in ran.rows.all) == [(0, 1), (1, 11), (2, 21)]
    assert ran.counts("anchored", "acked") == (3, 3)
    assert again.columns == ["id", "e.f"]


def test_a_column_of_any_name_comes_through_several_bolts(spark: SparkSession, run: Runner) -> None:
    """Rows with such names fail, are replayed and answered as others are."""

    def once_failing(row: Any) -> Any:
        if row["id"] == 1 and row.attempt == 1:
            raise ValueError("at first")
        return by_row(row)

    frame = spark.range(3).selectExpr("id", "id * 10 AS `a.b`", "1L AS ```*`").anchored("id")
    first = frame.bolt(once_failing, "id long, `c.d` long")
    ran = run(first.bolt(lambda row: {"id": row["id"], "e`f": row["c.d"]}, "id long, `e``f` long"))
    assert sorted(tuple(row) for row in ran.rows.all) == [(0, 1), (1, 11), (2, 21)]
    assert ran.counts("anchored", "acked", "replayed") == (3, 3, 1)


@pytest.mark.parametrize("bolt", [lambda row: {"id": row["id"]}, lambda row, state: {"id": row["id"]}])
def test_a_value_that_python_cannot_represent_fails_its_row(spark: SparkSession, run: Runner, bolt: Any) -> None:
    """A timestamp that Spark knows and Python does not is about its row."""
    times = spark.range(4).selectExpr("id", "timestamp_seconds(id * 126701150400) AS at", "map(struct(id), id) AS m")
    frame = times.anchored("id")
    is_plain = bolt.__code__.co_argcount == 1
    ran = run(
        frame.bolt(bolt, "id long") if is_plain else frame.stateful(bolt, key="id", schema="id long"), max_attempts=1
    )
    assert ran.counts("anchored", "acked", "dead") == (4, 2, 2)
    assert set(ran.dead) == {"2", "3"}
    assert all("column 'at' holds what Python cannot represent" in error for error in ran.dead.values())
