"""The source's trees that are on their way through later stages, and what one merge of answers changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from reliable_spark.core.ids import replay_id
from reliable_spark.core.stages import Chain, Queued
from reliable_spark.engine.protocol import Batch, Evaluated
from reliable_spark.engine.settlement import TIMEOUT, TIMEOUT_REASON
from reliable_spark.stages.acks import Acks
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.reread import MicroBatch

IN_FLIGHT: Final = "in_flight"
"""The status of a replayed tree that is on its way."""

Failures = dict[int, dict[str, Any]]
"""Root -> why its tree failed."""

_FOUND: Final = frozenset(
    {
        *("anchor", "ack_val", "spout", "message_id", "attempt", "status"),
        *("bolt", "error_class", "error", "traceback", "first_seen_at", "payload"),
    }
)
LATE: Final = {
    "status": "failed",
    "bolt": None,
    "error_class": TIMEOUT,
    "error": TIMEOUT_REASON,
    "traceback": None,
    "retry": True,
}


@dataclass
class Flight:
    """A source batch of which trees are in flight.

    Attributes:
        trees: how many.
        begun_s: when they were emitted.
        micro_batch: where their rows can be read again.
    """

    trees: int
    begun_s: float
    micro_batch: MicroBatch


class Flights:
    """What is in flight, as the ledger and the reports that it has merged say: after a restart just as before.

    Args:
        backlog: the queue that the source writes.

    Attributes:
        chain: where the batches are.
        open: the source batches of which trees are in flight.
        seen: stage -> the last batch of which the report is merged.
        failed: the roots that have failed behind the source, or in part before the queue.
    """

    def __init__(self, backlog: Backlog) -> None:
        self.chain = Chain()
        self.open: dict[int, Flight] = {}
        self.seen: dict[str, int] = {}
        self.failed: set[int] = set()
        self._backlog = backlog

    def remember(self, batches: Iterable[Mapping[str, Any]], acks: Acks) -> None:
        """Build it up from what was settled."""
        for row in batches:
            self.settled(row)
        for answers in acks.after({}, self._backlog.stage):
            if answers.report.batch_id <= self.seen.get(answers.report.stage, -1):
                self.chain.report(answers.report)
                self.failed |= {tree["anchor"] for tree in answers.failed}

    def settled(self, row: Mapping[str, Any]) -> None:
        """Take in a row of `batches`."""
        known, own = json.loads(row["stages"] or "{}"), row["batch_id"]
        if "out" in known:
            rows, folded = known["out"]
            self._backlog.put(own, rows)
            self.chain.put(self._backlog.stage, Queued(own, rows, folded, frozenset({own})))
        self.failed.update(known.get("failed", ()))
        for batch_id, change in known.get("flights", {}).items():
            if int(batch_id) == own:
                where = MicroBatch(row["source_batch_id"], *known["offsets"])
                self.open[own] = Flight(0, row["begun_at"].timestamp(), where)
            self.change(int(batch_id), change)
        self.seen |= known.get("seen", {})

    def late(self, flying: list[dict[str, Any]], attempts: int, is_late: Callable[[float], bool]) -> list[int]:
        """The batches that have not come through in time and may be tried again, or of which rows have disappeared.

        On its last attempt a tree waits for as long as its rows lie in a queue: they are not lost, and no answer but
        that of its stage would be right.

        Args:
            flying: the trees of replays.
            attempts: how often a tree is tried.
            is_late: whether what was emitted then is late.
        """
        begun = {batch_id: (1, each.begun_s) for batch_id, each in self.open.items()}
        found = [
            *begun.items(),
            *((row["batch_id"], (row["attempt"], row["emitted_at"].timestamp())) for row in flying),
        ]
        missing = self.chain.missing
        return sorted({each for each, (tries, s) in found if (tries < attempts or each in missing) and is_late(s)})

    def waiting(self, flying: list[dict[str, Any]], batch_id: int, attempts: int) -> set[int]:
        """The roots of a replay that are on their last attempt, unless rows of it have disappeared."""
        if batch_id in self.chain.missing:
            return set()
        return {row["anchor"] for row in flying if row["batch_id"] == batch_id and row["attempt"] >= attempts}

    def change(self, batch_id: int, trees: int) -> None:
        """More or fewer trees of a source batch are in flight."""
        self.open[batch_id].trees += trees
        if not self.open[batch_id].trees:
            del self.open[batch_id]
            self.chain.missing.discard(batch_id)


@dataclass
class Change:
    """What one merge of answers comes to.

    Attributes:
        acked: trees that are done.
        found: trees that failed, in the columns that `settle_trees` reads.
        flights: by how many trees each source batch's flight changes.
        returned: roots of replayed trees that have an answer.
    """

    acked: int
    found: list[pa.Table]
    flights: dict[int, int]
    returned: set[int]


def failed_roots(evaluated: Evaluated) -> list[int]:
    """The roots of the trees that failed in this very evaluation."""
    if evaluated.trees is not None:
        roots: list[int] = evaluated.trees["anchor"].to_pylist()
        return roots
    many: Any = evaluated.many
    return [] if many is None else [row[0] for row in many.found.select("anchor").collect()]


def on_their_way(due: pa.Table, failed: set[int], batch: Batch) -> pa.Table:
    """The trees of a replay that did not fail at once: rows of `pending` under their new roots."""
    flying = []
    for row in due.to_pylist():
        attempt = row["attempt"] + 1
        root = replay_id(row["anchor"], attempt)
        if root not in failed:
            begun = {"batch_id": batch.batch_id, "emitted_at": batch.begun_at, "due_at": batch.begun_at}
            flying.append({**row, "anchor": root, "attempt": attempt, "status": IN_FLIGHT, **begun})
    return pa.Table.from_pylist(flying, schema=due.schema)


def failed_on_their_way(flying: list[dict[str, Any]], failed: Failures, pending: pa.Schema) -> pa.Table:
    """Trees of replays that failed in a later stage, in the columns that `settle_trees` reads."""
    rows = [{**row, **failed[row["anchor"]]} for row in flying]
    fields = [*(field for field in pending if field.name in _FOUND), pa.field("retry", pa.bool_())]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))
