"""An executor is killed in the middle of a run on a cluster: every row still gets one answer, and the sink is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet

from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.counts import Counts
from tests.cluster.job import FEW
from tests.cluster.running import ROOT, WORKERS, Cluster, Event, Executor, Submitted, is_alive

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

ROWS = 400_000
FEWER_ROWS = 8_000
FILES = 8
GROUPS = 997
ANY_GROUP = 500

IDS = np.arange(ROWS)
PARENTS = np.repeat(IDS, IDS % 4)  # rows 0, 4, 8, ... have no element, rows 3, 7, 11, ... have three
ELEMENTS = (PARENTS * 7 + np.arange(len(PARENTS))) % GROUPS


def write_rows(directory: Path, rows: int) -> None:
    """Write the first rows; the last one is in the smallest file, which Spark starts last."""
    directory.mkdir()
    offsets = np.concatenate([[0], np.cumsum(IDS % 4)])
    elements = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(ELEMENTS))
    table = pa.table({"id": pa.array(IDS), "elements": elements}).slice(0, rows)
    rows_per_file = rows // FILES + rows // 400
    for number in range(FILES):
        parquet.write_table(table.slice(number * rows_per_file, rows_per_file), directory / f"{number}.parquet")


def submit(cluster: Cluster, directory: Path, case: str, gated: list[int], rows: int = ROWS) -> Submitted:
    write_rows(directory / "rows", rows)
    (directory / "gate").mkdir()
    arguments = [f"--input={directory / 'rows'}", f"--output={directory}", f"--gate={directory / 'gate'}"]
    return cluster.submit(directory, [case, *arguments, *(f"--gate-at={row}" for row in gated)])


def arrived(directory: Path) -> dict[int, int]:
    """The rows at the gate, and the Python workers that have come there with them."""
    names = [path.name.split("-") for path in (directory / "gate").glob("arrived-*")]
    return {int(row): int(pid) for _, row, pid in names}


def kill_at_gate(job: Submitted, directory: Path, gated: list[int]) -> Executor:
    """Kill the executor that waits with the last of the rows; open when Spark has missed and replaced it."""
    driver = job.driver
    driver.wait_for("the rows at the gate", lambda: arrived(directory).keys() == set(gated))
    executor = Executor.above(arrived(directory)[gated[-1]])
    os.kill(executor.pid, signal.SIGKILL)
    driver.wait_for("the executor's end", lambda: not is_alive(executor.pid))
    removed = driver.wait_for("the executor's removal", lambda: job.events("ExecutorRemoved"))
    assert [event["Executor ID"] for event in removed] == [executor.executor_id]
    driver.wait_for("another executor", lambda: len(job.events("ExecutorAdded")) == WORKERS + 1)
    (directory / "gate" / "go").touch()
    return executor


def check_ended(job: Submitted, directory: Path, right: Counts) -> None:
    """The job and the command line are content, and every count is that of an undisturbed run."""
    assert job.driver.exit_code() == 0, job.driver.log.read_text()
    audited = subprocess.run(
        [Path(sys.executable).with_name("reliable-spark"), "audit", directory / "ledger", "--json"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert audited.returncode == 0, audited.stderr
    balance = {"anchored": right.anchored, "acked": right.acked, "dead": right.dead, "pending": 0, "balanced": True}
    assert json.loads(audited.stdout) == balance
    assert audit(str(directory / "ledger")) == right


def table(directory: Path, name: str, order: str) -> Any:
    return DeltaTable(str(directory / name)).to_pandas().sort_values(order)


def right_of_bolt(rows: int) -> Counts:
    """The counts of so many rows through the bolt that doubles."""
    dead, flaky = rows // 1000, rows // 100
    return Counts(
        anchored=rows,
        acked=rows - dead,
        dead=dead,
        failed_attempts=dead + flaky,
        replayed=flaky,
        emitted=rows - dead,
    )


def check_doubled(directory: Path, rows: int) -> None:
    """What has come out of the bolt that doubles: every row once, in the sink or among the dead letters."""
    ids = IDS[:rows]
    is_dead = ids % 1000 == 13
    sink = table(directory, "sink", "id")
    assert np.array_equal(sink.id, ids[~is_dead])
    assert np.array_equal(sink.doubled, 2 * ids[~is_dead])
    letters = table(directory, "ledger/dead_letters", "anchor")
    assert sorted(map(int, letters.message_id)) == ids[is_dead].tolist()


def run_by(executor: Executor, tasks: list[Event]) -> list[Event]:
    return [task for task in tasks if task["Task Info"]["Executor ID"] == executor.executor_id]


def partitions(tasks: list[Event]) -> list[int]:
    return sorted(task["Task Info"]["Index"] for task in tasks)


def test_an_executor_lost_in_a_narrow_stage_costs_its_task_another_attempt_and_no_row_its_answer(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Failures, replays and dead letters count once, and one checksum proves it, as in an undisturbed run."""
    right = right_of_bolt(ROWS)
    with submit(cluster, tmp_path, "bolt", [ROWS - 1]) as job:
        executor = kill_at_gate(job, tmp_path, [ROWS - 1])
        check_ended(job, tmp_path, right)

    check_doubled(tmp_path, ROWS)
    assert list(table(tmp_path, "ledger/batches", "batch_id").checksum_ok) == [True, True]  # the rows, the replays

    (lost,) = job.tasks("ExecutorLostFailure")
    stage = [task for task in job.tasks("Success") if task["Stage ID"] == lost["Stage ID"]]
    assert run_by(executor, [lost])
    assert run_by(executor, stage), "it had finished nothing before"
    assert partitions(stage) == list(range(FILES))
    again = [task for task in stage if partitions([task]) == partitions([lost])]
    assert [task["Task Info"]["Attempt"] for task in again] == [1]


