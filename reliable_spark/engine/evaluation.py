"""Evaluate a batch: once, inside the sink's own job, and only if that leaves a doubt, again tree by tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.engine.batch import Batch, Source
from reliable_spark.engine.columns import (
    ANCHOR,
    FAILURE,
    HELD,
    LINEAGE,
    MESSAGE_ID,
    NULL_MESSAGE_ID,
    OVERFLOW,
)
from reliable_spark.engine.exits import Exits, Failed, Observed, ObservedExits, PlainExits
from reliable_spark.engine.jobs import Stages
from reliable_spark.engine.lineage import column, failure, user_columns
from reliable_spark.engine.operators import FAILURE_BYTES_MAX
from reliable_spark.engine.plan import Node, compile_plan, needs_tracing, spouts
from reliable_spark.engine.static_side import StaticSide
from reliable_spark.engine.worker import FAILURE_ARROW
from reliable_spark.sinks.base import Prepared, Sink

INCOMPLETE: Final = pa.schema(
    [
        (ANCHOR, pa.int64()),
        ("ack_val", pa.int64()),
        ("status", pa.string()),
        ("attempts", pa.int32()),
        (FAILURE, FAILURE_ARROW),
    ]
)


@dataclass
class Evaluation:
    """What became of a batch; nothing of it is visible yet.

    Attributes:
        prepared: the rows for the sink.
        rows: how many source rows there were.
        emitted: how many rows reached the end.
        checksum_ok: whether the one 64-bit checksum proved every tree complete or failed.
        incomplete: (_anchor, ack_val, status, attempts, _failure) of the trees that are not done, or None.
        source: the batch's rows, to find the payloads in; the very rows that were evaluated if that matters.
        duplicates: rows that share their message id with an earlier row of the batch.
        retried: attempts that failed and were repeated within the evaluation.
    """

    prepared: Prepared
    rows: int
    emitted: int
    source: DataFrame
    checksum_ok: bool = True
    incomplete: DataFrame | None = None
    incomplete_count: int = 0
    duplicates: int = 0
    retried: int = 0


@dataclass
class EvaluationContext:
    """What the operators share while one frame is compiled."""

    exits: Exits
    failure_bytes_max: int | None
    statics: dict[int, DataFrame] = field(default_factory=dict)
    numbered: bool = True

    def static(self, side: StaticSide) -> DataFrame:
        """The numbered static side, read and numbered once per query."""
        if id(side) not in self.statics:
            frame = side.numbered()
            self.statics[id(side)] = frame.localCheckpoint(eager=True) if self.numbered else frame
        return self.statics[id(side)]


class Evaluator:
    """Evaluates the batches of one query.

    Args:
        node: the end of the graph.
        source: its spouts' rows.
        sink: where leaves go.
        ackers: how many groups fold trees; 0 means no tracking.
    """

    def __init__(self, node: Node, source: Source, sink: Sink, ackers: int) -> None:
        self.node, self.source, self.sink, self.ackers = node, source, sink, ackers
        self.statics: dict[int, DataFrame] = {}
        self._spouts = list(zip(spouts(node), source.spouts, strict=True))
        self.must_trace = needs_tracing(node)

    def context(self, exits: Exits, failure_bytes_max: int | None) -> EvaluationContext:
        """A context that shares the query's static sides."""
        return EvaluationContext(exits, failure_bytes_max, self.statics)

    def given(self, rows: DataFrame, exits: Exits) -> dict[int, DataFrame]:
        """The roots of each spout; rows without a message id leave at once, dead."""
        frames = {}
        for node, spout in self._spouts:
            roots = self.source.of_spout(rows, spout)
            if isinstance(exits, ObservedExits):
                roots = exits.roots(roots)
            why = failure(spout.name, NULL_MESSAGE_ID, "the row has no message id: every id column is null", False)
            is_null = column(MESSAGE_ID).isNull()
            frames[id(node)] = exits.leave(roots, is_null, F.when(is_null, why), 0)
        return frames

    def untracked(self, batch: Batch) -> Evaluation:
        """Evaluate without lineage: every row counts as acked, whatever becomes of it."""
        counting, plain = ObservedExits(), PlainExits()
        nothing = {name: F.lit(None).cast(batch.rows.schema[name].dataType) for name in LINEAGE}
        frames = {
            id(node): counting.roots(self.source.of_spout(batch.rows, spout).withColumns(nothing))
            for node, spout in self._spouts
        }
        leaves = compile_plan(self.node, frames, self.context(plain, 0), lambda frame: frame)
        counted = counting.leaves(leaves)
        prepared = self.sink.prepare(counted.select(*map(column, user_columns(counted))))
        observed = counting.observed()
        rows = observed.roots if observed.complete else batch.rows.count()
        return Evaluation(prepared, rows, observed.emitted, batch.rows)

    def once(self, batch: Batch, failures_max: int) -> Evaluation | None:
        """Evaluate in one job, the sink's own, and prove by one checksum that every tree is accounted for.

        Args:
            batch: the rows.
            failures_max: more failures than this are not for the driver to handle.

        Returns:
            None when that cannot be proved, or when more than the driver can use has failed: nothing is
            visible then, and the batch has to be traced.
        """
        exits = ObservedExits()
        frames = self.given(batch.rows, exits)
        leaves = exits.leaves(
            compile_plan(self.node, frames, self.context(exits, FAILURE_BYTES_MAX), lambda frame: frame)
        )
        with Stages(batch.rows.sparkSession) as stages:
            prepared = self.sink.prepare(leaves.select(*map(column, user_columns(leaves))))
        observed = exits.observed()
        proved = observed.complete and observed.xor == 0 and not stages.any_ran_twice()
        if not proved or len(observed.failures) > failures_max or not _usable(observed.failures):
            self.sink.discard(prepared)
            return None
        return self._conclude(batch, prepared, observed)

    def _conclude(self, batch: Batch, prepared: Prepared, observed: Observed) -> Evaluation:
        evaluation = Evaluation(prepared, observed.roots, observed.emitted, batch.rows)
        tracked = [failed for failed in observed.failures if failed.anchor is not None]
        if tracked:
            rows = _one_per_tree(tracked)
            evaluation.incomplete = batch.rows.sparkSession.createDataFrame(
                pa.Table.from_pylist(rows, schema=INCOMPLETE)
            )
            evaluation.incomplete_count = len(rows)
        return evaluation


def _usable(failures: list[Failed]) -> bool:
    """Failures below an aggregate belong to groups, and overflowing ones have no details: both need tracing."""
    return not any(failed.level or failed.failure["error_class"] == OVERFLOW for failed in failures)


def _one_per_tree(failures: list[Failed]) -> list[dict[str, Any]]:
    """One row per tree: its first failure, or its hold when nothing failed. The ack val is what is outstanding."""
    trees: dict[int, dict[str, Any]] = {}
    for failed in failures:
        assert failed.anchor is not None
        held = failed.failure["error_class"] == HELD
        tree = trees.get(failed.anchor)
        if tree is None:
            status = HELD if held else "failed"
            trees[failed.anchor] = {
                ANCHOR: failed.anchor,
                "ack_val": failed.tuple_id,
                "status": status,
                "attempts": None,
                FAILURE: {name.name: failed.failure.get(name.name) for name in FAILURE_ARROW},
            }
            continue
        tree["ack_val"] ^= failed.tuple_id
        if tree["status"] == HELD and not held:
            tree["status"], tree[FAILURE] = (
                "failed",
                {f.name: failed.failure.get(f.name) for f in FAILURE_ARROW},
            )
    return list(trees.values())
