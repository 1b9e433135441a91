"""The ledger against a model of it: any order of settling, beginning, upkeep, crashing and opening again."""

from __future__ import annotations

import random
import shutil
import tempfile
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.journal import Begun
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.ledger.schema import REDRIVE, dead_letters_schema, pending_schema
from tests.engine.simulation import PAYLOAD, Crash, MemoryTables, World

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def trees(schema: pa.Schema, ids: set[int]) -> pa.Table:
    rows = [{"anchor": each, "error_class": "ValueError", "payload": {"id": each}} for each in sorted(ids)]
    return pa.Table.from_pylist(rows, schema=schema)


class LedgerStates(RuleBasedStateMachine):
    """Each row is a number; the model keeps three sets of them."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(random.Random(0), deterministic=True, micro_batches=[])
        self.rows = 0
        self.pending: set[int] = set()
        self.dead: set[int] = set()
        self.acked: set[int] = set()
        self.last = -1
        self.begun: tuple[Begun, int] | None = None
        self.offsets: dict[int, str] = {}

    def open(self) -> Ledger:
        return Ledger.open("memory", PAYLOAD, MemoryTables(self.world))

    @initialize()
    def start(self) -> None:
        self.ledger = self.open()

    def batch(self, data: st.DataObject) -> tuple[BatchRecord, set[int], set[int], set[int]]:
        """Draw a batch: some new rows or some pending ones, each of which is acked, pending again or dead."""
        is_source = data.draw(st.booleans())
        count = data.draw(st.integers(0, 4))
        taken = set(range(self.rows, self.rows + count)) if is_source else set(sorted(self.pending)[:count])
        fates = {row: data.draw(st.sampled_from(["acked", "pending", "dead"])) for row in sorted(taken)}
        acked, waits, died = ({row for row in taken if fates[row] == fate} for fate in ("acked", "pending", "dead"))
        record = BatchRecord(
            batch_id=self.last + data.draw(st.integers(1, 2)),
            kind="source" if is_source else "replay",
            begun_at=NOW,
            settled_at=NOW,
            query_id="q" if is_source else None,
            source_batch_id=len(self.offsets) if is_source else None,
            source_offsets=f"offsets {len(self.offsets)}" if is_source else None,
            anchored=len(taken) if is_source else 0,
            acked=len(acked),
            failed=len(waits) + len(died),
            dead=len(died),
        )
        return record, acked, self.pending - taken | waits, died

    def redrive(self, data: st.DataObject) -> tuple[BatchRecord, set[int], set[int], set[int]]:
        """Draw a batch that takes some dead letters back: those that are left count as what died in it."""
        taken = {row for row in sorted(self.dead) if data.draw(st.booleans())}
        record = BatchRecord(self.last + 1, REDRIVE, NOW, NOW, dead=-len(taken))
        return record, set(), self.pending | taken, self.dead - taken

    def settle(self, drawn: tuple[BatchRecord, set[int], set[int], set[int]]) -> None:
        record, _, pending, died = drawn
        is_changed = pending != self.pending or record.kind != "source"
        tables = trees(pending_schema(PAYLOAD), pending) if is_changed else None
        self.ledger.settle(record, tables, trees(dead_letters_schema(PAYLOAD), died))

    def adopt(self, drawn: tuple[BatchRecord, set[int], set[int], set[int]]) -> None:
        record, acked, pending, died = drawn
        if record.kind == REDRIVE:
            self.dead = set()
        if record.source_batch_id is not None:
            self.rows += record.anchored
            self.offsets[record.source_batch_id] = record.source_offsets or ""
        self.acked |= acked
        self.pending, self.dead = pending, self.dead | died
        self.last = record.batch_id
        if self.begun and self.begun[0].batch_id <= self.last:
            self.begun = None

    @rule(data=st.data())
    def settled(self, data: st.DataObject) -> None:
        drawn = self.batch(data)
        self.settle(drawn)
        self.adopt(drawn)

    @rule(data=st.data())
    def taken_back(self, data: st.DataObject) -> None:
        drawn = self.redrive(data)
        self.settle(drawn)
        self.adopt(drawn)

    @rule(data=st.data(), effects=st.integers(0, 6))
    def crashed_while_settling(self, data: st.DataObject, effects: int) -> None:
        """The process dies at some effect: the batch is settled as a whole or not at all."""
        drawn = self.redrive(data) if data.draw(st.booleans()) else self.batch(data)
        self.world.crash_in, self.world.trail = effects, []
        try:
            self.settle(drawn)
            self.adopt(drawn)
        except Crash:
            if "after batches" in self.world.trail:
                self.adopt(drawn)
        self.world.crash_in = None
        self.ledger = self.open()

    @rule(data=st.data())
    def written_by_spark_and_not_settled(self, data: st.DataObject) -> None:
        """A marked settlement to which Spark has appended is undone when its batch's row never comes."""
        _, _, pending, died = self.batch(data)
        self.ledger.mark(self.last + 1, trees(pending_schema(PAYLOAD), pending))
        for name, rows in (("pending", pending), ("dead_letters", died)):
            table = self.world.tables[name]
            more = pa.concat_tables([table.read(), trees(table.schema, rows)])
            table.versions.append((more, table.written_batch()))
        self.ledger = self.open()

    @rule(effects=st.integers(0, 6))
    def crashed_while_opening_or_in_upkeep(self, effects: int) -> None:
        self.world.crash_in = effects
        try:
            self.ledger = self.open()
            if self.last >= 0:
                self.ledger.upkeep()
        except Crash:
            pass
        self.world.crash_in = None
        self.ledger = self.open()

    @rule(kind=st.sampled_from(["source", "replay"]), minutes=st.integers(0, 9))
    def begin(self, kind: str, minutes: int) -> None:
        begun = Begun(self.last + 1, kind, due_before=NOW + timedelta(minutes=minutes))
        attempt = 1 + (self.begun[1] if self.begun and self.begun[0].batch_id == begun.batch_id else 0)
        assert self.ledger.journal.begin(begun, NOW) == attempt
        self.begun = (begun, attempt)

    @precondition(lambda self: self.last >= 0)
    @rule(back=st.integers(0, 3))
    def settle_in_the_past(self, back: int) -> None:
        with pytest.raises(LedgerError, match="cannot follow"):
            self.ledger.settle(BatchRecord(self.last - back, "source", NOW, NOW))

    @invariant()
    def the_ledger_is_the_model(self) -> None:
        counts: Any = self.ledger.counts()
        assert counts.balanced
        assert (counts.anchored, counts.acked) == (self.rows, len(self.acked))
        assert set(self.ledger.pending["anchor"].to_pylist()) == self.pending
        dead = self.world.tables["dead_letters"].read()["anchor"].to_pylist()
        assert sorted(dead) == sorted(self.dead)
        assert self.ledger.last_batch_id == self.last
        assert self.ledger.begun == (self.begun[0] if self.begun else None)
        assert all(self.ledger.is_settled("q", number, held) for number, held in self.offsets.items())
        assert not self.ledger.is_settled("q", len(self.offsets))


LedgerStates.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLedgerInMemory = LedgerStates.TestCase


class DeltaLedgerStates(LedgerStates):
    """The same on Delta tables on disk, where audit must agree; crashes there are the other test's."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.mkdtemp()
        self.ledger: Ledger

    def open(self) -> Ledger:
        if hasattr(self, "ledger"):
            self.ledger.close()
        return Ledger.open(self.place, PAYLOAD)

    def teardown(self) -> None:
        self.ledger.close()
        shutil.rmtree(self.place)

    crashed_while_settling = None  # type: ignore[assignment]
    written_by_spark_and_not_settled = None  # type: ignore[assignment]

    @invariant()
    def the_ledger_is_the_model(self) -> None:
        counts = self.ledger.counts()
        assert counts == audit(self.place)
        assert (counts.anchored, counts.acked, counts.dead) == (self.rows, len(self.acked), len(self.dead))
        assert set(self.ledger.pending["anchor"].to_pylist()) == self.pending
        assert self.ledger.begun == (self.begun[0] if self.begun else None)


DeltaLedgerStates.TestCase.settings = settings(
    max_examples=4, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerOnDelta = DeltaLedgerStates.TestCase
