"""The ids that Catalyst computes are those of the core."""

from __future__ import annotations

from pyspark.sql import SparkSession

from reliable_spark.core import ids
from reliable_spark.engine.lineage import message_id_text, replay_id, root_id, share


def test_root_and_replay_ids_are_the_cores(spark: SparkSession) -> None:
    """A root id hashes the spout, each id column as text with nulls kept apart, and the attempt."""
    frame = spark.createDataFrame([("a", 1), (None, 2), ("", 2), ("é", None)], "x string, y int")
    anchor = root_id("spout", ["x", "y"], frame.schema)
    rooted = frame.selectExpr("*", f"{anchor} AS _anchor", "2 AS _attempt")
    for row in rooted.selectExpr("*", f"{replay_id()} AS replay").collect():
        texts = [row["x"], None if row["y"] is None else str(row["y"])]
        assert row["_anchor"] == ids.root_id("spout", texts, 1)
        assert row["replay"] == ids.replay_id(row["_anchor"], 2)


def test_shares_are_the_cores(spark: SparkSession) -> None:
    """Every share that Catalyst computes is the one that the core computes."""
    places = [(parent, index, count) for parent in (1, -7, 2**62) for count in (1, 2, 5) for index in range(count)]
    frame = spark.createDataFrame(places, "p long, i int, k int")
    for row in frame.selectExpr("*", f"{share('p', 'i', 'k')} AS share").collect():
        assert row["share"] == ids.share(row["p"], row["i"], row["k"])


def test_message_ids_of_several_columns_are_json(spark: SparkSession) -> None:
    """Several columns make one unambiguous text; only a row that is null in all of them has no id."""
    frame = spark.createDataFrame([("a", 1), (None, 2), (None, None)], "x string, y int")
    texts = [row[0] for row in frame.selectExpr(message_id_text(["x", "y"], frame.schema)).collect()]
    assert texts == ['["a","1"]', '[null,"2"]', None]
