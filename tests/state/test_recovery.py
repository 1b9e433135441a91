"""Every row of the table of crash points, in a running topology."""

from __future__ import annotations

from typing import Any

import pytest

from reliable_spark import ManualClock, Settings, SettingsError, Tuple
from reliable_spark.core.checkpoints import Phase
from reliable_spark.core.graph import CHECKPOINT_SPOUT, CHECKPOINT_STREAM
from reliable_spark.process import ProcessEngine
from reliable_spark.settings import TopologySettings
from reliable_spark.state import MemoryStateProvider
from reliable_spark.state.layers import LayeredState
from reliable_spark.testing import AckOnly, Identity, TestTopology
from tests.state.pieces import Count, chain, feed, running


def actions(topology: TestTopology) -> list[tuple[int, str]]:
    """What the coordinator sent since the last call."""
    return [(txid, action) for txid, action, _ in topology.emitted(CHECKPOINT_SPOUT, CHECKPOINT_STREAM)]


class FailsOnce(Count):
    """Counts, and fails at one point of one transaction, the first time."""

    def __init__(self, point: str, txid: int) -> None:
        super().__init__()
        self._left = [(point, txid)]

    def _at(self, point: str, txid: int) -> None:
        if (point, txid) in self._left:
            self._left.clear()
            raise RuntimeError(f"{point} {txid}")

    def pre_prepare(self, txid: int) -> None:
        self._at("prepare", txid)

    def pre_commit(self, txid: int) -> None:
        self._at("commit", txid)


def test_acks_go_out_at_the_checkpoint() -> None:
    """Not before, however long the tuple has been done; the state is seen at once."""
    topology = running(chain(Count(), Identity(), Count()))
    assert actions(topology) == [(-1, "initstate"), (0, "prepare"), (0, "commit")]
    feed(topology, "a", "b")
    topology.advance(0.9)
    assert (topology.acks("s"), dict(topology.state("b1"))) == ([], {"a": 1, "b": 1})
    topology.advance(0.1)
    assert (topology.acks("s"), actions(topology)) == (["a", "b"], [(1, "prepare"), (1, "commit")])
    assert dict(topology.state("b3")) == {"a": 1, "b": 1}


@pytest.mark.parametrize("victim", ["b1", "b2", "b3"])
def test_a_task_that_dies_after_execute_before_the_prepare(victim: str) -> None:
    """All go back to the last commit; the tuples come again and count once. A stateless task counts as one."""
    topology = running(chain(Count(), Identity(), Count()))
    feed(topology, "a")
    topology.advance(1)
    feed(topology, "b", "c")
    topology.kill_task(victim, 0)
    feed(topology, "d")
    actions(topology)
    topology.advance(1)
    assert actions(topology) == [(2, "prepare"), (2, "rollback"), (1, "initstate")]
    assert [dict(topology.state(bolt)) for bolt in ("b1", "b3")] == [{"a": 1}, {"a": 1}]
    topology.advance(20)
    assert (topology.acks("s"), sorted(topology.fails("s"))) == (["a"], ["b", "c", "d"])
    feed(topology, "b", "c", "d")
    topology.advance(1)
    assert topology.acks("s") == ["b", "c", "d"]
    assert [dict(topology.state(bolt)) for bolt in ("b1", "b3")] == [dict.fromkeys("abcd", 1)] * 2


def test_some_prepared_some_not() -> None:
    """The first bolt prepared, the second failed to: both forget it, and the acked tuples fail."""
    topology = running(chain(Count(), FailsOnce("prepare", 1)))
    feed(topology, "a")
    actions(topology)
    topology.advance(1)
    assert actions(topology) == [(1, "prepare"), (1, "rollback"), (0, "initstate")]
    assert (topology.fails("s"), dict(topology.state("b1")), dict(topology.state("b2"))) == (["a"], {}, {})
    assert [str(each) for each in topology.errors("b2")] == ["prepare 1"]
    feed(topology, "a")
    topology.advance(1)
    assert (topology.acks("s"), dict(topology.state("b2"))) == (["a"], {"a": 1})


