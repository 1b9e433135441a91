"""Rows for which Catalyst raises are marked, exactly they; all else is as it is without the guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.sql import Column, DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F

from reliable_spark.engine.guard import RAISED, guarded
from reliable_spark.engine.lineage import column

WAYS_TO_EVALUATE = {
    "whole stage": {"spark.sql.codegen.wholeStage": "true"},
    "compiled": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"},
    "interpreted": {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
}
POISON = {
    10: "cast('x' as int)",
    120: "1 / (id - 120)",
    230: "from_json('{', 'a int', map('mode', 'FAILFAST')).a",
    340: "array(1, 2)[id]",
    450: "raise_error('no')",
    560: "9223372036854775807 + id",
    670: "length(cast(map(id, 1, id, 2) as string))",
}


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Some SQL settings, for a while."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Twenty numbers as texts, of which those of 3, 10 and 17 are none."""
    text = "case when id % 7 = 3 then 'x' else cast(id as string) end"
    return spark.range(20).selectExpr("id", f"{text} as text").localCheckpoint()


def guard(before: DataFrame, after: DataFrame) -> DataFrame:
    frame = guarded(before, after)
    assert frame is not None
    return frame


def marked(frame: DataFrame) -> list[int]:
    return sorted(row.id for row in frame.where(RAISED).collect())


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().optimizedPlan().toString())


@pytest.mark.parametrize("way", WAYS_TO_EVALUATE)
def test_exactly_the_poisoned_rows_are_marked(spark: SparkSession, way: str) -> None:
    """Of 1,000 rows 7 raise, each in another way: they keep their lineage, the others have the values they have."""
    ids = "id as _anchor", "id * 3 as _tuple_id", "1 as _attempt", "cast(id as string) as _message_id"
    before = spark.range(0, 1000, 1, 3).selectExpr("id", *ids, f"id in ({','.join(map(str, POISON))}) as poison")
    before = before.localCheckpoint()
    one_of = F.expr(" ".join(["case id", *(f"when {key} then {value}" for key, value in POISON.items()), "end"]))
    after = before.withColumns(
        {
            "doubled": F.col("id") * 2,
            "one_of": one_of,
            "inverse": F.expr("1000 / (id - 120)"),
            "inverse_again": F.expr("1000 / (id - 120) + cast(if(id = 10, 'x', '1') as int)"),
            "nested": F.expr("array(named_struct('a', id, 'b', array(cast(id as string))), null)"),
            "keyed": F.expr("map(id, cast(id as decimal(20, 2)))"),
        }
    )
    with settings(spark, WAYS_TO_EVALUATE[way]):
        frame = guard(before, after).localCheckpoint()
        expected = after.where("not poison").collect()
    assert marked(frame) == sorted(POISON)
    assert frame.where(f"not {RAISED}").drop(RAISED).collect() == expected
    lineage = frame.where(RAISED).select("id", "_anchor", "_tuple_id", "_attempt", "_message_id").orderBy("id")
    assert [tuple(row) for row in lineage.collect()] == [(key, key, key * 3, 1, str(key)) for key in sorted(POISON)]


@pytest.mark.parametrize("way", WAYS_TO_EVALUATE)
@pytest.mark.parametrize(
    "repeated",
    [
        ("cast(text as int) + 1", "cast(text as int) + 2"),
        ("nullif(cast(text as int), 3)", "cast(text as int) between 2 and 9"),
        ("if(cast(text as int) > 3, cast(text as int), 0)", "coalesce(cast(text as int), cast(text as int) + 1)"),
        ("transform(array(text), t -> cast(t as int) + cast(t as int))", "size(array(cast(text as int)))"),
    ],
)
def test_what_expressions_share_is_not_computed_ahead_of_the_guard(
    rows: DataFrame, spark: SparkSession, way: str, repeated: tuple[str, str]
) -> None:
    """Spark computes a shared subexpression first: here it stays where what it raises is caught."""
    with settings(spark, WAYS_TO_EVALUATE[way]):
        assert marked(guard(rows, rows.selectExpr("id", *repeated))) == [3, 10, 17]


