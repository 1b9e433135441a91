"""What a ledger adds up to, and whether it balances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Counts:
    """The sums over a ledger. Invariant: `anchored == acked + dead + pending`.

    Attributes:
        anchored: source rows taken in.
        acked: rows whose whole tree was done.
        dead: rows that are dead letters.
        pending: rows that still wait for an answer, here or in a later stage.
        failed_attempts: attempts that failed, were lost or timed out, over all trees.
        replayed: attempts after the first.
        lost: trees of which the last attempt lost a part.
        emitted: rows written to the sink, replays included.
    """

    anchored: int = 0
    acked: int = 0
    dead: int = 0
    pending: int = 0
    failed_attempts: int = 0
    replayed: int = 0
    lost: int = 0
    emitted: int = 0

    @property
    def balanced(self) -> bool:
        """True when every row taken in is acked, dead or pending, and none of them twice."""
        return self.anchored == self.acked + self.dead + self.pending

    def __str__(self) -> str:
        head = f"anchored {self.anchored:,} = acked {self.acked:,} + dead {self.dead:,} + pending {self.pending:,}"
        tail = (
            f"failed attempts {self.failed_attempts:,}, replayed {self.replayed:,}, "
            f"lost {self.lost:,}, emitted {self.emitted:,}"
        )
        return f"{head}{'' if self.balanced else '  DOES NOT BALANCE'}\n{tail}"

    def _repr_html_(self) -> str:
        """Show the counts as a static table in a notebook."""
        heads = "".join(f"<th>{field.name.replace('_', ' ')}</th>" for field in fields(Counts))
        cells = "".join(f"<td style='text-align:right'>{getattr(self, field.name):,}</td>" for field in fields(Counts))
        verdict = "balanced" if self.balanced else "<b>does not balance</b>"
        return f"<table><thead><tr>{heads}</tr></thead><tbody><tr>{cells}</tr></tbody></table><p>{verdict}</p>"


LOST = "lost"
"""The error class under which a tree is stored when the XOR of its answers did not reach 0."""

COUNTED = ("anchored", "acked", "failed", "lost", "timed_out", "replayed", "emitted", "in_flight")
"""The columns of `batches` that counts are made of."""


def count(batches: pa.Table, pending: pa.Table, dead_letters: pa.Table) -> Counts:
    """Add up a ledger from its three tables; `dead` and `pending` are counted, not believed.

    Args:
        batches: the columns of `COUNTED`.
        pending: at least the column `error_class`.
        dead_letters: at least the column `error_class`.
    """
    return count_sums(sums_of(batches), pending, dead_letters)


def sums_of(batches: pa.Table) -> dict[str, int]:
    """The sums of the counted columns of `batches`."""
    return {name: pc.sum(batches[name]).as_py() or 0 for name in COUNTED}


def count_sums(sums: Mapping[str, int], pending: pa.Table, dead_letters: pa.Table) -> Counts:
    """Add up a ledger of which the batches are summed already."""
    return Counts(
        anchored=sums["anchored"],
        acked=sums["acked"],
        dead=dead_letters.num_rows,
        pending=pending.num_rows + sums["in_flight"],
        failed_attempts=sums["failed"] + sums["lost"] + sums["timed_out"],
        replayed=sums["replayed"],
        lost=count_lost(pending) + count_lost(dead_letters),
        emitted=sums["emitted"],
    )


def count_lost(trees: pa.Table) -> int:
    """How many of these trees were lost in their last attempt."""
    return pc.sum(pc.equal(trees["error_class"], LOST)).as_py() or 0
