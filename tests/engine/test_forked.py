"""Bolts that kill their process, by real deaths on plain Arrow batches: only the rows that kill fail."""

from __future__ import annotations

import atexit
import ctypes
import errno
import faulthandler
import gc
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reliable_spark as rs
from reliable_spark.bolts import Bolt, kind_of
from reliable_spark.engine import child, forked
from reliable_spark.engine.columns import CHILD_COUNT, CHILD_INDEX, FAILURE, HELD, OVERFLOW
from reliable_spark.engine.forked import ForkedTask
from reliable_spark.engine.worker import BoltTask

pytestmark = pytest.mark.crash

OUTPUT = pa.schema([("word", pa.string()), ("n", pa.int64())])
KILLER = 13
Row = dict[str, Any]
Kind = Literal["row", "arrow", "pandas"]


@pytest.fixture(autouse=True, scope="module")
def forks() -> Iterator[list[int]]:
    """The pids of all children; in the end not one of them is left, not even as a zombie."""
    pids: list[int] = []
    fork = os.fork

    def recorded() -> int:
        pids.append(fork())
        return pids[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fork", recorded)
        yield pids
    assert not left(pids)


def left(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
        found.append(pid)
    return found


def batch_of(values: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.int64()),
            "_anchor": pa.array(range(100, 100 + len(values)), pa.int64()),
            "_tuple_id": pa.array(range(200, 200 + len(values)), pa.int64()),
            "_attempt": pa.array([1] * len(values), pa.int32()),
            "_message_id": [str(value) for value in values],
        }
    )


def task_of(function: Any, output: pa.Schema = OUTPUT, limit: int | None = None) -> BoltTask:
    return BoltTask(Bolt("bolt", function, kind_of(function)), output, limit)


def rows_of(task: Any, *batches: pa.RecordBatch) -> list[Row]:
    made = [row for batch in task(iter(batches)) for row in batch.to_pylist()]
    return sorted(made, key=lambda row: (row["_anchor"], row[CHILD_INDEX]))


def crashes_of(rows: list[Row]) -> dict[int, str]:
    """Position -> error of the rows that killed."""
    failed = [row for row in rows if row[FAILURE] and row[FAILURE]["error_class"] == "WorkerCrash"]
    return {row["_anchor"] - 100: row[FAILURE]["error"] for row in failed}


def others(rows: list[Row], killers: list[int]) -> list[Row]:
    return [row for row in rows if row["_anchor"] - 100 not in killers]


def segfault() -> None:
    faulthandler.disable()  # it would tell the terminal, and no one else
    ctypes.string_at(0)


def abort() -> None:
    faulthandler.disable()
    os.abort()


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


DEATHS: list[tuple[Callable[[], Any], str]] = [
    (lambda: os._exit(3), "the Python worker ended itself with exit code 3"),
    (lambda: os._exit(0), "the Python worker ended itself with exit code 0"),
    (killed, "the Python worker was killed by SIGKILL (signal 9), perhaps out of memory"),
    (segfault, "the Python worker was killed by SIGSEGV (signal 11)"),
    (abort, "the Python worker was killed by SIGABRT (signal 6)"),
]


def row_bolt(die: Callable[[], Any]) -> Callable[..., Any]:
    """A bolt that drops, holds, raises and explodes, by value modulo 10."""

    def bolt(row: Any) -> Any:
        value = row["value"]
        if value == KILLER:
            die()
        if value % 10 == 1:
            raise ValueError(f"{value} is bad")
        if value % 10 == 2:
            return rs.HOLD
        return ({"word": row.message_id, "n": number} for number in range(value % 10))

    return bolt


def arrow_bolt(die: Callable[[], Any]) -> Callable[..., Any]:
    @rs.arrow
    def bolt(batch: pa.RecordBatch, context: rs.BatchContext) -> pa.RecordBatch:
        if pc.any(pc.equal(batch["value"], KILLER)).as_py():
            die()
        if pc.any(pc.equal(batch["value"], 11)).as_py():
            raise ValueError("11 is bad")
        return pa.RecordBatch.from_pydict({"word": context.message_ids, "n": batch["value"]})

    return bolt


