"""What runs inside Spark's Python workers: a bolt over Arrow batches, each exception kept to its own row.

Guarantee: every row that comes in goes out again, as its children, as dropped, or as failed; a batch never
raises because of a row. Nothing here knows Spark, so all of it is tested on plain Arrow batches.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from reliable_spark.bolts import HOLD, BatchContext, Bolt, TupleRow, children_of
from reliable_spark.engine.columns import (
    ATTEMPT,
    CHILD_COUNT,
    CHILD_INDEX,
    FAILURE,
    HELD,
    LINEAGE,
    MESSAGE_ID,
    OVERFLOW,
    PARENT,
)

ERROR_CHARACTERS_MAX: Final = 2_000
TRACEBACK_CHARACTERS_MAX: Final = 4_000

FAILURE_ARROW: Final = pa.struct(
    [
        ("bolt", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
        ("retry", pa.bool_()),
    ]
)

Failure = dict[str, Any]


@dataclass
class Answers:
    """What a bolt made of one batch.

    Attributes:
        parents: for each child, the position of its parent.
        columns: the children's values, one Arrow array per output column.
        failures: position -> failure of the rows that failed or were held.
    """

    parents: np.ndarray[Any, np.dtype[np.int64]]
    columns: list[pa.Array]
    failures: dict[int, Failure] = field(default_factory=dict)


@dataclass
class BoltTask:
    """One bolt, ready to be sent to the workers and mapped over Arrow batches.

    Args:
        bolt: the user's function and what its exceptions mean.
        output: the declared columns as Arrow has them.
        failure_bytes_max: how much text about failures one task may send back; above it failures come
            without details and marked as overflow. None means no limit.
    """

    bolt: Bolt
    output: pa.Schema
    failure_bytes_max: int | None = None
    failure_bytes: int = 0

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map the bolt over the batches of one task."""
        self.failure_bytes = 0
        for batch in batches:
            if batch.num_rows:
                yield self.process(batch)

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Run the bolt on one batch and lay out its answers.

        Args:
            batch: the user's columns and the lineage columns.

        Returns:
            The output columns, the lineage of each row's parent, its child index and count, its failure.
            A row that was dropped or failed is there once, with child count 0.
        """
        names = [name for name in batch.schema.names if name not in LINEAGE]
        rows = batch.select(names)
        context = BatchContext(batch.column(MESSAGE_ID), batch.column(ATTEMPT))
        by_row = self.bolt.kind == "row"
        answers = self._run_rows(rows, context) if by_row else self._run_batch(rows, context, 0)
        return self.lay_out(batch, answers)

    def _run_rows(self, rows: pa.RecordBatch, context: BatchContext) -> Answers:
        function, failures = self.bolt.function, {}
        children: list[Mapping[str, Any]] = []
        parents: list[int] = []
        for position, row in enumerate(_tuple_rows(rows, context)):
            try:
                result = function(row)
                if result is HOLD:
                    failures[position] = self.failure_of(HELD, "held: neither acked nor failed", "", True)
                    continue
                made = children_of(result)
            except (Exception, SystemExit) as error:
                failures[position] = self._failure(error)
                continue
            children += made
            parents += [position] * len(made)
        return self._build(children, np.asarray(parents, dtype=np.int64), failures)

    def _build(
        self,
        children: list[Mapping[str, Any]],
        parents: np.ndarray[Any, np.dtype[np.int64]],
        failures: dict[int, Failure],
    ) -> Answers:
        try:
            return Answers(parents, self._columns(children), failures)
        except (Exception, SystemExit):
            return self._build_row_by_row(children, parents, failures)

    def _build_row_by_row(
        self,
        children: list[Mapping[str, Any]],
        parents: np.ndarray[Any, np.dtype[np.int64]],
        failures: dict[int, Failure],
    ) -> Answers:
        """Find the rows whose values do not fit the declared schema: only they fail."""
        for child, parent in zip(children, parents.tolist(), strict=True):
            if parent not in failures:
                try:
                    self._columns([child])
                except (Exception, SystemExit) as error:
                    failures[parent] = self._failure(error)
        good = [index for index, parent in enumerate(parents.tolist()) if parent not in failures]
        return Answers(parents[good], self._columns([children[index] for index in good]), failures)

    def _columns(self, children: list[Mapping[str, Any]]) -> list[pa.Array]:
        columns = []
        for output in self.output:
            try:
                values = [child[output.name] for child in children]
            except KeyError:
                raise KeyError(f"the bolt returned no value for column {output.name!r}") from None
            columns.append(_array(values, output))
        return columns

    def _run_batch(self, rows: pa.RecordBatch, context: BatchContext, offset: int) -> Answers:
        """Run a batch function; where it raises, halve the batch until the rows that it is about are alone."""
        try:
            parents, columns = self._call_batch(rows, context)
            return Answers(parents + offset, columns)
        except (Exception, SystemExit) as error:
            if rows.num_rows == 1:
                empty = [pa.array([], type=output.type) for output in self.output]
                return Answers(np.empty(0, dtype=np.int64), empty, {offset: self._failure(error)})
        half = rows.num_rows // 2
        left = self._run_batch(rows.slice(0, half), _slice(context, 0, half), offset)
        right = self._run_batch(rows.slice(half), _slice(context, half, None), offset + half)
        columns = [pa.concat_arrays(pair) for pair in zip(left.columns, right.columns, strict=True)]
        return Answers(np.concatenate([left.parents, right.parents]), columns, left.failures | right.failures)

    def _call_batch(
        self, rows: pa.RecordBatch, context: BatchContext
    ) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[pa.Array]]:
        arguments = (context,) if _takes_context(self.bolt.function) else ()
        if self.bolt.kind == "arrow":
            result = self.bolt.function(rows, *arguments)
            return _read_arrow(result, rows.num_rows, self.output)
        frame = self.bolt.function(rows.to_pandas(), *arguments)
        return _read_pandas(frame, rows.num_rows, self.output)

    def _failure(self, error: BaseException) -> Failure:
        own_frames_skipped = error.__traceback__.tb_next if error.__traceback__ else None
        trace = "".join(traceback.format_exception(type(error), error, own_frames_skipped))
        message = error.args[0] if isinstance(error, KeyError) and error.args else error
        return self.failure_of(type(error).__qualname__, _safe_text(message), trace, self.bolt.is_retryable(error))

    def failure_of(self, error_class: str, error: str, trace: str, retry: bool) -> Failure:
        """One failed row; its text is dropped when the task has said enough already."""
        record = {
            "bolt": self.bolt.name,
            "error_class": error_class,
            "error": _bounded(error, ERROR_CHARACTERS_MAX),
            "traceback": _bounded(trace, -TRACEBACK_CHARACTERS_MAX),
            "retry": retry,
        }
        self.failure_bytes += sum(len(str(value)) for value in record.values())
        if self.failure_bytes_max is not None and self.failure_bytes > self.failure_bytes_max:
            return {**record, "error_class": OVERFLOW, "error": "", "traceback": ""}
        return record

    def lay_out(self, batch: pa.RecordBatch, answers: Answers) -> pa.RecordBatch:
        """The answers as rows: children with their parents' lineage, and one row per childless or failed parent."""
        counts = np.bincount(answers.parents, minlength=batch.num_rows).astype(np.int64)
        counts[list(answers.failures)] = 0
        childless = np.flatnonzero(counts == 0)
        parents = np.concatenate([answers.parents, childless])
        index = np.concatenate([_running_index(answers.parents), np.zeros(len(childless), dtype=np.int64)])
        columns = [pa.concat_arrays([column, pa.nulls(len(childless), column.type)]) for column in answers.columns]
        taken = pa.array(parents)
        lineage = [batch.column(name).take(taken) for name in LINEAGE]
        made = len(answers.parents)
        failures = [answers.failures.get(position) for position in childless.tolist()]
        failure = pa.concat_arrays([pa.nulls(made, FAILURE_ARROW), pa.array(failures, type=FAILURE_ARROW)])
        names = [*self.output.names, *LINEAGE, CHILD_INDEX, CHILD_COUNT, FAILURE]
        arrays = [*columns, *lineage, pa.array(index), pa.array(counts[parents]), failure]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _tuple_rows(rows: pa.RecordBatch, context: BatchContext) -> Iterator[TupleRow]:
    names = rows.schema.names
    columns = [column.to_pylist(maps_as_pydicts="strict") for column in rows.columns]
    values = zip(*columns, strict=True) if columns else iter([()] * rows.num_rows)
    identities = zip(context.message_ids.to_pylist(), context.attempts.to_pylist(), strict=True)
    for value, (message_id, attempt) in zip(values, identities, strict=True):
        row = TupleRow(zip(names, value, strict=True))
        row.message_id, row.attempt = message_id, attempt
        yield row


