"""What an anchored frame is: the end of a graph, and the columns that its rows have there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import types as T

from reliable_spark.engine.arguments import check_name
from reliable_spark.engine.columns import LINEAGE
from reliable_spark.engine.definition import defined, empty, no_attribute
from reliable_spark.engine.lineage import column
from reliable_spark.engine.operators import Operator, Projection
from reliable_spark.engine.plan import Node
from reliable_spark.errors import ColumnError, nearest

if TYPE_CHECKING:
    from typing_extensions import Self


class DefinedFrame:
    """A frame to which steps are added; nothing runs before `run` or `start`.

    Guarantee: a step is tried on no rows when it is added, so what is wrong with it is said there.
    """

    def __init__(self, node: Node, spark: SparkSession, fields: T.StructType) -> None:
        self._node, self._spark, self._fields = node, spark, fields

    @cached_property
    def _empty(self) -> DataFrame:
        """An empty frame with the same columns, on which the next step is tried when it is defined."""
        return empty(self._spark, self._fields)

    @property
    def columns(self) -> list[str]:
        """The names of the user's columns."""
        return [name for name in self._fields.names if name not in LINEAGE]

    @property
    def schema(self) -> T.StructType:
        """The schema of the user's columns."""
        return T.StructType([self._fields[name] for name in self.columns])

    def __getitem__(self, name: str) -> Column:
        """The column of that name, for use in an expression."""
        check_name("frame[]", name)
        if not any(name.lower() == there.lower() for there in (*self.columns, *LINEAGE)):
            raise ColumnError(f"there is no column {name!r}{nearest(name, self.columns)}")
        return column(name)

    def __getattr__(self, name: str) -> Column:
        """The column of that name; a clear error for DataFrame methods that cannot be tracked."""
        if name.startswith("__"):
            raise AttributeError(name)
        if any(name.lower() == there.lower() for there in self.columns):
            return column(name)
        raise AttributeError(no_attribute(name, self.columns, dir(type(self))))

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in self.schema.fields)
        return f"{type(self).__name__}[{fields}]"

    def _project(self, name: str, change: Callable[[DataFrame], DataFrame]) -> Self:
        return self._step(Projection(name, change))

    def _step(self, operator: Operator, other: DefinedFrame | None = None) -> Self:
        """Add a step to the graph, after trying it on the empty frame."""
        frames: list[DefinedFrame] = [self, *([other] if other else [])]
        fields = defined(operator, [frame._empty for frame in frames])
        return type(self)(Node(operator, tuple(frame._node for frame in frames)), self._spark, fields)
