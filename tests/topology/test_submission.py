"""Topologies that run by themselves until they are stopped."""

from __future__ import annotations

import json
import queue
import shutil
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark.core.messages import Message, Messages
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.ledger.tables import LedgerTable
from reliable_spark.process.stored import TopologyLedger
from reliable_spark.testing import AckEveryOther, AckOnly, FeedSpout, Identity, TestTopology
from reliable_spark.testing.kit import Fed, Feed
from tests.topology.pieces import CountingSpout, Does, fail, keep_values, line_from
from tests.topology.test_parity import emit_nowhere

ENGINES = ["process", pytest.param("spark", marks=pytest.mark.spark)]


def fed(*ids: Any) -> FeedSpout:
    feed = Feed([Fed([each], each, "default") for each in ids])
    return FeedSpout(["value"]).fed_by(feed)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "spark":
        request.getfixturevalue("spark")
    return request.param


def await_emits(running: rs.RunningTopology, count: int) -> None:
    """Each look waits for a round, so this ends."""
    while running.statistics("s").emitted < count:
        pass


def test_it_runs_until_it_is_stopped(engine: Any, tmp_path: Path) -> None:
    """Everything fed is answered; state and statistics can be read while it runs, the page after its end too."""
    builder = line_from(fed(1, 2, 3), Identity(), Does(keep_values))
    with rs.submit_topology("numbers", builder, engine=engine) as running:
        running.write_statistics(tmp_path / "numbers.json")
        assert running.await_idle(60)
        assert running.state("b2") == [[1], [2], [3]]
        assert (running.statistics("s").acked, running.statistics("s").failed) == (3, 0)
    page = json.loads((tmp_path / "numbers.json").read_text())
    assert (page["name"], page["components"]["b2"]["inputs"]["b1:default"]["executed"]) == ("numbers", 3)
    assert [path.name for path in tmp_path.iterdir()] == ["numbers.json"]
    assert running.statistics("s").acked == 3


