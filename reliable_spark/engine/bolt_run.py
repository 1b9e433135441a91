"""A bolt over the rows of a frame: with all its answers as rows, or with what became of them reported by its workers.

A row that a bolt dropped or failed has no row after it to be seen by. Let out of the worker as a row, marked, it costs
columns that all others carry too, and an observation that looks at each of them. The worker knows it anyway, so where
nobody needs the rows themselves it reports their XOR and their failures through a Spark accumulator. A bolt that reads
a spout reports the roots as well.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark import Accumulator, TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from reliable_spark.core.ids import Longs, child_shares
from reliable_spark.engine.columns import (
    ANCHOR,
    ATTEMPT,
    CHILD_COUNT,
    CHILD_INDEX,
    FAILURE,
    LINEAGE,
    MESSAGE_ID,
    TUPLE_ID,
)
from reliable_spark.engine.forked import ForkedTask
from reliable_spark.engine.isolation import IsolatedOnRetry
from reliable_spark.engine.lineage import FAILURE_TYPE, quoted
from reliable_spark.engine.mapped import map_in_arrow
from reliable_spark.engine.reports import AddUp, Numbered, Report, Roots
from reliable_spark.engine.worker import BoltTask

ANSWER: Final = (CHILD_INDEX, CHILD_COUNT, FAILURE)
"""The columns that a task adds to say what became of a row."""


class WorkerReports:
    """Hears from the workers of one query: from tasks that ended well, as an observation does.

    Each evaluation of a bolt has a number, so what a task of a cancelled job still tells is nobody's. One accumulator
    serves them all, since Spark never forgets one.

    Args:
        spark: a classic session.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._accumulator = spark.sparkContext.accumulator({}, AddUp())
        self._numbers = itertools.count()

    def begin(self) -> None:
        """Forget what jobs that were never asked about have told, since those of a long stream would add up."""
        self._accumulator.value.clear()

    def of(self, run: BoltRun) -> tuple[DataFrame, int]:
        """Run a bolt whose workers report.

        Returns:
            The children with their own lineage, or without any when they are leaves; and the number of the report.
        """
        number = next(self._numbers)
        return run.reporting(self._accumulator, number), number

    def take(self, number: int) -> Report:
        """The report of an evaluation whose job has ended."""
        return self._accumulator.value.pop(number, Report())


