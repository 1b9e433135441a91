"""Every operator gives the rows that plain Spark gives, and every source row is acked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.engine.evaluation import Evaluator
from tests.spark.running import Runner, count_calls


@pytest.fixture
def lines(spark: SparkSession) -> DataFrame:
    rows = [(1, "a b c", 0), (2, "", 1), (3, None, 1), (4, "b b", 2), (5, "z", None), (6, "a z", 0)]
    return spark.createDataFrame(rows, "id long, line string, k int")


@pytest.fixture
def static(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(0, "x"), (0, "y"), (1, "z"), (9, "w"), (None, "n")], "k int, v string")


def words() -> Any:
    return F.filter(F.split("line", " "), lambda word: word != "")


Same = Callable[[Any], Any]

SAME: dict[str, Same] = {
    "select": lambda df: df.select("id", F.upper("line").alias("u")),
    "select star": lambda df: df.select("*", F.lit(1).alias("one")),
    "select list": lambda df: df.select(["id", "k"]),
    "selectExpr": lambda df: df.selectExpr("*", "id * 2 as twice"),
    "withColumn": lambda df: df.withColumn("id2", F.col("id") + 1).withColumn("id", F.col("id") * 10),
    "withColumns": lambda df: df.withColumns({"a": F.lit(1), "b": F.col("k")}),
    "withColumnRenamed": lambda df: df.withColumnRenamed("line", "text"),
    "drop": lambda df: df.drop("line", "k"),
    "where": lambda df: df.where("k < 1"),
    "where column": lambda df: df.where(F.col("k") > 0).filter("id > 2"),
    "where udf": lambda df: df.where(F.udf(lambda k: k is not None and k > 0, "boolean")("k")),
    "window after where": lambda df: df.where("k >= 0").withColumn(
        "n", F.row_number().over(Window.orderBy(F.col("id").desc()))
    ),
    "udf after where": lambda df: df.where("line is not null").withColumn(
        "n", F.udf(lambda line: len(line.strip()), "int")("line")
    ),
    "aggregate after where": lambda df: (
        df.where("k >= 0")
        .groupBy("k")
        .agg(F.count("*").alias("n"), F.countDistinct("line").alias("d"), F.collect_list("id").alias("ids"))
    ),
    "aggregate of everything": lambda df: df.groupBy().agg(F.sum("id").alias("s")),
    "aggregate of an aggregate": lambda df: (
        df.groupBy("k").agg(F.count("*").alias("n")).groupBy("n").agg(F.count("*").alias("m"))
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_an_operator_gives_what_plain_spark_gives(
    name: str, lines: DataFrame, run: Runner, spark: SparkSession
) -> None:
    """The rows are those of the same call on the plain DataFrame; all source rows are acked."""
    ran = run(SAME[name](lines.anchored("id")))
    expected = SAME[name](lines)
    assert_df_equality(ran.rows.frame(spark), expected, ignore_row_order=True, ignore_nullable=True)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts") == (6, 6, 0, 0)


@pytest.mark.parametrize("how", ["inner", "left", "left_outer", "semi", "leftanti"])
def test_a_join_gives_what_plain_spark_gives(
    how: str, lines: DataFrame, static: DataFrame, run: Runner, spark: SparkSession
) -> None:
    """No, one or several matches, null keys on both sides: the rows and columns are plain Spark's."""
    ran = run(lines.anchored("id").join(static, "k", how))
    assert_df_equality(ran.rows.frame(spark), lines.join(static, "k", how), ignore_row_order=True, ignore_nullable=True)
    assert ran.counts("anchored", "acked", "lost") == (6, 6, 0)


def test_explode_makes_a_child_of_each_element(lines: DataFrame, run: Runner, spark: SparkSession) -> None:
    """The array stays beside the element; a row without elements is acked."""
    split = lines.withColumn("words", words())
    ran = run(split.anchored("id").explode("words", "word"))
    expected = split.select("*", F.explode("words").alias("word"))
    assert_df_equality(ran.rows.frame(spark), expected, ignore_row_order=True, ignore_nullable=True)
    assert ran.counts("anchored", "acked", "emitted") == (6, 6, 8)


