"""What the driver and a worker tell each other about one task in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reliable_spark.core.statistics import Amounts, Key
from reliable_spark.microbatch.parcels import Address, Arrival, Parcel


@dataclass(frozen=True)
class Step:
    """Which step it is, and when it began."""

    number: int
    now_s: float


@dataclass(frozen=True)
class Work:
    """One task's part of a step.

    Attributes:
        task: its id.
        state: the task as it was kept; None: it starts.
        arrivals: what it executes.
        is_closing: whether it is cleaned up instead.
        is_restart: whether it ran before, so that one that cannot start is tried again later.
        crashes: how its process ended at a try before, by the place of the tuple in hand.
    """

    task: int
    state: bytes | None
    arrivals: Sequence[Arrival] = ()
    is_closing: bool = False
    is_restart: bool = False
    crashes: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """What came of a task's part of a step.

    Attributes:
        task: its id.
        state: the task, kept; None: it could not be.
        is_down: whether it died and could not start again.
        parcels: what it sent.
        seen: what it emitted, for a test.
        counted: its statistics, by second and key.
        reported: its errors, each with the place of the tuple in hand.
        died_at: the place of the tuple that killed it last.
        misuse: what the caller must hear of, with its place.
        now_s: the time when it was done.
    """

    task: int
    state: bytes | None
    is_down: bool
    parcels: Sequence[Parcel[Address]]
    seen: Sequence[Parcel[Key]]
    counted: Sequence[tuple[float, Mapping[Key, Amounts]]]
    reported: Sequence[tuple[int, BaseException]]
    died_at: int | None
    misuse: tuple[int, BaseException] | None
    now_s: float