def test_an_executor_lost_with_its_map_output_costs_the_map_stage_another_attempt_and_no_row_its_answer(
    cluster: Cluster, tmp_path: Path
) -> None:
    """What was observed below the shuffle counts rows twice, so it is not believed; evaluated again, all is proved."""
    with submit(cluster, tmp_path, "shuffle", [ANY_GROUP]) as job:
        executor = kill_at_gate(job, tmp_path, [ANY_GROUP])
        check_ended(job, tmp_path, Counts(anchored=ROWS, acked=ROWS, emitted=GROUPS))

    sink = table(tmp_path, "sink", "element")
    ids = np.zeros(GROUPS, dtype=np.int64)
    np.add.at(ids, ELEMENTS, PARENTS)
    assert np.array_equal(sink.element, np.arange(GROUPS))
    assert np.array_equal(sink["count"], np.bincount(ELEMENTS))
    assert np.array_equal(sink.ids, ids)
    assert list(table(tmp_path, "ledger/batches", "batch_id").checksum_ok) == [True]

    (reduce_stage,) = {task["Stage ID"] for task in job.tasks("FetchFailed")}
    map_again, reduce_again = stages(job, lambda stage: stage["Stage Attempt ID"] > 0)
    assert reduce_again["Stage ID"] == reduce_stage
    # its first attempt was in a job of its own, and there the same stage has another number
    (mapped,) = stages(job, lambda stage: stage["Stage Attempt ID"] == 0 and rdd(stage) == rdd(map_again))
    lost = run_by(executor, [task for task in job.tasks("Success") if task["Stage ID"] == mapped["Stage ID"]])
    assert lost, "it had no map output"
    ran_again = [task for task in job.tasks("Success") if task["Stage ID"] == map_again["Stage ID"]]
    assert len(ran_again) == map_again["Number of Tasks"] == len(lost)


def test_map_tasks_that_run_again_within_one_stage_attempt_count_no_row_twice(cluster: Cluster, tmp_path: Path) -> None:
    """No fetch fails and no stage is retried; the rows of the lost map outputs left below the shuffle, twice."""
    # row 0 keeps one executor; the other one comes to the last row only after the task that it has begun with
    gated = [0, FEWER_ROWS - 1]
    with submit(cluster, tmp_path, "filter", gated, FEWER_ROWS) as job:
        executor = kill_at_gate(job, tmp_path, gated)
        check_ended(job, tmp_path, Counts(anchored=FEWER_ROWS, acked=FEWER_ROWS, emitted=FEW))

    sink = table(tmp_path, "sink", "passed")
    assert np.array_equal(sink.passed, np.arange(FEW))
    assert (sink["count"] == 1).all()
    assert list(table(tmp_path, "ledger/batches", "batch_id").checksum_ok) == [True]

    (lost,) = job.tasks("ExecutorLostFailure")
    resubmitted = job.tasks("Resubmitted")
    assert resubmitted, "it had finished nothing before"
    assert {task["Stage ID"] for task in resubmitted} == {lost["Stage ID"]}
    stage = [task for task in job.tasks("Success") if task["Stage ID"] == lost["Stage ID"]]
    assert partitions(stage) == sorted([*range(FILES), *partitions(resubmitted)])
    assert partitions(resubmitted) == partitions(run_by(executor, stage))
    assert not stages(job, lambda stage: stage["Stage Attempt ID"] > 0)


def test_rows_that_were_materialised_on_a_lost_executor_cost_their_batch_another_evaluation(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Spark itself cannot make them again; nothing of the evaluation before is counted or written."""
    gated = [FEWER_ROWS - 1]
    with submit(cluster, tmp_path, "transform", gated, FEWER_ROWS) as job:
        kill_at_gate(job, tmp_path, gated)
        check_ended(job, tmp_path, right_of_bolt(FEWER_ROWS))

    check_doubled(tmp_path, FEWER_ROWS)
    assert list(table(tmp_path, "ledger/batches", "batch_id").checksum_ok) == [False, False]  # the rows, the replays

    failures = [task["Task End Reason"]["Description"] for task in job.tasks("ExceptionFailure")]
    assert failures, "it had no rows that another executor needed"
    assert all("CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND" in failure for failure in failures)
    assert job.driver.log.read_text().count("evaluated again") == 1


def stages(job: Submitted, wanted: Callable[[Event], bool]) -> list[Event]:
    """The attempts of stages that Spark has begun, in order."""
    return [event["Stage Info"] for event in job.events("StageSubmitted") if wanted(event["Stage Info"])]


def rdd(stage: Event) -> int:
    number: int = stage["RDD Info"][0]["RDD ID"]
    return number
