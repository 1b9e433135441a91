"""The order of effects, with a crash at any of them: thousands of histories of a query, without Spark.

A failing history prints its seed: `simulate(seed)` is it again.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Sequence

import pytest

import reliable_spark as rs
from reliable_spark.engine import loop
from reliable_spark.ledger.counts import Counts
from tests.engine.simulation import SINKS, Crash, MemoryBatches, World, process

SEEDS = int(os.environ.get("RELIABLE_SPARK_SEEDS", "900"))
MODES = list(SINKS)


def simulate(seed: int) -> World:
    """Run one history: a query that crashes at random effects until it comes to its end."""
    rng = random.Random(seed)
    sink_kind, delivery = MODES[seed % len(MODES)]
    settings = rs.Settings(delivery=delivery, max_attempts=rng.randint(1, 3), message_timeout_s=5)
    ids = iter(range(1_000))
    batches = [[next(ids) for _ in range(rng.randint(0, 5))] for _ in range(rng.randint(1, 3))]
    world = World(rng, deterministic=bool(rng.getrandbits(1)), micro_batches=batches, redrives=rng.choice([0, 0, 1, 2]))
    try:
        for _ in range(rng.randint(1, 4)):
            world.crash_in = rng.randint(0, 40)
            try:
                process(world, sink_kind, settings)
                break
            except Crash:
                continue
        world.crash_in = None
        check(world, process(world, sink_kind, settings).counts(), delivery)
    except Exception as error:
        raise AssertionError(f"seed {seed} ({sink_kind}, {delivery}): {error}\n{' > '.join(world.trail)}") from error
    return world


def commit_in_hand_only(batches: MemoryBatches, changes: Sequence[str], batch_id: int) -> None:
    """Commit what this process has settled, and nothing that an earlier one has left behind."""
    if batch_id in batches.evaluated_ids:
        commit_states(batches, changes, batch_id)


commit_states = MemoryBatches.commit_states


def simulate_all(count: int) -> None:
    for seed in range(count):
        simulate(seed)


def check(world: World, counts: Counts, delivery: str) -> None:
    """What has to hold when everything has come to its end."""
    rows = {row for batch in world.micro_batches for row in batch}
    dead = [int(each) for each in world.tables["dead_letters"].read()["message_id"].to_pylist()]
    assert counts.balanced
    assert (counts.anchored, counts.pending, counts.dead) == (len(rows), 0, len(dead))
    assert len(set(dead)) == len(dead), "a row died twice"
    acked_by = acked_evaluations(world)
    assert set(acked_by) == rows - set(dead), "a row is neither acked nor dead, or both"
    wanted = {leaf for row, number in acked_by.items() for leaf in world.evaluations[number][row][1]}
    if delivery == "exactly_once":
        assert world.sink == Counter(wanted), "not exactly the rows of the acked trees"
    elif delivery == "at_least_once":
        assert wanted <= set(world.sink), "rows of an acked tree are missing"
    else:
        assert max(world.sink.values(), default=0) <= 1, "a row was written twice"
        assert {leaf[1] for leaf in world.sink} <= set(world.settled), "rows of a batch that was never settled"
    world.check_state()
    assert world.state == Counter(acked_by.keys()), "the state has not counted every acked row once"
    check_calls(world, delivery)


def acked_evaluations(world: World) -> dict[int, int]:
    """For each acked row, the evaluation that was settled as its complete one."""
    acked: dict[int, int] = {}
    for number in world.settled:
        for row, (is_done, _) in world.evaluations[number].items():
            if is_done:
                assert row not in acked, "a row was acked twice"
                acked[row] = number
    return acked


def check_calls(world: World, delivery: str) -> None:
    """A function meets the same source rows under the same batch id, and can tell the calls apart."""
    for calls in world.calls.values():
        attempts = [attempt for attempt, _, _ in calls]
        assert attempts == sorted(set(attempts)), "two calls are the same attempt"
        if delivery == "exactly_once":
            assert all(leaves == calls[0][1] for _, leaves, _ in calls), "another call has other rows"
        if delivery == "at_most_once":
            assert len(calls) == 1
        if delivery == "at_least_once":
            rows = [set(world.evaluations[number]) for _, _, number in calls if number is not None]
            assert all(each == rows[0] for each in rows), "another call is about other source rows"


@pytest.fixture(autouse=True)
def frequent_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "UPKEEP_BATCHES", 3)


@pytest.mark.timeout(1_200)
def test_no_history_breaks_a_promise() -> None:
    """Whatever the effect it crashes at, each mode keeps its promise, and the ledger balances."""
    reached: Counter[str] = Counter()
    for seed in range(SEEDS):
        trail = simulate(seed).trail
        reached.update(before for before, after in itertools.pairwise(trail) if after == "CRASH")
    assert len(reached) >= min(20, SEEDS // 50), f"only these effects were crashed at: {sorted(reached)}"


@pytest.mark.parametrize("broken", ["settle twice", "forget the sink", "forget the states", "lose the journal"])
def test_the_simulation_sees_a_broken_protocol(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one rule of the protocol taken away, some history breaks: the check can fail."""
    if broken == "settle twice":
        monkeypatch.setattr("reliable_spark.ledger.ledger.Ledger.is_settled", lambda *_: False)
    elif broken == "forget the sink":
        monkeypatch.setattr(loop.Loop, "finish", lambda *_: None)
    elif broken == "forget the states":
        monkeypatch.setattr(MemoryBatches, "commit_states", commit_in_hand_only)
    else:
        monkeypatch.setattr("reliable_spark.ledger.journal.Journal.begun_after", lambda *_: None)
    with pytest.raises(AssertionError, match="seed"):
        simulate_all(600)
