"""Cases G of topologies with stateful bolts on Spark, and what is different there: tasks sleep between two steps.

"microbatch" is the Spark engine with its tasks run and packed in this process; "spark" has its JVM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliable_spark import Settings, SettingsError, TopologyBuilder, submit_topology
from reliable_spark.microbatch import Here, MicroBatchEngine, with_states_below
from reliable_spark.microbatch.orders import Done, Step, Work
from reliable_spark.settings import TopologySettings
from reliable_spark.state import MemoryStateProvider
from reliable_spark.state.delta import DeltaStateProvider
from reliable_spark.testing import Identity, TestTopology
from reliable_spark.testing.engine import ENGINES
from tests.state.pieces import Count, chain, feed
from tests.state.test_recovery import FailsOnce, actions
from tests.topology.pieces import CountingSpout

Start = Callable[..., TestTopology]
EVERYWHERE = ["process", "microbatch", pytest.param("spark", marks=pytest.mark.spark)]


@pytest.fixture(params=EVERYWHERE)
def start(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts topologies on each engine; all of one test share their states."""
    monkeypatch.setitem(ENGINES, "microbatch", lambda topology, how: MicroBatchEngine(topology, how, Here()))
    if request.param == "spark":
        request.getfixturevalue("spark")
    running: list[TestTopology] = []

    def begin(*bolts: Any, **settings: Any) -> TestTopology:
        chosen = with_states_below(Settings(**{"message_timeout_s": 10, **settings}), tmp_path)
        running.append(TestTopology(chain(*bolts), chosen, request.param))
        return running[-1]

    yield begin
    for each in running:
        each.close()


def counted(topology: TestTopology, *bolts: str) -> list[dict[str, int]]:
    return [dict(topology.state(bolt, 0)) for bolt in bolts]


def test_acks_go_out_at_the_checkpoint(start: Start) -> None:
    """G1 and G5: initialised before the first tuple; seen at once, acked by the commit."""
    topology = start(Count(), Identity(), Count())
    assert actions(topology) == [(-1, "initstate"), (0, "prepare"), (0, "commit")]
    feed(topology, "a", "b", "a")
    topology.advance(0.9)
    assert (topology.acks("s"), counted(topology, "b1", "b3")) == ([], [{"a": 2, "b": 1}] * 2)
    topology.advance(0.1)
    assert (sorted(topology.acks("s")), actions(topology)) == (["a", "a", "b"], [(1, "prepare"), (1, "commit")])
    assert topology.emitted("b3") == [["a", 1], ["b", 1], ["a", 2]]


def test_a_task_that_dies_takes_nothing_with_it_that_was_committed(start: Start) -> None:
    """G4: all go back to the last commit, the tuples come again and count once."""
    topology = start(Count(), Identity(), Count(), message_timeout_s=2)
    feed(topology, "a")
    topology.advance(1)
    feed(topology, "b", "c")
    topology.kill_task("b1", 0)
    actions(topology)
    topology.advance(1)
    assert actions(topology) == [(2, "prepare"), (2, "rollback"), (1, "initstate")]
    assert counted(topology, "b1", "b3") == [{"a": 1}, {"a": 1}]
    topology.advance(4)
    assert (topology.acks("s"), sorted(topology.fails("s"))) == (["a"], ["b", "c"])
    feed(topology, "b", "c")
    topology.advance(1)
    assert sorted(topology.acks("s")) == ["b", "c"]
    assert counted(topology, "b1", "b3") == [dict.fromkeys("abc", 1)] * 2


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ("prepare", [(1, "prepare"), (1, "rollback"), (0, "initstate")]),
        ("commit", [(1, "prepare"), (1, "commit"), (1, "commit"), (1, "initstate")]),
    ],
)
def test_a_checkpoint_that_fails_goes_back_or_forward(
    start: Start, point: str, expected: list[tuple[int, str]]
) -> None:
    """G3: back while some have not prepared, then the tuple comes again; forward when all have."""
    topology = start(Count(), FailsOnce(point, 1))
    feed(topology, "a")
    actions(topology)
    topology.advance(1)
    assert actions(topology) == expected
    assert [str(each) for each in topology.errors("b2")] == [f"{point} 1"]
    if point == "prepare":
        assert (topology.fails("s"), counted(topology, "b1", "b2")) == (["a"], [{}, {}])
        feed(topology, "a")
        topology.advance(1)
    assert (topology.acks("s"), counted(topology, "b1", "b2")) == (["a"], [{"a": 1}, {"a": 1}])