def pandas_bolt(die: Callable[[], Any]) -> Callable[..., Any]:
    @rs.pandas
    def bolt(frame: Any) -> Any:
        if (frame["value"] == KILLER).any():
            die()
        taken = frame.loc[frame.index.repeat(frame["value"] % 4)]
        return taken.assign(word="w", n=taken["value"])

    return bolt


BOLTS = {"row": row_bolt, "arrow": arrow_bolt, "pandas": pandas_bolt}


@pytest.mark.parametrize("kind", BOLTS)
def test_without_a_death_a_forked_task_gives_the_very_batches_of_the_task(kind: str) -> None:
    """Children, dropped rows, failures, held rows and the schema are those of the task itself, batch by batch."""
    task = task_of(BOLTS[kind](killed))
    batches = [batch_of([*range(10), 14]), batch_of([]), batch_of([25]), batch_of(list(range(30, 60)))]
    made = list(ForkedTask(task)(iter(batches)))
    assert made == list(task(iter(batches)))
    assert [batch.schema for batch in made] == [batch.schema for batch in task(iter(batches))]


@pytest.mark.parametrize(("die", "error"), DEATHS)
def test_a_row_that_kills_fails_and_says_how(die: Callable[[], Any], error: str) -> None:
    """A row that kills looks like any failed row, with how the worker died as its error; the others go on."""
    values = [3, 11, KILLER, 12, 10, 4]
    rows = rows_of(ForkedTask(task_of(row_bolt(die))), batch_of(values))
    (row,) = [row for row in rows if row["_anchor"] == 102]
    assert row == {
        **{"word": None, "n": None, "_anchor": 102, "_tuple_id": 202, "_attempt": 1, "_message_id": "13"},
        **{CHILD_INDEX: 0, CHILD_COUNT: 0},
        FAILURE: {"bolt": "bolt", "error_class": "WorkerCrash", "error": error, "traceback": "", "retry": True},
    }
    expected = rows_of(task_of(row_bolt(lambda: None)), batch_of(values))
    assert without_trace(others(rows, [2])) == without_trace(others(expected, [2]))
    assert {row[FAILURE]["error_class"] for row in others(rows, [2]) if row[FAILURE]} == {"ValueError", HELD}


def without_trace(rows: list[Row]) -> list[Row]:
    return [{**row, FAILURE: row[FAILURE] and {**row[FAILURE], "traceback": ""}} for row in rows]


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(["row", "arrow", "pandas"]),
    size=st.integers(1, 150),
    killers=st.sets(st.integers(0, 149), max_size=4),
    cut=st.integers(0, 150),
)
def test_exactly_the_rows_that_kill_fail(kind: Kind, size: int, killers: set[int], cut: int) -> None:
    """Wherever they lie in two batches, all rows that kill fail, and every other row is as without them."""
    values = [KILLER if place in killers else 20 + place % 9 for place in range(size)]
    batch = batch_of(values)
    parts = batch.slice(0, cut), batch.slice(cut)
    rows = rows_of(ForkedTask(task_of(BOLTS[kind](killed))), *parts)
    places = [place for place in sorted(killers) if place < size]
    assert list(crashes_of(rows)) == places
    expected = rows_of(task_of(BOLTS[kind](lambda: None)), *parts)
    assert without_trace(others(rows, places)) == without_trace(others(expected, places))


def test_parts_come_in_the_order_of_the_rows() -> None:
    """Also around a death nothing overtakes: each part handed out holds later rows than the one before."""
    task = ForkedTask(task_of(row_bolt(killed)))
    batches = [batch_of([13 if place == 40 else 5 for place in range(100)]), batch_of([6])]
    ids = [message_id for part in task(iter(batches)) for message_id in part["_message_id"].to_pylist()]
    assert ids == ["5"] * 200 + ["13"] + ["5"] * 295 + ["6"] * 6