def test_all_prepared_one_fails_to_commit() -> None:
    """The commit goes on until all have done it, though some did before: Storm's in-memory state never gets out."""
    topology = running(chain(Count(), FailsOnce("commit", 1)))
    feed(topology, "a")
    actions(topology)
    topology.advance(1)
    assert actions(topology) == [(1, "prepare"), (1, "commit"), (1, "commit"), (1, "initstate")]
    assert (topology.acks("s"), topology.fails("s")) == (["a"], [])
    assert [dict(topology.state(bolt)) for bolt in ("b1", "b2")] == [{"a": 1}, {"a": 1}]


def test_a_task_that_dies_between_prepare_and_commit() -> None:
    """Its state is committed all the same; its acks are gone with it, so the tuple comes again and counts twice."""
    topology = running(chain(Count(), AckOnly()))
    feed(topology, "a")
    topology.advance(0.99)

    def kill(txid: int) -> None:
        raise KeyboardInterrupt  # the moment is inside a checkpoint, which survives every Exception

    topology._engine.instance("b1", 0).bolt.pre_commit = kill
    with pytest.raises(KeyboardInterrupt):
        topology.advance(0.01)
    topology.kill_task("b1", 0)
    topology.advance(25)
    assert (topology.acks("s"), topology.fails("s")) == ([], ["a"])
    assert dict(topology.state("b1")) == {"a": 1}
    feed(topology, "a")
    topology.advance(1)
    assert (topology.acks("s"), dict(topology.state("b1"))) == (["a"], {"a": 2})


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (Phase.PREPARING, [(1, "rollback"), (0, "initstate"), (1, "prepare"), (1, "commit")]),
        (Phase.COMMITTING, [(1, "commit"), (1, "initstate"), (2, "prepare"), (2, "commit")]),
    ],
)
def test_the_whole_topology_dies(phase: Phase, expected: list[tuple[int, str]]) -> None:
    """What is stored says whether its successor goes back or forward."""
    provider = MemoryStateProvider()
    point = "prepare" if phase is Phase.PREPARING else "commit"
    topology = running(chain(Count(), Count()), provider)
    feed(topology, "a")

    def die(txid: int) -> None:
        raise KeyboardInterrupt

    setattr(topology._engine.instance("b2", 0).bolt, f"pre_{point}", die)
    with pytest.raises(KeyboardInterrupt):
        topology.advance(1)
    successor = running(chain(Count(), Count()), provider)
    assert actions(successor) == expected
    counted = {} if phase is Phase.PREPARING else {"a": 1}
    assert [dict(successor.state(bolt)) for bolt in ("b1", "b2")] == [counted, counted]


def test_the_coordinator_dies() -> None:
    """Its successor begins with a recovery; nothing is lost that was committed."""
    topology = running(chain(Count()))
    feed(topology, "a")
    topology.advance(1)
    actions(topology)
    topology.kill_task(CHECKPOINT_SPOUT, 0)
    feed(topology, "b")
    assert actions(topology)[:2] == [(1, "initstate"), (2, "prepare")]
    topology.advance(1)
    assert (topology.acks("s"), dict(topology.state("b1"))) == (["a", "b"], {"a": 1, "b": 1})


def test_a_barrier_that_is_lost_times_out() -> None:
    """The coordinator hears of it as of any tuple, and recovers."""
    topology = running(chain(Count(), Identity(), Count()))
    feed(topology, "a")

    def lose(txid: int) -> None:
        raise KeyboardInterrupt

    bolt = topology._engine.instance("b3", 0).bolt
    bolt.pre_prepare = lose
    with pytest.raises(KeyboardInterrupt):
        topology.advance(1)
    del bolt.pre_prepare
    actions(topology)
    topology.advance(8)
    assert actions(topology) == []
    topology.advance(15)
    assert actions(topology)[:3] == [(1, "rollback"), (0, "initstate"), (1, "prepare")]
    assert (topology.fails("s"), dict(topology.state("b1")), dict(topology.state("b3"))) == (["a"], {}, {})