def test_the_next_run_goes_on(start: Start) -> None:
    """With the counts that were committed, and without those that were not."""
    for run in range(3):
        topology = start(Count(), Count())
        feed(topology, "a")
        topology.advance(1)
        assert topology.acks("s") == ["a"]
        feed(topology, "b")
        assert counted(topology, "b1", "b2") == [{"a": run + 1, "b": 1}] * 2


def test_the_next_run_may_have_more_tasks(start: Start) -> None:
    """The keys go where their tuples go now."""
    first = start(Count())
    feed(first, *"abcdefgh")
    first.advance(1)
    first.close()
    second = start(Count(), topology=TopologySettings(tasks=3))
    feed(second, *"abcdefgh")
    second.advance(1)
    shards = [dict(second.state("b1", task)) for task in range(3)]
    assert all(shards)
    assert {key: count for shard in shards for key, count in shard.items()} == dict.fromkeys("abcdefgh", 2)


class Again(Here):
    """Runs every task twice, as Spark may, and takes the second answer; some jobs fail after they have run."""

    is_failing = False
    steps = 0

    def run(self, recipe: bytes, step: Step, works: Sequence[Work]) -> list[Done]:
        super().run(recipe, step, works)
        self.steps += 1
        if self.is_failing and self.steps % 3 == 0:
            raise OSError("the job failed")
        return super().run(recipe, step, works)


@pytest.mark.parametrize("kind", ["delta", "redis"])
def test_a_step_that_is_run_again_changes_the_state_once(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that prepared or committed before it was lost."""
    own = TopologySettings(state_provider=kind, state_provider_config={"path": str(tmp_path)})
    if kind == "redis":
        client = request.getfixturevalue("redis_client")
        client.flushdb()
        port = client.get_connection_kwargs()["port"]
        own = TopologySettings(state_provider=kind, state_provider_config={"jedisPoolConfig": {"port": port}})
    cluster = Again()
    monkeypatch.setitem(ENGINES, "again", lambda topology, how: MicroBatchEngine(topology, how, cluster))
    topology = TestTopology(chain(Count(), Count()), Settings(topology=own), "again")
    engine: Any = topology._engine
    engine._crew.spout_executors.reverse()  # the tuple before the barrier
    cluster.is_failing = True
    for number in range(1, 6):
        engine._world.clock.advance(1)  # and both in one step
        topology.feed("s", ["a"], message_id=number)
        for _ in range(8):
            with suppress(OSError):
                topology.settle()
    cluster.is_failing = False
    topology.advance(3)
    assert topology.acks("s") == [1, 2, 3, 4, 5]
    assert counted(topology, "b1", "b2") == [{"a": 5}, {"a": 5}]


@pytest.mark.spark
def test_the_kit_needs_no_settings_on_spark(spark: SparkSession) -> None:
    """States are Delta tables in a directory of its own; it is gone with the topology."""
    with TestTopology(chain(Count()), engine="spark") as topology:
        feed(topology, "a", "a")
        topology.advance(1)
        assert (topology.acks("s"), dict(topology.state("b1", 0))) == (["a", "a"], {"a": 2})


@pytest.mark.parametrize("provider", [None, "memory", MemoryStateProvider()])
def test_states_in_one_process_are_refused(provider: Any) -> None:
    """A task would find its state only where it happened to run last."""
    chosen = Settings(topology=TopologySettings(state_provider=provider))
    with pytest.raises(SettingsError, match=r"pass ledger= to submit_topology, or state_provider='delta'"):
        MicroBatchEngine(chain(Count()).build(), chosen, Here())


def test_a_submitted_topology_has_its_states_below_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Spark, if nobody says where; without a ledger it does not start."""
    monkeypatch.setattr("reliable_spark.microbatch.SparkCluster", lambda spark: Here())
    builder = TopologyBuilder()
    builder.set_spout("s", CountingSpout(limit=3))
    builder.set_bolt("b1", Count()).shuffle_grouping("s")
    often = Settings(checkpoint_interval_s=0.1)
    with pytest.raises(SettingsError, match="pass ledger="):
        submit_topology("t", builder, often, "spark")
    with submit_topology("t", builder, often, "spark", ledger=tmp_path) as running:
        assert running.await_idle(30)
    assert dict(DeltaStateProvider(str(tmp_path / "state")).state("b1-0")) == {0: 1, 1: 1, 2: 1}