def test_marks_of_several_projections_add_up(rows: DataFrame) -> None:
    """A row is marked by whichever projection it raises in, and what was computed below may be null above."""
    below = rows.withColumn("number", F.expr("cast(text as int)"))
    after = below.withColumn("inverse", F.expr("1 / (number - 4) + number")).drop("text").withColumn("one", F.lit(1))
    frame = guard(rows, after)
    assert frame.columns == [*after.columns, RAISED]
    assert marked(frame) == [3, 4, 10, 17]
    kept = frame.where(f"not {RAISED}").drop(RAISED).collect()
    assert kept == after.where("id not in (3, 4, 10, 17)").collect()
    assert frame.where("id in (3, 4)").select("number").collect() == [(None,), (4,)]


@pytest.mark.parametrize("way", WAYS_TO_EVALUATE)
def test_what_was_never_null_may_be_null_for_a_raised_row(rows: DataFrame, spark: SparkSession, way: str) -> None:
    """Code that was compiled for values that are never null does not meet the nulls of a raised row."""
    below = rows.withColumn("never", F.expr("concat(cast(id + 9223372036854775800 as string), '!')"))
    after = below.withColumn("twice", F.concat("never", "never")).withColumn("size", F.expr("length(twice)"))
    assert not after.schema["twice"].nullable
    with settings(spark, WAYS_TO_EVALUATE[way]):
        frame = guard(rows, after)
        assert frame.schema["never"].nullable
        assert frame.schema["twice"].nullable
        assert not frame.schema["id"].nullable
        assert not frame.schema[RAISED].nullable
        assert marked(frame) == list(range(8, 20))
        assert frame.where(RAISED).select("never", "twice", "size").distinct().collect() == [(None, None, None)]


def test_columns_are_called_as_they_were(rows: DataFrame) -> None:
    """Names, order, types, metadata and qualifiers are those of the frame without a guard; names may repeat."""
    renamed = rows.select(
        F.col("text").alias("a.b", metadata={"about": "text"}),
        "id",
        "id",
        F.expr("cast(text as int)").alias("number", metadata={"about": "number"}),
        F.lit("same").alias("constant"),
        F.struct("id", F.array("text").alias("texts")).alias("nested"),
    )
    after = renamed.select("*", F.col("number").alias("number")).alias("t")
    frame = guard(rows, after)
    assert frame.columns == [*after.columns, RAISED]
    for was, is_now in zip(after.schema, frame.schema, strict=False):
        assert (was.name, was.dataType, was.metadata) == (is_now.name, is_now.dataType, is_now.metadata)
    assert frame.where(f"not {RAISED}").select("t.nested.texts").count() == 17
    assert frame.select(column("a.b")).first() == ("0",)


def test_frames_without_computed_columns_have_no_raised_rows(rows: DataFrame) -> None:
    """Selecting, renaming, adding a constant, or nothing at all: every row is there, none is marked."""
    for after in (rows, rows.alias("t"), rows.select("text", F.lit(1)), rows.withColumnRenamed("id", "key")):
        frame = guard(rows, after)
        assert frame.columns == [*after.columns, RAISED]
        assert frame.where(f"not {RAISED}").drop(RAISED).collect() == after.collect()


def test_each_row_is_computed_once(rows: DataFrame) -> None:
    """Neither a filter on the mark, nor one on a value, nor a later projection repeats the computation."""
    frame = guard(rows, rows.withColumn("number", F.expr("cast(text as int)")))
    used = frame.where(f"not {RAISED}").where("number > 3").selectExpr("id", "number * number as square", RAISED)
    assert plan(used).count("tryeval(") == 1
    assert sorted(row.id for row in used.collect()) == [id for id in range(4, 20) if id % 7 != 3]
    joined = frame.where(f"not {RAISED}").join(frame.where(RAISED).select("id"), "id")
    assert joined.count() == 0


def test_independent_projections_become_one(rows: DataFrame) -> None:
    """Sixty calls of withColumn cost one guard, as they cost one projection without."""
    after = rows
    for number in range(60):
        after = after.withColumn(f"c{number}", F.expr(f"cast(text as int) + {number}"))
    frame = guard(rows, after)
    assert plan(frame).count("tryeval(") == 1
    assert marked(frame) == [3, 10, 17]


