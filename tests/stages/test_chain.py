"""A chain with real loops and ledgers, without Spark: failures, crashes, a stage that is down, rows that disappear."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark.engine import loop
from reliable_spark.engine.redrive import redrive
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.stages import source_loop
from tests.stages.chain import QUEUES, Chain, Durable, SourceRows, wire

SETTINGS = rs.Settings(backoff_initial_s=1, backoff_max_s=1, message_timeout_s=1000)
ALL = ("source", *QUEUES)


def chain(
    path: Path, patch: pytest.MonkeyPatch, fails: object, batches: list[list[int]], settings: rs.Settings = SETTINGS
) -> Chain:
    durable = Durable(path, fails, batches)  # type: ignore[arg-type]
    wire(patch, durable)
    return Chain(durable, settings)


def balance(made: Chain) -> tuple[int, int, int, int]:
    counts = audit(str(made.durable.path / "ledger"))
    assert counts.balanced, str(counts)
    return counts.anchored, counts.acked, counts.dead, counts.pending


def turn(made: Chain, *names: str) -> None:
    """One micro-batch of each, and what is due at the source."""
    for name in names:
        made.act(name, "batch")
    made.act("source", "due")


def to_the_end(made: Chain, *names: str) -> None:
    for _ in range(30):
        turn(made, *(names or ALL))
        made.durable.clock.advance(2)


def fine(where: str, row: int, attempt: int) -> bool | None:
    return None


def test_a_row_is_acked_only_when_the_last_stage_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it is pending, without a row in the table of that name."""
    made = chain(tmp_path, monkeypatch, fine, [[1, 2], [3]])
    turn(made, "source")
    assert balance(made) == (2, 0, 0, 2)
    turn(made, "bronze")
    assert balance(made) == (2, 0, 0, 2)
    turn(made, "silver")
    assert balance(made) == (2, 2, 0, 0)
    to_the_end(made)
    assert balance(made) == (3, 3, 0, 0)
    assert made.durable.sink == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("where", ALL)
