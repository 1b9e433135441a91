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

from reliable_spark.bolts import HOLD, BatchContext, Bolt, children_of
from reliable_spark.engine.columns import (
    CHILD_COUNT,
    CHILD_INDEX,
    FAILURE,
    HELD,
    LINEAGE,
    OVERFLOW,
)
from reliable_spark.engine.given import context_of, pandas_frame, part_of, readable, takes_context, tuple_rows
from reliable_spark.engine.results import Declared, Parents, ShapeError, array_of, read_arrow, read_pandas

ERROR_CHARACTERS_MAX: Final = 2_000
TRACEBACK_CHARACTERS_MAX: Final = 4_000

OF_THE_TASK: Final = (KeyboardInterrupt, GeneratorExit)
"""What ends the task. All else that a bolt raises is about a row, as `SystemExit` and `asyncio.CancelledError` are."""

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

    parents: Parents
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

    Attributes:
        takes_context: the bolt may want to know message ids and attempts.
        declared: the columns, with what its answers are held to.
    """

    bolt: Bolt
    output: pa.Schema
    failure_bytes_max: int | None = None
    failure_bytes: int = 0
    takes_context: bool = field(init=False)
    declared: tuple[Declared, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.takes_context = takes_context(self.bolt)
        self.declared = tuple(Declared(each) for each in self.output)

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
        context = context_of(batch)
        by_row = self.bolt.kind == "row"
        answers = self._run_rows(rows, context) if by_row else self._run_batch(rows, context, 0)
        return self.lay_out(batch, answers)

    def _run_rows(self, rows: pa.RecordBatch, context: BatchContext) -> Answers:
        values, function = readable(rows, self.bolt.function)
        failures: dict[int, Failure] = {}
        children: list[Mapping[str, Any]] = []
        counts = np.ones(rows.num_rows, dtype=np.int64)
        for position, row in enumerate(tuple_rows(values, context) if self.takes_context else values):
            try:
                result = function(row)
                if type(result) is dict:
                    # nearly every answer: one child
                    children.append(result)
                    continue
                counts[position] = 0
                if result is HOLD:
                    failures[position] = self.failure_of(HELD, "held: neither acked nor failed", "", True)
                    continue
                made = children_of(result)
            except OF_THE_TASK:
                raise
            except BaseException as error:
                counts[position] = 0
                failures[position] = self._failure(error)
                continue
            children += made
            counts[position] = len(made)
        return self._build(children, np.repeat(np.arange(rows.num_rows), counts), failures)

    def _build(
        self,
        children: list[Mapping[str, Any]],
        parents: Parents,
        failures: dict[int, Failure],
    ) -> Answers:
        try:
            return Answers(parents, self._columns(children), failures)
        except OF_THE_TASK:
            raise
        except BaseException:
            return self._build_row_by_row(children, parents, failures)

    def _build_row_by_row(
        self,
        children: list[Mapping[str, Any]],
        parents: Parents,
        failures: dict[int, Failure],
    ) -> Answers:
        """Find the rows whose values do not fit the declared schema: only they fail."""
        for child, parent in zip(children, parents.tolist(), strict=True):
            if parent not in failures:
                try:
                    self._columns([child])
                except OF_THE_TASK:
                    raise
                except BaseException as error:
                    failures[parent] = self._failure(error)
        good = [index for index, parent in enumerate(parents.tolist()) if parent not in failures]
        return Answers(parents[good], self._columns([children[index] for index in good]), failures)

    def _columns(self, children: list[Mapping[str, Any]]) -> list[pa.Array]:
        columns = []
        for output in self.declared:
            name = output.name
            try:
                values = [child[name] for child in children]
            except KeyError:
                raise KeyError(f"the bolt returned no value for column {name!r}") from None
            columns.append(array_of(values, output))
        return columns

    def _run_batch(self, rows: pa.RecordBatch, context: BatchContext, offset: int) -> Answers:
        """Run a batch function; where it raises, halve the batch until the rows that it is about are alone."""
        try:
            parents, columns = self._call_batch(rows, context)
            return Answers(parents + offset, columns)
        except ShapeError as error:
            # not halved: its parts would only seem to be right
            said = type(error).__qualname__, str(error), "", self.bolt.is_retryable(error)
            return self.without_children({offset + place: self.failure_of(*said) for place in range(rows.num_rows)})
        except OF_THE_TASK:
            raise
        except BaseException as error:
            if rows.num_rows == 1:
                return self.without_children({offset: self._failure(error)})
        half = rows.num_rows // 2
        left = self._run_batch(rows.slice(0, half), part_of(context, 0, half), offset)
        right = self._run_batch(rows.slice(half), part_of(context, half, None), offset + half)
        columns = [pa.concat_arrays(pair) for pair in zip(left.columns, right.columns, strict=True)]
        return Answers(np.concatenate([left.parents, right.parents]), columns, left.failures | right.failures)

    def _call_batch(self, rows: pa.RecordBatch, context: BatchContext) -> tuple[Parents, list[pa.Array]]:
        arguments = (context,) if self.takes_context else ()
        if self.bolt.kind == "arrow":
            result = self.bolt.function(rows, *arguments)
            return read_arrow(result, rows.num_rows, self.declared)
        frame = self.bolt.function(pandas_frame(rows), *arguments)
        return read_pandas(frame, rows.num_rows, self.declared)

    def without_children(self, failures: dict[int, Failure]) -> Answers:
        """The answers where no row has any but a failure."""
        empty = [pa.array([], type=column.type) for column in self.declared]
        return Answers(np.empty(0, dtype=np.int64), empty, failures)

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
        columns = [_with_nulls(column, len(childless)) for column in answers.columns]
        failure = pa.nulls(len(answers.parents), FAILURE_ARROW)
        if len(childless):
            failures = [answers.failures.get(position) for position in childless.tolist()]
            failure = pa.concat_arrays([failure, pa.array(failures, type=FAILURE_ARROW)])
        lineage = [name for name in LINEAGE if name in batch.schema.names]
        names = [*self.output.names, *lineage, CHILD_INDEX, CHILD_COUNT, FAILURE]
        arrays = [
            *columns,
            *_taken(batch.select(lineage).columns, parents),
            pa.array(index),
            pa.array(counts[parents]),
            failure,
        ]
        return pa.RecordBatch.from_arrays(arrays, names=names)


def _with_nulls(column: pa.Array, count: int) -> pa.Array:
    return pa.concat_arrays([column, pa.nulls(count, column.type)]) if count else column


def _taken(columns: list[pa.Array], parents: Parents) -> list[pa.Array]:
    if len(parents) == len(columns[0]) and (parents == np.arange(len(parents))).all():
        return columns
    taken = pa.array(parents)
    return [column.take(taken) for column in columns]


def _running_index(parents: Parents) -> Parents:
    """For each child, how many children of the same parent came before it."""
    if (parents[1:] > parents[:-1]).all():
        return np.zeros(len(parents), dtype=np.int64)
    order = np.argsort(parents, kind="stable")
    grouped = parents[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]]) if len(grouped) else np.empty(0, np.int64)
    lengths = np.diff(np.r_[starts, len(grouped)])
    running = np.arange(len(grouped)) - np.repeat(starts, lengths)
    index = np.empty(len(parents), dtype=np.int64)
    index[order] = running
    return index


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