@dataclass(frozen=True)
class ReportingTask:
    """A bolt's task of which only the children come out.

    Args:
        task: gives the answers as rows.
        reports: what becomes of all rows is added to it.
        number: of this evaluation.
        is_last: the children are leaves, so their lineage ends here too.
        are_roots: the rows come from a spout, and nobody else counts them.
    """

    task: ForkedTask | IsolatedOnRetry
    reports: Accumulator[Numbered]
    number: int
    is_last: bool
    are_roots: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map the bolt over the batches of one task."""
        roots = Roots()
        for answers in self.task(roots.counted(batches) if self.are_roots else batches):
            children, report = reported(answers, self.is_last)
            self.reports.add({self.number: report})
            if children.num_rows:
                yield children
        context = TaskContext.get()
        if self.are_roots and context is not None:
            roots.tasks[context.stageId(), context.partitionId()] += 1
            self.reports.add({self.number: Report(roots=roots)})


def reported(answers: pa.RecordBatch, is_last: bool) -> tuple[pa.RecordBatch, Report]:
    """Divide the answers of a bolt into its children, with their shares, and the report about the rest.

    Args:
        answers: the output columns, the lineage of each row's parent, and the columns in ANSWER.
        is_last: leave the lineage out, and report it.
    """
    counts = answers.column(CHILD_COUNT).to_numpy()
    is_gone = counts == 0
    index, ids = answers.column(CHILD_INDEX).to_numpy(), _ids(answers)
    # all children of a row carry its id, of which the first one stands for all of them
    ending = ids[index == 0] if is_last else ids[is_gone]
    report = Report(int(len(counts) - is_gone.sum()), int(np.bitwise_xor.reduce(ending)) if len(ending) else 0)
    left_out = (*ANSWER, *LINEAGE) if is_last else ANSWER
    children = answers.select([name for name in answers.schema.names if name not in left_out])
    if is_gone.any():
        report.failures = _failures(answers, np.flatnonzero(is_gone))
        is_child = pa.array(~is_gone)
        children, ids, index, counts = children.filter(is_child), ids[~is_gone], index[~is_gone], counts[~is_gone]
    if not is_last and (counts > 1).any():
        place = children.schema.get_field_index(TUPLE_ID)
        is_null = children.column(TUPLE_ID).is_null().to_numpy(zero_copy_only=False)
        shares = pa.array(child_shares(ids, index, counts), mask=is_null)
        children = children.set_column(place, children.schema.field(place), shares)
    return children, report


def _ids(answers: pa.RecordBatch) -> Longs:
    """The tuple ids; those of rows that are not tracked are nulls, and 0 changes no XOR."""
    column = answers.column(TUPLE_ID)
    ids: Longs = (column.fill_null(0) if column.null_count else column).to_numpy()
    return ids


def _failures(answers: pa.RecordBatch, gone: Longs) -> list[tuple[int | None, int, dict[str, Any]]]:
    anchor = ANCHOR if ANCHOR in answers.schema.names else TUPLE_ID
    rows = answers.select([anchor, TUPLE_ID, FAILURE]).take(pa.array(gone))
    failed = rows.filter(rows.column(FAILURE).is_valid())
    values = zip(*(column.to_pylist() for column in failed.columns), strict=True)
    return [(anchor, tuple_id or 0, failure) for anchor, tuple_id, failure in values]


@dataclass(frozen=True)
class BoltRun:
    """A bolt that is to be run over a frame.

    Attributes:
        frame: the rows, with lineage columns.
        task: the bolt, ready for the workers.
        schema: what it returns.
        is_isolated: run it in children of the workers from the beginning.
        level: how many aggregates the rows have passed.
        is_last: its children are leaves.
        are_whole: each row that it gets is all of its tree, so its tuple id is its anchor too.
        without_id: the rows come from a spout and nobody else counts them; whether one has no message id, as SQL.
    """

    frame: DataFrame
    task: BoltTask
    schema: T.StructType
    is_isolated: bool
    level: int
    is_last: bool = False
    are_whole: bool = False
    without_id: str | None = None

    def answered(self) -> DataFrame:
        """All answers as rows: childless ones too, with the parent's lineage, and with the columns in ANSWER."""
        return map_in_arrow(self.frame, self._mapped(), answer_schema(self.schema, self.frame))

    def reporting(self, reports: Accumulator[Numbered], number: int) -> DataFrame:
        """The children alone."""
        task = ReportingTask(self._mapped(), reports, number, self.is_last, self.without_id is not None)
        returned = child_schema(self.schema, self.frame, () if self.is_last else LINEAGE)
        return map_in_arrow(self._sent(), task, returned)

    def _sent(self) -> DataFrame:
        """The rows as the workers get them: the last bolt is not sent what nobody asks for there."""
        unused = [*(() if self.task.takes_context else (ATTEMPT, MESSAGE_ID)), *((ANCHOR,) if self.are_whole else ())]
        left_out = unused if self.is_last else []
        if self.without_id is None:
            return self.frame.drop(*left_out) if left_out else self.frame
        # a root without a message id is known by its tuple id, which is null
        kept = [quoted(name) for name in self.frame.columns if name not in (*left_out, TUPLE_ID)]
        return self.frame.selectExpr(*kept, f"CASE WHEN NOT ({self.without_id}) THEN {TUPLE_ID} END AS {TUPLE_ID}")

    def _mapped(self) -> ForkedTask | IsolatedOnRetry:
        return ForkedTask(self.task) if self.is_isolated else IsolatedOnRetry(self.task)


def child_schema(declared: T.StructType, frame: DataFrame, lineage: Sequence[str] = LINEAGE) -> T.StructType:
    """The columns of children: those declared, and the lineage that they have of the frame's rows."""
    # every part may be null, since a childless row has none: what is declared NOT NULL is held to in the workers
    returned = T.StructType([T.StructField(column.name, column.dataType) for column in declared.fields]).toNullable()
    return T.StructType([*returned.fields, *(frame.schema[name] for name in lineage)])


def answer_schema(declared: T.StructType, frame: DataFrame) -> T.StructType:
    """The columns that a bolt's task gives back: those of children, the child's place, and the failure."""
    numbering = [T.StructField(CHILD_INDEX, T.LongType()), T.StructField(CHILD_COUNT, T.LongType())]
    return T.StructType([*child_schema(declared, frame).fields, *numbering, T.StructField(FAILURE, FAILURE_TYPE)])
