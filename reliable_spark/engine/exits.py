"""Where rows leave a frame before its end: dropped, failed, acked early. Two ways to account for them.

`ObservedExits` (in `observed`) counts them inside the one job that evaluates the frame. `TracedExits` keeps them row
by row in a materialised frame, for the batches of which every single tree has to be folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.engine.bolt_run import BoltRun
from reliable_spark.engine.columns import ANCHOR, FAILURE, TUPLE_ID
from reliable_spark.engine.lineage import FAILURE_TYPE

_GONE: Final = "__rs_gone"
_WHY: Final = "__rs_why"


@dataclass(frozen=True)
class Leaving:
    """Which rows of a frame with lineage columns leave it, and why.

    Attributes:
        gone: a boolean over the frame's columns as SQL, never null.
        failure: why, as SQL that gives a FAILURE_TYPE struct; null (or None) where the row is simply done.
        level: how many aggregates the rows have passed.
        drop: the columns that the rows that stay have no more use for.
        report: a text column by which rows that belong to no tree tell what their task has done; null elsewhere.
    """

    gone: str
    failure: str | None = None
    level: int = 0
    drop: Sequence[str] = ()
    report: str | None = None

    def stay(self, frame: DataFrame) -> DataFrame:
        """The rows that stay."""
        staying = frame.where(f"NOT ({self.gone})")
        return staying.drop(*self.drop) if self.drop else staying


class Exits(Protocol):
    """Removes rows from a frame and accounts for them.

    Attributes:
        reports: what the tasks of this evaluation have told by now.
    """

    reports: list[str]

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave, and account for them."""
        ...

    def skips_rare(self) -> bool:
        """Tell whether rows that hardly any batch has may be removed without accounting for them."""
        ...

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Account for all rows as done, but let them go on."""
        ...

    def reported(self, run: BoltRun) -> DataFrame | None:
        """The children of a bolt, if its workers may report what became of all other rows."""
        ...


class PlainExits:
    """Removes the rows and accounts for nothing: for definition-time checks and for untracked runs."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave."""
        return leaving.stay(frame)

    def skips_rare(self) -> bool:
        """Nothing is accounted for anyway, so no shorter way is needed."""
        return False

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Let all rows go on."""
        return frame

    def reported(self, run: BoltRun) -> None:
        """Nobody would read the report."""


@dataclass
class TracedExits:
    """Materialises the frame wherever rows leave it, so that each of them can be told apart later.

    Attributes:
        reports: what tasks have told, the earlier rounds of the evaluation included.
        gone: frames of (_anchor, _tuple_id, _failure) of the rows that left.
    """

    reports: list[str] = field(default_factory=list)
    gone: list[DataFrame] = field(default_factory=list)

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave, and keep their lineage."""
        why = f"CAST({leaving.failure or 'NULL'} AS {FAILURE_TYPE.simpleString()})"
        # evaluated once: both the rows that go and the rows that stay are read from this
        marked = frame.selectExpr("*", f"{leaving.gone} AS {_GONE}", f"{why} AS {_WHY}")
        fixed = marked.localCheckpoint(eager=True)
        if leaving.report is not None:
            told = fixed.where(f"{leaving.report} IS NOT NULL")
            self.reports += [row[0] for row in told.select(leaving.report).collect()]
            fixed = fixed.where(f"{leaving.report} IS NULL")
        self.gone.append(fixed.where(_GONE).selectExpr(ANCHOR, TUPLE_ID, f"{_WHY} AS {FAILURE}"))
        return fixed.where(f"NOT {_GONE}").drop(_GONE, _WHY, *leaving.drop)

    def skips_rare(self) -> bool:
        """Every row is accounted for."""
        return False

    def reported(self, run: BoltRun) -> None:
        """The rows themselves are needed."""

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Keep the lineage of all rows, which go on without being tracked."""
        fixed = frame.localCheckpoint(eager=True)
        self.gone.append(fixed.select(ANCHOR, TUPLE_ID, F.lit(None).cast(FAILURE_TYPE).alias(FAILURE)))
        return fixed
