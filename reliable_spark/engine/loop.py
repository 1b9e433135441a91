"""The one place where the effects of a batch are put in order.

A batch takes these steps; each can be repeated under the same batch id, and this is what a crash after it
leaves behind and how the next start mends it:

1. begin         the journal names the batch: which micro-batch it is, or up to when a replay's trees were due.
                 Only for what must be the same batch again: replays, and every batch of a sink function.
                 Crash: the next start runs the same batch, under the same id, as its next attempt.
2. evaluate      the sink's files are written, or the rows materialised or staged; nobody sees them.
                 Crash: nothing happened; the source gives the batch again, the journal a replay.
3. settle        the ledger stores pending trees, dead letters, counts, and what the sink has to commit.
                 Crash within: `Ledger.open` undoes what its last row does not name. Crash after: step 4 is due.
4. commit        the rows become visible, or the function is called, and states change, under the batch's id.
                 Crash before or within: the next start commits what the ledger's last row names, where it is not
                 there yet. Crash after: nothing is left to do.

A sink function that is to be called at least once is called before step 3, since it must be called again when nobody
knows whether it was. At most once: after it, and what is unfinished is left alone. A timeout has step 3 only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from reliable_spark.clock import Clock
from reliable_spark.core.retries import JITTER
from reliable_spark.engine.columns import HELD
from reliable_spark.engine.protocol import Batch, Batches, Evaluated, Origin
from reliable_spark.engine.settlement import Moment, Settlement, divided, retry_policy, settle_trees, time_out
from reliable_spark.errors import OperatingError
from reliable_spark.ledger.journal import Begun
from reliable_spark.ledger.ledger import BatchRecord, Ledger, effects
from reliable_spark.settings import Settings
from reliable_spark.sinks.base import Delivery, LastBatch, Prepared, Sink

PENDING_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Pending trees with larger payloads than this together make the source wait, however few they are."""

UPKEEP_BATCHES: Final = 100
"""After how many batches the tables are compacted; that changes no answer."""


