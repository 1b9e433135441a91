"""Which batches of a source have gone through all stages behind it, by one count and one XOR per batch.

A batch that goes into a queue is told by the number and the XOR of its rows there. A stage takes whole batches, in
order, and reports the number and the XOR of what it took: only when both are those of the batches between its last
report and this one is nothing of them missing. What it puts into the next queue is a batch of that queue, which stands
for all source batches that it came from. So no stage says a word about a single tree, unless that failed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import reduce
from operator import xor


@dataclass(frozen=True)
class Queued:
    """A batch that waits in a queue.

    Attributes:
        batch_id: its writer's number for it; the numbers in a queue rise.
        rows: how many rows it has there.
        xor: XOR of their ids.
        origins: the source batches that it came from.
    """

    batch_id: int
    rows: int
    xor: int
    origins: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Report:
    """What one batch of a stage took from its queue and gave on.

    Attributes:
        stage: the stage, and the queue that it reads.
        batch_id: the stage's number for its batch.
        upto: the last batch of the queue of which it took rows.
        rows, xor: what it took.
        following: the queue that it writes; None for the last stage.
        out_rows, out_xor: what it put there.
    """

    stage: str
    batch_id: int
    upto: int
    rows: int
    xor: int
    following: str | None = None
    out_rows: int = 0
    out_xor: int = 0


@dataclass
class Chain:
    """Where the batches of one source are.

    Guarantee: an origin is finished exactly when every row of it was taken by each stage that it came to, as far as
    the counts and XORs can tell (2^-64), and the last of them gave nothing on. Of a batch of which something is
    missing the origins never finish: their timeout finds out what became of each tree.

    Attributes:
        waiting: queue -> its batches that no report covers, in order.
        taken: stage -> the last batch of its queue that it has taken.
        missing: the origins of which rows have disappeared between two stages.
    """

    waiting: defaultdict[str, list[Queued]] = field(default_factory=lambda: defaultdict(list))
    taken: dict[str, int] = field(default_factory=dict)
    missing: set[int] = field(default_factory=set)

    def put(self, queue: str, batch: Queued) -> None:
        """A batch was put into a queue."""
        self.waiting[queue].append(batch)

    def report(self, report: Report) -> tuple[frozenset[int], frozenset[int]]:
        """Take in a stage's report; the reports of a stage come in their order, and after those before it.

        Returns:
            The origins of what it took, and those of them that are finished by it.
        """
        queue = self.waiting[report.stage]
        group = [batch for batch in queue if batch.batch_id <= report.upto]
        self.waiting[report.stage] = queue[len(group) :]
        self.taken[report.stage] = max(report.upto, self.taken.get(report.stage, -1))
        origins = frozenset[int]().union(*(batch.origins for batch in group))
        told = (sum(batch.rows for batch in group), reduce(xor, (batch.xor for batch in group), 0))
        if told != (report.rows, report.xor):
            self.missing |= origins
        if report.following is not None and report.out_rows:
            self.put(report.following, Queued(report.batch_id, report.out_rows, report.out_xor, origins))
            return origins, frozenset()
        return origins, frozenset(each for each in origins if not self.has(each))

    def has(self, origin: int) -> bool:
        """Whether anything of a source batch waits in a queue, or is missing."""
        return origin in self.missing or bool(self.places(origin))

    def places(self, origin: int) -> list[tuple[str, int]]:
        """The queues and their batches in which rows of a source batch wait."""
        return [
            (queue, batch.batch_id)
            for queue, batches in self.waiting.items()
            for batch in batches
            if origin in batch.origins
        ]

    def depth(self, queue: str) -> int:
        """How many rows wait in a queue."""
        return sum(batch.rows for batch in self.waiting[queue])