def test_a_page_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who asks for it is told; when it cannot be written any more the log says so. A text is a path too."""
    pages = tmp_path / "pages"
    with rs.submit_topology("x", line_from(fed(1), AckOnly())) as running:
        with pytest.raises(rs.OperatingError, match=r"the statistics cannot be written: .*No such file"):
            running.write_statistics(str(pages / "x.json"))
        assert running.await_idle(60)
        pages.mkdir()
        running.write_statistics(str(pages / "x.json"))
        shutil.rmtree(pages)
    assert "x: the statistics cannot be written" in caplog.text


@pytest.mark.parametrize("path", ["", 5])
def test_a_ledger_that_is_no_path_is_refused(path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty text would be the root of the file system."""
    made: list[str] = []
    monkeypatch.setattr(TopologyLedger, "__init__", lambda self, path, *others: made.append(path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(rs.UsageError, match=f"a ledger is a directory or a URI, not {path!r}"):
        rs.submit_topology("x", line_from(fed(), AckOnly()), ledger=path)
    assert made == []


@pytest.mark.parametrize("begin", [lambda *given: rs.submit_topology("x", *given), TestTopology])
def test_settings_of_another_type_are_refused(begin: Any) -> None:
    """A dict is what people try first."""
    with pytest.raises(rs.SettingsError, match=r"given as rs\.Settings\(\.\.\.\), not as a dict"):
        begin(line_from(fed(), AckOnly()), {"max_pending": 10})


def test_a_spout_that_never_stops_can_be_stopped() -> None:
    """What is pending when it is stopped is answered first."""
    builder = line_from(CountingSpout(), AckOnly())
    running = rs.submit_topology("endless", builder, rs.Settings(max_pending=10), clock=rs.ManualClock())
    await_emits(running, 100)
    running.stop()
    figures = running.statistics("s")
    assert figures.acked == figures.emitted
    running.stop()


def test_it_waits_no_longer_than_asked_for_what_is_pending() -> None:
    """A tuple that nobody acks times out, or is left behind."""
    builder = line_from(fed(1, 2), AckEveryOther())
    patient = rs.submit_topology("patient", builder, rs.Settings(message_timeout_s=1), clock=rs.ManualClock())
    await_emits(patient, 2)
    patient.stop(wait_s=10)
    assert (patient.statistics("s").acked, patient.statistics("s").failed) == (1, 1)
    hasty = rs.submit_topology("hasty", line_from(fed(1, 2), AckEveryOther()), clock=rs.ManualClock())
    await_emits(hasty, 2)
    hasty.stop(wait_s=0)
    assert hasty.statistics("s").failed == 0


def test_what_other_threads_send_is_lost_nowhere() -> None:
    """A bolt hands its tuples to a writer's thread, which emits and acks while full queues are sorted out."""
    handed: queue.SimpleQueue[tuple[rs.OutputCollector, rs.Tuple] | None] = queue.SimpleQueue()

    def hand_over(bolt: Does, input: rs.Tuple) -> None:
        handed.put((bolt.collector, input))

    def write() -> None:
        while (each := handed.get()) is not None:
            each[0].emit(each[1].values, anchors=each[1])
            each[0].ack(each[1])

    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    builder = line_from(CountingSpout(limit=4000), Does(hand_over), AckOnly())
    storm = {"topology.executor.receive.buffer.size": 2, "topology.message.timeout.secs": 5}
    try:
        with rs.submit_topology("x", builder, rs.Settings.from_storm(storm)) as running:
            assert running.await_idle(60)
            found = running.statistics("s")
    finally:
        for _ in threads:
            handed.put(None)
        sys.setswitchinterval(switching_s)
    assert (found.acked, found.failed) == (4000, 0)


def test_what_is_deactivated_emits_nothing() -> None:
    """Until it is activated again."""
    with rs.submit_topology("held", line_from(CountingSpout(limit=5), AckOnly()), clock=rs.ManualClock()) as running:
        running.await_idle(60)
        running.deactivate()
        emitted = running.statistics("s").emitted
        running.activate()
        assert (emitted, running.state("s")["calls"]) == (5, ["activate", "deactivate", "activate"])


def test_what_ends_it_comes_out() -> None:
    """Misuse of a collector ends the topology; whoever waits for it hears of it."""
    running = rs.submit_topology("wrong", line_from(fed(1), Does(emit_nowhere)), clock=rs.ManualClock())
    with pytest.raises(rs.UsageError, match="no stream 'nowhere'"):
        running.await_idle(60)
    with pytest.raises(rs.UsageError, match="no stream 'nowhere'"):
        running.stop()


def test_what_is_not_there_is_said_so() -> None:
    """An engine, a component."""
    with pytest.raises(rs.UsageError, match="did you mean 'spark'"):
        rs.submit_topology("x", line_from(fed(), AckOnly()), engine="sparc")  # type: ignore[arg-type]
    with (
        rs.submit_topology("x", line_from(fed(), AckOnly()), clock=rs.ManualClock()) as running,
        pytest.raises(rs.UsageError, match="did you mean 'b1'"),
    ):
        running.statistics("b2")


@pytest.mark.parametrize("task", [1, 7, -1])
def test_a_task_that_is_not_there_is_said_so(task: int) -> None:
    """With those that are; -1 is none of them, unlike in a list."""
    with (
        rs.submit_topology("x", line_from(fed(), Does(keep_values)), clock=rs.ManualClock()) as running,
        pytest.raises(rs.UsageError, match=f"component 'b1' has the tasks 0 to 0, not {task}"),
    ):
        running.state("b1", task)


def fails_first(bolt: Does, input: rs.Tuple) -> None:
    """Fails every value but the last, once it was seen."""
    (bolt.collector.ack if input["value"] == 3 else bolt.collector.fail)(input)


def test_a_ledger_has_every_messages_answer(engine: Any, tmp_path: Path) -> None:
    """While it runs a failed message is pending; stopped, it is dead; the audit and the statistics need no JVM."""
    path = str(tmp_path / "ledger")
    builder = line_from(fed(1, 2, 3), Does(fails_first))
    with rs.submit_topology("numbers", builder, engine=engine, ledger=path) as running:
        assert running.await_idle(60)
    counts = audit(path)
    assert (counts.anchored, counts.acked, counts.dead, counts.pending, counts.failed_attempts) == (3, 1, 2, 0, 2)
    dead = LedgerTable(f"{path}/dead_letters").read().sort_by("message_id").to_pylist()
    assert [(row["spout"], row["message_id"], row["payload"]["values"]) for row in dead] == [
        ("s", "1", "[1]"),
        ("s", "2", "[2]"),
    ]
    rows = LedgerTable(f"{path}/statistics").read().to_pylist()
    assert {(row["topology"], row["component"]) for row in rows} == {
        ("numbers", name) for name in ("s", "b1", "__acker")
    }
    [executed] = [
        row["executed"] for row in rows if (row["component"], row["scope"], row["source"]) == ("b1", "input", "s")
    ]
    assert executed == 3


def test_what_a_crash_left_pending_is_replayed_under_its_id(tmp_path: Path) -> None:
    """It was anchored once, in the first run, and is acked in the second."""
    path = str(tmp_path / "ledger")
    hasty = rs.submit_topology("x", line_from(fed(1, 2), AckEveryOther()), ledger=path, clock=rs.ManualClock())
    await_emits(hasty, 2)
    hasty.stop(wait_s=0)
    assert (audit(path).acked, audit(path).pending, audit(path).balanced) == (1, 1, True)
    with rs.submit_topology("x", line_from(fed(2, 3), AckOnly()), ledger=path, clock=rs.ManualClock()) as running:
        running.await_idle(60)
    counts = audit(path)
    assert (counts.anchored, counts.acked, counts.pending, counts.replayed) == (3, 3, 0, 1)


class CannotCleanUp(rs.RichBolt):
    """Acks, and cannot be cleaned up."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def prepare(
        self, configuration: Mapping[str, Any], context: rs.TopologyContext, collector: rs.OutputCollector
    ) -> None:
        self.collector = collector

    def execute(self, input: rs.Tuple) -> None:
        self.collector.ack(input)

    def cleanup(self) -> None:
        raise self.error


@pytest.mark.parametrize("error", [OSError("the disk is gone"), SystemExit("the disk is gone")])
def test_a_cleanup_that_raises_costs_no_answer(engine: Any, tmp_path: Path, error: BaseException) -> None:
    """It comes out of stop, as an error that ends no program; the ledger has the end all the same."""
    path = str(tmp_path / "ledger")
    running = rs.submit_topology("x", line_from(fed(1, 2), CannotCleanUp(error)), engine=engine, ledger=path)
    assert running.await_idle(60)
    with pytest.raises((OSError, rs.OperatingError), match="the disk is gone"):
        running.stop()
    assert (audit(path).anchored, audit(path).acked, audit(path).pending) == (2, 2, 0)


def misuse_3(bolt: Does, input: rs.Tuple) -> None:
    """Ack 1, fail 2, and emit to nowhere for 3."""
    if input["value"] == 3:
        emit_nowhere(bolt, input)
    (bolt.collector.fail if input["value"] == 2 else bolt.collector.ack)(input)


def test_what_was_answered_before_an_error_is_in_the_ledger(tmp_path: Path) -> None:
    """What failed is pending, not dead: the next run may emit it again; that run closes what the first had open."""
    path = str(tmp_path / "ledger")
    spout = CountingSpout(limit=5)
    running = rs.submit_topology("x", line_from(spout, Does(misuse_3)), ledger=path, clock=rs.ManualClock())
    with pytest.raises(rs.UsageError, match="no stream 'nowhere'"):
        running.await_idle(60)
    assert running.state("s")["calls"] == ["activate", "deactivate", "close"]
    counts = audit(path)
    assert (counts.anchored, counts.acked, counts.dead, counts.pending, counts.balanced) == (4, 2, 0, 2, True)


def exit_at_2(bolt: Does, input: rs.Tuple) -> None:
    """As a library does that thinks the program is its own."""
    if input["value"] == 2:
        sys.exit(1)
    bolt.collector.ack(input)


def test_sys_exit_ends_a_task_and_nothing_else(engine: Any, tmp_path: Path) -> None:
    """Its tuple times out, the others are acked, and the ledger says so."""
    path = str(tmp_path / "ledger")
    builder = line_from(CountingSpout(limit=3), Does(exit_at_2))
    running = rs.submit_topology(
        "x", builder, rs.Settings(message_timeout_s=1), engine, ledger=path, clock=rs.ManualClock()
    )
    assert running.await_idle(60)
    running.stop()
    assert (audit(path).acked, audit(path).dead, audit(path).pending) == (2, 1, 0)


def test_a_ledger_that_could_not_be_written_is_written_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of that write are in no batch: what came later would not balance without them."""
    path, messages = str(tmp_path / "ledger"), Messages()
    ledger = TopologyLedger(path, "x", messages, rs.ManualClock())
    messages.emitted(1, Message("s", "1", "default", [1], 0.0))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "settle", no_room)
        with pytest.raises(rs.LedgerError, match="the disk is full"):
            ledger.write({})
    messages.emitted(2, Message("s", "2", "default", [1], 0.0))
    ledger.write({}, is_end=True)
    ledger.close()
    assert (audit(path).anchored, audit(path).pending, audit(path).balanced) == (0, 0, True)


def no_room(*ignored: Any) -> None:
    raise rs.LedgerError("the disk is full")


class SameId(rs.Spout):
    """Emits 1 and "1" as ids, and the text once more before it is answered."""

    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["value"])

    def open(
        self, configuration: Mapping[str, Any], context: rs.TopologyContext, collector: rs.SpoutOutputCollector
    ) -> None:
        self.collector = collector
        self.left: list[tuple[Any, str]] = [("1", "bad"), (1, "good"), ("1", "fine")]

    def next_tuple(self) -> None:
        if self.left:
            message_id, value = self.left.pop(0)
            self.collector.emit([value], message_id=message_id)


