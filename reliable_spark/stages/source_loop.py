"""The source's query of a chain: its rows are acked when the last of their descendants is done in the last stage.

A batch whose rows go into a queue is settled with one count and one XOR, and its trees are in flight from then on,
without a row for each. Between batches the stages' reports are merged: a batch that went through all stages is acked
as a whole; a tree that failed is taken out of it, found again in the source by its offsets, and goes the ordinary way
of retries; a batch that does not come through in time is divided by the rows that still lie in a queue. The trees of
a replay stay in `pending`, with status "in flight", since they are few.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Set
from dataclasses import asdict, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from reliable_spark.core.timeouts import expires_at_s
from reliable_spark.engine.checkpoint import Checkpoint
from reliable_spark.engine.loop import UPKEEP_BATCHES, Loop
from reliable_spark.engine.protocol import Batch, Evaluated, Origin
from reliable_spark.engine.run import checkpoint_path
from reliable_spark.engine.settlement import Settlement, settle_trees
from reliable_spark.ledger.ledger import BatchRecord, effects
from reliable_spark.stages.acks import Acks, Answers
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.flights import (
    IN_FLIGHT,
    LATE,
    Change,
    Failures,
    Flights,
    failed_on_their_way,
    failed_roots,
    on_their_way,
)
from reliable_spark.stages.places import queue_path
from reliable_spark.stages.queue import QueueSink, forget_taken
from reliable_spark.stages.settled import history
from reliable_spark.stages.source_rows import SourceRows

POLL_S: Final = 0.1
CLEANED_BATCHES: Final = 20
"""After how many batches that its stage has taken a queue is cleaned."""


class SourceLoop(Loop):
    """Runs the batches of a chain's source.

    Args:
        arguments: as `Loop` has them.
        acks: what the stages report.
        backlog: the queue that it writes.
    """

    def __init__(self, *arguments: Any, acks: Acks, backlog: Backlog) -> None:
        super().__init__(*arguments)
        self._acks, self.backlog = acks, backlog
        source = self.batches.source
        self._checkpoint = Checkpoint(source.spark, checkpoint_path(self.ledger.path))
        self._rows = SourceRows(source, self._checkpoint.path, self.ledger.path)
        self._flights = Flights(backlog)
        self._flights.remember(history(self.ledger, ["begun_at", "source_batch_id", "stages"]), acks)
        self._cleaned: dict[str, int] = {}

    # ------------------------------------------------------------------------------------ what is in flight

    def is_full(self) -> bool:
        """Wait for the first queue, too."""
        return super().is_full() or self.backlog.is_full()

    def seconds_until_due(self) -> float | None:
        """While trees are in flight, answers may come at any time."""
        return POLL_S if self._flights.open or self._flying_rows() else super().seconds_until_due()

    def run_due(self) -> bool:
        """Merge what the stages have answered, then replay what is due, if there is room for it."""
        with self.lock:
            merged = self.ledger.begun is None and self._merge()
            return (not self.backlog.is_full() and super().run_due()) or merged

    # ------------------------------------------------------------------------------------------- its batches

    def _due(self, due_before: Any, *, held: bool) -> tuple[pa.Table, pa.Table]:
        """What is in flight is not due."""
        due, rest = super()._due(due_before, held=held)
        is_flying = pc.equal(due["status"], IN_FLIGHT)
        return due.filter(pc.invert(is_flying)), pa.concat_tables([rest, due.filter(is_flying)])

    def _take_steps(self, batch: Batch, origin: Origin, untouched: pa.Table, attempt: int) -> BatchRecord:
        assert isinstance(self.sink, QueueSink)
        self.sink.batch_id = batch.batch_id
        return super()._take_steps(batch, origin, untouched, attempt)

    def upkeep(self, batch_id: int) -> None:
        """Of the reports, too."""
        super().upkeep(batch_id)
        if (batch_id + 1) % UPKEEP_BATCHES == 0:
            self._acks.upkeep()

    def _settle(self, batch: Batch, origin: Origin, evaluated: Evaluated, untouched: pa.Table) -> BatchRecord:
        flying = self._replayed(batch, evaluated, untouched)
        record = super()._settle(batch, origin, evaluated, pa.concat_tables([untouched, flying]))
        self._flights.settled(asdict(record))
        return record

    def _record(self, batch: Batch, origin: Origin, evaluated: Evaluated, settlement: Settlement) -> BatchRecord:
        record = super()._record(batch, origin, evaluated, settlement)
        put = self.sink.put  # type: ignore[attr-defined]
        if not put.rows:
            return record
        known: dict[str, Any] = {"out": (put.rows, put.xor), "failed": failed_roots(evaluated)}
        if not self._tracks:
            return replace(record, stages=json.dumps(known))
        if batch.kind == "replay":
            return replace(record, acked=0, stages=json.dumps(known))
        if record.acked:
            assert origin.source_batch_id is not None
            texts = [self._checkpoint.offset_text(origin.source_batch_id - before) for before in (0, 1)]
            known |= {"flights": {batch.batch_id: record.acked}, "offsets": texts}
        return replace(record, acked=0, in_flight=record.acked, stages=json.dumps(known))

    @property
    def _tracks(self) -> bool:
        return bool(self.batches.evaluator.ackers)  # type: ignore[attr-defined]

    def _replayed(self, batch: Batch, evaluated: Evaluated, untouched: pa.Table) -> pa.Table:
        """The trees of a replay that are on their way now: rows of `pending`, under their new roots."""
        pending, put = self.ledger.pending, self.sink.put  # type: ignore[attr-defined]
        if batch.kind != "replay" or not put.rows or not self._tracks:
            return pending.slice(0, 0)
        due = pending.filter(pc.invert(pc.is_in(pending["anchor"], untouched["anchor"])))
        return on_their_way(due, set(failed_roots(evaluated)), batch)

    # --------------------------------------------------------------------------------------------- answers

    def _merge(self) -> bool:
        """Take in what was reported, and what has timed out; says whether there was anything."""
        answers = self._acks.after(self._flights.seen, self.backlog.stage) if self._acks.has_news() else []
        late = self._late()
        if not answers and not late:
            return False
        with self.in_hand():
            if answers:
                self._settle_answers(answers)
            for batch_id in late:
                self._time_out_batch(batch_id)
        return True

    def _settle_answers(self, answers: Iterable[Answers]) -> None:
        finished: set[int] = set()
        failed: Failures = {}
        touched: set[int] = set()
        for each in answers:
            origins, done = self._flights.chain.report(each.report)
            finished |= done
            self._flights.seen[each.report.stage] = each.report.batch_id
            new = {tree["anchor"]: tree for tree in each.failed if tree["anchor"] not in self._flights.failed}
            failed |= new
            self._flights.failed |= set(new)
            touched |= origins if new else set()
        if not finished and not failed:
            return  # merged with the next that has something to say
        change = Change(0, [], {}, set())
        self._fail_replayed(failed, change)
        self._fail(failed, [batch_id for batch_id in touched if batch_id in self._flights.open], change)
        for batch_id in finished:
            self._ack(batch_id, change)
        self._write(change, "acks")

    def _ack(self, batch_id: int, change: Change, wait: Set[int] = frozenset()) -> None:
        """All of a batch that has not failed is done, but for what still waits."""
        if batch_id in self._flights.open:
            left = self._flights.open[batch_id].trees + change.flights.get(batch_id, 0)
            change.acked += left
            change.flights[batch_id] = change.flights.get(batch_id, 0) - left
        pending = self.ledger.pending
        own = pc.and_(pc.equal(pending["status"], IN_FLIGHT), pc.equal(pending["batch_id"], batch_id))
        roots = set(pending.filter(own)["anchor"].to_pylist()) - change.returned - wait
        change.acked += len(roots)
        change.returned |= roots

    def _fail(self, failed: Failures, batches: Iterable[int], change: Change) -> None:
        """Find the source rows of other trees that failed, by reading the micro-batches that they may come from."""
        failed = {root: why for root, why in failed.items() if root not in change.returned}
        for batch_id in sorted(batches if failed else ()):
            found = self._rows.failed(self._flights.open[batch_id].micro_batch, failed)
            if found.num_rows:
                change.found.append(found)
                change.flights[batch_id] = change.flights.get(batch_id, 0) - found.num_rows

    def _fail_replayed(self, failed: Failures, change: Change) -> None:
        """Fail trees of replays, whose source rows are pending."""
        pending = self.ledger.pending
        is_flying = pc.equal(pending["status"], IN_FLIGHT)
        roots = pa.array(list(failed), pa.int64())
        flying = pending.filter(pc.and_(is_flying, pc.is_in(pending["anchor"], roots))).to_pylist()
        if flying:
            change.returned |= {row["anchor"] for row in flying}
            change.found.append(failed_on_their_way(flying, failed, pending.schema))

    def _write(self, change: Change, kind: str) -> None:
        """Settle a batch of answers."""
        batch_id, now, pending = self.ledger.last_batch_id + 1, self.clock.now(), self.ledger.pending
        untouched = pending.filter(pc.invert(pc.is_in(pending["anchor"], pa.array(list(change.returned), pa.int64()))))
        moment = self._moment(batch_id, now, untouched)
        settled = [settle_trees(found, moment) for found in change.found]
        flights = {each: count for each, count in change.flights.items() if count}
        failed, lost = sum(each.failed for each in settled), sum(each.lost for each in settled)
        record = BatchRecord(
            batch_id=batch_id,
            kind=kind,
            begun_at=now,
            settled_at=now,
            acked=change.acked,
            failed=failed if kind == "acks" else 0,
            lost=lost,
            timed_out=failed if kind == "timeout" else 0,
            dead=sum(each.dead_count for each in settled),
            in_flight=sum(flights.values()),
            sink_version=self.sink.version,
            stages=json.dumps({"flights": flights, "seen": self._flights.seen}),
        )
        effects.debug("settle %s", kind)
        dead = pa.concat_tables([each.dead for each in settled]) if settled else None
        self.ledger.settle(record, pa.concat_tables([untouched, *(each.pending for each in settled)]), dead)
        for each, count in flights.items():
            self._flights.change(each, count)
        self.on_settled(record)
        self._clean()
        self.upkeep(batch_id)

    def _clean(self) -> None:
        """Keep the queues small: what their stages have taken, and have settled, nobody reads again."""
        for queue, upto in self._flights.chain.taken.items():
            if upto - self._cleaned.get(queue, -1) >= CLEANED_BATCHES:
                effects.debug("clean %s", queue)
                if forget_taken(queue_path(self.ledger.path, queue), upto):
                    self._cleaned[queue] = upto

    # -------------------------------------------------------------------------------------------- timeouts

    def _late(self) -> list[int]:
        """The batches that have not come through in time."""
        return self._flights.late(self._flying_rows(), self.policy.max_attempts, self._is_late)

    def _flying_rows(self) -> list[dict[str, Any]]:
        pending = self.ledger.pending.select(["status", "attempt", "batch_id", "emitted_at", "anchor"])
        rows: list[dict[str, Any]] = pending.filter(pc.equal(pending["status"], IN_FLIGHT)).to_pylist()
        return rows

    def _is_late(self, begun_s: float) -> bool:
        now_s = self.clock.now().timestamp()
        return expires_at_s(begun_s, self.settings.message_timeout_s, self.phase_s) <= now_s

    def _time_out_batch(self, batch_id: int) -> None:
        """Fail the trees of a batch of which rows still lie in a queue, but for last attempts; the others are done."""
        change = Change(0, [], {}, set())
        unanswered = self._unanswered(batch_id)
        wait = unanswered & self._flights.waiting(self._flying_rows(), batch_id, self.policy.max_attempts)
        late: Failures = {root: {**LATE, "anchor": root} for root in unanswered - wait - self._flights.failed}
        self._fail_replayed(late, change)
        if batch_id in self._flights.open:
            self._fail(late, [batch_id], change)
        self._ack(batch_id, change, wait)
        self._flights.chain.missing.discard(batch_id)
        self._write(change, "timeout")

    def _unanswered(self, batch_id: int) -> set[int]:
        """The roots of a batch whose rows wait in a queue, perhaps among those of other batches.

        If rows of it have disappeared, all of its roots: which of them are complete nobody can tell.
        """
        if batch_id not in self._flights.chain.missing:
            places = self._flights.chain.places(batch_id)
            return {root for queue, number in places for root in self._rows.roots_in(queue, number)}
        roots = {row["anchor"] for row in self._flying_rows() if row["batch_id"] == batch_id}
        if batch_id in self._flights.open:
            roots |= self._rows.roots_of(self._flights.open[batch_id].micro_batch)
        return roots