def test_observed_before_the_marked_rows_are_let_go(rows: DataFrame) -> None:
    """An observation sees the marked rows, the filter above it removes them, and the rest is as ever."""
    after = rows.select("id", F.expr("cast(text as int)").alias("number"))
    seen = Observation()
    observed = guard(rows, after).observe(
        seen, F.count(F.lit(1)).alias("rows"), F.sum(F.when(column(RAISED), F.col("id"))).alias("raised")
    )
    result = observed.where(~column(RAISED)).drop(RAISED).withColumn("square", F.expr("number * number"))
    kept = result.localCheckpoint()
    assert seen.get == {"rows": 20, "raised": 30}
    assert sorted(kept.collect()) == [(id, id, id * id) for id in range(20) if id % 7 != 3]


@pytest.mark.parametrize("width", [90, 200])
def test_wide_projections(rows: DataFrame, width: int) -> None:
    """Neither side of the width above which Spark stops compiling whole stages loses the guard."""
    after = rows.select("id", *(F.expr(f"cast(text as int) + {number}").alias(f"c{number}") for number in range(width)))
    frame = guard(rows, after).localCheckpoint()
    assert marked(frame) == [3, 10, 17]
    assert frame.where(f"not {RAISED}").drop(RAISED).collect() == after.where("id % 7 != 3").collect()


def test_a_constant_that_raises_marks_every_row(rows: DataFrame) -> None:
    """Spark fails such a frame before it runs; guarded, it is an error of each row."""
    frame = guard(rows, rows.withColumn("number", F.expr("cast('x' as int)")))
    assert marked(frame) == list(range(20))


def test_what_no_column_comes_from_is_not_computed(rows: DataFrame) -> None:
    """A column that is dropped again marks nothing, as it fails nothing without a guard."""
    after = rows.withColumn("number", F.expr("cast(text as int)")).withColumn("text", F.lit("")).drop("number")
    assert marked(guard(rows, after)) == []


def test_drawn_numbers_do_not_depend_on_who_raises(rows: DataFrame) -> None:
    """Numbers that are drawn row by row are those of the frame without the column that raises."""
    drawn = (F.monotonically_increasing_id().alias("counted"), F.rand(3).alias("random"))
    frame = guard(rows, rows.select("id", F.expr("cast(text as int)").alias("number"), *drawn))
    expected = [row for row in rows.select("id", *drawn).collect() if row.id % 7 != 3]
    assert frame.where(f"not {RAISED}").select("id", "counted", "random").collect() == expected


def test_rows_that_the_driver_holds(spark: SparkSession) -> None:
    """A projection that Spark evaluates while it plans is guarded there."""
    before = spark.sql("select * from values (1, '1'), (2, 'x') as rows(id, text)")
    frame = guard(before, before.withColumn("number", F.expr("cast(text as int) + cast(text as int)")))
    assert frame.collect() == [(1, "1", 2, False), (2, "x", None, True)]


def _python(frame: DataFrame) -> DataFrame:
    return frame.withColumn("one", F.udf(lambda text: 1, "int")("text") + 1)


NOT_GUARDED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "python": _python,
    "python below": lambda frame: _python(frame).withColumn("two", F.expr("one + one")),
    "window": lambda frame: frame.withColumn("n", F.row_number().over(Window.orderBy("id"))),
    "generator": lambda frame: frame.select("id", F.explode(F.array("text"))),
    "aggregate": lambda frame: frame.groupBy("id").agg(F.max("text")),
    "subquery": lambda frame: frame.withColumn("most", F.expr("(select max(id) from range(3))")),
    "filter": lambda frame: frame.where("id > 3").withColumn("n", F.expr("id + 1")),
    "limit": lambda frame: frame.withColumn("n", F.expr("id + 1")).limit(3),
    "another frame": lambda frame: frame.sparkSession.range(3).withColumn("n", F.expr("id + 1")),
}


@pytest.mark.parametrize("what", NOT_GUARDED)
def test_what_cannot_be_guarded(rows: DataFrame, what: str) -> None:
    """Anything but projections of Catalyst's own is refused by giving None."""
    assert guarded(rows, NOT_GUARDED[what](rows)) is None


def test_a_function_of_the_user_that_is_dropped_again_is_no_obstacle(rows: DataFrame) -> None:
    """What is not computed cannot be what is not guarded."""
    kept: Column = F.expr("cast(text as int)").alias("number")
    assert marked(guard(rows, _python(rows).select("id", kept))) == [3, 10, 17]
