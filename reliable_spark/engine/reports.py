"""What the workers of a bolt report of their tasks, and how the reports of all tasks add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import AccumulatorParam

from reliable_spark.engine.columns import TUPLE_ID

Task = tuple[int, int]
"""The stage and the partition of a task."""


@dataclass
class Roots:
    """The rows of a spout, as the bolt that reads them has counted them.

    Attributes:
        rows: how many came in with a message id.
        xor: XOR of their ids.
        without_id: how many came in without one; the bolt does not see them.
        tasks: how often each task has reported, which it does at its end. With them the driver can tell that no report
            is missing: Spark goes on when it could not deliver one.
    """

    rows: int = 0
    xor: int = 0
    without_id: int = 0
    tasks: Counter[Task] = field(default_factory=Counter)

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Count the rows of one task on their way to the bolt, and keep those back whose tuple id is null."""
        for batch in batches:
            ids = batch.column(TUPLE_ID)
            identified = batch.filter(pc.is_valid(ids)) if ids.null_count else batch
            self.without_id += ids.null_count
            self.rows += identified.num_rows
            self.xor ^= int(np.bitwise_xor.reduce(identified.column(TUPLE_ID).to_numpy()))
            yield identified

    def add(self, other: Roots) -> None:
        """Add what another task has counted."""
        self.rows += other.rows
        self.xor ^= other.xor
        self.without_id += other.without_id
        self.tasks += other.tasks


@dataclass
class Report:
    """What became of rows in a bolt.

    Attributes:
        made: how many children there are.
        xor: XOR of the shares that end here: those of childless rows, and all of them in the last bolt.
        failures: (anchor, tuple id, failure) of the rows that failed or were held.
        roots: the rows that came in, where nobody else counts them.
    """

    made: int = 0
    xor: int = 0
    failures: list[tuple[int | None, int, dict[str, Any]]] = field(default_factory=list)
    roots: Roots = field(default_factory=Roots)

    def add(self, other: Report) -> None:
        """Add what became of other rows."""
        self.made += other.made
        self.xor ^= other.xor
        self.failures += other.failures
        self.roots.add(other.roots)


Numbered = dict[int, Report]


class AddUp(AccumulatorParam[Numbered]):
    """Adds up the reports of tasks, by the number of their evaluation."""

    def zero(self, value: Numbered) -> Numbered:
        """Nothing reported yet."""
        return {}

    def addInPlace(self, value1: Numbered, value2: Numbered) -> Numbered:  # noqa: N802 - PySpark's name
        """Add what a task reports."""
        for number, report in value2.items():
            value1.setdefault(number, Report()).add(report)
        return value1
