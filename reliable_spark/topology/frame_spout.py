"""A DataFrame as a spout: its rows are tuples, its id columns the message ids.

Spouts live in the driver, so the rows come to it, a partition at a time; only those that wait for an answer are kept.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reliable_spark.errors import ColumnError, UsageError, nearest
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.spouts import Spout, SpoutOutputCollector

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S = 0.05


@dataclass
class _Row:
    """A row on its way.

    Attributes:
        message_id: the value of the id column, or all of them; a null alone is (None,), since None is not tracked.
        values: all columns.
        attempts: how often it was emitted.
    """

    message_id: Hashable
    values: list[Any]
    attempts: int = 0


class _Rows:
    """The rows of a frame, one source for all tasks of a spout; it outlives each of them, as a queue would.

    Args:
        frame: whose rows they are.
        id_columns: the message id.
    """

    def __init__(self, frame: DataFrame, id_columns: Sequence[str]) -> None:
        self._frame, self._names = frame, list(frame.columns)
        self._places = [self._names.index(name) for name in id_columns]
        self._coming: Iterator[Any] | None = None
        self._due: deque[_Row] = deque()
        self._out: dict[int, defaultdict[Hashable, deque[_Row]]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Rows:
        """Itself: a spout is copied for every task, its source is not."""
        return self

    def opened(self, task: int) -> None:
        """A task begins; if one of its number was there before, what that one had out comes again."""
        for rows in self._out.get(task, {}).values():
            self._due.extend(rows)
        self._out[task] = defaultdict(deque)

    def take(self, task: int) -> _Row | None:
        """The next row, failed ones first; None when there is none now."""
        row = self._due.popleft() if self._due else self._next()
        if row is not None:
            row.attempts += 1
            self._out[task][row.message_id].append(row)
        return row

    def done(self, task: int, message_id: Hashable) -> _Row:
        """A row has its answer: the one of that id that has waited longest."""
        out = self._out[task]
        row = out[message_id].popleft()
        if not out[message_id]:
            del out[message_id]
        return row

    def again(self, row: _Row) -> None:
        """A row is to be emitted again."""
        self._due.append(row)

    def close(self) -> None:
        """Forget where it was: whoever opens it after that begins with the first row."""
        self._coming = None
        self._due.clear()
        self._out.clear()

    def _next(self) -> _Row | None:
        try:
            if self._coming is None:
                self._coming = self._frame.toLocalIterator(prefetchPartitions=True)
            return self._following(self._coming)
        except Exception as error:  # an iterator that has raised is at its end: going on would lose the other rows
            raise UsageError(f"the frame of a DataFrameSpout cannot be read: {error}") from error

    def _following(self, coming: Iterator[Any]) -> _Row | None:
        values = next(coming, None)
        if values is None:
            return None
        ids = tuple(values[place] for place in self._places)
        return _Row(ids if len(ids) > 1 or ids[0] is None else ids[0], list(values))


class _StreamedRows(_Rows):
    """The rows of a streaming frame: a micro-batch is over for Spark when each of its rows has its last answer.

    Args:
        frame: whose rows they are.
        id_columns: the message id.
        checkpoint: where Spark keeps its offsets.
    """

    def __init__(self, frame: DataFrame, id_columns: Sequence[str], checkpoint: str) -> None:
        super().__init__(frame, id_columns)
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._begin()

    def _begin(self) -> None:
        """Nothing is in hand; what an earlier query still holds it waits for on events of its own, in vain."""
        self._answered, self._closed = threading.Event(), threading.Event()
        self._answered.set()

    def close(self) -> None:
        """Stop the query; the micro-batch in hand comes again at the next start."""
        self._closed.set()
        if self._query is not None:
            self._query.stop()
        self._query = None
        self._begin()
        super().close()

    def _next(self) -> _Row | None:
        if self._query is None:
            writer = self._frame.writeStream.option("checkpointLocation", self._checkpoint)
            self._query = writer.foreachBatch(self._offer).start()
        error = None if self._query.isActive else self._query.exception()
        if error is not None:
            raise UsageError(f"the stream of a DataFrameSpout has ended: {error}")
        if self._answered.is_set():
            return None
        row = super()._next()
        if row is None and not self._due and not any(self._out.values()):
            self._answered.set()
        return row

    def _offer(self, batch: DataFrame, batch_id: int) -> None:
        """Spark's thread: hand over a micro-batch and wait until it is answered."""
        answered, closed = self._answered, self._closed
        self._coming = batch.toLocalIterator(prefetchPartitions=True)
        answered.clear()
        while not answered.wait(_POLL_S):
            if closed.is_set():
                raise UsageError("the topology was stopped before the micro-batch was answered")


