"""What the operators share while a frame is compiled."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame

from reliable_spark.engine import guard
from reliable_spark.engine.columns import RAISED
from reliable_spark.engine.exits import Exits, Leaving
from reliable_spark.engine.lineage import failure, literal
from reliable_spark.engine.stateful_task import StateVersion
from reliable_spark.engine.states import States
from reliable_spark.engine.static_side import StaticSide
from reliable_spark.state.change_files import Change

RAISED_REASON: Final = "Spark raised an error for this row"


@dataclass
class EvaluationContext:
    """What the operators share while one frame is compiled."""

    exits: Exits
    failure_bytes_max: int | None
    statics: dict[int, DataFrame] = field(default_factory=dict)
    numbered: bool = True
    isolated: bool = False
    states: States | None = None
    last: object = None
    ends_whole: bool = False

    def guard(self, before: DataFrame, after: DataFrame, name: str, level: int) -> DataFrame:
        """`after`, projected from `before`; in isolation without the rows for which Spark raises there."""
        marked = guard.guarded(before, after) if self.isolated else None
        if marked is None:
            return after
        why = failure(name, RAISED, literal(RAISED_REASON), True)
        return self.exits.leave(marked, Leaving(guard.RAISED, why, level, [guard.RAISED]))

    def static(self, side: StaticSide) -> DataFrame:
        """The numbered static side, read and numbered once per query."""
        if id(side) not in self.statics:
            frame = side.numbered()
            self.statics[id(side)] = frame.localCheckpoint(eager=True) if self.numbered else frame
        return self.statics[id(side)]

    def state_version(self, name: str) -> StateVersion:
        """The state that a bolt starts from; an empty one while a frame is only defined."""
        changes = map(Change.from_json, self.exits.reports)
        return self.states.version(name, changes) if self.states else StateVersion()
