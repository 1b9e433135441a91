"""A DataFrame as a spout: every row is answered, failed ones come again, a micro-batch ends with its last answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import reliable_spark as rs
from reliable_spark.testing import AckOnly, TestTopology
from tests.topology.pieces import Does, FeedSpout, keep_values

pytestmark = pytest.mark.spark


def frame_of(spark: SparkSession, ids: Sequence[int | None]) -> DataFrame:
    return spark.createDataFrame([(each, f"line {each}") for each in ids], "id long, line string").coalesce(1)


class FailFirst(rs.BasicBolt):
    """Fails the first attempts at id 2."""

    def __init__(self, failures: int) -> None:
        self.state: list[Any] = []
        self.failures = failures

    def execute(self, input: rs.Tuple, collector: rs.BasicOutputCollector) -> None:
        if input["id"] == 2 and self.failures:
            self.failures -= 1
            raise rs.Fail("not yet")
        self.state.append(input["line"])


def topology(spout: rs.Spout, bolt: Any, tasks: int = 1) -> rs.TopologyBuilder:
    builder = rs.TopologyBuilder()
    builder.set_spout("rows", spout, tasks)
    builder.set_bolt("bolt", bolt).shuffle_grouping("rows")
    return builder


@pytest.mark.parametrize("engine", ["process", "spark"])
def test_every_row_is_emitted_until_it_is_acked(spark: SparkSession, engine: str) -> None:
    """A row that fails comes again; all ids are acked in the end, and the topology can be run again."""
    builder = topology(rs.DataFrameSpout(frame_of(spark, [1, 2, 3, None]), "id"), FailFirst(failures=2), tasks=2)
    for _ in range(2):
        with TestTopology(builder, engine=engine) as running:
            running.settle()
            assert sorted(map(str, running.acks("rows"))) == ["(None,)", "1", "2", "3"]
            assert running.fails("rows") == [2, 2]
            assert sorted(running.state("bolt")) == ["line 1", "line 2", "line 3", "line None"]


def test_a_row_is_given_up_after_its_last_attempt(spark: SparkSession) -> None:
    """And the others are not kept from their answers."""
    builder = topology(rs.DataFrameSpout(frame_of(spark, [1, 2, 3]), "id", max_attempts=2), FailFirst(failures=9))
    with TestTopology(builder) as running:
        running.settle()
        assert (running.acks("rows"), running.fails("rows"), running.pending("rows")) == ([1, 3], [2, 2], 0)


def test_what_a_dead_task_had_out_comes_again(spark: SparkSession) -> None:
    """Nobody is told of its trees, so its rows are emitted once more, and no row is lost."""
    builder = topology(rs.DataFrameSpout(frame_of(spark, [1, 2]), ["id", "line"]), Does(keep_values))
    with TestTopology(builder, rs.Settings(max_pending=1)) as running:
        running.kill_task("rows", 0)
        running.settle()
        assert running.acks("rows") == [(1, "line 1"), (2, "line 2")]
    holding = topology(
        rs.DataFrameSpout(frame_of(spark, [1]), "id"), Does(lambda bolt, input: bolt.state.append(input))
    )
    with TestTopology(holding) as running:
        running.settle()
        running.kill_task("rows", 0)
        running.settle()
        assert [each["id"] for each in running.state("bolt")] == [1, 1]


def test_rows_with_one_id_are_different_messages(spark: SparkSession) -> None:
    """Each has its own answer; without ackers too."""
    for ackers in (1, 0):
        builder = topology(rs.DataFrameSpout(frame_of(spark, [7, 7, 7]), "id"), AckOnly())
        with TestTopology(builder, rs.Settings(ackers=ackers)) as running:
            running.settle()
            assert running.acks("rows") == [7, 7, 7]


def test_both_kinds_of_spouts_in_one_topology(spark: SparkSession) -> None:
    """Rows and fed values meet in one bolt."""
    builder = topology(rs.DataFrameSpout(frame_of(spark, [1, 2]), "id"), Does(keep_values))
    builder.set_spout("fed", FeedSpout(["id", "line"]))
    builder.set_bolt("both", Does(keep_values)).shuffle_grouping("rows").shuffle_grouping("fed")
    with TestTopology(builder) as running:
        running.feed("fed", [9, "fed"], message_id="nine")
        running.settle()
        assert sorted(running.state("both")) == [[1, "line 1"], [2, "line 2"], [9, "fed"]]
        assert (running.acks("rows"), running.acks("fed")) == ([1, 2], ["nine"])


def test_a_micro_batch_is_committed_when_its_rows_are_answered(spark: SparkSession, tmp_path: Path) -> None:
    """What was acked does not come again with the same checkpoint; what was not does."""
    source, checkpoint = str(tmp_path / "source"), str(tmp_path / "checkpoint")
    frame_of(spark, [1, 2, 3]).write.format("delta").save(source)

    def spout() -> rs.DataFrameSpout:
        return rs.DataFrameSpout(spark.readStream.format("delta").load(source), "id", checkpoint=checkpoint)

    hold = Does(lambda bolt, input: bolt.state.append(input["id"]))
    with rs.submit_topology("holding", topology(spout(), hold)) as running:
        while len(running.state("bolt")) < 3:
            pass
        running.stop(wait_s=0)
    with rs.submit_topology("acking", topology(spout(), Does(keep_values))) as running:
        while running.statistics("rows").acked < 3:
            pass
        frame_of(spark, [4]).write.format("delta").mode("append").save(source)
        while running.statistics("rows").acked < 4:  # the next micro-batch begins when Spark has committed this one
            pass
    with rs.submit_topology("going on", topology(spout(), Does(keep_values))) as running:
        frame_of(spark, [5]).write.format("delta").mode("append").save(source)
        while not any(values[0] == 5 for values in running.state("bolt")):
            pass
        assert {1, 2, 3}.isdisjoint(values[0] for values in running.state("bolt"))


def test_a_frame_that_cannot_be_read_ends_the_topology(spark: SparkSession) -> None:
    """Taking the rows before the bad one for all there are would lose the others."""
    frame = spark.range(3).selectExpr("id", "1 / (id - 1) AS line").coalesce(1)
    running = TestTopology(topology(rs.DataFrameSpout(frame, "id"), AckOnly()))
    with pytest.raises(rs.UsageError, match="DIVIDE_BY_ZERO"):
        running.settle()
    running.close()


def test_what_cannot_be_a_spout_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Each says what would be right."""
    frame = frame_of(spark, [1])
    with pytest.raises(rs.ColumnError, match="did you mean 'id'"):
        rs.DataFrameSpout(frame, "idd")
    for kind in ("array(id)", "map(id, id)", "struct(id, array(id))"):
        with pytest.raises(rs.ColumnError, match=r"column 'key' is a .*, which no message id can be"):
            rs.DataFrameSpout(frame.selectExpr(f"{kind} AS key"), "key")
    with pytest.raises(rs.UsageError, match="takes a DataFrame, not list"):
        rs.DataFrameSpout([1, 2], "id")  # type: ignore[arg-type]
    with pytest.raises(rs.UsageError, match="needs a message id"):
        rs.DataFrameSpout(frame, [])
    with pytest.raises(rs.UsageError, match="no other has one"):
        rs.DataFrameSpout(frame, "id", checkpoint=str(tmp_path))
    with pytest.raises(rs.UsageError, match="needs a checkpoint"):
        rs.DataFrameSpout(spark.readStream.format("rate").load(), "value")
