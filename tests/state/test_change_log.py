"""The change log of a state on Spark and its local copies: whoever reads whatever, it is what was committed."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reliable_spark as rs
from reliable_spark.bolts import Bolt
from reliable_spark.engine.columns import CHANGE, CHILD_COUNT, FAILURE
from reliable_spark.engine.stateful_task import KEY, SHARD, StatefulTask, StateVersion
from reliable_spark.engine.states import Merge
from reliable_spark.state.change_files import Change, ChangeFile, ChangeFiles, changed_rows, shard_name
from reliable_spark.state.change_table import ChangeTable
from reliable_spark.state.keyed import KeyedState
from reliable_spark.state.local_copy import LocalCopy

SHARD_NAME = shard_name(0, 1)
Entries = dict[tuple[str | None, bytes], bytes | None]
KEYS = [None, "", "a", "a\0", 'a\0"n"', "é", "x" * 600]
NAMES = [b'"n"', b"1", b"[1,2]"]
changes = st.dictionaries(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(NAMES)), st.none() | st.integers(0, 9).map(lambda n: b"%d" % n)
)
steps = st.lists(
    st.one_of(
        changes.map(lambda each: ("commit", each)),
        changes.map(lambda each: ("write only", each)),
        st.just(("compact", {})),
        st.integers(0, 1).map(lambda copy: ("read", copy)),
        st.integers(0, 1).map(lambda copy: ("lose", copy)),
    ),
    max_size=14,
)


class Log:
    """A table of one shard, two copies of it, and what it should hold."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.uri = str(self.directory / "table")
        self.table, self.files = ChangeTable(self.uri, "ledger"), ChangeFiles(self.uri)
        self.copies = [0, 0]
        self.batch_id = 0
        self.model: dict[tuple[str | None, bytes], bytes] = {}

    @property
    def of_shard(self) -> Sequence[ChangeFile]:
        return self.table.snapshot.files.get(SHARD_NAME, ())

    def write(self, changed: Entries) -> ChangeFile:
        return self.files.write(SHARD_NAME, changed_rows(changed), self.table.snapshot.sequence)

    def commit(self, changed: Entries) -> None:
        file = self.write(changed)
        for _ in range(2):  # a commit that is repeated changes nothing
            self.table.commit([file], self.batch_id)
        self.batch_id += 1
        merged = {**self.model, **changed}
        self.model = {place: value for place, value in merged.items() if value is not None}

    def compact(self) -> None:
        for files in self.table.worth_merging().values():
            merged = Merge(self.uri, tuple(files), self.table.is_oldest(files[0]))()
            self.table.replace(files, [merged])

    def read(self, copy: int) -> dict[tuple[str | None, bytes], bytes]:
        local = LocalCopy(self.directory / f"copy-{copy}-{self.copies[copy]}")
        local.catch_up(self.of_shard, self.files.read)
        assert local.catch_up(self.of_shard, self.files.read) == 0
        with local.reading() as reading:
            got = {(key, name): reading.get(key, name) for key in KEYS for name in NAMES}
            scanned = {(key, name): value for key in KEYS for name, value in reading.scan(key)}
        found = {place: value for place, value in got.items() if value is not None}
        assert scanned == found
        return found


@settings(max_examples=40)
@given(steps)
def test_every_copy_holds_what_was_committed(history: list[tuple[str, Any]]) -> None:
    """Whatever was written, compacted, read or lost before; what was written and not committed is nowhere."""
    with tempfile.TemporaryDirectory() as directory:
        log = Log(directory)
        for what, given_ in history:
            if what == "commit":
                log.commit(given_)
            elif what == "write only":
                log.write(given_)
            elif what == "compact":
                log.compact()
            elif what == "lose":
                log.copies[given_] += 1
            else:
                assert log.read(given_) == log.model
        assert log.read(0) == log.read(1) == log.model


def test_a_copy_of_another_history_is_made_anew(tmp_path: Path) -> None:
    """The table is brought back to an older state and goes on: what the copy knew of the other future is gone."""
    log = Log(str(tmp_path))
    log.commit({("a", b"1"): b"1"})
    log.read(0)
    other = Log(str(tmp_path / "other"))
    other.commit({("b", b"1"): b"2"})
    copy = LocalCopy(tmp_path / "copy-0-0")
    assert copy.catch_up(other.of_shard, other.files.read) == 1
    with copy.reading() as reading:
        assert (reading.get("a", b"1"), reading.get("b", b"1")) == (None, b"2")


def test_a_copy_that_is_up_to_date_reads_no_compacted_file(tmp_path: Path) -> None:
    """A file that stands for others has the name of the last of them."""
    log = Log(str(tmp_path))
    for number in range(4):
        log.commit({("a", b"1"): b"%d" % number})
    log.read(0)
    log.compact()
    assert len(log.of_shard) == 1
    assert LocalCopy(tmp_path / "copy-0-0").catch_up(log.of_shard, log.files.read) == 0


def test_a_large_old_file_is_left_alone_by_compaction(tmp_path: Path) -> None:
    """What is small beside it is merged, and what was deleted stays deleted: it still hides older values."""
    log = Log(str(tmp_path))
    log.commit({(str(number), b"1"): b"1" for number in range(100)})
    old = log.of_shard[0]
    log.commit({("7", b"1"): None})
    log.commit({("8", b"1"): b"2"})
    log.compact()
    assert (len(log.of_shard), log.of_shard[0]) == (2, old)
    assert len(ChangeFiles(log.uri).read([log.of_shard[1].path])) == 2