def _array(values: list[Any], output: pa.Field) -> pa.Array:
    try:
        array = pa.array(values, type=output.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"column {output.name!r} is declared as {output.type}: {error}") from None
    if not output.nullable and array.null_count:
        raise TypeError(f"column {output.name!r} is declared NOT NULL, but the bolt returned null")
    return array


def _fit(array: Any, output: pa.Field) -> pa.Array:
    """Cast a column that a batch function returned to the declared type, losing nothing."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    try:
        fitted = array.cast(output.type)
    except pa.ArrowException as error:
        raise TypeError(f"column {output.name!r} is declared as {output.type}: {error}") from None
    if not output.nullable and fitted.null_count:
        raise TypeError(f"column {output.name!r} is declared NOT NULL, but the bolt returned null")
    return fitted


def _read_arrow(
    result: Any, row_count: int, output: pa.Schema
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[pa.Array]]:
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise TypeError(f"an arrow bolt returns a RecordBatch or a Table, not {type(result).__name__}")
    names = result.schema.names
    _require(output, names)
    if PARENT in names:
        parents = _checked_parents(result.column(PARENT).to_numpy(zero_copy_only=False), row_count)
    elif result.num_rows == row_count:
        parents = np.arange(row_count, dtype=np.int64)
    else:
        raise ValueError(
            f"an arrow bolt that returns {result.num_rows} rows for {row_count} needs a column {PARENT!r} "
            "that says which row each one came from"
        )
    return parents, [_fit(result.column(wanted.name), wanted) for wanted in output]


def _read_pandas(
    frame: Any, row_count: int, output: pa.Schema
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[pa.Array]]:
    if not hasattr(frame, "columns") or not hasattr(frame, "index"):
        raise TypeError(f"a pandas bolt returns a DataFrame, not {type(frame).__name__}")
    _require(output, list(frame.columns))
    parents = _checked_parents(frame.index.to_numpy(), row_count)
    columns = []
    for wanted in output:
        try:
            array = pa.Array.from_pandas(frame[wanted.name], type=wanted.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise TypeError(f"column {wanted.name!r} is declared as {wanted.type}: {error}") from None
        columns.append(_fit(array, wanted))
    return parents, columns


def _require(output: pa.Schema, names: list[str]) -> None:
    missing = [name for name in output.names if name not in names]
    if missing:
        raise KeyError(f"the bolt returned no column {missing[0]!r}")


def _checked_parents(parents: Any, row_count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    positions = np.asarray(parents)
    if positions.size and not np.issubdtype(positions.dtype, np.integer):
        raise TypeError(f"the parents of a batch bolt's rows must be whole numbers, not {positions.dtype}")
    positions = positions.astype(np.int64)
    if positions.size and (positions.min() < 0 or positions.max() >= row_count):
        raise IndexError(f"a batch bolt named a parent row outside 0..{row_count - 1}")
    return positions


def _running_index(parents: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """For each child, how many children of the same parent came before it."""
    order = np.argsort(parents, kind="stable")
    grouped = parents[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(grouped) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(grouped)])
    running = np.arange(len(grouped)) - np.repeat(starts, lengths)
    index = np.empty(len(parents), dtype=np.int64)
    index[order] = running
    return index


def _slice(context: BatchContext, start: int, length: int | None) -> BatchContext:
    return BatchContext(context.message_ids.slice(start, length), context.attempts.slice(start, length))


def _takes_context(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    required = code.co_argcount - len(getattr(function, "__defaults__", None) or ()) if code else 1
    return required - (1 if hasattr(function, "__self__") else 0) >= 2


def _safe_text(value: Any) -> str:
    try:
        text = str(value)
    except Exception as error:
        text = f"<no text: str() raised {type(error).__name__}>"
    return text


def _bounded(text: str, characters: int) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")
    if len(clean) <= abs(characters):
        return clean
    return clean[:characters] + "…" if characters > 0 else "…" + clean[characters:]
