"""Roots that the workers of a bolt count: no report may go missing unseen, and no row either."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.engine.bolt_run import WorkerReports
from reliable_spark.engine.jobs import Stages
from reliable_spark.engine.reports import AddUp, Numbered, Report, Roots
from reliable_spark.engine.tracing import Tracer
from tests.spark.running import Runner, count_calls

ROWS, PARTITIONS = 40, 4


@pytest.fixture
def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, PARTITIONS)


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": 2 * row["id"]}


def test_a_bolt_that_reads_a_spout_needs_no_observation(
    numbers: DataFrame, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers count the roots, so nothing is counted in the JVM; the rows are all there."""
    observations = count_calls(monkeypatch, Observation, "__init__")
    traced = count_calls(monkeypatch, Tracer, "trace")
    ran = run(rs.anchored(numbers, "id").bolt(doubled, "id long"))
    assert ran.counts("anchored", "acked", "emitted", "pending") == (ROWS, ROWS, ROWS, 0)
    assert sorted(row["id"] for row in ran.rows.all) == [2 * number for number in range(ROWS)]
    assert not observations
    assert not traced


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("lost", ["a report", "the end of a task"])
def test_a_report_that_spark_could_not_deliver_is_missed(
    numbers: DataFrame, run: Runner, monkeypatch: pytest.MonkeyPatch, lost: str, is_last: bool
) -> None:
    """Without it the rest would balance; so the roots are counted by Spark then, and every one has its answer."""
    add = AddUp.addInPlace
    observations = count_calls(monkeypatch, Observation, "__init__")

    def lossy(self: AddUp, value1: Numbered, value2: Numbered) -> Numbered:
        is_lost = any((task := next(iter(report.roots.tasks), None)) and task[1] == 2 for report in value2.values())
        if is_lost and lost == "a report":
            return value1
        if is_lost:
            value2 = {number: Report(each.made, each.xor, each.failures, Roots()) for number, each in value2.items()}
        return add(self, value1, value2)

    monkeypatch.setattr(AddUp, "addInPlace", lossy)
    frame = rs.anchored(numbers, "id").bolt(doubled, "id long")
    ran = run(frame if is_last else frame.withColumn("half", F.expr("id / 2")))
    # the roots and those without an id; behind a bolt that is not the last one the leaves are observed, too, each time
    assert len(observations) == (2 if is_last else 4)
    assert ran.counts("anchored", "acked", "emitted", "pending") == (ROWS, ROWS, ROWS, 0)


def test_rows_without_an_id_never_reach_the_bolt(spark: SparkSession, run: Runner, tmp_path: Path) -> None:
    """They are dead letters; the bolt sees the others, once each."""
    seen = tmp_path / "seen"
    seen.mkdir()

    def bolt(row: dict[str, Any]) -> dict[str, Any]:
        (seen / str(row["id"])).touch(exist_ok=True)
        return {"id": row["id"]}

    rows = spark.createDataFrame([(1, "a"), (None, "b"), (3, "c"), (None, "d")], "id long, text string")
    ran = run(rs.anchored(rows, "id").bolt(bolt, "id long"))
    assert ran.counts("anchored", "acked", "dead", "emitted") == (4, 2, 2, 2)
    assert {path.name for path in seen.iterdir()} == {"1", "3"}
    assert ran.dead == {None: "the row has no message id: every id column is null"}


def test_the_roots_of_two_spouts_are_observed(numbers: DataFrame, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bolts share a stage, of which each has some of the tasks only."""
    observations = count_calls(monkeypatch, Observation, "__init__")
    left = rs.anchored(numbers, "id", spout="left").bolt(doubled, "id long")
    right = rs.anchored(numbers.where("id < 10"), "id", spout="right").bolt(doubled, "id long")
    ran = run(left.unionByName(right))
    assert ran.counts("anchored", "acked", "emitted", "pending") == (ROWS + 10, ROWS + 10, ROWS + 10, 0)
    assert len(observations) == 3


@pytest.mark.parametrize("has_tasks", [True, False])
def test_no_rows_are_no_doubt(
    numbers: DataFrame, run: Runner, monkeypatch: pytest.MonkeyPatch, has_tasks: bool
) -> None:
    """A frame without partitions has no tasks that could tell something."""
    observations = count_calls(monkeypatch, Observation, "__init__")
    nothing = numbers.where("id < 0") if has_tasks else numbers.where("false")
    ran = run(rs.anchored(nothing, "id").bolt(doubled, "id long"))
    assert ran.counts("anchored", "emitted", "pending") == (0, 0, 0)
    assert not observations


@pytest.fixture
def ended(numbers: DataFrame) -> Stages:
    """A job of four tasks that has ended, and what it is remembered by."""
    with Stages(numbers.sparkSession) as stages:
        numbers.write.format("noop").mode("overwrite").save()
    return stages


def test_every_task_of_a_stage_has_to_tell_once(ended: Stages) -> None:
    """One that is missing, one that told twice, one of another stage and an unknown stage are no proof."""
    (stages,) = ended._stages_of_jobs or []
    (stage,) = stages
    everyone = Counter({(stage, partition): 1 for partition in range(PARTITIONS)})
    assert ended.have_all_told(everyone)
    assert not ended.have_all_told(everyone - Counter({(stage, 3): 1}))
    assert not ended.have_all_told(everyone + Counter({(stage, 3): 1}))
    assert not ended.have_all_told(everyone + Counter({(stage + 1, 0): 1}))
    assert not ended.have_all_told(Counter({(stage + 1, partition): 1 for partition in range(PARTITIONS)}))
    assert not ended.have_all_told(Counter())
    assert not ended.any_ran_twice()


def test_a_job_without_tasks_has_nothing_to_tell(numbers: DataFrame) -> None:
    """There is nobody who could have."""
    with Stages(numbers.sparkSession) as stages:
        numbers.where("false").localCheckpoint()
    assert stages.have_all_told(Counter())
    assert not stages.have_all_told(Counter({(0, 0): 1}))


def test_reports_of_one_evaluation_are_taken_once(spark: SparkSession) -> None:
    """Nothing of it stays for the next."""
    reports = WorkerReports(spark)
    reports._accumulator.add({0: Report(made=2)})
    assert reports.take(0) == Report(made=2)
    assert reports.take(0) == Report()