def test_explode_takes_an_expression_and_nests(spark: SparkSession, run: Runner) -> None:
    """Shares of shares still add up: an explode of an explode acks every row."""
    frame = spark.createDataFrame(
        [(1, [[1, 2], [3]]), (2, [[], None, [4]]), (3, None)], "id int, xss array<array<int>>"
    )
    ran = run(frame.anchored("id").explode("xss", "xs").explode(F.col("xs"), "x").select("id", "x"))
    assert sorted(map(tuple, ran.rows.all)) == [(1, 1), (1, 2), (1, 3), (2, 4)]
    assert ran.counts("anchored", "acked") == (3, 3)


def test_a_frame_may_branch_and_come_together(lines: DataFrame, run: Runner) -> None:
    """A frame that two others read gives each its own share: a row is acked when both are done."""
    frame = lines.anchored("id")
    ran = run(frame.where("id < 4").select("id").unionByName(frame.where("id % 2 = 0").select("id")))
    assert sorted(row["id"] for row in ran.rows.all) == [1, 2, 2, 3, 4, 6]
    assert ran.counts("anchored", "acked", "lost") == (6, 6, 0)


def test_a_failure_in_one_branch_fails_the_tree(lines: DataFrame, run: Runner) -> None:
    """With two branches a row is acked only if both are."""
    frame = lines.anchored("id")
    ran = run(frame.select("id").unionByName(frame.fail("id = 3", "branch", retry=False).select("id")))
    assert ran.dead == {"3": "branch"}
    assert ran.counts("anchored", "acked", "dead") == (6, 5, 1)


def test_two_sources_keep_their_trees_apart(lines: DataFrame, spark: SparkSession, run: Runner) -> None:
    """Equal ids of two spouts are two trees; the payload has the columns of both."""
    other = spark.createDataFrame([(1, "other"), (2, "bad")], "id long, note string").anchored("id", spout="notes")
    failing = other.fail("note = 'bad'", "bad note", retry=False)
    frame = lines.anchored("id", spout="lines").unionByName(failing, allowMissingColumns=True)
    ran = run(frame)
    assert ran.counts("anchored", "acked", "dead") == (8, 7, 1)
    (letter,) = ran.outcome.dead_letters().collect()
    assert (letter["spout"], letter["message_id"], letter["payload"]["note"]) == ("notes", "2", "bad")


def test_unanchored_rows_touch_no_tree(lines: DataFrame, run: Runner) -> None:
    """What follows `unanchored` is not tracked: its failures fail nothing."""

    def bad(row: rs.TupleRow) -> None:
        raise ValueError("not tracked")

    ran = run(lines.anchored("id").unanchored().bolt(bad, "id long"))
    assert ran.counts("anchored", "acked", "dead", "emitted") == (6, 6, 0, 0)


def test_without_ackers_every_row_counts_as_acked(lines: DataFrame, run: Runner) -> None:
    """`ackers=0` tracks nothing: failures are not answered."""
    ran = run(lines.anchored("id").fail("id = 1", "ignored"), ackers=0)
    assert ran.counts("anchored", "acked", "dead", "emitted") == (6, 6, 0, 5)


def test_columns_with_dots_and_spaces_are_kept(spark: SparkSession, run: Runner) -> None:
    """Names are resolved as Spark resolves them."""
    frame = spark.createDataFrame([(1, 2)], "`my.id` int, `a b` int")
    ran = run(
        frame.anchored("my.id").where("`a b` = 2").withColumn("c", F.col("`my.id`")).select("my.id", "*"[:0] + "c")
    )
    assert [row.asDict() for row in ran.rows.all] == [{"my.id": 1, "c": 1}]


