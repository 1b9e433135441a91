"""Evaluate a batch tree by tree: materialised, folded by the acker, for all that the checksum cannot prove.

The graph is cut at its aggregates into levels. The units of level 0 are source rows, those of level n are the
groups of the n-th aggregate. Each level is evaluated to its end and folded per unit; what is incomplete above
level 0 is led back to the rows that went into the group.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from reliable_spark.engine.acker import incomplete_trees
from reliable_spark.engine.columns import ANCHOR, ATTEMPT, FAILURE, TUPLE_ID
from reliable_spark.engine.evaluation import Evaluation, Evaluator, without_trees
from reliable_spark.engine.exits import TracedExits
from reliable_spark.engine.group_id import group_id
from reliable_spark.engine.lineage import column, user_columns
from reliable_spark.engine.operators import Aggregate, Transform
from reliable_spark.engine.plan import Node, compile_plan, walk
from reliable_spark.engine.protocol import Batch
from reliable_spark.engine.rounds import BackoffRounds
from reliable_spark.sinks.function import release

_GROUP: Final = "__rs_group"


@dataclass
class Level:
    """One level after its evaluation.

    Attributes:
        leaves: the rows that reached its end, materialised.
        incomplete: (_anchor, ack_val, status, attempts, _failure) of the units that are not done.
    """

    leaves: DataFrame
    incomplete: DataFrame


@dataclass
class Tracer:
    """Traces batches for one query.

    Args:
        evaluator: the query's evaluator.
        rounds: how failed units are tried again within the evaluation; None leaves that to later batches.
    """

    evaluator: Evaluator
    rounds: BackoffRounds | None = None
    retried: int = 0
    _reports: list[str] = field(default_factory=list)
    _kept: list[DataFrame] = field(default_factory=list)

    def trace(self, batch: Batch) -> Evaluation:
        """Evaluate a batch and fold every tree of it."""
        self.retried = 0
        rows, duplicates = self._told_apart(batch.rows.localCheckpoint(eager=True))
        leaves, incomplete = self._whole_trees(rows) if self.evaluator.whole_trees else self._trees(rows)
        prepared = self.evaluator.sink.prepare(leaves.select(*map(column, user_columns(leaves))))
        count = incomplete.count()
        return Evaluation(
            prepared=prepared,
            rows=rows.count(),
            emitted=leaves.count(),
            source=rows,
            checksum_ok=False,
            incomplete=incomplete if count else None,
            incomplete_count=count,
            duplicates=duplicates,
            retried=self.retried,
            changes=tuple(self._reports),
        )

    def _trees(self, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The leaves of all trees, and the trees that are not complete."""
        node = self.evaluator.node
        self._reports = []
        exits = TracedExits(self._reports)
        given = self.evaluator.given(rows, exits)
        levels: list[Level] = []
        for number, barrier in enumerate(node.barriers):
            levels.append(self._level(barrier.inputs[0], given, exits, levels))
            grouped = _aggregate(barrier).apply([levels[-1].leaves], self.evaluator.context(exits, None), number)
            given, exits = {id(barrier): self.keep(grouped)}, TracedExits(self._reports)
        levels.append(self._level(node, given, exits, levels))
        return levels[-1].leaves, self.keep(self._roots_of(levels))

    def _whole_trees(self, rows: DataFrame) -> tuple[DataFrame, DataFrame]:
        """The leaves of complete trees only.

        A tree that is not complete may have gone into groups that are, or into a state: these are then made again
        without it, until none of what is left fails. Nothing was visible of the evaluations before.
        """
        leaves, incomplete = self._trees(rows)
        if not self.evaluator.node.barriers and not self.evaluator.has_state:
            return self.keep(without_trees(leaves, incomplete)), incomplete
        found = [incomplete]
        while not found[-1].isEmpty():
            rows = self.keep(without_trees(rows, found[-1]))
            leaves, incomplete = self._trees(rows)
            found.append(incomplete)
        return leaves, self.keep(_union(found))

    def release(self) -> None:
        """Free what the last trace has materialised."""
        for frame in self._kept:
            release(frame)
        self._kept.clear()

    def keep(self, frame: DataFrame) -> DataFrame:
        """Materialise a frame until `release`."""
        kept = frame.localCheckpoint(eager=True)
        self._kept.append(kept)
        return kept

    def _told_apart(self, rows: DataFrame) -> tuple[DataFrame, int]:
        """Give rows with the same message id trees of their own, by their number among their equals."""
        self._kept.append(rows)
        twins = rows.groupBy(ANCHOR).agg((F.count(F.lit(1)) - 1).alias("twins")).where("twins > 0")
        duplicates = twins.agg(F.sum("twins")).first()
        assert duplicates is not None
        if not duplicates[0]:
            return rows, 0
        number = F.row_number().over(Window.partitionBy(ANCHOR).orderBy(F.lit(0)))
        numbered = rows.withColumn(_GROUP, number)
        own = F.when(column(_GROUP) == 1, column(ANCHOR)).otherwise(F.xxhash64(column(ANCHOR), column(_GROUP)))
        apart = numbered.withColumn(ANCHOR, own).withColumn(TUPLE_ID, column(ANCHOR)).drop(_GROUP)
        return self.keep(apart), int(duplicates[0])

    def _level(self, target: Node, given: dict[int, DataFrame], exits: TracedExits, below: list[Level]) -> Level:
        """Evaluate the level above some, in rounds where failed units are to be tried again at once."""
        done: list[DataFrame] = []
        dead: list[DataFrame] = []
        for attempt in itertools.count(1):
            leaves, incomplete = self._round(target, given, exits, attempt)
            if self.rounds is None:
                return Level(leaves, incomplete)
            done.append(leaves.join(F.broadcast(incomplete.select(ANCHOR)), ANCHOR, "left_anti"))
            again = self.rounds.again(incomplete, attempt)
            if again is None:
                dead.append(incomplete)
                break
            again = self.keep(again)
            dead.append(incomplete.join(F.broadcast(again), ANCHOR, "left_anti"))
            roots = again.select(ANCHOR)
            for number in reversed(range(len(below))):
                roots = self._led_down(roots, number, below[number]).distinct()
            self.retried += roots.count()
            given = {node: _next_attempt(frame, again, attempt) for node, frame in given.items()}
            exits = TracedExits(self._reports)
        return Level(_union(done), self.keep(_union(dead)))

    def _round(
        self, target: Node, given: dict[int, DataFrame], exits: TracedExits, attempt: int
    ) -> tuple[DataFrame, DataFrame]:
        """Evaluate a level once and fold its units."""
        # rows that left already did so as roots: they have no message id
        units = _union([frame.select(ANCHOR, TUPLE_ID) for frame in (*given.values(), *exits.gone)])
        leaves = self.keep(compile_plan(target, given, self.evaluator.context(exits, None), self.keep))
        may_copy = any(isinstance(each.step, Transform) for each in walk(target))
        ackers = max(self.evaluator.ackers, 1)
        incomplete = incomplete_trees(units, leaves, exits.gone, ackers, may_copy)
        return leaves, self.keep(incomplete.withColumn("attempts", self._attempts(attempt)))

    def _attempts(self, attempt: int) -> Column:
        """Which attempt a round was for each unit: another one for rows that were tried and died before it."""
        # without rounds the row itself says which attempt this was
        of_round = F.lit(attempt if self.rounds else None).cast("int")
        died = {anchor: row.attempt for anchor, row in self.evaluator.known.items() if row.failure and row.attempt}
        if not died:
            return of_round
        return F.when(column(ANCHOR).isin(list(died)), F.lit(max(died.values()))).otherwise(of_round)

    def _roots_of(self, levels: list[Level]) -> DataFrame:
        """Lead incomplete groups back to the rows that went into them, down to level 0."""
        incomplete = levels[-1].incomplete
        for number, level in reversed(list(enumerate(levels[:-1]))):
            incomplete = self._led_down(incomplete, number, level).unionByName(level.incomplete)
        one = F.struct("ack_val", "status", "attempts", FAILURE)
        # "failed" sorts before "held" before "lost": the most certain answer wins
        chosen = incomplete.groupBy(ANCHOR).agg(F.min_by(one, column("status")).alias("one"))
        return chosen.select(ANCHOR, "one.*")

    def _led_down(self, groups: DataFrame, number: int, level: Level) -> DataFrame:
        """The units of a level that went into groups of the next one, with what is said of these."""
        aggregate = _aggregate(self.evaluator.node.barriers[number])
        keys = [key.alias(f"__rs_key_{index}") for index, key in enumerate(aggregate.keys)]
        keyed = level.leaves.where(column(ANCHOR).isNotNull()).select(ANCHOR, *keys)
        group = group_id(keyed.schema.fields[1:])
        members = keyed.selectExpr(ANCHOR, f"{group} AS {_GROUP}").distinct()
        return members.join(F.broadcast(groups.withColumnRenamed(ANCHOR, _GROUP)), _GROUP).drop(_GROUP)


def _next_attempt(frame: DataFrame, again: DataFrame, attempt: int) -> DataFrame:
    retried = frame.join(F.broadcast(again), ANCHOR, "left_semi")
    return retried.withColumn(ATTEMPT, F.lit(attempt + 1).cast("int"))


def _aggregate(node: Node) -> Aggregate:
    assert isinstance(node.step, Aggregate)
    return node.step


def _union(frames: list[DataFrame]) -> DataFrame:
    result = frames[0]
    for frame in frames[1:]:
        result = result.unionByName(frame)
    return result
