"""Evaluate a batch: once, inside the sink's own job, and only if that leaves a doubt, again tree by tree."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from reliable_spark.engine.batch import Source
from reliable_spark.engine.bolt_run import WorkerReports
from reliable_spark.engine.columns import ANCHOR, ATTEMPT, FAILURE, LINEAGE, NULL_MESSAGE_ID
from reliable_spark.engine.context import EvaluationContext
from reliable_spark.engine.exits import Exits, Leaving, PlainExits
from reliable_spark.engine.failures import (
    INCOMPLETE,
    Known,
    Tree,
    are_usable,
    has_siblings,
    known_table,
    one_per_tree,
)
from reliable_spark.engine.jobs import Stages
from reliable_spark.engine.lineage import failure, is_null, literal
from reliable_spark.engine.observed import Observed, ObservedExits
from reliable_spark.engine.operators import FAILURE_BYTES_MAX
from reliable_spark.engine.plan import (
    Node,
    compile_plan,
    goes_into_bolt,
    may_fail,
    may_fail_after_state,
    may_split,
    needs_tracing,
    spouts,
    stateful_steps,
)
from reliable_spark.engine.protocol import Batch
from reliable_spark.engine.states import States, is_one_file_each
from reliable_spark.sinks.base import Prepared, Sink
from reliable_spark.sinks.function import release

NULL_REASON: Final = "the row has no message id: every id column is null"
_KNOWN_ATTEMPT: Final = "__rs_known_attempt"


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
        changes: what it wants to change in the states of bolts.
        roots_xor: XOR of the root ids that were evaluated; None when `source` is those very rows.
        trees: the rows of `incomplete`, where the driver has them.
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
    changes: tuple[str, ...] = ()
    roots_xor: int | None = None
    trees: list[Tree] = field(default_factory=list)


class Evaluator:
    """Evaluates the batches of one query.

    Args:
        node: the end of the graph.
        source: its spouts' rows.
        sink: where leaves go.
        ackers: how many groups fold trees; 0 means no tracking.
        whole_trees: withhold the leaves of trees that are not complete (exactly_once).

    Attributes:
        is_isolated: a row of the batch has stopped the job before: every projection is guarded and every Python bolt
            runs in children of its worker, so that such a row fails.
        known: what is known of the batch's rows, by anchor.
        states: those of the bolts that have one, once the ledger is open.
    """

    def __init__(self, node: Node, source: Source, sink: Sink, ackers: int, whole_trees: bool = False) -> None:
        self.node, self.source, self.sink, self.ackers = node, source, sink, ackers
        self.has_state = bool(stateful_steps(node))
        # a state counts every tree once, so nothing of a tree that will be tried again may be in it
        self.whole_trees = whole_trees or self.has_state
        self.statics: dict[int, DataFrame] = {}
        self.is_isolated = False
        self.known: dict[int, Known] = {}
        self.states: States | None = None
        self._spouts = list(zip(spouts(node), source.spouts, strict=True))
        self._workers = WorkerReports(source.spark)
        self.must_trace = needs_tracing(node)
        self._counts_rare = False
        fails_in_part = may_split(node) and may_fail(node, 0)
        self._expects_siblings = whole_trees and fails_in_part and not node.barriers and not self.has_state
        self._fails_after_state = may_fail_after_state(node)
        self._ends_whole = source.has_whole_trees and not any(map(may_split, node.inputs))
        self._goes_into_bolt = goes_into_bolt(node)

    def context(self, exits: Exits, failure_bytes_max: int | None) -> EvaluationContext:
        """A context that shares the query's static sides."""
        return EvaluationContext(
            exits,
            failure_bytes_max,
            self.statics,
            isolated=self.is_isolated,
            states=self.states,
            ends_whole=self._ends_whole,
        )

    def is_partial(self, tree: Tree) -> bool:
        """Tell whether a part of a failed tree may have gone on: into a group, into a state, or to the end."""
        return has_siblings(tree) or self._fails_after_state or (self.has_state and self.is_isolated)

    def given(self, rows: DataFrame, exits: Exits) -> dict[int, DataFrame]:
        """The roots of each spout; rows without a message id leave at once, dead, and so do those known to fail."""
        frames = {}
        for node, spout in self._spouts:
            roots = self.source.of_spout(rows, spout)
            without_id = is_null(spout.message_id)
            if isinstance(exits, ObservedExits):
                if self._may_entrust() and exits.entrusted(roots, without_id):
                    frames[id(node)] = roots
                    continue
                roots = exits.roots(roots, without_id)
            leaving = Leaving(without_id, failure(spout.name, NULL_MESSAGE_ID, literal(NULL_REASON), False))
            identified = leaving.stay(roots) if exits.skips_rare() else exits.leave(roots, leaving)
            frames[id(node)] = self._as_known(identified, exits)
        return frames

    def _may_entrust(self) -> bool:
        return self._goes_into_bolt and not self.is_isolated and not self.known

    def _as_known(self, roots: DataFrame, exits: Exits) -> DataFrame:
        if not self.known:
            return roots
        known = self.source.spark.createDataFrame(known_table(self.known)).withColumnRenamed(ATTEMPT, _KNOWN_ATTEMPT)
        joined = roots.join(F.broadcast(known), ANCHOR, "left")
        marked = joined.withColumn(ATTEMPT, F.expr(f"coalesce({_KNOWN_ATTEMPT}, {ATTEMPT})"))
        if not any(row.failure for row in self.known.values()):
            return marked.drop(_KNOWN_ATTEMPT, FAILURE)
        return exits.leave(marked, Leaving(f"{FAILURE} IS NOT NULL", FAILURE, drop=[_KNOWN_ATTEMPT, FAILURE]))

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
        prepared = self.sink.prepare(_for_sink(counted))
        observed = counting.observed()
        rows = observed.roots if observed.complete else batch.rows.count()
        return Evaluation(prepared, rows, observed.emitted, batch.rows)

    def alone(self, rows: DataFrame) -> Exception | None:
        """Evaluate rows, guarded, for nobody to see, and return the error that they raise nevertheless."""
        try:
            self.compiled(rows, isolated=True).write.format("noop").mode("overwrite").save()
        except Exception as error:
            return error
        return None

    def compiled(self, rows: DataFrame, *, isolated: bool = False) -> DataFrame:
        """The leaves of some rows, with nothing accounted for."""
        exits = PlainExits()
        context = EvaluationContext(exits, None, self.statics, isolated=isolated, states=self.states)
        return compile_plan(self.node, self.given(rows, exits), context, lambda frame: frame)

    def once(self, batch: Batch, failures_max: int) -> Evaluation | None:
        """Evaluate in one job, the sink's own, and prove by one checksum that every tree is accounted for.

        Args:
            batch: the rows.
            failures_max: more failures than this are not for the driver to handle.

        Returns:
            None when that cannot be proved, or when more than the driver can use has failed: nothing is
            visible then, and the batch has to be traced.
        """
        self._workers.begin()
        exits = ObservedExits(self._counts_rare, self._workers)
        context = self.context(exits, FAILURE_BYTES_MAX)
        context.last = None if self._expects_siblings else self.node.step
        leaves = exits.leaves(compile_plan(self.node, self.given(batch.rows, exits), context, lambda frame: frame))
        prepared = Prepared()
        with Stages(batch.rows.sparkSession) as stages:
            if self._expects_siblings:
                leaves = leaves.localCheckpoint(eager=True)
            else:
                prepared = self.sink.prepare(_for_sink(leaves))
        observed = exits.observed()
        proved = observed.complete and observed.xor == 0 and not stages.any_ran_twice()
        proved = proved and all(map(stages.have_all_told, observed.tasks)) and is_one_file_each(observed.reports)
        if not proved or len(observed.failures) > failures_max or not are_usable(observed.failures):
            self.sink.discard(prepared)
            release(leaves)
            if proved or not exits.has_skipped:
                return None
            # rows have left where hardly any do, a stage ran twice, a task has not told: once more, all observed
            self._counts_rare = True
            return self.once(batch, failures_max)
        evaluation = self._conclude(batch, prepared, observed)
        if self._expects_siblings:
            self._prepare_whole(leaves, evaluation)
        elif self.whole_trees and not self.has_state and any(map(has_siblings, evaluation.trees)):
            self.sink.discard(prepared)
            return None
        return evaluation

    def _prepare_whole(self, leaves: DataFrame, evaluation: Evaluation) -> None:
        """Hand the sink the leaves of complete trees only, from the rows that were evaluated."""
        whole = leaves
        if evaluation.incomplete is not None:
            whole = without_trees(leaves, evaluation.incomplete)
            evaluation.emitted = whole.count()
        evaluation.prepared = self.sink.prepare(_for_sink(whole))
        release(leaves)

    def _conclude(self, batch: Batch, prepared: Prepared, observed: Observed) -> Evaluation:
        evaluation = Evaluation(prepared, observed.roots, observed.emitted, batch.rows, roots_xor=observed.roots_xor)
        evaluation.changes = tuple(observed.reports)
        trees = evaluation.trees = one_per_tree(observed.failures, self.known)
        if trees:
            table = pa.Table.from_pylist(trees, schema=INCOMPLETE)
            evaluation.incomplete = batch.rows.sparkSession.createDataFrame(table)
            evaluation.incomplete_count = len(trees)
        return evaluation


def _for_sink(leaves: DataFrame) -> DataFrame:
    return leaves.drop(*LINEAGE)


def without_trees(leaves: DataFrame, incomplete: DataFrame) -> DataFrame:
    """The leaves of all other trees; rows that are not tracked stay."""
    return leaves.join(F.broadcast(incomplete.select(ANCHOR)), ANCHOR, "left_anti")
