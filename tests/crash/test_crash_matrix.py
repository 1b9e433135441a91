"""A real spark-submit process, killed with SIGKILL at every effect that the loop names, in every mode.

`make crash` runs the whole matrix and prints it; `make test` runs a short form of it.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from rich.console import Console

from tests.crash.chain import Chain, matrix
from tests.crash.job import IN_THE_SINK

MODES = ["at_most_once", "at_least_once", "exactly_once"]
CHAINS = [
    *itertools.chain.from_iterable((("delta", mode, False), ("function", mode, True)) for mode in MODES),
    ("delta", "exactly_once", True),
]
"""Each mode with bolts that are deterministic and not; every pair with both sinks is simulated (test_protocol.py)."""

_ended: list[Chain] = []


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_process_killed_at_three_effects_keeps_its_promise(tmp_path: Path) -> None:
    """The short form: exactly once, with a bolt that gives other rows each time."""
    chain = Chain(tmp_path, "delta", "exactly_once", is_random=True)
    for effect in (IN_THE_SINK, "commit", "settle replay"):
        chain.kill_at(effect)
    chain.finish()


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize(("sink", "delivery", "is_random"), CHAINS)
def test_a_process_killed_at_every_effect_keeps_its_promise(
    sink: str, delivery: str, is_random: bool, tmp_path: Path
) -> None:
    """One ledger, one process after the other, each killed at another effect; then one that nobody kills."""
    chain = Chain(tmp_path, sink, delivery, is_random)
    for effect in chain.effects():
        chain.kill_at(effect)
    chain.finish()
    _ended.append(chain)


@pytest.mark.crash
@pytest.mark.soak
def test_the_matrix_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Print what was killed where."""
    with capsys.disabled():
        Console(width=200).print(matrix(_ended))
    assert len(_ended) == len(CHAINS)
