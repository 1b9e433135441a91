"""Tasks that cannot start again, or die again and again: they wait longer and longer, and the others go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from reliable_spark import (
    ManualClock,
    OutputCollector,
    Settings,
    SpoutOutputCollector,
    TopologyContext,
    Tuple,
    UsageError,
    submit_topology,
)
from reliable_spark.microbatch import Here, MicroBatchEngine
from reliable_spark.process.restarts import Restarts
from reliable_spark.testing import AckOnly
from reliable_spark.testing.engine import ENGINES
from tests.topology.pieces import CountingSpout, Does, TopologyBuilder, feed, keep, line, line_from, started

OPENED: list[float] = []
"""When a task of the kinds below was started, on the simulated clock."""


@pytest.fixture(params=["process", "microbatch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ENGINES, "microbatch", lambda topology, how: MicroBatchEngine(topology, how, Here()))
    return str(request.param)


@pytest.fixture(autouse=True)
def opened() -> None:
    OPENED.clear()


def seconds(context: TopologyContext) -> float:
    return (context.clock.now() - ManualClock().now()).total_seconds()


def test_waits_double_up_to_a_limit_and_begin_anew_after_a_life() -> None:
    """A start that fails does not count as a life, however long the waits before it were."""
    restarts, now_s, waits = Restarts(), 0.0, []
    for _ in range(8):
        assert restarts.put_off(7, now_s)
        waits.append(restarts.next_due_s - now_s)
        now_s = restarts.next_due_s
        assert (restarts.due(now_s - 0.001), restarts.due(now_s), 7 in restarts) == ([], [7], True)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    restarts.started(7, now_s)
    assert (len(restarts), restarts.next_due_s) == (0, float("inf"))
    restarts.put_off(7, now_s + 30)
    assert restarts.next_due_s == now_s + 60
    restarts.started(7, now_s + 60)
    assert not restarts.put_off(7, now_s + 91, first_s=0.0)


class Reluctant(Does):
    """Dies of 0; its second and third start fail, as when a connection is refused."""

    def __init__(self) -> None:
        super().__init__(die_of_0)

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(configuration, context, collector)
        OPENED.append(seconds(context))
        if len(OPENED) in (2, 3):
            raise ConnectionError("refused")


def die_of_0(bolt: Does, input: Tuple) -> None:
    bolt.collector.ack(input) if input["value"] else bolt.state[0]


def test_a_bolt_that_cannot_start_again_is_tried_later(engine: str) -> None:
    """Meanwhile what is sent to it times out, and the others go on; then it works as before."""
    builder = line(Reluctant())
    builder.set_bolt("other", AckOnly(), 1).shuffle_grouping("s")
    with started(builder, engine, timeout=10) as topology:
        feed(topology, 1)
        feed(topology, 0)
        feed(topology, 2)
        assert (topology.acks("s"), topology.executed("other")) == ([1], 3)
        with pytest.raises(UsageError, match="task 0 of 'b1' has died and not started again yet"):
            topology.state("b1")
        topology.advance(3)
        feed(topology, 3)
        assert (topology.acks("s"), OPENED) == ([3], [0, 0, 1, 3])
        assert [str(error) for error in topology.errors("b1")] == ["list index out of range", "refused", "refused"]
        topology.advance(20)
        assert (sorted(topology.fails("s")), topology.pending("s")) == ([0, 2], 0)


class Once(Reluctant):
    """Starts once only, and would say if it were cleaned up."""

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        super().prepare(configuration, context, collector)
        if len(OPENED) > 1:
            raise ConnectionError("refused")

    def cleanup(self) -> None:
        raise AssertionError("never started")


def test_a_bolt_that_never_starts_again_can_be_closed(engine: str) -> None:
    """There is nothing to clean up."""
    with started(line(Once()), engine, timeout=10) as topology:
        feed(topology, 0)
        topology.advance(100)
        assert OPENED[1:] == [0, 1, 3, 7, 15, 31, 61, 91]


class Ungrateful(CountingSpout):
    """Dies of every answer, and begins with 0 again."""

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        super().open(configuration, context, collector)
        OPENED.append(seconds(context))

    def ack(self, message_id: Any) -> None:
        raise ValueError("thank you for nothing")


def test_a_spout_that_dies_of_every_ack_comes_back_slower_and_slower(engine: str) -> None:
    """At once the first time."""
    with started(line_from(Ungrateful(limit=1), AckOnly()), engine) as topology:
        topology.advance(70)
        assert OPENED == [0, 0, 2, 6, 14, 30, 60]
        assert len(topology.errors("s")) == 7
        topology.deactivate()
        topology.advance(60)
        topology.activate()


def test_what_waits_to_start_again_is_not_idle() -> None:
    """Whoever waits for the end of the work waits for the spout too; stopping does not."""
    running = submit_topology("x", line_from(Ungrateful(limit=1), AckOnly()), Settings(), clock=ManualClock())
    while running.statistics("s").emitted < 4:
        assert not running.await_idle(0)
    running.stop()


class Bitter(CountingSpout):
    """Its first task dies of every fail."""

    def fail(self, message_id: Any) -> None:
        if self.context.task_index == 0:
            raise ValueError("enough")
        super().fail(message_id)


def test_a_spout_that_dies_of_fails_leaves_its_executors_others_alone(engine: str) -> None:
    """The other task hears of all its fails, also those that come while the first one waits; nothing stays pending."""
    builder = TopologyBuilder()
    builder.set_spout("s", Bitter(limit=3), 1).set_num_tasks(2)
    builder.set_bolt("b", Does(keep), 1).shuffle_grouping("s")
    with started(builder, engine, timeout=10) as topology:
        topology.advance(20)
        assert topology.state("s", 1)["failed"] == [0, 1, 2]
        assert len(topology.errors("s")) == 2
        topology.advance(1)
        with pytest.raises(UsageError, match="not started again"):
            topology.state("s", 0)