def test_one_clean_batch_is_one_evaluation(lines: DataFrame, run: Runner, spark: SparkSession) -> None:
    """No operator makes Spark evaluate the rows twice."""
    evaluations = spark.sparkContext.accumulator(0)

    def counted(row: rs.TupleRow) -> dict[str, Any]:
        evaluations.add(1)
        return dict(row)

    frame = lines.anchored("id").bolt(counted, "id long, line string, k int").where("id > 1")
    run(frame.explode(words(), "word"))
    assert evaluations.value == 6


def test_a_text_that_is_null_has_no_words(spark: SparkSession, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """split() gives a word for any text, so only such a row makes Spark look again; from then on it is expected."""
    evaluated = count_calls(monkeypatch, Evaluator, "once")
    frame = spark.createDataFrame([(1, "a b"), (2, None), (3, None)], "id int, line string")
    ran = run(frame.anchored("id").explode(F.split("line", " "), "word"))
    assert sorted(row["word"] for row in ran.rows.all) == ["a", "b"]
    assert ran.counts("anchored", "acked", "emitted") == (3, 3, 2)
    assert len(evaluated) == 2


@pytest.mark.parametrize(
    ("left", "static"),
    [("bigint", "string"), ("string", "bigint"), ("double", "bigint"), ("date", "timestamp"), ("string", "date")],
)
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
def test_a_join_of_keys_that_spark_would_make_equal_is_refused(
    spark: SparkSession, left: str, static: str, how: str
) -> None:
    """Matches are numbered by the static side's own values: '1' and '01' are two of them and one number."""
    rows, others = (spark.range(1).selectExpr(f"CAST(NULL AS {kind}) AS k", "id") for kind in (left, static))
    with pytest.raises(rs.ColumnError, match=rf"join\(\): key 'k' is {left} on the left and {static} on the static"):
        rows.anchored("id").join(others.withColumnRenamed("id", "other"), "k", how)


@pytest.mark.parametrize(("left", "static"), [("int", "bigint"), ("bigint", "double"), ("timestamp", "date")])
def test_a_join_of_keys_that_spark_keeps_apart_gives_what_plain_spark_gives(
    spark: SparkSession, run: Runner, left: str, static: str
) -> None:
    """A narrower number, or a day for a time, is compared as itself."""
    number = "date_from_unix_date(int(id))" if static == "date" else "id"
    rows = spark.range(6).selectExpr("id", f"CAST({number} AS {left}) AS k")
    others = spark.range(2, 8).union(spark.range(4, 5)).selectExpr(f"CAST({number} AS {static}) AS k", "id AS other")
    ran = run(rows.anchored("id").join(others, "k"))
    assert sorted(row["other"] for row in ran.rows.all) == [2, 3, 4, 4, 5]
    assert ran.counts("acked", "lost") == (6, 0)


def test_a_transform_may_keep_the_two_ids_only(spark: SparkSession, run: Runner) -> None:
    """What follows does without the message id and the attempt."""
    frame = spark.range(3).anchored("id").transform(lambda rows: rows.select("id", "_anchor", "_tuple_id"))
    ran = run(frame.select("id").bolt(lambda row: {"id": row["id"], "attempt": row.attempt}, "id long, attempt int"))
    assert sorted(map(tuple, ran.rows.all)) == [(0, None), (1, None), (2, None)]
    assert ran.counts("acked", "lost") == (3, 0)


def test_a_number_that_a_spout_is_given_is_never_another_ones_name(spark: SparkSession, run: Runner) -> None:
    """Two spouts of one name are told apart by a number, and a third one may be called just that."""
    names = ["a", "a", "a-2", "a"]
    first, *others = (rs.anchored(spark.range(10 * n, 10 * n + 2), "id", spout=name) for n, name in enumerate(names))
    for other in others:
        first = first.unionByName(other)
    assert run(first).counts("anchored", "acked", "emitted") == (8, 8, 8)
