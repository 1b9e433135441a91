"""A grouped frame: what `groupBy` gives, and what may follow it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from pyspark.sql import Column
from pyspark.sql import functions as F

from reliable_spark.engine.definition import refuse_nested_star
from reliable_spark.engine.operators import Aggregate
from reliable_spark.errors import UsageError

if TYPE_CHECKING:
    from reliable_spark.operations import TrackedFrame

Frame = TypeVar("Frame", bound="TrackedFrame")


class GroupedFrame(Generic[Frame]):
    """Rows by group. Each group becomes one row that is anchored to all of its inputs.

    Made by `AnchoredFrame.groupBy`.
    """

    def __init__(self, frame: Frame, keys: tuple[Column, ...]) -> None:
        self._frame = frame
        self._keys = keys

    def agg(self, *exprs: Column) -> Frame:
        """Aggregate each group.

        Guarantee: in `run`, everything above is replayed to an answer first, so each group appears once and
        holds every acked row once. In a stream, groups are partial results of each batch.

        Args:
            exprs: aggregate expressions, as for `GroupedData.agg`.

        Raises:
            UsageError: there is no expression, or one is not a Column.
        """
        if not exprs or not all(isinstance(each, Column) for each in exprs):
            raise UsageError("agg() takes aggregate expressions, for example F.count('*').alias('count')")
        refuse_nested_star("agg", *exprs)
        return self._frame._step(Aggregate("agg", self._keys, exprs))

    def count(self) -> Frame:
        """Count the rows of each group, in a column `count`."""
        return self.agg(F.count(F.lit(1)).alias("count"))
