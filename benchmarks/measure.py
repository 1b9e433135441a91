"""How are two ways of doing the same work compared? In turns, in one process, by the median of the ratios."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from tqdm import tqdm

Ours = TypeVar("Ours")
Peers = TypeVar("Peers")
Pair = tuple[float, float]
"""Our figure and the peer's of one round."""


class SkippedError(Exception):
    """A benchmark cannot be run here."""


@dataclass(frozen=True)
class Options:
    """What every benchmark is told.

    Attributes:
        quick: small and once, to see that it works; the figures mean nothing then.
        data: the directory in which inputs are kept.
        storm: the directory of the Storm peer, where there is one.
        warm_ups: how often everything is run before it is measured, unless quick.
    """

    quick: bool = False
    data: Path = Path("benchmarks/data")
    storm: Path | None = None
    warm_ups: int = 5

    @property
    def rounds(self) -> int:
        """How often everything is measured."""
        return 1 if self.quick else 5

    @property
    def warm_up(self) -> int:
        """How often before that, for Java to compile what is called often."""
        return 0 if self.quick else self.warm_ups


@dataclass(frozen=True)
class Line:
    """What one comparison came to: a line of the table.

    Attributes:
        work: what was done.
        against: what it was compared with.
        ours, peer: medians of the rounds, in `unit`; None where there is nothing to show.
        ratio: what is held against the bar, in `measure`: a quotient ("x"), or a difference or an amount.
        bar: what is promised; None where nothing is.
        direction: whether the bar is the least or the most.
        note: what else there is to say.
    """

    work: str
    against: str
    ours: float | None
    peer: float | None
    unit: str
    ratio: float
    bar: float | None = None
    direction: Literal["at least", "at most"] = "at most"
    measure: str = "x"
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """Tell whether the promise is kept; None where there is none."""
        if self.bar is None:
            return None
        return self.ratio >= self.bar if self.direction == "at least" else self.ratio <= self.bar

    def cells(self) -> tuple[str, ...]:
        """The columns of the table as text, in the order of `HEADINGS`."""
        bar = "" if self.bar is None else f"{self.direction} {self.bar:g} {self.measure}"
        holds = {None: "", True: "yes", False: "no"}[self.holds]
        figures = (_figure(self.ours, self.unit), _figure(self.peer, self.unit), f"{self.ratio:.2f} {self.measure}")
        return (self.work, self.against, *figures, bar, holds, self.note)

    def __str__(self) -> str:
        cells = zip(HEADINGS, self.cells(), strict=True)
        return ", ".join(f"{heading} {cell}".removeprefix("work ") for heading, cell in cells if cell)


HEADINGS = ("work", "against", "ours", "peer", "ratio", "bar", "holds", "note")


def faster(ours: float, peer: float) -> float:
    """How many times as fast we are, from two times."""
    return peer / ours


def times(ours: float, peer: float) -> float:
    """How many times the peer's figure ours is."""
    return ours / peer


def more(ours: float, peer: float) -> float:
    """How much more ours is."""
    return ours - peer


def line_of(pairs: Iterable[Pair], ratio: Callable[[float, float], float], **about: Any) -> Line:
    """Sum the rounds up: the median of each side, and the median of the rounds' ratios."""
    rounds = list(pairs)
    return Line(
        ours=statistics.median(ours for ours, _ in rounds),
        peer=statistics.median(peer for _, peer in rounds),
        ratio=statistics.median(ratio(*pair) for pair in rounds),
        **about,
    )


def seconds(work: Callable[[], object]) -> float:
    """How long one call takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def timed(work: Callable[..., object], *arguments: Any) -> Callable[[], float]:
    """Make a call that says how long the work took."""
    return partial(seconds, partial(work, *arguments))


def in_turns(
    ours: Callable[[], Ours], peer: Callable[[], Peers], options: Options, *, is_peer_fresh: bool = False
) -> list[tuple[Ours, Peers]]:
    """Measure both in turns, after rounds that are not counted; who is first changes from round to round.

    Args:
        ours: gives our figure each time.
        peer: gives the peer's.
        options: how often.
        is_peer_fresh: it is a process of its own each time, so nothing would become warm.
    """
    pairs = []
    numbers = range(-options.warm_up, options.rounds)
    # those below 0 are not counted
    for number in tqdm(numbers, file=sys.stderr, unit=" rounds", leave=False, disable=None):
        if number < 0 and is_peer_fresh:
            ours()
            continue
        if number % 2:
            theirs, own = peer(), ours()
        else:
            own, theirs = ours(), peer()
        if number >= 0:
            pairs.append((own, theirs))
    return pairs


def parser_of(documentation: str | None) -> argparse.ArgumentParser:
    """The arguments that all benchmarks share, under a module's own text."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    default, storm = Options(), os.environ.get("STORM_PEER")
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it works")
    parser.add_argument("--data", type=Path, default=default.data, help="where inputs are kept (default %(default)s)")
    parser.add_argument("--storm", type=Path, default=Path(storm) if storm else None, help="the Storm peer's directory")
    return parser


def options_of(parsed: argparse.Namespace) -> Options:
    """What those arguments say."""
    return Options(parsed.quick, parsed.data.absolute(), parsed.storm and parsed.storm.absolute())


def run(documentation: str | None, measure: Callable[[Options], list[Line]], argv: list[str] | None) -> None:
    """Be the main program of one benchmark: read the arguments, measure, print."""
    try:
        for line in measure(options_of(parser_of(documentation).parse_args(argv))):
            print(line)
    except SkippedError as reason:
        print(f"skipped: {reason}")


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