def test_a_row_that_kills_once_is_given_another_chance(tmp_path: Path) -> None:
    """The first death of a single row may be another's fault: when it lives alone, its answer counts."""
    died_alone = tmp_path / "died-alone"

    @rs.arrow
    def bolt(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not died_alone.exists() and KILLER in batch["value"].to_pylist():
            if batch.num_rows == 1:
                died_alone.touch()
            killed()
        return pa.RecordBatch.from_pydict({"word": ["w"] * batch.num_rows, "n": batch["value"]})

    rows = rows_of(ForkedTask(task_of(bolt)), batch_of([1, KILLER, 2]))
    assert died_alone.exists()
    assert [(row["n"], row[FAILURE]) for row in rows] == [(1, None), (13, None), (2, None)]


def test_a_batch_that_kills_as_a_whole_only_is_done_in_parts() -> None:
    """A batch that is too much for one process is answered for in parts, and no row of it fails."""

    @rs.arrow
    def bolt(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_rows > 30:
            killed()
        return pa.RecordBatch.from_pydict({"word": ["w"] * batch.num_rows, "n": batch["value"]})

    rows = rows_of(ForkedTask(task_of(bolt)), batch_of(list(range(1000))))
    assert [row["n"] for row in rows if not row[FAILURE]] == list(range(1000))


@pytest.mark.parametrize("characters", [70_000, 50_000_000])
def test_an_answer_may_be_larger_than_a_pipe(characters: int) -> None:
    """Answers that no pipe holds come through whole, in front of and behind a row that kills."""

    def bolt(row: Any) -> Any:
        if row["value"] == KILLER:
            killed()
        return {"word": str(row["value"]) * characters, "n": 1}

    rows = rows_of(ForkedTask(task_of(bolt)), batch_of([1, KILLER, 2]))
    assert list(crashes_of(rows)) == [1]
    assert rows[0]["word"] == "1" * characters
    assert rows[2]["word"] == "2" * characters


def test_a_child_that_dies_with_half_an_answer_given_has_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came of an answer before its child died is not taken for the answer."""
    pack = child.HEADER.pack

    class Longer:
        size = child.HEADER.size
        unpack = child.HEADER.unpack

        @staticmethod
        def pack(kind: bytes, failure_bytes: int, size: int) -> bytes:
            return pack(kind, failure_bytes, size + 1)

    monkeypatch.setattr(child, "HEADER", Longer)
    assert list(crashes_of(rows_of(ForkedTask(task_of(row_bolt(killed))), batch_of([3])))) == [0]


def test_nothing_in_nothing_out(forks: list[int]) -> None:
    """Without rows there is no child and no batch."""
    before = len(forks)
    task = ForkedTask(task_of(row_bolt(killed)))
    assert list(task(iter([]))) == list(task(iter([batch_of([])]))) == []
    assert len(forks) == before


def test_small_batches_share_a_child_and_large_ones_do_not(forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """So much input is read ahead and no more; a row that kills does not take its neighbours with it."""
    batches = [batch_of([5]), batch_of([KILLER]), batch_of([6]), batch_of([7])]
    before = len(forks)
    assert list(ForkedTask(task_of(row_bolt(lambda: None)))(iter(batches)))
    assert len(forks) - before == 1
    monkeypatch.setattr(forked, "AHEAD_BYTES", 1)
    assert list(ForkedTask(task_of(row_bolt(lambda: None)))(iter(batches)))
    assert len(forks) - before == 5


def test_the_limit_on_failure_text_counts_across_children() -> None:
    """However many children it took, failures beyond the limit carry no details; each run counts anew."""

    def bolt(row: Any) -> Any:
        if row["value"] == KILLER:
            killed()
        raise rs.Fail("y" * 100)

    values = [1] * 20 + [KILLER] + [1] * 20
    task = task_of(bolt, limit=10_000)
    rows = rows_of(ForkedTask(task), batch_of(values))
    last = task.failure_bytes
    full = [place for place, row in enumerate(rows) if row[FAILURE]["error_class"] != OVERFLOW]
    assert full == list(range(len(full)))
    assert 20 < len(full) < 40
    assert rows_of(ForkedTask(task), batch_of(values)) == rows
    assert task.failure_bytes == last


def test_a_row_that_kills_counts_against_the_limit_too() -> None:
    """Beyond the limit also a death is told without details."""
    rows = rows_of(ForkedTask(task_of(row_bolt(killed), limit=250)), batch_of([KILLER] * 3))
    assert [row[FAILURE]["error_class"] for row in rows] == ["WorkerCrash", "WorkerCrash", OVERFLOW]


def test_what_the_task_itself_raises_is_raised_with_its_text() -> None:
    """An exception that is about no row is no failure of a row: it comes out of the worker as it would have."""

    class Stop(KeyboardInterrupt):
        pass

    def bolt(row: Any) -> Any:
        raise Stop("all of it \ud800")

    with pytest.raises(RuntimeError, match=r"(?s)bolt 'bolt'.*Stop: all of it \\ud800"):
        rows_of(ForkedTask(task_of(bolt)), batch_of([1]))


def test_threads_of_the_worker_do_not_hang_a_child() -> None:
    """Arrow's, numpy's and pandas' threads may have run in the worker: a child can use them again."""

    def work(batch: pa.RecordBatch) -> int:
        table = pa.table({"key": np.arange(200_000) % 7, "n": np.arange(200_000)})
        grouped = table.group_by("key").aggregate([("n", "sum")])
        square = np.ones((300, 300)) @ np.ones((300, 300))
        table.to_pandas(use_threads=True)
        table.sort_by("key").join(table.slice(0, 7), "key", join_type="left semi")
        return int(pc.sum(grouped["n_sum"]).as_py() + square[0, 0])

    @rs.arrow
    def bolt(batch: pa.RecordBatch) -> pa.RecordBatch:
        total = work(batch)
        if KILLER in batch["value"].to_pylist():
            killed()
        return pa.RecordBatch.from_pydict({"word": ["w"] * batch.num_rows, "n": [total] * batch.num_rows})

    expected = work(batch_of([]))
    rows = rows_of(ForkedTask(task_of(bolt)), batch_of([1, KILLER, 2]))
    assert [row["n"] for row in rows] == [expected, None, expected]


def test_what_the_worker_has_not_written_yet_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in the worker's buffers is the worker's to write, and what a bolt prints is not lost."""

    def bolt(row: Any) -> Any:
        print("child", row["value"])
        if row["value"] == KILLER:
            sys.stdout.flush()
            killed()
        return {"word": "w", "n": 1}

    socket, output = tmp_path / "socket", tmp_path / "output"
    with socket.open("w") as file, output.open("w") as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        file.write("rows")
        print("worker", end=" ")
        rows_of(ForkedTask(task_of(bolt)), batch_of([KILLER]), batch_of([5]))
        assert socket.read_text() == ""
    assert socket.read_text() == "rows"
    assert output.read_text() == "worker child 13\nchild 13\nchild 5\n"


def test_a_child_leaves_the_workers_exits_and_garbage_alone(tmp_path: Path) -> None:
    """A child neither runs what the worker does at its exit, nor collects what the worker has let go of."""
    told = tmp_path / "told"

    class Teller:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            told.touch()

    def bolt(row: Any) -> Any:
        gc.collect()
        return {"word": "w", "n": 1}

    gc.disable()
    atexit.register(told.touch)
    try:
        Teller()
        assert rows_of(ForkedTask(task_of(bolt)), batch_of([1]))
        assert not told.exists()
    finally:
        atexit.unregister(told.touch)
        gc.enable()
    gc.collect()
    assert told.exists()


def test_a_consumer_that_leaves_early_leaves_no_child(forks: list[int]) -> None:
    """When nobody wants the rest, the child that is at work on it is ended and reaped."""

    def bolt(row: Any) -> Any:
        if row["value"] == 6:
            signal.pause()
        return {"word": "w", "n": row["value"]}

    before = len(forks)
    parts = ForkedTask(task_of(bolt))(iter([batch_of([5]), batch_of([6])]))
    assert next(parts).num_rows == 1
    parts.close()  # type: ignore[attr-defined]  # a generator has it, an iterator need not
    assert len(forks) == before + 1
    assert not left(forks[before:])


def test_an_exception_while_waiting_leaves_no_child(forks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """When the worker is interrupted while its child is at work, the child is ended and reaped."""

    class Interrupted(Exception):
        pass

    def interrupted() -> Any:
        raise Interrupted

    before = len(forks)
    monkeypatch.setattr(select, "poll", interrupted)
    with pytest.raises(Interrupted):
        rows_of(ForkedTask(task_of(lambda row: signal.pause())), batch_of([1]))
    assert len(forks) == before + 1
    assert not left(forks[before:])


@pytest.mark.parametrize("die", [killed, lambda: None], ids=["dies", "lives"])
def test_what_a_bolt_starts_neither_delays_its_child_nor_outlives_it(die: Callable[[], Any]) -> None:
    """A process that a bolt started holds all pipes open: it is not waited for, and ended with the child."""
    reading, writing = os.pipe()

    def bolt(row: Any) -> Any:
        if os.fork() == 0:
            signal.pause()
        die()
        return {"word": "w", "n": 1}

    (row,) = rows_of(ForkedTask(task_of(bolt)), batch_of([1]))
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b""  # or it would wait for the last process that has the other end
    assert bool(row[FAILURE]) is (die is killed)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a child that its parent is gone")
def test_a_child_does_not_outlive_its_worker() -> None:
    """A worker that is killed takes its child with it, whatever that is doing."""
    reading, writing = os.pipe()
    program = (
        "import os, signal, sys\n"
        "from tests.engine.test_forked import ForkedTask, batch_of, task_of\n"
        f"bolt = lambda row: (os.write({writing}, b'at work'), signal.pause())\n"
        "list(ForkedTask(task_of(bolt))(iter([batch_of([1])])))\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", program], pass_fds=[writing], cwd=root) as worker:
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            assert pipe.read(7) == b"at work"
            worker.kill()
            assert pipe.read() == b""


@pytest.mark.parametrize("refused", ["fork", "pipe"])
def test_no_process_to_be_had_is_said(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no child can be started, the task fails with what to do, and leaves no pipe open."""

    def refuse() -> Any:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, refused, refuse)
    free = os.dup(0)
    os.close(free)
    with pytest.raises(OSError, match=r"isolate the bolt 'bolt'.*run fewer tasks at once") as caught:
        rows_of(ForkedTask(task_of(row_bolt(killed))), batch_of([1]))
    assert caught.value.errno == errno.EAGAIN
    again = os.dup(0)
    os.close(again)
    assert again == free


def test_a_worker_that_ignores_its_children_still_sees_them_die() -> None:
    """Where the system reaps children unasked, rows that kill are found all the same; only how is not known."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        rows = rows_of(ForkedTask(task_of(row_bolt(killed))), batch_of([3, KILLER, 4]))
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert crashes_of(rows) == {1: "the Python worker ended without an answer"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signals without a name")
def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    """Also a death by a signal that Python has no name for is a failure that says how."""
    unnamed = signal.SIGRTMIN + 6
    rows = rows_of(ForkedTask(task_of(row_bolt(lambda: os.kill(os.getpid(), unnamed)))), batch_of([KILLER]))
    assert crashes_of(rows) == {0: f"the Python worker was killed by a signal without a name (signal {unnamed})"}
