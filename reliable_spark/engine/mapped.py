"""`mapInArrow` over frames of any column names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from reliable_spark.engine.columns import WORKING_PREFIX

Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_SPECIAL: Final = frozenset(".`*")


@dataclass(frozen=True)
class Renamed:
    """A task whose batches come with other column names than it knows.

    Attributes:
        task: what is run.
        names: the names that it knows, in order.
    """

    task: Task
    names: list[str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the task on batches with its own names."""
        return self.task(batch.rename_columns(self.names) for batch in batches)


def map_in_arrow(frame: DataFrame, task: Task, schema: T.StructType) -> DataFrame:
    """Run a task over a frame's rows in Arrow batches.

    Args:
        frame: its column names may be any.
        task: sees them as they are.
        schema: what it gives.
    """
    names = frame.columns
    if not any(_SPECIAL.intersection(name) for name in names):
        return frame.mapInArrow(task, schema)
    # PySpark looks each column up by its unquoted name: `a.b` is a field of `a` then
    numbered = frame.toDF(*(f"{WORKING_PREFIX}{place}" for place in range(len(names))))
    return numbered.mapInArrow(Renamed(task, names), schema)