def answer_all_backwards(bolt: Does, input: rs.Tuple) -> None:
    """Hold three, then answer the last first, and fail what is bad."""
    bolt.state.append(input)
    if len(bolt.state) == 3:
        for each in reversed(bolt.state):
            (bolt.collector.fail if each["value"] == "bad" else bolt.collector.ack)(each)


def test_what_failed_is_what_is_dead(engine: Any, tmp_path: Path) -> None:
    """Not another message of the same id, nor one whose id looks the same."""
    path = str(tmp_path / "ledger")
    with rs.submit_topology(
        "x", line_from(SameId(), Does(answer_all_backwards)), engine=engine, ledger=path
    ) as running:
        assert running.await_idle(60)
    dead = LedgerTable(f"{path}/dead_letters").read().to_pylist()
    assert [row["payload"]["values"] for row in dead] == ['["bad"]']
    assert (audit(path).anchored, audit(path).acked, audit(path).dead) == (3, 2, 1)


class Unwritable:
    """A value that Python cannot write either."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __deepcopy__(self, memo: dict[int, Any]) -> Unwritable:
        return self


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


HARD: dict[str, Any] = {
    "a key that is no text": {(1, 2): 3},
    "a list in itself": CIRCLE,
    "endless digits": 10**5000,
    "what cannot be written": Unwritable(),
    "half a letter": "\ud800",
    "no number": float("nan"),
    "bytes": b"\xff",
    "a zero": "a\0b",
}


@pytest.mark.parametrize("value", HARD.values(), ids=HARD)
@pytest.mark.parametrize("is_id", [True, False])
def test_a_value_that_cannot_be_written_costs_no_answer(value: Any, is_id: bool, tmp_path: Path) -> None:
    """As an id or among the values: the ledger has a text for it, every message is answered, the next run goes on."""
    path, ids = str(tmp_path / "ledger"), (value, 2) if is_id else (1, 2)
    feed = Feed([Fed([value], ids[0], "default"), Fed(["good"], ids[1], "default")])
    with rs.submit_topology("x", line_from(FeedSpout().fed_by(feed), Does(fail)), ledger=path) as running:
        assert running.await_idle(60)
    with rs.submit_topology("x", line_from(fed(3), AckOnly()), ledger=path) as running:
        assert running.await_idle(60)
    found = audit(path)
    assert (found.anchored, found.acked, found.dead, found.balanced) == (3, 1, 2, True)


class Holding:
    """An action that cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, bolt: Does, input: rs.Tuple) -> None:
        bolt.collector.ack(input)


def test_a_ledger_in_use_is_refused_and_given_back(tmp_path: Path) -> None:
    """Also by a topology that never came to run."""
    path = str(tmp_path / "ledger")
    with (
        rs.submit_topology("x", line_from(fed(), AckOnly()), ledger=path, clock=rs.ManualClock()),
        pytest.raises(rs.LedgerError, match="in use"),
    ):
        rs.submit_topology("y", line_from(fed(), AckOnly()), ledger=path)
    uncopyable = line_from(fed(), Does(Holding()))
    for _ in range(2):
        with pytest.raises(rs.UsageError, match="cannot be copied"):
            rs.submit_topology("z", uncopyable, ledger=path)
    with pytest.raises(rs.UsageError, match="did you mean 'ledger'"):
        rs.submit_topology("x", line_from(fed(), AckOnly()), leger=path)  # type: ignore[call-arg]
