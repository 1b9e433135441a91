"""What the loop knows of a batch: its rows go in, its answers come out. Everything in between is an adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

import pyarrow as pa

from reliable_spark.engine.batch import Source
from reliable_spark.engine.settlement import Moment, Settlement
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.sinks.base import Prepared

Kind = Literal["source", "replay"]


@dataclass(frozen=True)
class Origin:
    """Which batch of which streaming query a source batch is.

    Attributes:
        query_id, source_batch_id: Spark's names for it; None for static rows.
        offsets: a hash of what the source's offsets were.
    """

    query_id: str | None = None
    source_batch_id: int | None = None
    offsets: str | None = None


@dataclass(frozen=True)
class Batch:
    """One batch, about to be evaluated.

    Attributes:
        batch_id: the ledger's number for it.
        kind: where the rows come from.
        rows: the source columns, the lineage columns, the spout's name and when the row was first seen.
        begun_at: when the batch began.
    """

    batch_id: int
    kind: Kind
    rows: Any
    begun_at: datetime


class ManyTrees(Protocol):
    """More incomplete trees than the driver should hold: they are settled where they are."""

    def settle(self, moment: Moment, ledger: Ledger) -> Settlement:
        """Append them to the ledger's tables, which are marked with the batch; only counts come back."""
        ...


@dataclass(frozen=True)
class Evaluated:
    """What became of a batch; nothing of it is visible yet.

    Attributes:
        prepared: the rows for the sink.
        rows: how many source rows there were.
        emitted: how many rows are for the sink.
        retried: attempts that failed and were repeated within the evaluation.
        duplicates: rows that share their message id with an earlier row of the batch.
        checksum_ok: whether one 64-bit checksum proved every tree complete or failed.
        changes: what has to be changed in the states of bolts, to be stored with the verdict.
        trees: the incomplete trees with their source rows, as `settle_trees` takes them.
        many: the same where they are too many for the driver.
    """

    prepared: Prepared
    rows: int
    emitted: int
    retried: int = 0
    duplicates: int = 0
    checksum_ok: bool = True
    changes: tuple[str, ...] = ()
    trees: pa.Table | None = None
    many: ManyTrees | None = None


class Batches(Protocol):
    """Makes batches and evaluates them.

    Attributes:
        source: where their rows come from.
    """

    source: Source

    def of_source(self, rows: Any, batch_id: int, begun_at: datetime) -> Batch:
        """A batch of source rows."""
        ...

    def of_pending(self, trees: pa.Table, batch_id: int, begun_at: datetime) -> Batch:
        """The next attempt of pending trees."""
        ...

    def evaluate(self, batch: Batch) -> Evaluated:
        """Evaluate a batch; nothing of it is visible afterwards."""
        ...

    def commit_states(self, changes: Sequence[str], batch_id: int) -> None:
        """Make the changes of a settled batch part of the states; nothing where they are already."""
        ...

    def upkeep(self) -> None:
        """Keep the states as quick as they were on the first day; changes no answer."""
        ...

    def release(self) -> None:
        """Free what the last evaluation has materialised."""
        ...
