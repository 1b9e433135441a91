"""The query that reads a queue: an ordinary one, with a ledger of its own, that answers to the source of its rows.

It tries nothing again: what fails is reported with the batch it failed in, and comes back from the source under a new
root. Its own ledger makes a batch atomic, as ever; the report follows from that ledger, so a crash between the two is
mended by reporting again, and it precedes the commit, so that no later stage reports what it took before this one
has said where it came from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from reliable_spark.core.stages import Report
from reliable_spark.engine.batches import SparkBatches
from reliable_spark.engine.checkpoint import Checkpoint
from reliable_spark.engine.columns import ANCHOR, FAILURE, TUPLE_ID
from reliable_spark.engine.evaluation import Evaluation
from reliable_spark.engine.lineage import column
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.protocol import Batch, Evaluated, Origin
from reliable_spark.engine.run import checkpoint_path
from reliable_spark.engine.settlement import Settlement
from reliable_spark.engine.tracing import Tracer
from reliable_spark.ledger.counts import LOST
from reliable_spark.ledger.ledger import BatchRecord
from reliable_spark.sinks.base import LastBatch
from reliable_spark.stages.acks import Acks, Answers
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.queue import QueueSink, last_batch_before
from reliable_spark.stages.settled import dead_of, history


class StageTracer(Tracer):
    """Traces the batches of a stage: rows that share a root are parts of one tree there, not repeated messages."""

    def _told_apart(self, rows: Any) -> tuple[Any, int]:
        self._kept.append(rows)
        return rows, 0


class StageBatches(SparkBatches):
    """The batches of a stage, whose failed trees need no source rows.

    Attributes:
        taken: how many rows the last evaluation read, and the XOR of their ids.
    """

    taken: tuple[int, int] = (0, 0)

    def _with_trees(self, evaluation: Evaluation) -> Evaluated | None:
        roots_xor = evaluation.roots_xor
        if roots_xor is None:
            found = evaluation.source.agg(F.expr(f"bit_xor({TUPLE_ID})")).first()
            roots_xor = (found[0] if found else 0) or 0
        self.taken = (evaluation.rows, roots_xor)
        trees = None
        if evaluation.incomplete is not None:
            found_trees = evaluation.incomplete.select(ANCHOR, "ack_val", "status", column(FAILURE).alias("why"))
            trees = _as_trees(found_trees.toArrow(), self.source.spouts[0].name)
        return Evaluated(
            prepared=evaluation.prepared,
            rows=evaluation.rows,
            emitted=evaluation.emitted,
            checksum_ok=evaluation.checksum_ok,
            trees=trees,
        )


def _as_trees(found: pa.Table, spout: str) -> pa.Table:
    """Failed trees of a stage in the columns that `settle_trees` reads."""
    why, count = found["why"].combine_chunks(), found.num_rows
    failure = dict(zip((field.name for field in why.type), why.flatten(), strict=True))
    payload = pa.StructArray.from_arrays([failure["retry"]], ["retry"])
    return pa.table(
        {
            "anchor": found[ANCHOR],
            "ack_val": found["ack_val"],
            "spout": pa.repeat(pa.scalar(spout), count),
            "message_id": pa.nulls(count, pa.string()),
            "attempt": pa.repeat(pa.scalar(1, pa.int32()), count),
            "status": found["status"],
            **{name: failure[name] for name in ("bolt", "error_class", "error", "traceback", "retry")},
            "first_seen_at": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "payload": payload,
        }
    )


class StageLoop(Loop):
    """Runs the batches of one stage.

    Args:
        arguments: as `Loop` has them.
        stage: its name, which is its queue's.
        queue: where that lies.
        acks: where it reports.
        backlog: the queue that it writes, if it does.

    Attributes:
        upto: the last batch of its queue that it has taken.
    """

    takes_back = False

    def __init__(self, *arguments: Any, stage: str, queue: str, acks: Acks, backlog: Backlog | None = None) -> None:
        super().__init__(*arguments)
        self._stage, self._acks, self.backlog = stage, acks, backlog
        spark = self.batches.source.spark
        self._checkpoint = Checkpoint(spark, checkpoint_path(self.ledger.path))
        self.queue, self.upto = queue, -1
        for batch_id, known, _ in self._history():
            self.upto = known["upto"]
            if backlog is not None:
                backlog.put(batch_id, known["out"][0])

    def finish(self, last: LastBatch) -> None:
        """Report what a crash has left unreported, then commit what it left uncommitted."""
        reported = self._acks.last_batch(self._stage)
        for batch_id, known, dead in self._history():
            if batch_id > reported:
                self._report(batch_id, known, dead)
        super().finish(last)

    def is_full(self) -> bool:
        """Wait for the queue behind this stage, too."""
        return super().is_full() or (self.backlog is not None and self.backlog.is_full())

    def _take_steps(self, batch: Batch, origin: Origin, untouched: pa.Table, attempt: int) -> BatchRecord:
        if isinstance(self.sink, QueueSink):
            self.sink.batch_id = batch.batch_id
        return super()._take_steps(batch, origin, untouched, attempt)

    def _settle(self, batch: Batch, origin: Origin, evaluated: Evaluated, untouched: pa.Table) -> BatchRecord:
        record = super()._settle(batch, origin, evaluated, untouched)
        known = json.loads(record.stages or "{}")
        self.upto = known["upto"]
        if self.backlog is not None:
            self.backlog.put(record.batch_id, known["out"][0])
        self._report(record.batch_id, known, record.dead)
        return record

    def _record(self, batch: Batch, origin: Origin, evaluated: Evaluated, settlement: Settlement) -> BatchRecord:
        record = super()._record(batch, origin, evaluated, settlement)
        taken = self.batches.taken  # type: ignore[attr-defined]
        known = {"upto": self._taken_upto(origin), "in": taken, "out": (0, 0)}
        if isinstance(self.sink, QueueSink):
            known["out"] = (self.sink.put.rows, self.sink.put.xor)
        return replace(record, stages=json.dumps(known))

    def _taken_upto(self, origin: Origin) -> int:
        """The last batch of the queue that belongs to a micro-batch: what Spark's offset says, as the queue has it."""
        assert origin.source_batch_id is not None
        text = self._checkpoint.offset_text(origin.source_batch_id)
        assert text is not None, "Spark writes the offsets of a micro-batch before it runs it"
        return max(self.upto, last_batch_before(self.queue, text.strip().split("\n")[-1]))

    def _time_out(self) -> bool:
        """What a bolt has held for too long fails, and that is reported as a batch without rows."""
        if not super()._time_out():
            return False
        assert self.ledger.last is not None
        self._report(self.ledger.last["batch_id"], self._nothing(), self.ledger.last["dead"])
        return True

    def _nothing(self) -> dict[str, Any]:
        return {"upto": self.upto, "in": (0, 0), "out": (0, 0)}

    def _history(self) -> Iterator[tuple[int, dict[str, Any], int]]:
        """What was settled so far, batch by batch, and how many trees failed in it."""
        for row in history(self.ledger, ["stages", "dead"]):
            known = json.loads(row["stages"]) if row["stages"] else self._nothing()
            yield row["batch_id"], known, row["dead"]

    def _report(self, batch_id: int, known: dict[str, Any], dead: int) -> None:
        rows, xor = known["in"]
        out_rows, out_xor = known["out"]
        following = self.backlog.stage if self.backlog is not None else None
        report = Report(self._stage, batch_id, known["upto"], rows, xor, following, out_rows, out_xor)
        failed = dead_of(self.ledger, batch_id) if dead else []
        self._acks.append(Answers(report, [_as_failed(row) for row in failed]))


def _as_failed(row: dict[str, Any]) -> dict[str, Any]:
    status = LOST if row["error_class"] == LOST else "failed"
    failure = {name: row[name] for name in ("bolt", "error_class", "error", "traceback")}
    return {"anchor": row["anchor"], "status": status, **failure, "retry": row["payload"]["retry"]}
