"""A chain of frames as a bolt: what becomes of a row becomes of its tuple, on both engines."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.testing import TestTopology
from tests.topology.pieces import Does, FeedSpout, feed, keep_values

pytestmark = pytest.mark.spark


def words(frame: rs.AnchoredFrame) -> rs.AnchoredFrame:
    """Drops comments, fails what is marked, and splits the others."""
    kept = frame.where("line not like '#%'").fail("line like '!%'", "marked")
    return kept.explode(F.split("line", " "), "word").select("word", F.length("word").alias("letters"))


def topology(chain: Any, schema: str = "line string", batch_max: int = 10_000) -> rs.TopologyBuilder:
    builder = rs.TopologyBuilder()
    builder.set_spout("s", FeedSpout(["line"]))
    builder.set_bolt("words", rs.FrameBolt(chain, schema, batch_max)).shuffle_grouping("s")
    builder.set_bolt("count", Does(keep_values)).fields_grouping("words", ["word"])
    return builder


@pytest.mark.parametrize("engine", ["process", "spark"])
def test_what_becomes_of_a_row_becomes_of_its_tuple(spark: SparkSession, engine: str) -> None:
    """Dropped rows are acked, failed ones fail, and what comes out is anchored; in the order of the tuples."""
    with TestTopology(topology(words), engine=engine) as running:
        for number, line in enumerate(["to be", "# not", "! fails", "or not"]):
            running.feed("s", [line], message_id=number)
        running.settle()
        assert running.state("count") == [["to", 2], ["be", 2], ["or", 2], ["not", 3]]
        assert (sorted(running.acks("s")), running.fails("s"), running.pending("s")) == ([0, 1, 3], [2], 0)
        [error] = running.errors("words")
        assert "marked" in str(error)
        assert (running.statistics("words").executed, running.statistics("words").emitted) == (4, 4)


def test_a_full_batch_does_not_wait(spark: SparkSession) -> None:
    """Three tuples of a batch of two are two batches."""
    running = TestTopology(topology(lambda frame: frame.withColumnRenamed("line", "word"), batch_max=2))
    feed(running, "a", "b", "c")
    assert running.state("count") == [["a", 0], ["b", 1], ["c", 0]]
    running.close()


def test_a_chain_that_is_none_is_refused(spark: SparkSession) -> None:
    """When the topology is built: aggregates, and what is no frame."""
    with pytest.raises(rs.UsageError, match="cannot aggregate"):
        topology(lambda frame: frame.groupBy("line").agg(F.count("*").alias("n"))).build()
    with pytest.raises(rs.UsageError, match="gives an AnchoredFrame, not int"):
        topology(lambda frame: 1).build()


def test_without_a_session_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the topology is built, on either engine."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    with pytest.raises(rs.UsageError, match="needs a Spark session"):
        topology(words).build()


def test_it_runs_in_the_thread_of_a_running_topology(spark: SparkSession) -> None:
    """Whose active session is none: the program's is taken."""
    rows = rs.DataFrameSpout(spark.createDataFrame([(1, "a b"), (2, "!")], "id long, line string"), "id", 1)
    builder = rs.TopologyBuilder()
    builder.set_spout("s", rows)
    builder.set_bolt("words", rs.FrameBolt(words, "id long, line string")).shuffle_grouping("s")
    with rs.submit_topology("frames", builder) as running:
        running.await_idle()
        spout = running.statistics("s")
        assert (spout.acked, spout.failed, running.statistics("words").emitted) == (1, 1, 2)
