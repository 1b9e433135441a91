"""What tasks report of the roots that come in, and how the reports of all tasks add up."""

from __future__ import annotations

from functools import reduce
from operator import xor

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.engine.reports import AddUp, Numbered, Report, Roots

ids = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))
batches = st.lists(st.lists(ids, max_size=5), max_size=4)


@given(batches)
def test_every_root_is_counted_on_its_way(given_ids: list[list[int | None]]) -> None:
    """The bolt sees the roots that have an id, in their order; the others are held back, and counted too."""
    roots = Roots()
    sent = [
        pa.RecordBatch.from_pydict({"_tuple_id": pa.array(each, pa.int64()), "place": range(len(each))})
        for each in given_ids
    ]
    seen = [row for batch in roots.counted(iter(sent)) for row in batch.to_pylist()]
    everyone = [row for batch in sent for row in batch.to_pylist()]
    identified = [row for row in everyone if row["_tuple_id"] is not None]
    assert seen == identified
    assert roots.rows == len(identified)
    assert roots.without_id == len(everyone) - len(identified)
    assert roots.xor == reduce(xor, (row["_tuple_id"] for row in identified), 0)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 9)), max_size=8))
def test_reports_of_tasks_add_up_and_each_is_remembered(told: list[tuple[int, int, int]]) -> None:
    """A task that tells twice is there twice, whatever its evaluation; nothing is shared between evaluations."""
    reports = AddUp()
    total: Numbered = reports.zero({})
    for number, partition, rows in told:
        roots = Roots(rows, rows, 1)
        roots.tasks[7, partition] += 1
        total = reports.addInPlace(total, {number: Report(1, rows, [], roots)})
    for number in {number for number, _, _ in told}:
        own = [(partition, rows) for each, partition, rows in told if each == number]
        report = total[number]
        assert (report.made, report.roots.rows) == (len(own), sum(rows for _, rows in own))
        assert report.roots.without_id == len(own)
        assert report.roots.xor == report.xor == reduce(xor, (rows for _, rows in own), 0)
        assert report.roots.tasks.total() == len(own)
        assert set(report.roots.tasks) == {(7, partition) for partition, _ in own}