class Nothing:
    """A state that has never been changed."""

    def get(self, group: Any, name: bytes) -> None:
        return None

    def scan(self, group: Any) -> Iterator[Any]:
        return iter(())


class TwoStates:
    """A state, and dicts that should say the same."""

    def __init__(self) -> None:
        self.state, self.group = KeyedState(Nothing()), "first"
        self.model: dict[str, dict[Any, Any]] = {"first": {}}
        self.marks: list[tuple[int, dict[str, dict[Any, Any]]]] = []
        self.state.turn_to(self.group)

    def put(self, key: Any, value: Any) -> None:
        self.state.put(key, value)
        self.model[self.group][key] = value

    def delete(self, key: Any, value: Any) -> None:
        assert self.state.delete(key) == self.model[self.group].pop(key, None)

    def turn(self, key: Any, value: Any) -> None:
        self.group = repr(key)
        self.state.turn_to(self.group)

    def mark(self, key: Any, value: Any) -> None:
        self.marks.append((self.state.mark(), {group: dict(each) for group, each in self.model.items()}))

    def undo(self, key: Any, value: Any) -> None:
        if self.marks:
            mark, self.model = self.marks.pop()
            self.state.undo(mark)

    def check(self) -> None:
        own = self.model.setdefault(self.group, {})
        assert dict(self.state) == own
        assert all((key in self.state) == (key in own) for key in ("a", 1, None))


operations = st.lists(
    st.tuples(
        st.sampled_from([TwoStates.put, TwoStates.delete, TwoStates.mark, TwoStates.undo, TwoStates.turn]),
        st.sampled_from(["a", 1, 1.0, True, (1, "b"), None]),
        st.sampled_from([0, "x", None, [1], {"k": (1, 2)}]),
    ),
    max_size=30,
)


@given(operations)
def test_a_state_is_a_mapping_that_can_go_back(history: list[tuple[Any, Any, Any]]) -> None:
    """It answers as a dict of dicts would, and a mark brings back what was there."""
    both = TwoStates()
    for operation, key, value in history:
        operation(both, key, value)
        both.check()


def test_a_value_that_is_changed_after_put_changes_no_state() -> None:
    """A list is kept as it was when it was put, and what get gives is a copy."""
    state = KeyedState(Nothing())
    state.turn_to("a")
    value = [1]
    state.put("list", value)
    value.append(2)
    state.get("list").append(3)
    assert state.get("list") == [1]
    with pytest.raises(rs.StateError, match="cannot store"):
        state.put("object", object())
    with pytest.raises(rs.StateError, match="at most 200 bytes"):
        state.put("x" * 201, 1)


def arrow_batch(ids: Sequence[int], keys: Sequence[str]) -> pa.RecordBatch:
    count = len(ids)
    lineage = {"_anchor": ids, "_tuple_id": ids, "_attempt": np.ones(count, np.int32)}
    return pa.RecordBatch.from_pydict(
        {"id": ids, **lineage, "_message_id": [str(each) for each in ids], KEY: keys, SHARD: np.zeros(count, np.int32)}
    )


def count_unless(row: rs.TupleRow, state: Any) -> Any:
    state.put("n", state.get("n", 0) + 1)
    if row["id"] == 2:
        raise ValueError("after it was counted")
    if row["id"] == 7:
        raise asyncio.CancelledError
    if row["id"] == 8:
        state.put("object", object())
    if row["id"] == 9:
        state.put("x" * 201, 1)
    if row["id"] == 3:
        return rs.HOLD
    return {"n": "no number" if row["id"] == 4 else state.get("n")}


def test_what_fails_in_a_task_has_changed_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raised, was held, or its answer does not fit; rows that came after count on as if it had not been there."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    log = Log(str(tmp_path))
    log.commit({("a", b'"n"'): b"10"})
    version = StateVersion(log.table.snapshot, 1)
    output = pa.schema([("n", pa.int64())])
    task = StatefulTask(Bolt("count", count_unless, "row"), output, state_name="count", version=version)
    *answered, report = task(
        iter([arrow_batch([1, 2, 3, 7, 8, 9], ["a"] * 6), arrow_batch([4, 5, 6], ["a", "a", "é"])])
    )
    rows = pa.Table.from_batches(answered).to_pylist()
    assert [row["n"] for row in rows if row[CHILD_COUNT]] == [11, 12, 1]
    assert {row["_anchor"] for row in rows if row[FAILURE]} == {2, 3, 4, 7, 8, 9}
    change = Change.from_json(report.column(CHANGE)[0].as_py())
    assert report.column("_anchor").null_count == report.num_rows == 1
    log.table.commit([change.file], 1)
    assert log.read(0) == {("a", b'"n"'): b"12", ("é", b'"n"'): b"1"}


def test_a_later_round_begins_with_what_an_earlier_one_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is not committed yet, so no copy has it: it is read for this evaluation only."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    log = Log(str(tmp_path))
    log.commit({("a", b'"n"'): b"10"})
    earlier = log.write({("a", b'"n"'): b"20"})
    version = StateVersion(log.table.snapshot, 1, (Change("count", earlier),))
    output = pa.schema([("n", pa.int64())])
    task = StatefulTask(Bolt("count", count_unless, "row"), output, state_name="count", version=version)
    answered, report = task(iter([arrow_batch([1], ["a"])]))
    assert answered.column("n").to_pylist() == [21]
    later = Change.from_json(report.column(CHANGE)[0].as_py()).file
    assert later.stem > earlier.stem
    log.table.commit([earlier, later], 1)
    assert log.read(0) == {("a", b'"n"'): b"21"}
