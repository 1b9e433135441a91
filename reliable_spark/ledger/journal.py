"""The ledger's journal: what the writer is about to do, written down before it does it.

A batch whose effects reach outside before it is settled (a sink function is called, a set of due trees is
taken) must be the same batch under the same id when it runs again. A row of the journal says which it was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from reliable_spark.ledger.schema import JOURNAL, REDRIVE
from reliable_spark.ledger.tables import Table

_BEGUN: Final = "begun"
_RUN_BEGUN: Final = "run begun"
_RUN_ENDED: Final = "run ended"
_SINK: Final = "sink"
_ACCEPTED: Final = "restore accepted"


@dataclass(frozen=True)
class Begun:
    """A batch that was begun.

    Attributes:
        batch_id: the ledger's number for it.
        kind: "source" or "replay".
        query_id, source_batch_id: which micro-batch of which streaming query a source batch is.
        due_before: a replay takes the trees that were due at that time.
    """

    batch_id: int
    kind: str
    query_id: str | None = None
    source_batch_id: int | None = None
    due_before: datetime | None = None


@dataclass(frozen=True)
class OpenRun:
    """A run over static rows that has not ended.

    Attributes:
        first_batch_id: its first batch.
        is_redrive: it takes dead letters only, no source rows.
    """

    first_batch_id: int
    is_redrive: bool


class Journal:
    """Reads the whole journal once, and appends to it.

    Args:
        table: the ledger's table `journal`.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows: list[dict[str, Any]] = table.read().sort_by("number").to_pylist()

    def begin(self, begun: Begun, now: datetime) -> int:
        """Write down that a batch begins.

        Returns:
            Which attempt at this batch it is, from 1.
        """
        self._append(self._row(_BEGUN, now, **asdict(begun)))
        return sum(row["state"] == _BEGUN and row["batch_id"] == begun.batch_id for row in self._rows)

    def begun_after(self, batch_id: int) -> Begun | None:
        """The batch that was begun last, if it comes after the one given."""
        begun = self._last(_BEGUN)
        if begun is None or begun["batch_id"] <= batch_id:
            return None
        return Begun(**{name: begun[name] for name in Begun.__dataclass_fields__})

    def begin_run(self, run: OpenRun, sink: str, now: datetime) -> None:
        """Write down that a run over static rows begins, and which sink it uses, in one commit."""
        batch_id, kind = run.first_batch_id, REDRIVE if run.is_redrive else None
        begun = self._row(_RUN_BEGUN, now, batch_id=batch_id, kind=kind)
        self._append(*self._new_sink(batch_id, sink, now), begun)

    def end_run(self, batch_id: int, now: datetime) -> None:
        """Write down that the run has nothing pending; the batch id is the next one."""
        self._append(self._row(_RUN_ENDED, now, batch_id=batch_id))

    def open_run(self) -> OpenRun | None:
        """The last run, unless it has ended."""
        last = self._last(_RUN_BEGUN, _RUN_ENDED)
        return OpenRun(last["batch_id"], last["kind"] == REDRIVE) if last and last["state"] == _RUN_BEGUN else None

    @property
    def sink(self) -> str | None:
        """What the sink was at the last start."""
        last = self._last(_SINK)
        return last["detail"] if last else None

    def use_sink(self, batch_id: int, sink: str, now: datetime) -> None:
        """Write down which sink is used from this batch on, unless it was the last one too."""
        self._append(*self._new_sink(batch_id, sink, now))

    @property
    def accepted_version(self) -> int | None:
        """Up to which version of the sink a person has accepted that it was restored."""
        last = self._last(_ACCEPTED)
        return int(last["detail"]) if last else None

    def accept_restore(self, batch_id: int, version: int, now: datetime) -> None:
        """Write down that the sink may have been restored, up to this version of it."""
        self._append(self._row(_ACCEPTED, now, batch_id=batch_id, detail=str(version)))

    def upkeep(self, last_batch_id: int) -> None:
        """Forget what no restart will ask for: batches that are settled, runs and sinks that were followed."""
        needed = [self._last(_RUN_BEGUN, _RUN_ENDED), self._last(_SINK), self._last(_ACCEPTED)]
        begun = [row for row in self._rows if row["state"] == _BEGUN and row["batch_id"] >= last_batch_id]
        rows = sorted([*filter(None, needed), *begun], key=lambda row: int(row["number"]))
        if len(rows) < len(self._rows):
            self._table.write(pa.Table.from_pylist(rows, schema=JOURNAL), last_batch_id, "overwrite")
            self._rows = rows
        self._table.compact()
        self._table.forget()

    def _last(self, *states: str) -> dict[str, Any] | None:
        return next((row for row in reversed(self._rows) if row["state"] in states), None)

    def _new_sink(self, batch_id: int, sink: str, now: datetime) -> list[dict[str, Any]]:
        return [] if sink == self.sink else [self._row(_SINK, now, batch_id=batch_id, detail=sink)]

    def _row(self, state: str, now: datetime, **values: Any) -> dict[str, Any]:
        return {**dict.fromkeys(JOURNAL.names), "state": state, "at": now, **values}

    def _append(self, *rows: dict[str, Any]) -> None:
        if rows:
            first = self._rows[-1]["number"] + 1 if self._rows else 0
            numbered = [{**row, "number": number} for number, row in enumerate(rows, first)]
            self._table.write(pa.Table.from_pylist(numbered, schema=JOURNAL), rows[-1]["batch_id"], "append")
            self._rows += numbered