def test_what_fails_anywhere_is_replayed_or_dead(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 fails once, 2 always, 3 for good; their siblings in the batch are not touched."""

    def fails(at: str, row: int, attempt: int) -> bool | None:
        if at != where:
            return None
        return {1: True if attempt == 1 else None, 2: True, 3: False}.get(row)

    made = chain(tmp_path, monkeypatch, fails, [[1, 2, 3, 4], [5]])
    to_the_end(made)
    assert balance(made) == (5, 3, 2, 0)
    counts = audit(str(tmp_path / "ledger"))
    assert (counts.failed_attempts, counts.replayed) == (1 + 3 + 1, 1 + 2)
    assert made.durable.sink[4] == made.durable.sink[5] == 2
    assert made.durable.sink[1] >= 2


def test_what_fails_again_is_not_looked_for_in_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay's rows are pending: micro-batches that are in flight with it are not read for them."""

    def fails(at: str, row: int, attempt: int) -> bool | None:
        return True if (at, row) == ("silver", 1) and attempt < 3 else None

    made = chain(tmp_path, monkeypatch, fails, [[1, 2], [3], [4]])
    made.capacity = 1_000
    read: list[int] = []
    find = SourceRows.failed

    def counted(self: SourceRows, batch: Any, failed: Any) -> Any:
        read.append(batch.number)
        return find(self, batch, failed)

    monkeypatch.setattr(SourceRows, "failed", counted)
    turn(made, *ALL)
    made.durable.clock.advance(2)
    for name in ("source", "source", *QUEUES):
        made.act(name, "batch")
        made.act("source", "due")
    to_the_end(made)
    assert balance(made) == (4, 4, 0, 0)
    assert audit(str(tmp_path / "ledger")).replayed == 2
    assert read == [0]


@pytest.mark.parametrize("where", ALL)
def test_dead_letters_go_through_all_stages_again(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they died, the source takes them back; a redrive is the source's, and no stage's."""
    broken = {1, 3}

    def fails(at: str, row: int, attempt: int) -> bool | None:
        return False if at == where and row in broken else None

    made = chain(tmp_path, monkeypatch, fails, [[1, 2, 3], [4]])
    to_the_end(made)
    assert balance(made) == (4, 2, 2, 0)
    broken.remove(1)
    with pytest.raises(rs.UsageError, match="redrive there"):
        redrive(made.loop("bronze"), None)
    assert redrive(made.loop("source"), None) == 2
    assert balance(made) == (4, 2, 0, 2)
    to_the_end(made)
    assert balance(made) == (4, 3, 1, 0)


def test_two_failures_of_one_tree_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One share failed in the first stage, its sibling in the second; in the source, half a tree fails too."""

    def fails(at: str, row: int, attempt: int) -> bool | None:
        return True if attempt == 1 and (row != 1 or at != "source") else None

    made = chain(tmp_path, monkeypatch, fails, [[1, 2, 3]])
    to_the_end(made)
    assert balance(made) == (3, 3, 0, 0)
    counts = audit(str(tmp_path / "ledger"))
    assert (counts.failed_attempts, counts.replayed) == (3, 3)


def test_a_stage_that_is_down_bounds_its_queue_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source waits at the capacity and one batch; when the stage is back, everything comes through."""
    made = chain(tmp_path, monkeypatch, fine, [[number, number + 100] for number in range(9)])
    to_the_end(made, "source")
    assert made.durable.most["bronze"] <= 4 - 1 + 4
    assert balance(made)[0] < 18
    to_the_end(made)
    assert balance(made) == (18, 18, 0, 0)
    assert set(made.durable.sink.values()) == {2}


def test_a_stage_that_is_down_for_longer_than_the_timeout_leads_to_replays_and_no_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its last attempt a tree waits for as long as its rows lie in the queue."""
    settings = rs.Settings(backoff_initial_s=1, backoff_max_s=1, message_timeout_s=10, max_attempts=3)
    made = chain(tmp_path, monkeypatch, fine, [[1]], settings)
    for _ in range(40):
        turn(made, "source")
        made.durable.clock.advance(10)
        anchored, acked, dead, pending = balance(made)
        assert (anchored, acked, dead, pending) == (1, 0, 0, 1)
    counts = audit(str(tmp_path / "ledger"))
    assert (counts.replayed, counts.failed_attempts) == (1, 2), "for the third attempt there is no room"
    to_the_end(made)
    assert balance(made) == (1, 1, 0, 0)
    assert made.durable.sink[1] >= 2


@pytest.mark.parametrize("pause_s", [5, 10, 15])
def test_a_tree_on_its_last_attempt_waits_although_others_of_its_replay_time_out(
    pause_s: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replay may hold first retries of some trees and last ones of others."""
    settings = rs.Settings(backoff_initial_s=1, backoff_max_s=1, message_timeout_s=10, max_attempts=3)
    made = chain(tmp_path, monkeypatch, fine, [[number] for number in range(5)], settings)
    made.capacity = 1_000
    for _ in range(30):
        turn(made, "source")
        made.durable.clock.advance(pause_s)
        assert balance(made)[1:3] == (0, 0)
    assert audit(str(tmp_path / "ledger")).replayed == 5 * 2
    to_the_end(made)
    assert balance(made) == (5, 5, 0, 0)
    assert min(made.durable.sink.values()) >= 2


def test_rows_of_a_last_attempt_that_disappear_are_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would ever answer them."""
    settings = rs.Settings(backoff_initial_s=1, backoff_max_s=1, message_timeout_s=10, max_attempts=1)
    made = chain(tmp_path, monkeypatch, fine, [[1, 2]], settings)
    made.durable.swallowed.add("silver")
    to_the_end(made)
    assert balance(made) == (2, 0, 2, 0)


@pytest.mark.parametrize("queue", QUEUES)
def test_rows_that_disappear_between_two_stages_are_replayed(
    queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is not acked, although its stage has taken all that it saw; its timeout brings it back."""
    settings = rs.Settings(backoff_initial_s=1, backoff_max_s=1, message_timeout_s=10)
    made = chain(tmp_path, monkeypatch, fine, [[1, 2]], settings)
    made.durable.swallowed.add(queue)
    turn(made, *ALL)
    turn(made, *ALL)
    assert balance(made) == (2, 0, 0, 2)
    to_the_end(made)
    assert balance(made) == (2, 2, 0, 0)
    assert min(made.durable.sink.values()) >= 2


@pytest.mark.parametrize("seed", range(4))
def test_any_crash_of_any_part_loses_nothing(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every effect may be the last of its process; every part goes on where it was; the ledger always balances."""
    rng = random.Random(seed)

    def fails(at: str, row: int, attempt: int) -> bool | None:
        chance = random.Random(f"{at}{row}{attempt}{seed}").random()
        return None if chance > 0.15 else chance > 0.02

    made = chain(tmp_path, monkeypatch, fails, [[n * 10 + k for k in range(rng.randint(1, 4))] for n in range(4)])
    for _ in range(40):
        if rng.random() < 0.4:
            made.durable.crash_in = rng.randint(0, 8)
        made.act(rng.choice(ALL), "batch")
        made.act("source", "due")
        made.durable.clock.advance(rng.choice([0, 1, 3]))
        if "source" in made.loops:
            balance(made)
    made.durable.crash_in = None
    to_the_end(made)
    anchored, acked, _, pending = balance(made)
    assert (anchored, pending) == (sum(map(len, made.durable.micro_batches)), 0)
    assert len({row for row, count in made.durable.sink.items() if count >= 2}) >= acked


def test_tables_are_kept_small_whichever_batch_is_the_hundredth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source batches and merged answers take turns, so that all of the hundredth ones may be answers."""
    kept: list[int] = []
    monkeypatch.setattr(Ledger, "upkeep", lambda ledger: kept.append(ledger.last_batch_id))
    for module in (loop, source_loop):
        monkeypatch.setattr(module, "UPKEEP_BATCHES", 2)
    made = chain(tmp_path, monkeypatch, fine, [[1], [2], [3]])
    made.loop("bronze").ledger.upkeep = made.loop("silver").ledger.upkeep = lambda: None
    for _ in range(3):
        turn(made, *ALL)
    assert balance(made) == (3, 3, 0, 0)
    assert kept == [1, 3, 5]
