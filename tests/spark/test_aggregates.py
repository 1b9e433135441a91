"""Aggregates in a run: a barrier, so each group appears once; a bad group is led back to its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.engine.evaluation import Evaluator
from reliable_spark.engine.tracing import Tracer
from tests.spark.running import Runner, count_calls


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(20).withColumn("k", F.col("id") % 5)


def test_replayed_rows_are_counted_once_in_their_group(numbers: DataFrame, run: Runner) -> None:
    """Rows that fail twice before the aggregate are in the one row of their group."""
    frame = numbers.anchored("id").fail("id % 7 = 0 and _attempt < 3", "flaky").fail("id = 13", "dead", retry=False)
    ran = run(frame.groupBy("k").agg(F.count("*").alias("n"), F.sum("id").alias("s")))
    assert sorted(map(tuple, ran.rows.all)) == [(0, 4, 30), (1, 4, 34), (2, 4, 38), (3, 3, 29), (4, 4, 46)]
    assert ran.counts("anchored", "acked", "dead", "failed_attempts", "replayed") == (20, 19, 1, 7, 6)


def test_parts_of_a_failed_tree_do_not_reach_a_group(spark: SparkSession, run: Runner) -> None:
    """The good children of a row that ends dead are in no group; those of a replayed row are there once."""
    frame = spark.createDataFrame([(1, ["a", "b"]), (2, ["a", "bad"]), (3, ["b", "flaky"])], "id int, xs array<string>")
    exploded = frame.anchored("id").explode("xs", "x").fail("x = 'bad'", "bad", retry=False)
    ran = run(exploded.fail("x = 'flaky' and _attempt = 1", "flaky").groupBy("x").count())
    assert sorted(map(tuple, ran.rows.all)) == [("a", 1), ("b", 2), ("flaky", 1)]
    assert ran.dead == {"2": "bad"}


def test_a_group_that_fails_is_retried_as_a_group(numbers: DataFrame, run: Runner) -> None:
    """A bolt below the aggregate that fails twice for one group still emits every group once."""

    def check(row: rs.TupleRow) -> dict[str, Any]:
        if row["k"] == 3 and row.attempt < 3:
            raise ValueError("not yet")
        return dict(row)

    ran = run(numbers.anchored("id").groupBy("k").count().bolt(check, "k long, count long"))
    assert sorted(map(tuple, ran.rows.all)) == [(k, 4) for k in range(5)]
    assert ran.counts("anchored", "acked", "dead", "failed_attempts", "replayed") == (20, 20, 0, 8, 8)


def test_the_rows_of_a_dead_group_are_dead(numbers: DataFrame, run: Runner) -> None:
    """A group that cannot be saved takes exactly its own inputs with it."""

    def check(row: rs.TupleRow) -> dict[str, Any]:
        if row["k"] == 2:
            raise rs.Fail("bad group", retry=False)
        return dict(row)

    ran = run(numbers.anchored("id").groupBy("k").count().bolt(check, "k long, count long"))
    assert ran.dead == dict.fromkeys(["2", "7", "12", "17"], "bad group")
    assert ran.counts("anchored", "acked", "dead", "emitted") == (20, 16, 4, 4)


def test_a_dead_group_of_groups_is_led_back_through_both(numbers: DataFrame, run: Runner) -> None:
    """With two aggregates in a row the dead rows are those of the groups of the dead group."""
    grouped = numbers.anchored("id").groupBy("k").agg(F.sum("id").alias("s"))
    twice = grouped.groupBy((F.col("s") % 4).alias("m")).agg(F.count("*").alias("n"))
    ran = run(twice.fail("m = 2", "bad", retry=False))
    sums = {k: sum(n for n in range(20) if n % 5 == k) for k in range(5)}
    doomed = {str(n) for n in range(20) if sums[n % 5] % 4 == 2}
    assert set(ran.dead) == doomed
    assert ran.counts("anchored", "dead") == (20, len(doomed))


def test_null_and_nested_keys_are_groups_too(spark: SparkSession, run: Runner) -> None:
    """A null key is a group of its own and is led back like any other."""
    frame = spark.createDataFrame([(1, None), (2, "a"), (3, None)], "id int, k string")
    ran = run(frame.anchored("id").groupBy("k").count().fail("k is null", "null key", retry=False))
    assert ran.dead == {"1": "null key", "3": "null key"}
    assert ran.counts("acked", "dead", "emitted") == (1, 2, 1)


@pytest.mark.parametrize("ackers", [None, 0])
def test_rows_that_all_leave_before_an_aggregate_are_counted(
    numbers: DataFrame, run: Runner, ackers: int | None
) -> None:
    """Spark cuts an aggregate of nothing out of the plan, with all that was observed below: still all are acked."""
    ran = run(numbers.anchored("id").where("id < 0").groupBy("k").count(), ackers=ackers)
    assert ran.counts("anchored", "acked", "dead", "emitted") == (20, 20, 0, 0)


def test_rows_that_all_fail_before_an_aggregate_are_dead(numbers: DataFrame, run: Runner) -> None:
    """The same when all of them fail: their failures are not lost with the plan."""
    ran = run(numbers.anchored("id").fail("true", "all", retry=False).groupBy("k").count())
    assert ran.counts("anchored", "acked", "dead") == (20, 0, 20)


def test_failures_above_an_aggregate_cost_one_more_evaluation(
    numbers: DataFrame, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails as it did before is answered by evaluating the batch again, once per attempt, never tree by tree."""
    traced: list[Any] = []
    monkeypatch.setattr(Tracer, "trace", lambda tracer, batch: traced.append(batch))
    evaluated = count_calls(monkeypatch, Evaluator, "once")
    ran = run(numbers.anchored("id").fail("id % 7 = 0 and _attempt < 3", "flaky").groupBy("k").count())
    assert sorted(map(tuple, ran.rows.all)) == [(k, 4) for k in range(5)]
    assert ran.counts("acked", "failed_attempts", "replayed") == (20, 6, 6)
    assert (len(evaluated), traced) == (3, [])


