"""The static side of a join, numbered once, so that k matches of a row become its k children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from reliable_spark.engine.column_types import nullable
from reliable_spark.engine.columns import CHILD_COUNT, CHILD_INDEX, LINEAGE
from reliable_spark.engine.lineage import column, quoted, user_columns
from reliable_spark.errors import ColumnError, UsageError, nearest

How = Literal["inner", "left", "semi", "anti"]

_HOW: Final[dict[str, How]] = {
    "inner": "inner",
    "left": "left",
    "leftouter": "left",
    "semi": "semi",
    "leftsemi": "semi",
    "anti": "anti",
    "leftanti": "anti",
}

_INEXACT: Final = (T.FloatType, T.DoubleType)


def join_kind(how: str) -> How:
    """Read PySpark's name of a join.

    Raises:
        UsageError: a tracked frame cannot be joined that way.
    """
    kind = _HOW.get(how.lower().replace("_", ""))
    if kind is None:
        raise UsageError(f"join(how={how!r}) cannot be tracked: a right row has no tree; use one of {', '.join(_HOW)}")
    return kind


@dataclass(frozen=True, eq=False)
class StaticSide:
    """A static frame to join with.

    Attributes:
        frame: the user's static DataFrame.
        keys: the columns that both sides have in common.
        how: which rows the join keeps.
    """

    frame: DataFrame
    keys: tuple[str, ...]
    how: How

    @property
    def drops_unmatched(self) -> bool:
        """Whether a row may leave the frame here."""
        return self.how != "left"

    @property
    def columns(self) -> list[str]:
        """The columns that the join adds."""
        if self.how in ("semi", "anti"):
            return []
        keys = {key.lower() for key in self.keys}
        return [name for name in self.frame.columns if name.lower() not in keys]

    def check(self, left: DataFrame) -> None:
        """Check the join against the left side's columns.

        Raises:
            ColumnError: a key is missing on one side, it has types of which Spark may take two static values for one
                (the matches are numbered by the static side's own values), or a column would be there twice.
        """
        users = user_columns(left)
        for key in self.keys:
            for side, names in (("left", users), ("static", self.frame.columns)):
                if key.lower() not in {name.lower() for name in names}:
                    raise ColumnError(f"join(): the {side} side has no column {key!r}{nearest(key, names)}")
            kinds = [_type_of(frame, key) for frame in (left, self.frame)]
            if not keeps_apart(*kinds):
                names = [kind.simpleString() for kind in kinds]
                raise ColumnError(
                    f"join(): key {key!r} is {names[0]} on the left and {names[1]} on the static side: cast one of them"
                )
        lower = {name.lower() for name in users}
        for name in self.columns:
            if name.lower() in lower:
                raise ColumnError(f"join(): both sides have a column {name!r}: rename or drop one of them")

    def numbered(self) -> DataFrame:
        """The static rows with their key columns renamed, and each row's number among those of its key.

        Cost: one window over the static side; done once per query, the result is kept.
        """
        keys = [column(key).alias(_key(index)) for index, key in enumerate(self.keys)]
        if self.how in ("semi", "anti"):
            distinct = self.frame.select(*keys).distinct()
            return distinct.withColumn(CHILD_INDEX, F.lit(0)).withColumn(CHILD_COUNT, F.lit(1))
        picked = self.frame.select(*keys, *(column(name) for name in self.columns))
        same_key = Window.partitionBy(*(_key(index) for index in range(len(self.keys))))
        return picked.withColumn(CHILD_COUNT, F.count(F.lit(1)).over(same_key)).withColumn(
            CHILD_INDEX, F.row_number().over(same_key.orderBy(F.lit(0))) - 1
        )

    def join(self, left: DataFrame, numbered: DataFrame) -> DataFrame:
        """Join LEFT; afterwards a child count of 0 marks the rows that the join does not keep."""
        condition = F.lit(True)
        for index, key in enumerate(self.keys):
            condition = condition & (left[quoted(key)] == numbered[_key(index)])
        joined = left.join(numbered, condition, "left").drop(*(_key(index) for index in range(len(self.keys))))
        matched = column(CHILD_COUNT).isNotNull()
        if self.how == "anti":
            return joined.withColumn(CHILD_COUNT, F.when(matched, 0).otherwise(1)).withColumn(CHILD_INDEX, F.lit(0))
        return joined.withColumn(CHILD_COUNT, F.coalesce(CHILD_COUNT, F.lit(0))).withColumn(
            CHILD_INDEX, F.coalesce(CHILD_INDEX, F.lit(0))
        )

    def arrange(self, joined: DataFrame, left: DataFrame) -> DataFrame:
        """Put the columns in the order in which Spark's own join by name has them."""
        keys = {key.lower() for key in self.keys}
        users = user_columns(left)
        first = [name for key in self.keys for name in users if name.lower() == key.lower()]
        rest = [name for name in users if name.lower() not in keys]
        return joined.select(*(column(name) for name in [*first, *rest, *self.columns]), *LINEAGE)


def keeps_apart(left: T.DataType, static: T.DataType) -> bool:
    """Whether different values of the static type are different too when Spark compares them with the left one's."""
    if isinstance(left, T.NumericType) and isinstance(static, T.NumericType):
        return isinstance(static, _INEXACT) or not isinstance(left, _INEXACT)
    return nullable(left) == nullable(static) or (left, static) == (T.TimestampType(), T.DateType())


def _type_of(frame: DataFrame, key: str) -> T.DataType:
    return next(field.dataType for field in frame.schema.fields if field.name.lower() == key.lower())


def _key(index: int) -> str:
    return f"__rs_key_{index}"
