"""What is the Spark engine's own: packing, second evaluations, failing jobs. Without a JVM."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark import (
    ManualClock,
    OperatingError,
    OutputCollector,
    RichBolt,
    Settings,
    TopologyContext,
    Tuple,
    UsageError,
)
from reliable_spark.microbatch import Here, MicroBatchEngine, SparkCluster
from reliable_spark.microbatch.apart import run_work_apart
from reliable_spark.microbatch.orders import Done, Step, Work
from reliable_spark.microbatch.parcels import Address, Outbox, arrivals, lose_silently, opened
from reliable_spark.microbatch.pickling import packed, send_hidden_modules_by_value, unpacked
from reliable_spark.microbatch.work import portable, run_work
from reliable_spark.process.world import Watch
from reliable_spark.testing import AckOnly, Branch, Identity
from reliable_spark.testing.engine import ENGINES
from reliable_spark.testing.kit import Fed, Feed
from tests.topology.pieces import Does, FeedSpout, TestTopology, feed, keep, keep_values, line, line_from, started


class Recording(Here):
    """Remembers what it was asked to run; its first jobs fail."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[tuple[bytes, Step, Sequence[Work]]] = []
        self.failures = failures

    def run(self, recipe: bytes, step: Step, works: Sequence[Work]) -> list[Done]:
        self.asked.append((recipe, step, works))
        if self.failures:
            self.failures -= 1
            raise OSError("the job failed")
        return super().run(recipe, step, works)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Where the engine "microbatch" runs its tasks."""
    recording = Recording()
    monkeypatch.setitem(ENGINES, "microbatch", lambda topology, how: MicroBatchEngine(topology, how, recording))
    return recording


def test_a_second_evaluation_of_a_task_says_the_same(cluster: Recording) -> None:
    """Ids are computed: what a task sends, down to its edges, is equal when Spark runs it twice."""
    with started(line(Branch(3), AckOnly()), "microbatch") as topology:
        feed(topology, 1, 2)
    sent = 0
    for recipe, step, works in cluster.asked:
        for work in works:
            twice = [pickle.loads(run_work(recipe, step, pickle.dumps(work))) for _ in range(2)]
            first, second = ([(each.to, opened(arrivals([each]))) for each in done.parcels] for done in twice)
            assert first == second
            sent += len(first)
    assert sent > 0


def test_a_job_that_fails_has_delivered_nothing(cluster: Recording) -> None:
    """The error comes out of settle; the next settle delivers the same tuples, once."""
    with started(line(Identity(), AckOnly()), "microbatch") as topology:
        cluster.failures = 1
        with pytest.raises(OSError, match="the job failed"):
            feed(topology, 1)
        topology.settle()
        assert (topology.acks("s"), topology.executed("b1"), topology.executed("b2")) == ([1], 1, 1)


def test_a_step_is_one_job_whatever_its_width(cluster: Recording) -> None:
    """A thousand tuples through two bolts: one job for each bolt, which starts with it, and one for the last acks."""
    with started(line(Identity(), AckOnly()), "microbatch") as topology:
        feed(topology, *range(1000))
        assert topology.acks("s") == list(range(1000))
    assert len(cluster.asked) == 3


class Connected(RichBolt):
    """Holds what cannot be pickled, and makes it again when told so."""

    def __init__(self, heals: bool) -> None:
        self.heals = heals
        self.state = 0

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        self.collector, self.lock = collector, threading.Lock()

    def execute(self, input: Tuple) -> None:
        with self.lock:
            self.state += 1
        self.collector.ack(input)

    def __getstate__(self) -> dict[str, Any]:
        return {name: each for name, each in self.__dict__.items() if not self.heals or name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.heals:
            self.lock = threading.Lock()


def test_what_cannot_be_pickled_between_steps_is_said_so(cluster: Recording) -> None:
    """The bolt is named, and the way out of it."""
    topology = started(line(Connected(heals=False)), "microbatch")
    topology.feed("s", [1], message_id=1)
    with pytest.raises(UsageError, match=r"what 'b1' holds cannot be pickled .* __getstate__"):
        topology.settle()


def test_what_is_made_again_outlives_the_steps(cluster: Recording) -> None:
    """`__getstate__` and `__setstate__` are asked."""
    with started(line(Connected(heals=True)), "microbatch") as topology:
        feed(topology, 1)
        feed(topology, 2)
        assert (topology.acks("s"), topology.state("b1")) == ([1, 2], 2)


class Cleaned(AckOnly):
    """Says when it is cleaned up, and with how many tuples executed."""

    said: list[int] = []  # noqa: RUF012 # one list for all copies

    def __init__(self) -> None:
        self.count = 0

    def execute(self, input: Tuple) -> None:
        self.count += 1
        super().execute(input)

    def cleanup(self) -> None:
        Cleaned.said.append(self.count)


def test_bolts_are_cleaned_up_once_with_what_they_hold(cluster: Recording) -> None:
    """Closing wakes the tasks that have something to clean up, and no others."""
    Cleaned.said.clear()
    topology = started(line(Cleaned(), AckOnly()), "microbatch")
    feed(topology, 1, 2)
    topology.close()
    topology.close()
    assert Cleaned.said == [2]
    assert [work.task for work in cluster.asked[-1][2]] == [2]


def test_what_is_not_watched_is_not_kept() -> None:
    """In production nobody takes away what was emitted and answered."""
    spout = FeedSpout(["value"]).fed_by(Feed([Fed([1], 1, "default")]))
    topology = line_from(spout, Identity(), AckOnly()).build()
    engine = MicroBatchEngine(topology, Settings(), Here(), watch=Watch(is_test=False))
    engine.settle()
    assert engine.statistics("s").acked == 1
    assert (engine.acks("s"), engine.emitted("s", "default"), engine.emitted("b1", "default")) == ([], [], [])


def test_an_error_that_cannot_travel_says_what_it_said() -> None:
    """One whose arguments do not fit its constructor comes back under its name."""

    class Odd(Exception):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(f"{first} {second}")

    assert str(portable(Odd("a", "b"))) == "Odd: a b"
    error = ValueError("plain")
    assert portable(error) is error


def test_code_that_a_worker_cannot_import_travels_along(tmp_path: Path) -> None:
    """A module loaded from a file outside the path is pickled by value, one on the path by name."""
    file = tmp_path / "hidden_bolts.py"
    file.write_text("def answer():\n    return 42\n")
    spec = importlib.util.spec_from_file_location("hidden_bolts", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hidden_bolts"] = module
    spec.loader.exec_module(module)
    try:
        send_hidden_modules_by_value()
        data = packed(module.answer)
    finally:
        del sys.modules["hidden_bolts"]
    program = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())())"
    ran = subprocess.run([sys.executable, "-c", program], input=data, capture_output=True, check=True)
    assert ran.stdout == b"42\n"
    assert b"tests.topology.pieces" in packed(keep)


SENT = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=30)


@given(st.lists(SENT, max_size=4))
def test_what_many_send_stands_in_the_order_of_one_queue(senders: list[list[tuple[int, int]]]) -> None:
    """By the place of what caused it, then by when its emitter sent it; whoever it is for."""
    expected, parcels = [], []
    for emitter, sent in enumerate(senders):
        outbox: Outbox[Address] = Outbox()
        for number, (task, place) in enumerate(sent):
            parent = place * len(senders) + emitter  # a tuple has one receiver, so a place has one emitter
            outbox.put(Address(task), parent, (parent, number))
            expected.append((parent, number))
        parcels += outbox.take(lose_silently)
        assert not outbox
    found = opened(arrivals(parcels))
    assert found == list(enumerate(sorted(expected)))


def test_a_parcel_loses_what_was_sent_before_a_death() -> None:
    """What was caused later arrives; places stay as they are."""
    outbox: Outbox[Address] = Outbox()
    for parent in (5, 6, 7):
        outbox.put(Address(1), parent, parent)
    [parcel] = outbox.take(lose_silently)
    [arrival] = arrivals([parcel.without_those_before(6)])
    assert [content for _, content in opened([arrival])] == [6, 7]
    assert np.sum(arrival.places < 0) == 1


def emit_lock_at_2(bolt: Does, input: Tuple) -> None:
    bolt.collector.emit([threading.Lock() if input["value"] == 2 else input["value"]], anchors=input)
    bolt.collector.ack(input)


def test_an_emitted_value_that_cannot_be_pickled_is_lost_alone(cluster: Recording) -> None:
    """Its emitter and the stream are named, a spout or a bolt; it times out, and what was sent with it arrives."""
    with started(line(Does(emit_lock_at_2), Does(keep_values)), "microbatch", timeout=10) as topology:
        lock = threading.Lock()
        topology.feed("s", [lock], message_id="lock")
        feed(topology, 1, 2, 3)
        assert (topology.acks("s"), topology.state("b2")) == ([1, 3], [[1], [3]])
        for name in ("s", "b1"):
            [error] = topology.errors(name)
            assert f"{name!r} emitted on stream 'default' a value that cannot be pickled (cannot pickle" in str(error)
        topology.advance(20)
        assert (sorted(topology.fails("s"), key=str), topology.pending("s")) == ([2, "lock"], 0)


class Apart(Here):
    """Each task in a process of its own, as Spark's workers run them where one of them died."""

    def run(self, recipe: bytes, step: Step, works: Sequence[Work]) -> list[Done]:
        return [unpacked(run_work_apart(recipe, step, pickle.dumps(work))) for work in works]


