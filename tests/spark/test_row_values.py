"""What rows hold and what bolts return, whatever it is: it is given to the bolt, or its own row fails."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

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
