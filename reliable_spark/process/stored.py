"""What a running topology leaves in a ledger: every message's answer, and the statistics, readable without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from reliable_spark.clock import Clock
from reliable_spark.core.ids import root_id
from reliable_spark.core.messages import Message, Messages, text_of
from reliable_spark.core.statistics import ComponentStatistics, Figures
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.ledger.schema import TIMESTAMP, dead_letters_schema, pending_schema
from reliable_spark.ledger.tables import DeltaTables

PAYLOAD = pa.struct([("stream", pa.string()), ("values", pa.string())])
"""What stands in the place of a source row: where a message was emitted, and its values as JSON."""

STATISTICS = pa.schema(
    [
        ("at", TIMESTAMP),
        ("topology", pa.string()),
        ("component", pa.string()),
        ("scope", pa.string()),
        ("source", pa.string()),
        ("name", pa.string()),
        *((name, pa.int64()) for name in ("emitted", "transferred", "executed", "acked", "failed")),
        *((f"{name}_latency_ms", pa.float64()) for name in ("complete", "process", "execute")),
        ("capacity", pa.float64()),
    ]
)
"""One row per component and window, output and input stream: `scope` says which, `name` is the window or the stream."""

UPKEEP_EVERY = 100
_ERRORS = {
    "failed": "the tuple tree failed or timed out",
    "lost": "the task of the spout that emitted it died",
    None: "the tuple tree has no answer yet",
}


class TopologyLedger:
    """A ledger of messages instead of source rows. Invariant: `anchored == acked + dead + pending` at any time.

    Messages that an earlier run left pending are pending again; emitted again, they are replays.

    Args:
        path: a directory or URI.
        name: the topology's.
        messages: the messages of its spouts.
        clock: tells the time.

    Raises:
        LedgerError: it cannot be written, is in use, or is not a topology's.
    """

    def __init__(self, path: str, name: str, messages: Messages, clock: Clock) -> None:
        self._name, self._messages, self._clock = name, messages, clock
        self._began = self._written_at = clock.now()
        self._ledger = Ledger.open(path, PAYLOAD)
        tables = DeltaTables(path)
        tables.create({"statistics": STATISTICS})
        (self._statistics,) = tables.open("statistics")
        self._writes = 0
        self._has_failed = False
        for row in self._ledger.pending.to_pylist():
            messages.remember(self._message(row))

    def write(self, statistics: Mapping[str, ComponentStatistics], is_end: bool = False) -> None:
        """Settle what was answered since the last time, and replace the statistics.

        After a write that failed there is no other: the counts that it took are in no batch, so none would balance.

        Args:
            statistics: every component's.
            is_end: no spout will be asked again: what failed and still waits is dead.

        Cost: 15 to 50 ms for a few hundred pending messages.
        """
        if self._has_failed:
            return
        self._has_failed = True  # until it is done
        now = self._clock.now()
        dead = self._messages.bury() if is_end else []
        counts = self._messages.take_counts()
        if counts:
            record = BatchRecord(
                batch_id=self._ledger.last_batch_id + 1,
                kind="topology",
                begun_at=self._written_at,
                settled_at=now,
                anchored=counts["anchored"],
                replayed=counts["replayed"],
                acked=counts["acked"],
                failed=counts["failed"],
                lost=counts["lost"],
                dead=counts["dead"],
            )
            pending = pa.Table.from_pylist(self._rows(self._messages.pending(), now), pending_schema(PAYLOAD))
            buried = pa.Table.from_pylist(self._rows(dead, now), dead_letters_schema(PAYLOAD))
            self._ledger.settle(record, pending, buried)
        rows = [row for component, page in statistics.items() for row in self._page(component, page, now)]
        self._statistics.write(pa.Table.from_pylist(rows, STATISTICS), self._ledger.last_batch_id, "overwrite")
        self._written_at, self._writes = now, self._writes + 1
        if self._writes % UPKEEP_EVERY == 0:
            self._ledger.upkeep()
            self._statistics.forget()
        self._has_failed = False

    def close(self) -> None:
        """Let another topology open the ledger."""
        self._ledger.close()

    def _message(self, row: Mapping[str, Any]) -> Message:
        payload = row["payload"]
        seen_s, emitted_s = ((row[name] - self._began).total_seconds() for name in ("first_seen_at", "emitted_at"))
        message = Message(row["spout"], row["message_id"], payload["stream"], json.loads(payload["values"]), seen_s)
        message.emitted_at_s, message.attempts = emitted_s, row["attempt"]
        message.ending = "failed" if row["status"] == "failed" else "lost"
        return message

    def _rows(self, messages: Iterable[Message], now: datetime) -> list[dict[str, Any]]:
        """The columns of both tables of trees; each takes its own."""
        return [
            {
                "batch_id": self._ledger.last_batch_id + 1,
                "anchor": root_id(each.spout, [each.message_id], each.attempts),
                "spout": each.spout,
                "message_id": each.message_id,
                "attempt": each.attempts,
                "attempts": each.attempts,
                "status": each.ending or "held",
                "error_class": each.ending,
                "error": _ERRORS[each.ending],
                "first_seen_at": self._began + timedelta(seconds=each.first_seen_s),
                "emitted_at": self._began + timedelta(seconds=each.emitted_at_s),
                "died_at": now,
                "payload": {"stream": each.stream, "values": _as_json(each.values)},
            }
            for each in messages
        ]

    def _page(self, component: str, page: ComponentStatistics, now: datetime) -> list[dict[str, Any]]:
        """A component's page of Storm's UI as rows."""
        scopes: list[tuple[str, str | None, str, Figures]] = [
            *(("window", None, window, figures) for window, figures in page.windows.items()),
            *(("output", None, stream, figures) for stream, figures in page.outputs.items()),
            *(("input", source, stream, figures) for (source, stream), figures in page.inputs.items()),
        ]
        about = {"at": now, "topology": self._name, "component": component, "capacity": page.capacity}
        return [
            {**about, "scope": scope, "source": source, "name": name, **vars(figures)}
            for scope, source, name, figures in scopes
        ]


def _as_json(values: Sequence[Any]) -> str:
    """The values as JSON; one that JSON cannot say as a text, for no value may keep the others from being stored."""
    said: list[Any] = []
    for value in values:
        try:
            json.dumps(value, default=text_of)
        except (TypeError, ValueError, RecursionError):  # keys that are no text, a list within itself, endless digits
            said.append(text_of(value))
        else:
            said.append(value)
    return json.dumps(said, default=text_of)
