"""How much the next batch may take, so that batches last about as long as they should.

A batch costs something however small it is, and so much for each unit (a file, or a row) that it takes. The size that
is right follows from what the last one took and how long; growth is bounded, since a batch that was small, or read
from a cache, says little about a large one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

GROWTH_MAX: Final = 2.0
"""A batch takes at most so many times what the last one took."""


@dataclass(frozen=True)
class Ran:
    """A batch that was run.

    Attributes:
        units: what it took of what Spark can limit: files, or rows.
        rows: how many rows these were.
        seconds: how long it lasted.
    """

    units: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class Bounds:
    """What the next batch has to keep to.

    Attributes:
        target_s: how long it should last.
        room: how many rows fit into the queue behind it, and among the pending trees.
        most: units; the limit that the user has set.
    """

    target_s: float
    room: int
    most: int


def next_size(size: int, ran: Ran, bounds: Bounds) -> int:
    """The units that the next batch may take.

    Guarantee: from 1 to `bounds.most`; and no more than fits into the room, as far as the last batch's rows per unit
    tell, but for the one unit without which nothing would go on.

    Args:
        size: what the last batch might have taken.
        ran: what it did.
        bounds: for the next.
    """
    if not ran.units:
        return min(size, bounds.most)
    pace = min(bounds.target_s / ran.seconds, GROWTH_MAX) if ran.seconds > 0 else GROWTH_MAX
    # upwards in time: else what a batch costs by itself would keep a few units as few as they are
    wanted = math.ceil(ran.units * pace) if pace >= 1 else int(ran.units * pace)
    if pace >= 1:
        wanted = max(wanted, size)  # the source had no more: that is no reason for less
    if ran.rows:
        wanted = min(wanted, bounds.room * ran.units // ran.rows)
    return max(1, min(wanted, bounds.most))
