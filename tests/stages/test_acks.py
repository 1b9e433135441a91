"""The ledger's table `acks`, the backlog that follows from it, and the cleaning of queues: no JVM is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_spark.core.stages import Report
from reliable_spark.errors import UsageError
from reliable_spark.stages.acks import Acks, Answers
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.places import check_name
from reliable_spark.stages.queue import BATCH_ID, forget_taken, last_batch_before

TREE = {
    "anchor": 7,
    "status": "failed",
    "bolt": "b",
    "error_class": "X",
    "error": "no",
    "traceback": None,
    "retry": False,
}


def test_a_batch_is_reported_once_with_its_failed_trees(tmp_path: Path) -> None:
    """A second report of the same batch, as after a crash, changes nothing; reports are read back as they were."""
    acks = Acks(str(tmp_path))
    answers = Answers(Report("a", 0, 3, 2, 5 ^ 6, "b", 1, 9), [TREE])
    for _ in range(2):
        Acks(str(tmp_path)).append(answers)
    assert acks.has_news()
    assert not acks.has_news()
    assert acks.after({}, "a") == [answers]
    assert acks.after({"a": 0}, "a") == []
    assert (acks.last_batch("a"), acks.last_batch("b"), acks.taken("a"), acks.taken("b")) == (0, -1, 3, -1)


def test_the_reports_of_a_stage_come_before_those_of_the_stages_behind_it(tmp_path: Path) -> None:
    """Whatever the order of the names, and of the stages' own batch numbers."""
    writer, acks = Acks(str(tmp_path)), Acks(str(tmp_path))
    writer.append(Answers(Report("z", 0, 0, 1, 1, "a", 1, 1), []))
    writer.append(Answers(Report("a", 0, 0, 1, 1), []))
    writer.append(Answers(Report("z", 1, 1, 1, 1, "a", 1, 1), []))
    writer.append(Answers(Report("a", 1, 1, 1, 1), []))
    assert acks.has_news()
    order = [(answers.report.stage, answers.report.batch_id) for answers in acks.after({"a": -1}, "z")]
    assert order == [("z", 0), ("z", 1), ("a", 0), ("a", 1)]


def test_upkeep_keeps_the_reports_in_one_file(tmp_path: Path) -> None:
    """A reader that was open before reads on."""
    acks = Acks(str(tmp_path))
    for batch_id in range(5):
        acks.append(Answers(Report("a", batch_id, batch_id, 1, 1), []))
    assert acks.has_news()
    before = acks.after({}, "a")
    acks.upkeep()
    assert len(DeltaTable(str(tmp_path / "acks")).file_uris()) == 1
    assert acks.has_news()
    assert acks.after({}, "a") == before
    acks.append(Answers(Report("a", 5, 5, 1, 1), []))
    assert acks.has_news()
    assert [answers.report.batch_id for answers in acks.after({"a": 4}, "a")] == [5]


def test_a_backlog_is_full_at_its_capacity_until_the_stage_has_taken_enough(tmp_path: Path) -> None:
    """It waits for room, never for a batch to fit: one larger than the capacity goes in when there is any."""
    acks = Acks(str(tmp_path))
    backlog = Backlog("a", 10, acks)
    assert not backlog.is_full()
    backlog.put(0, 9)
    assert not backlog.is_full()
    backlog.put(1, 50)
    assert (backlog.is_full(), backlog.rows) == (True, 59)
    Acks(str(tmp_path)).append(Answers(Report("a", 0, 0, 9, 0), []))
    assert (backlog.is_full(), backlog.rows) == (True, 50)
    Acks(str(tmp_path)).append(Answers(Report("a", 1, 1, 50, 0), []))
    assert (backlog.is_full(), backlog.rows) == (False, 0)


def test_a_cleaned_queue_keeps_what_was_not_taken(tmp_path: Path) -> None:
    """Its files are gone from the disk; a file that nobody has committed stays."""
    queue = tmp_path / "queue"
    for batch_id in range(4):
        write_deltalake(str(queue), pa.table({BATCH_ID: [batch_id] * 3, "id": [1, 2, 3]}), mode="append")
    (queue / "part-prepared.parquet").write_bytes(b"not committed")
    assert forget_taken(str(queue), 2)
    table = DeltaTable(str(queue))
    assert table.to_pyarrow_table()[BATCH_ID].to_pylist() == [3, 3, 3]
    assert len(list(queue.glob("*.parquet"))) == 2
    assert forget_taken(str(queue), 2)


def test_an_offset_tells_the_last_batch_that_was_read(tmp_path: Path) -> None:
    """As Delta's source writes it: before the version that it names; -1 while nothing has rows."""
    queue = str(tmp_path / "queue")
    DeltaTable.create(queue, pa.schema([(BATCH_ID, pa.int64()), ("id", pa.int64())]))
    for batch_id in (4, 9):
        write_deltalake(queue, pa.table({BATCH_ID: [batch_id], "id": [1]}), mode="append")
    offsets = [json.dumps({"reservoirVersion": version, "index": -1}) for version in (1, 2, 3)]
    assert [last_batch_before(queue, offset) for offset in offsets] == [-1, 4, 9]
    forget_taken(queue, 9)
    assert last_batch_before(queue, '{"reservoirVersion": 4, "index": -1}') == -1


@pytest.mark.parametrize("name", ["", "a/b", "..", "1a", "a b"])
def test_a_stage_name_is_one_directory(name: str) -> None:
    """Anything else would lie elsewhere in the ledger."""
    with pytest.raises(UsageError, match="stage"):
        check_name(name)
