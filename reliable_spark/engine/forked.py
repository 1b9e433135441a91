"""A bolt that may kill its process: its Arrow batches run in forked children of Spark's Python worker.

Guarantee: every row that comes in goes out again, as from a `BoltTask`, also when the bolt kills the process that
it runs in. The rows that kill come out as failed, all others as if those had not been there; the worker lives on.
Nothing here knows Spark, so all of it is tested on plain Arrow batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Final

import pyarrow as pa

from reliable_spark.engine.child import ERROR, WorkerCrash, start
from reliable_spark.engine.worker import BoltTask

FAN_OUT: Final = 10
"""Into how many parts a batch that killed is split. A child answers for each part in turn and so dies once for each
level; starting it costs as much as answering for tens of small parts, so halving would take more than twice as long."""

AHEAD_BYTES: Final = 8 * 1024 * 1024
"""How much input is read ahead to give one child several small batches: starting it costs as much as one of them."""


@dataclass
class ForkedTask:
    """A bolt whose rows may kill the process, ready to be sent to the workers and mapped over Arrow batches.

    Guarantee: the same rows and columns as from the task itself, in as many batches as it takes, except that a row
    that killed two children, the second with no other row in hand, is failed with the error class `WorkerCrash`.

    Every child starts from the worker as it is before the bolt has run: what a bolt keeps in memory, such as a
    counter, a connection, a Spark accumulator or the state of a random generator, is gone after a few batches, and
    so are processes that it started.

    Args:
        task: the bolt, and what its children look like.
    """

    task: BoltTask

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map the bolt over the batches of one task.

        Raises:
            OSError: no child could be started.
            RuntimeError: the task itself raised in a child, which is about no row; with the text of the child.
        """
        self.task.failure_bytes = 0
        import_module("pandas")  # pyarrow does when it is given a list: once here, or once in every child
        for waiting in _read_ahead(batches):
            while waiting:
                yield from self._isolate(waiting)

    def _isolate(self, waiting: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take from the parts that are waiting as many as one child answers for; see to the one that killed it."""
        crash = yield from self._in_child(waiting)
        if crash is None:
            return
        part = waiting.popleft()
        if part.num_rows > 1:
            waiting.extendleft(reversed(_split(part)))
        else:
            # Short memory kills whoever is there: only a row that does it again, first in its child, is guilty.
            crash = yield from self._in_child(deque([part]))
            if crash is not None:
                yield self._given_up(part, crash)

    def _in_child(self, waiting: deque[pa.RecordBatch]) -> Generator[pa.RecordBatch, None, WorkerCrash | None]:
        """Run the parts one after another in one child.

        Args:
            waiting: the parts; those that were answered for are taken out.

        Returns:
            How the child died over the part that is first now; None when it has answered for all.
        """
        child = start(self.task, waiting)
        try:
            while waiting:
                made = self._read(*child.answer())
                waiting.popleft()
                yield made
        except WorkerCrash as crash:
            return crash
        finally:
            child.end()  # also when nobody wants the rest
        return None

    def _read(self, kind: bytes, failure_bytes: int, body: pa.Buffer) -> pa.RecordBatch:
        if kind == ERROR:
            raise RuntimeError(f"bolt {self.task.bolt.name!r}, in a process of its own:\n{body.to_pybytes().decode()}")
        self.task.failure_bytes = failure_bytes
        return pa.ipc.open_stream(body).read_next_batch()

    def _given_up(self, row: pa.RecordBatch, crash: WorkerCrash) -> pa.RecordBatch:
        failure = self.task.failure_of(type(crash).__qualname__, str(crash), "", True)
        return self.task.lay_out(row, self.task.without_children({0: failure}))


def _read_ahead(batches: Iterator[pa.RecordBatch]) -> Iterator[deque[pa.RecordBatch]]:
    waiting: deque[pa.RecordBatch] = deque()
    waiting_bytes = 0
    for batch in batches:
        if batch.num_rows:
            waiting.append(batch)
            waiting_bytes += batch.nbytes
        if waiting_bytes >= AHEAD_BYTES:
            yield waiting
            waiting, waiting_bytes = deque(), 0
    yield waiting


def _split(part: pa.RecordBatch) -> list[pa.RecordBatch]:
    step = -(-part.num_rows // FAN_OUT)
    return [part.slice(start, step) for start in range(0, part.num_rows, step)]
