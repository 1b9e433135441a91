"""How much the queries of a chain take at once: what fits into the queue behind them, and of a queue whole commits."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

from reliable_spark.engine.admission import UNLIMITED, Admission
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.queue import batch_of_files


class SourceAdmission(Admission):
    """Of a query that writes a queue."""

    def room(self) -> int:
        """How many rows fit into the queue, too."""
        loop: Any = self.loop
        backlog: Backlog | None = loop.backlog
        return super().room() if backlog is None else min(super().room(), backlog.room())


class StageAdmission(SourceAdmission):
    """Of a query that reads a queue: its reports are about whole commits."""

    def admitted(self, size: int) -> int:
        """The files of as many whole commits as make up this size, and of one at least."""
        loop: Any = self.loop
        return whole_commits(loop.queue, loop.upto, size)


def whole_commits(queue: str, upto: int, files: int) -> int:
    """The number of files to ask a queue for, so that none of its commits is divided.

    Args:
        queue: its path.
        upto: the last batch that was taken.
        files: how many are wanted.

    Returns:
        The files of the commits that lie there and are not more than that, or of the first one alone; no limit when
        all of them are fewer, since of those to come nobody knows where they end. Cost: 5 ms, no data is read.
    """
    waiting = Counter(sorted(batch_id for batch_id in batch_of_files(queue) if batch_id > upto))
    ends = list(accumulate(waiting.values()))
    if not ends or ends[-1] <= files:
        return UNLIMITED
    return max((end for end in ends if end <= files), default=ends[0])