def test_a_row_that_fails_only_in_a_later_evaluation_is_counted_once(
    numbers: DataFrame, run: Runner, tmp_path: Path
) -> None:
    """Rows that come out differently each time cannot be answered at once: they are told apart tree by tree."""

    def moody(row: rs.TupleRow) -> dict[str, Any]:
        if row["id"] == 3 and row.attempt == 1:
            raise ValueError("the first time")
        mark = tmp_path / f"seen-{row['id']}"
        if row["id"] == 5 and mark.exists() and not (tmp_path / "raised").exists():
            (tmp_path / "raised").touch()
            raise ValueError("the second time")
        mark.touch()
        return dict(row)

    ran = run(numbers.anchored("id").bolt(moody, "id long, k long").groupBy("k").count())
    assert sorted(map(tuple, ran.rows.all)) == [(k, 4) for k in range(5)]
    assert ran.counts("acked", "dead") == (20, 0)


@pytest.mark.parametrize(
    ("rows", "condition", "dead"),
    [
        ("(1, array(1, NULL)), (2, array(1)), (3, array(1, NULL))", "size(k) = 2", {"1", "3"}),
        ("(1, named_struct('a', 1, 'b', NULL)), (2, named_struct('a', NULL, 'b', 1))", "k.a = 1", {"1"}),
        ("(1, array(array(false))), (2, array(array(), array(), array()))", "size(k) = 3", {"2"}),
        ("(1, 0D), (2, -0D), (3, double('NaN')), (4, double('NaN'))", "k = 0", {"1", "2"}),
        ("(1, array(0D)), (2, array(-0D)), (3, array(double('NaN')))", "k[0] = 0", {"1", "2"}),
    ],
)
def test_a_dead_group_takes_the_rows_that_spark_put_into_it(
    spark: SparkSession, run: Runner, rows: str, condition: str, dead: set[str]
) -> None:
    """Whatever Spark takes for one key: nulls inside, parts that could be read otherwise, both zeros."""
    frame = spark.sql(f"SELECT * FROM VALUES {rows} AS t(id, k)")
    groups = frame.groupBy("k").count().where(f"NOT coalesce({condition}, false)").count()
    ran = run(frame.anchored("id").groupBy("k").count().fail(condition, "bad", retry=False))
    assert set(ran.dead) == dead
    assert ran.counts("acked", "emitted") == (frame.count() - len(dead), groups)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("'a' COLLATE UTF8_LCASE", "collation UTF8_LCASE.* group by lower"),
        ("array('a ' COLLATE UTF8_BINARY_RTRIM)", "collation UTF8_BINARY_RTRIM"),
        ("map('a', 1)", "holds a map.* group by to_json"),
    ],
)
def test_a_key_that_cannot_be_led_back_is_refused(spark: SparkSession, key: str, said: str) -> None:
    """Rows of a dead group would be taken for acked."""
    frame = spark.range(1).selectExpr("id", f"{key} AS k").anchored("id")
    with pytest.raises(rs.UsageError, match=said):
        frame.groupBy("k").count()


def test_a_key_may_be_a_position_of_the_users_columns(spark: SparkSession, run: Runner) -> None:
    """As in PySpark, from 1; the lineage columns, which stand among them, are not counted."""
    plain = spark.createDataFrame([(1, [5, 6]), (2, [6])], "id int, xs array<int>")
    frame = plain.anchored("id").explode("xs", "x").drop("xs").groupBy(2).agg(F.count("*").alias("n"))
    ran = run(frame)
    assert frame.columns == ["x", "n"]
    assert sorted(map(tuple, ran.rows.all)) == [(5, 1), (6, 2)]
