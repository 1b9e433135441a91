"""What the workers of a bolt report: together with the children it accounts for every row that came in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import xor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reliable_spark as rs
from reliable_spark.bolts import Bolt, kind_of
from reliable_spark.core.ids import share
from reliable_spark.engine.bolt_run import ANSWER, reported
from reliable_spark.engine.columns import LINEAGE
from reliable_spark.engine.reports import AddUp, Numbered, Report
from reliable_spark.engine.worker import BoltTask

OUTPUT = pa.schema([("value", pa.int64())])

made_of_a_row = st.one_of(st.integers(0, 4), st.just("fail"), st.just("hold"))
rows = st.lists(st.tuples(made_of_a_row, st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))), max_size=30)


def bolt(row: rs.TupleRow) -> Any:
    """Do what the row says."""
    if row["do"] == "fail":
        raise ValueError("no")
    if row["do"] == "hold":
        return rs.HOLD
    return [{"value": number} for number in range(int(row["do"]))]


def answers_of(given_rows: list[tuple[Any, int | None]]) -> pa.RecordBatch:
    """The answers as rows; a row without an id is not tracked."""
    ids = [tuple_id for _, tuple_id in given_rows]
    batch = pa.RecordBatch.from_pydict(
        {
            "do": pa.array([str(do) for do, _ in given_rows], pa.string()),
            "_anchor": pa.array(ids, pa.int64()),
            "_tuple_id": pa.array(ids, pa.int64()),
            "_attempt": pa.array([1] * len(ids), pa.int32()),
            "_message_id": pa.array([str(number) for number in range(len(ids))]),
        }
    )
    return BoltTask(Bolt("bolt", bolt, kind_of(bolt)), OUTPUT).process(batch)


def all_xor(ids: Iterator[int | None]) -> int:
    """XOR, in which what is not tracked has no part."""
    return reduce(xor, (each or 0 for each in ids), 0)


@given(rows)
def test_children_and_report_account_for_every_row(given_rows: list[tuple[Any, int | None]]) -> None:
    """The shares of the children and the XOR of the report together are what came in; each share is the right one."""
    children, report = reported(answers_of(given_rows), is_last=False)
    ids = children.column("_tuple_id").to_pylist()
    assert all_xor(iter(ids)) ^ report.xor == all_xor(tuple_id for _, tuple_id in given_rows)
    wanted = [
        None if tuple_id is None else share(tuple_id, index, do)
        for do, tuple_id in given_rows
        if isinstance(do, int)
        for index in range(do)
    ]
    assert ids == wanted
    assert report.made == len(wanted)
    assert not set(ANSWER) & set(children.schema.names)


@given(rows)
def test_the_last_bolt_reports_its_children_too(given_rows: list[tuple[Any, int | None]]) -> None:
    """Leaves need no lineage: what comes out are the declared columns, and the XOR is that of all rows."""
    children, report = reported(answers_of(given_rows), is_last=True)
    assert children.schema.names == OUTPUT.names
    assert children.num_rows == report.made == sum(do for do, _ in given_rows if isinstance(do, int))
    assert report.xor == all_xor(tuple_id for _, tuple_id in given_rows)


@given(rows, st.booleans())
def test_failures_are_reported_with_their_ids(given_rows: list[tuple[Any, int | None]], is_last: bool) -> None:
    """A row that failed or is held is told with its root, its share and why; one that was dropped is not."""
    _, report = reported(answers_of(given_rows), is_last)
    told = [(anchor, tuple_id, failure["error_class"]) for anchor, tuple_id, failure in report.failures]
    classes = {"fail": "ValueError", "hold": "held"}
    assert told == [(tuple_id, tuple_id or 0, classes[do]) for do, tuple_id in given_rows if do in classes]


def test_what_is_not_last_keeps_its_lineage() -> None:
    """The next step finds the root, the attempt and the message id of every child."""
    children, _ = reported(answers_of([(2, 7)]), is_last=False)
    lineage = children.select(list(LINEAGE)).to_pylist()
    assert [(row["_anchor"], row["_attempt"], row["_message_id"]) for row in lineage] == [(7, 1, "0"), (7, 1, "0")]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_reports_of_tasks_are_added_up_by_evaluation(order: tuple[int, int]) -> None:
    """What a task of another evaluation tells late changes nothing of this one."""
    reports = AddUp()
    told: list[Numbered] = [{1: Report(2, 5, [(1, 1, {})])}, {1: Report(1, 3), 0: Report(9, 9)}]
    total = reports.addInPlace(reports.addInPlace(reports.zero({}), told[order[0]]), told[order[1]])
    assert total[1] == Report(3, 6, [(1, 1, {})])
    assert total[0] == Report(9, 9)
