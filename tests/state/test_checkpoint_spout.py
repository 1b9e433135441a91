"""Cases G1 to G4: what the coordinator sends, stores and sends again."""

from __future__ import annotations

from typing import Any

import pytest

from reliable_spark import ManualClock, TopologyContext
from reliable_spark.core.checkpoints import CheckpointState, Phase
from reliable_spark.core.graph import Graph
from reliable_spark.state import MemoryStateProvider
from reliable_spark.topology.checkpoint_spout import (
    INTERVAL_KEY,
    NAMESPACE,
    PROVIDER_KEY,
    CheckpointSpout,
    store_checkpoint,
    stored_checkpoint,
)


class Coordinated:
    """A coordinator over a store, and what it sends."""

    def __init__(self, txid: int | None = None, phase: Phase = Phase.COMMITTED) -> None:
        self.provider = MemoryStateProvider()
        self.clock = ManualClock()
        self.sent: list[tuple[Any, ...]] = []
        if txid is not None:
            store_checkpoint(self.provider.state(NAMESPACE), CheckpointState(txid, phase))
        self.start()

    def start(self) -> None:
        self.spout = CheckpointSpout()
        context = TopologyContext("$checkpointspout", 1, 0, self.clock, Graph({}), {})
        self.spout.open({PROVIDER_KEY: self.provider, INTERVAL_KEY: 1000}, context, self)

    def emit(self, values: Any, stream: str = "default", message_id: Any = None) -> list[int]:
        self.sent.append((values[0], values[1], message_id))
        return []

    def emit_direct(self, task: int, values: Any, stream: str = "default", message_id: Any = None) -> None:
        raise AssertionError("not used")

    def pending_count(self) -> int:
        return 0

    def report_error(self, error: BaseException) -> None:
        raise AssertionError("not used")

    def asked(self) -> list[tuple[Any, ...]]:
        """What it sends when it is asked twice."""
        self.sent = []
        self.spout.next_tuple()
        self.spout.next_tuple()
        return self.sent

    def stored(self) -> tuple[int, str]:
        return stored_checkpoint(self.provider.state(NAMESPACE))


def test_g1_first_start_initialises() -> None:
    """One action at a time: INITSTATE(-1), and after its ack PREPARE(0), which was stored before."""
    case = Coordinated()
    assert case.asked() == [(-1, "initstate", -1)]
    assert case.asked() == []
    case.sent = []
    case.spout.ack(-1)
    assert case.sent == []
    assert case.asked() == [(0, "prepare", 0)]
    assert case.stored() == (0, Phase.PREPARING)


def test_g3_restart_in_preparing() -> None:
    """What was not prepared by all is rolled back."""
    assert Coordinated(100, Phase.PREPARING).asked() == [(100, "rollback", 100)]


def test_g3_restart_in_committing() -> None:
    """What was prepared by all is committed, then the bolts are initialised, then the next transaction begins."""
    case = Coordinated(100, Phase.COMMITTING)
    assert case.asked() == [(100, "commit", 100)]
    case.spout.ack(100)
    assert case.stored() == (100, Phase.COMMITTED)
    assert case.asked() == [(100, "initstate", 100)]
    case.spout.ack(100)
    assert case.asked() == [(101, "prepare", 101)]


def test_g3_commit_retried() -> None:
    """A commit that failed is sent again, and never rolled back; the second time after an interval."""
    case = Coordinated()
    for txid in (-1, 0):
        case.asked()
        case.spout.ack(txid)
    assert case.asked() == [(0, "commit", 0)]
    case.spout.fail(0)
    assert case.asked() == [(0, "commit", 0)]
    case.spout.fail(0)
    assert case.asked() == []
    case.clock.advance(1)
    assert case.asked() == [(0, "commit", 0)]
    assert case.stored() == (0, Phase.COMMITTING)


def test_g4_restart_in_preparing_through_to_the_next_checkpoint() -> None:
    """ROLLBACK(100), INITSTATE(99), PREPARE(100)."""
    case = Coordinated(100, Phase.PREPARING)
    case.asked()
    case.spout.ack(100)
    assert case.stored() == (99, Phase.COMMITTED)
    assert case.asked() == [(99, "initstate", 99)]
    case.spout.ack(99)
    assert case.asked() == [(100, "prepare", 100)]


def test_an_answer_about_another_transaction_changes_nothing() -> None:
    """It only lets the coordinator go on."""
    case = Coordinated(5)
    case.asked()
    case.spout.ack(4)
    assert case.stored() == (5, Phase.COMMITTED)
    assert case.asked() == [(5, "initstate", 5)]


@pytest.mark.parametrize("interval_passed", [False, True])
def test_a_checkpoint_begins_when_the_interval_is_over(interval_passed: bool) -> None:
    """Counted from the beginning of the one before; the commit waits for nothing."""
    case = Coordinated()
    for txid in (-1, 0, 0):
        assert len(case.asked()) == 1
        case.spout.ack(txid)
    case.clock.advance(1.0 if interval_passed else 0.999)
    assert case.asked() == ([(1, "prepare", 1)] if interval_passed else [])


def test_every_start_has_attempts_of_its_own() -> None:
    """Barriers of a dead coordinator are older than those of the next, whatever their txid."""
    case = Coordinated()
    attempts = []
    for _ in range(2):
        case.start()
        case.spout.next_tuple()
        attempts.append(case.spout._attempt)
    assert attempts == [(2, 1), (3, 1)]