class DataFrameSpout(Spout):
    """Emits the rows of a DataFrame, one tuple each, tracked by their message ids.

    Guarantee: every row is emitted until it is acked, at most `max_attempts` times; a row that fails comes again before
    new ones. No more rows are kept than are pending and in one partition. A streaming frame's micro-batch is committed
    by Spark when every row of it has its answer, so after a crash it comes again: at least once.

    Rows with one id are different messages. All tasks of the spout take from one source, in turn.

    Args:
        frame: static or streaming; its columns are the fields of the stream "default".
        message_id: the column, or columns, of the message id; their values must be hashable.
        max_attempts: how often a row is emitted at most.
        checkpoint: the checkpoint directory of a streaming frame.

    Raises:
        ColumnError: there is no such column, and the nearest one is named; or it has arrays or maps in it.
        UsageError: the frame is no DataFrame, or it is streaming and there is no checkpoint; out of the topology, the
            frame cannot be read.

    Cost: every row passes through the driver; what Spark can do with a row is best done before.
    """

    def __init__(
        self, frame: DataFrame, message_id: str | Sequence[str], max_attempts: int = 3, checkpoint: str | None = None
    ) -> None:
        if not hasattr(frame, "toLocalIterator"):
            raise UsageError(
                f"a DataFrameSpout takes a DataFrame, not {type(frame).__name__}: it needs a Spark session"
            )
        columns = [message_id] if isinstance(message_id, str) else list(message_id)
        for name in columns:
            if name not in frame.columns:
                raise ColumnError(f"the frame has no column {name!r}{nearest(name, frame.columns)}")
            kind = frame.schema[name].dataType.simpleString()
            if "array<" in kind or "map<" in kind:  # a row of which each would kill the task, and be lost with it
                raise ColumnError(f"column {name!r} is a {kind}, which no message id can be: cast it to a string")
        if not columns:
            raise UsageError("a DataFrameSpout needs a message id: name one column or several")
        if frame.isStreaming != (checkpoint is not None):
            raise UsageError(
                "a streaming frame needs a checkpoint, DataFrameSpout(frame, id, checkpoint=directory),"
                " and no other has one"
            )
        self._fields, self._max_attempts = tuple(frame.columns), max_attempts
        self._rows = _Rows(frame, columns) if checkpoint is None else _StreamedRows(frame, columns, checkpoint)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """The frame's columns."""
        declarer.declare(self._fields)

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Keep the collector."""
        self._collector, self._task = collector, context.task
        self._rows.opened(context.task)

    def next_tuple(self) -> None:
        """Emit a row that failed, or the next one."""
        row = self._rows.take(self._task)
        if row is not None:
            self._collector.emit(row.values, message_id=row.message_id)

    def ack(self, message_id: Hashable) -> None:
        """The row is done."""
        self._rows.done(self._task, message_id)

    def fail(self, message_id: Hashable) -> None:
        """Emit the row again, unless it was its last attempt."""
        row = self._rows.done(self._task, message_id)
        if row.attempts < self._max_attempts:
            self._rows.again(row)

    def close(self) -> None:
        """End the stream, if it is one."""
        self._rows.close()