def test_a_bolt_whose_state_cannot_be_read_is_asked_again_every_interval() -> None:
    """Time goes on meanwhile; the tuples wait."""

    class Unwilling(Count):
        asked = 0

        def init_state(self, state: Any) -> None:
            Unwilling.asked += 1
            if Unwilling.asked < 4:
                raise OSError("not yet")
            super().init_state(state)

    topology = running(chain(Unwilling()))
    feed(topology, "a")
    assert (Unwilling.asked, dict(topology.state("b1"))) == (1, {})
    topology.advance(2)
    assert (Unwilling.asked, dict(topology.state("b1"))) == (3, {})
    topology.advance(1)
    assert (topology.acks("s"), dict(topology.state("b1"))) == (["a"], {"a": 1})


def test_a_tuple_that_user_code_fails_fails_at_once() -> None:
    """Only acks wait."""

    class Fails(Count):
        def execute(self, input: Tuple) -> None:
            self.collector.fail(input)

    topology = running(chain(Fails()))
    feed(topology, "a")
    assert topology.fails("s") == ["a"]


def test_checkpoints_go_on_while_the_spouts_are_inactive() -> None:
    """What was on its way is acked."""
    topology = running(chain(Count()))
    feed(topology, "a")
    topology.deactivate()
    topology.advance(1)
    assert topology.acks("s") == ["a"]


@pytest.mark.parametrize("kind", ["delta", "redis"])
def test_a_new_process_goes_on(kind: str, request: pytest.FixtureRequest, tmp_path: Any) -> None:
    """With the counts that the one before committed."""
    if kind == "delta":
        configuration: dict[str, Any] = {"path": str(tmp_path)}
    else:
        client = request.getfixturevalue("redis_client")
        client.flushdb()
        port = client.get_connection_kwargs()["port"]
        configuration = {"jedisPoolConfig": {"host": "127.0.0.1", "port": port}}
    for expected in (1, 2):
        own = TopologySettings(state_provider=kind, state_provider_config=configuration)
        with TestTopology(chain(Count(), Count()), Settings(topology=own)) as topology:
            feed(topology, "a")
            topology.advance(1)
            assert (topology.acks("s"), dict(topology.state("b2"))) == (["a"], {"a": expected})


def test_intervals_that_cannot_work_are_refused() -> None:
    """The tuples of an interval would time out before its end; without ackers no checkpoint has one."""
    with pytest.raises(SettingsError, match=r"checkpoint_interval_s=10.* must be less than message_timeout_s=10"):
        running(chain(Count()), checkpoint_interval_s=10)
    with pytest.raises(SettingsError, match="need ackers"):
        running(chain(Count()), ackers=0)


def test_a_short_interval_is_kept() -> None:
    """Ten checkpoints in a second, if so told."""
    topology = running(chain(Count()), checkpoint_interval_s=0.1)
    actions(topology)
    topology.advance(1)
    assert [txid for txid, action in actions(topology) if action == "prepare"] == list(range(1, 11))


class SlowToWrite(MemoryStateProvider):
    """A provider whose every look takes a second of the clock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def __deepcopy__(self, memo: dict[int, Any]) -> SlowToWrite:
        return self

    def state(self, namespace: str) -> LayeredState[Any, Any]:
        state: LayeredState[Any, Any] = super().state(namespace)
        commit = state._store.commit

        def slow(txid: int) -> None:
            self._clock.advance(1)
            commit(txid)

        state._store.commit = slow  # type: ignore[method-assign]
        return state


def test_a_checkpoint_that_takes_longer_than_its_interval_keeps_no_topology_from_starting() -> None:
    """The next one is due when the first one ends; the tuples do not wait for a time without any."""
    clock = ManualClock()
    own = TopologySettings(state_provider=SlowToWrite(clock))
    engine = ProcessEngine(chain(Count()).build(), Settings(topology=own), clock)
    assert engine.components()["b1"] == 1