@pytest.fixture(params=["apart", pytest.param("spark", marks=pytest.mark.spark)])
def apart(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The engine "apart" has its tasks in processes of their own, "spark" where one died."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    monkeypatch.setitem(ENGINES, "apart", lambda topology, how: MicroBatchEngine(topology, how, Apart()))
    return str(request.param)


def end_at_2(how: str, bolt: Does, input: Tuple) -> None:
    if input["value"] == 2:
        ends = {"SIGKILL": partial(os.kill, os.getpid(), signal.SIGKILL), "code 3": partial(os._exit, 3)}
        ends.get(how, partial(sys.exit, 3))()
    bolt.state.append(input["value"])
    bolt.collector.emit(input.values, anchors=input)
    bolt.collector.ack(input)


@pytest.mark.parametrize("how", ["SIGKILL", "code 3", "3"])
def test_a_tuple_that_ends_its_process_kills_its_task_alone(apart: str, how: str) -> None:
    """What came before is done, it and what was queued behind it time out, and the other tasks go on."""
    builder = line(Does(partial(end_at_2, how)), Does(keep_values))
    builder.set_bolt("other", AckOnly(), 1).shuffle_grouping("s")
    topology = started(builder, apart, timeout=10)
    feed(topology, 1, 2, 3)
    assert (topology.acks("s"), topology.executed("other")) == ([1], 3)
    assert [how in str(error) for error in topology.errors("b1")] == [True]
    feed(topology, 4)
    assert (topology.acks("s"), topology.state("b1")) == ([4], [4])
    topology.advance(20)
    assert (sorted(topology.fails("s")), topology.pending("s")) == ([2, 3], 0)


class EndsInPrepare(AckOnly):
    """Takes its process along before the first tuple."""

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        os._exit(3)


def test_a_bolt_that_ends_its_process_when_it_starts_is_named(apart: str) -> None:
    """The topology cannot run at all, as with any error there; Java has nothing to say about it."""
    topology = started(line(EndsInPrepare()), apart)
    with pytest.raises(OperatingError, match=r"'b1' cannot be started: .* exit code 3$"):
        topology.settle()


class EndsWhenRestarted(Does):
    """Its second start ends the process; the file outlives that."""

    def __init__(self, file: Path) -> None:
        super().__init__(partial(end_at_2, "code 3"))
        self.file = file

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(configuration, context, collector)
        if context.clock.now() < ManualClock().now() + timedelta(seconds=1) and self.file.exists():
            os._exit(4)
        self.file.touch()


def test_a_bolt_that_ends_its_process_when_it_starts_again_is_tried_later(apart: str, tmp_path: Path) -> None:
    """As after an exception there."""
    with started(line(EndsWhenRestarted(tmp_path / "started"), AckOnly()), apart) as topology:
        feed(topology, 1)
        feed(topology, 2)
        topology.advance(2)
        feed(topology, 3)
        assert (topology.acks("s"), topology.state("b1")) == ([1, 3], [3])
        assert ["code 4" in str(error) for error in topology.errors("b1")] == [False, True]


class Crashing(SparkCluster):
    """Its jobs fail as told."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.asked: list[bool] = []

    def _run_job(self, recipe: bytes, step: Step, works: Sequence[Work], is_apart: bool = False) -> list[Done]:
        self.asked.append(is_apart)
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        return []


def test_a_job_that_fails_is_tried_once_more_where_a_worker_died() -> None:
    """With the tasks apart; what else fails it is said without a stack."""
    crash = "Python worker exited unexpectedly (crashed)"
    crashing = Crashing(crash)
    assert (crashing.run(b"", Step(1, 0.0), []), crashing.asked) == ([], [False, True])
    full = Crashing("the disk is full\n\tat org.apache.spark.Task.run(Task.scala)")
    with pytest.raises(OperatingError, match="the disk is full") as failed:
        full.run(b"", Step(1, 0.0), [])
    assert full.asked == [False]
    assert "scala" not in str(failed.value)
    with pytest.raises(OperatingError, match="exited unexpectedly"):
        Crashing(crash, crash).run(b"", Step(1, 0.0), [])


def test_time_that_one_task_waits_passes_for_all(cluster: Recording) -> None:
    """Two tasks wait side by side: the clock moves by the longer wait."""

    def work(bolt: Does, input: Tuple) -> None:
        bolt.context.clock.wait(input["value"], threading.Event())
        bolt.collector.ack(input)

    builder = line()
    builder.set_bolt("b", Does(work), 2).shuffle_grouping("s")
    with TestTopology(builder, Settings(), "microbatch") as topology:
        feed(topology, 3, 2)
        assert topology.now_s() == 3
        assert topology.statistics("b").execute_latency_ms == 2500
