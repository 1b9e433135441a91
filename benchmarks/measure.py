"""How are two ways of doing the same work compared? In turns, in one process, by the median of the ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """What a comparison came to.

    Attributes:
        name: the work.
        ours_s, peer_s: medians of the rounds, in seconds.
        throughput_ratio: the peer's time by ours, median over the rounds: 1.0 is as fast, more is faster.
    """

    name: str
    ours_s: float
    peer_s: float
    throughput_ratio: float

    def __str__(self) -> str:
        times = f"ours {self.ours_s:.2f} s, peer {self.peer_s:.2f} s"
        return f"{self.name}: {times}, throughput ratio {self.throughput_ratio:.2f}"


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def compare(name: str, ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> Ratio:
    """Run both in turns, after one round that is not counted."""
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds + 1)][1:]
    return ratio_of(name, pairs)


def ratio_of(name: str, pairs: list[tuple[float, float]]) -> Ratio:
    """Sum up the rounds: (our seconds, the peer's seconds)."""
    return Ratio(
        name,
        statistics.median(ours for ours, _ in pairs),
        statistics.median(peer for _, peer in pairs),
        statistics.median(peer / ours for ours, peer in pairs),
    )