class Loop:
    """Runs batches against one ledger and one sink, one at a time.

    Args:
        batches: makes and evaluates batches.
        ledger: open for writing.
        sink: bound to the ledger.
        settings: the rules.
        clock: the time.

    Attributes:
        takes_back: its dead letters hold the source rows, so they can be tried again.
    """

    takes_back = True

    def __init__(self, batches: Batches, ledger: Ledger, sink: Sink, settings: Settings, clock: Clock) -> None:
        self.batches, self.ledger, self.sink = batches, ledger, sink
        self.settings, self.clock = settings, clock
        self.policy, self.phase_s = retry_policy(settings), clock.now().timestamp()
        self.lock = threading.RLock()
        self._error: BaseException | None = None
        self.on_settled: Callable[[BatchRecord], None] = lambda record: None

    def run_source(self, rows: Any, origin: Origin) -> None:
        """Run a batch of source rows, unless the ledger has settled it already.

        Raises:
            TooManyFailures: over `max_bad_ratio`; nothing was written.
            OperatingError: the sink or the ledger refused; the batch is not settled.
        """
        with self.lock:
            if self.ledger.is_settled(origin.query_id, origin.source_batch_id, origin.offsets):
                return
            if self._begun_replay() is not None:
                self._replay()
            batch = self.batches.of_source(rows, self._source_batch_id(origin), self.clock.now())
            self._run(batch, origin, self.ledger.pending, None)

    def run_due(self) -> bool:
        """Fail what has timed out and replay what is due, each as a batch of its own.

        Returns:
            True when there was something to do.
        """
        with self.lock:
            begun = self.ledger.begun
            if begun is not None and begun.kind == "source":
                # the source gives that batch again first: its id is taken
                return False
            timed_out = begun is None and self._time_out()
            return self._replay() or timed_out

    def is_full(self) -> bool:
        """Tell whether the source has to wait: too many trees are pending (Storm's max spout pending), or too large."""
        begun, pending = self.ledger.begun, self.ledger.pending
        if begun is not None and begun.kind == "source":
            return False  # its batch comes before any replay: to wait for those would be to wait for ever
        return bool(pending.num_rows >= self.settings.max_pending or pending.nbytes >= PENDING_BYTES_MAX)

    def seconds_until_due(self) -> float | None:
        """How long until the next replay or timeout; None when nothing is pending.

        Trees that fail together are due a little apart: the answer is when the last of them is, so that they
        make one batch.
        """
        with self.lock:
            due_at = self.ledger.pending["due_at"]
            first: datetime | None = pc.min(due_at).as_py()
            if first is None:
                return None
            together = first + timedelta(seconds=JITTER * self.settings.backoff_initial_s)
            last: datetime = pc.max(due_at.filter(pc.less_equal(due_at, pa.scalar(together, due_at.type)))).as_py()
            return (last - self.clock.now()).total_seconds()

    def finish(self, last: LastBatch) -> None:
        """Commit what a crash has left settled but not committed; to be called before the first batch."""
        changes = self.ledger.last["state_changes"] if self.ledger.last else None
        self._commit_states(changes or (), last.batch_id)
        prepared = self.sink.unfinished(last)
        if prepared is None:
            return
        attempt = 1
        if self.sink.is_begun:
            attempt = self.ledger.journal.begin(Begun(last.batch_id, "source"), self.clock.now())
        self._commit(prepared, last.batch_id, attempt)

    def _begun_replay(self) -> Begun | None:
        begun = self.ledger.begun
        return begun if begun is not None and begun.kind == "replay" else None

    def _source_batch_id(self, origin: Origin) -> int:
        begun = self.ledger.begun
        if begun is None:
            return self.ledger.last_batch_id + 1
        wanted = ("source", origin.query_id, origin.source_batch_id)
        is_same = (begun.kind, begun.query_id, begun.source_batch_id) == wanted
        return begun.batch_id if is_same else begun.batch_id + 1

    def _replay(self) -> bool:
        """Replay what is due; after a crash, the very trees of the replay that was begun."""
        begun = self._begun_replay()
        due_before = begun.due_before if begun and begun.due_before else self.clock.now()
        due, rest = self._due(due_before, held=False)
        if not due.num_rows:
            return False
        batch_id = begun.batch_id if begun else self.ledger.last_batch_id + 1
        batch = self.batches.of_pending(due, batch_id, self.clock.now())
        self._run(batch, Origin(), rest, due_before)
        return True

    def _run(self, batch: Batch, origin: Origin, untouched: pa.Table, due_before: datetime | None) -> None:
        """Take a batch through the steps of this module's docstring."""
        with self.in_hand():
            try:
                # Step 1: begin
                attempt = self._begin(batch, origin, due_before)
                record = self._take_steps(batch, origin, untouched, attempt)
                self.upkeep(record.batch_id)
            finally:
                self.batches.release()
        self.on_settled(record)

    @contextmanager
    def in_hand(self) -> Iterator[None]:
        """Change the ledger; after an error in it only a new start goes on."""
        if self._error is not None:
            raise OperatingError(f"an earlier batch failed, start again: {self._error}") from self._error
        try:
            yield
        except BaseException as error:
            self._error = error
            raise

    def _take_steps(self, batch: Batch, origin: Origin, untouched: pa.Table, attempt: int) -> BatchRecord:
        # Step 2: evaluate
        effects.debug("evaluate %s", batch.kind)
        evaluated = self.batches.evaluate(batch)
        if not self.sink.settles_first:
            # Step 4 before step 3: a function is called again when nobody knows whether it was
            self._commit(evaluated.prepared, batch.batch_id, attempt)
        with self.ledger.lock:  # nobody is told of an answer whose rows are not there yet
            # Step 3: settle
            record = self._settle(batch, origin, evaluated, untouched)
            if self.sink.settles_first:
                # Step 4: commit
                self._commit(evaluated.prepared, batch.batch_id, attempt)
            self._commit_states(evaluated.changes, batch.batch_id)
        return record

    def _begin(self, batch: Batch, origin: Origin, due_before: datetime | None) -> int:
        if not self.sink.is_begun and batch.kind == "source":
            return 1
        effects.debug("begin %s", batch.kind)
        begun = Begun(batch.batch_id, batch.kind, origin.query_id, origin.source_batch_id, due_before)
        return self.ledger.journal.begin(begun, self.clock.now())

    def _commit(self, prepared: Prepared, batch_id: int, attempt: int) -> None:
        effects.debug("commit")
        self.sink.commit(prepared, Delivery(self.ledger.ledger_id, batch_id, attempt))
        effects.debug("committed")

    def _commit_states(self, changes: Sequence[str], batch_id: int) -> None:
        if changes:
            effects.debug("commit states")
            self.batches.commit_states(changes, batch_id)

    def upkeep(self, batch_id: int) -> None:
        """Compact the tables when this is the batch for it."""
        if (batch_id + 1) % UPKEEP_BATCHES == 0:
            self.ledger.upkeep()
            self.batches.upkeep()

    def _settle(self, batch: Batch, origin: Origin, evaluated: Evaluated, untouched: pa.Table) -> BatchRecord:
        moment = self._moment(batch.batch_id, batch.begun_at, untouched)
        settlement = Settlement(untouched.slice(0, 0), untouched.slice(0, 0))
        effects.debug("settle %s", batch.kind)
        if evaluated.trees is not None:
            settlement = settle_trees(evaluated.trees, moment)
        elif evaluated.many is not None:
            self.ledger.mark(batch.batch_id, untouched)
            settlement = evaluated.many.settle(moment, self.ledger)
            self.ledger.reload()
        record = self._record(batch, origin, evaluated, settlement)
        is_changed = settlement.pending.num_rows > 0 or batch.kind != "source"
        pending = pa.concat_tables([untouched, settlement.pending]) if is_changed else None
        self.ledger.settle(record, None if evaluated.many is not None else pending, settlement.dead)
        effects.debug("settled %s", batch.kind)
        return record

    def _record(self, batch: Batch, origin: Origin, evaluated: Evaluated, settlement: Settlement) -> BatchRecord:
        is_source = batch.kind == "source"
        return BatchRecord(
            batch_id=batch.batch_id,
            kind=batch.kind,
            begun_at=batch.begun_at,
            settled_at=self.clock.now(),
            query_id=origin.query_id,
            source_batch_id=origin.source_batch_id,
            source_offsets=origin.offsets,
            anchored=evaluated.rows if is_source else 0,
            replayed=evaluated.retried + (0 if is_source else evaluated.rows),
            acked=evaluated.rows - settlement.failed - settlement.lost - settlement.held,
            failed=settlement.failed + evaluated.retried,
            lost=settlement.lost,
            held=settlement.held,
            dead=settlement.dead_count,
            emitted=evaluated.emitted,
            duplicates=evaluated.duplicates,
            checksum_ok=evaluated.checksum_ok,
            sink_actions=evaluated.prepared.actions,
            state_changes=evaluated.changes,
            sink_version=self.sink.version,
        )

    def _time_out(self) -> bool:
        """Fail the held trees whose time has come, as a batch of its own."""
        expired, rest = self._due(self.clock.now(), held=True)
        if not expired.num_rows:
            return False
        batch_id = self.ledger.last_batch_id + 1
        moment = self._moment(batch_id, self.clock.now(), rest)
        settlement = time_out(expired, moment)
        record = BatchRecord(
            batch_id=batch_id,
            kind="timeout",
            begun_at=moment.begun_at,
            settled_at=moment.now,
            timed_out=expired.num_rows,
            dead=settlement.dead_count,
            sink_version=self.sink.version,
        )
        effects.debug("settle timeout")
        self.ledger.settle(record, pa.concat_tables([rest, settlement.pending]), settlement.dead)
        self.on_settled(record)
        self.upkeep(batch_id)
        return True

    def _due(self, due_before: datetime, *, held: bool) -> tuple[pa.Table, pa.Table]:
        """Divide what is pending into what is due by then, of the held or of the failed, and the rest."""
        return divided(self.ledger.pending, due_before, held=held)

    def _moment(self, batch_id: int, begun_at: datetime, untouched: pa.Table) -> Moment:
        held = pc.sum(pc.equal(untouched["status"], HELD)).as_py() or 0
        room = max(0, 2 * (self.settings.high_water or self.settings.max_pending) + 1 - held)
        now, timeout_s = self.clock.now(), self.settings.message_timeout_s
        return Moment(batch_id, begun_at, now, self.policy, timeout_s, self.phase_s, room)
