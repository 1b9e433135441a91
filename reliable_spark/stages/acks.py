"""The ledger's table `acks`: what the stages report to the source, each batch in one commit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from reliable_spark.core.stages import Report
from reliable_spark.errors import LedgerError
from reliable_spark.ledger.tables import LedgerTable, ledger_errors, table_uri

ACKS: Final = pa.schema(
    [
        ("stage", pa.string()),
        ("batch_id", pa.int64()),
        ("upto", pa.int64()),
        ("rows", pa.int64()),
        ("xor", pa.int64()),
        ("following", pa.string()),
        ("out_rows", pa.int64()),
        ("out_xor", pa.int64()),
        ("anchor", pa.int64()),
        ("status", pa.string()),
        ("bolt", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("traceback", pa.string()),
        ("retry", pa.bool_()),
    ]
)
"""One row per batch of a stage, without anchor; and one per tree that failed in it, with anchor and reason."""

FAILURE: Final = ("anchor", "status", "bolt", "error_class", "error", "traceback", "retry")
_REPORT: Final = tuple(Report.__dataclass_fields__)


@dataclass(frozen=True)
class Answers:
    """What one batch of a stage has to say.

    Attributes:
        report: of all its rows.
        failed: of the trees that failed in it, each with the columns of `FAILURE`.
    """

    report: Report
    failed: list[dict[str, Any]]


class Acks:
    """Reads and appends; several stages may append at the same time.

    Args:
        ledger: the directory of the source's ledger.
    """

    def __init__(self, ledger: str) -> None:
        self._uri = table_uri(ledger, "acks")
        LedgerTable.create(self._uri, ACKS)
        self._read_version = -1
        self._table = self._opened()

    def append(self, answers: Answers) -> None:
        """Report a batch, once: one that is there already is left alone."""
        report = asdict(answers.report)
        if self.last_batch(answers.report.stage) >= answers.report.batch_id:
            return
        rows = [
            report,
            *({"stage": report["stage"], "batch_id": report["batch_id"], **tree} for tree in answers.failed),
        ]
        transaction = Transaction(_application(answers.report.stage), answers.report.batch_id)
        with ledger_errors("write", self._uri):
            write_deltalake(
                self._opened(),
                pa.Table.from_pylist(rows, schema=ACKS),
                mode="append",
                commit_properties=CommitProperties(app_transactions=[transaction]),
            )

    def last_batch(self, stage: str) -> int:
        """The last batch that a stage has reported; -1 when there is none."""
        last = self._opened().transaction_version(_application(stage))
        return -1 if last is None else last

    def has_news(self) -> bool:
        """Whether something was appended since the last call. Cost: a look for the next version's file."""
        with ledger_errors("read", self._uri):
            self._table.update_incremental()
        version, self._read_version = self._read_version, self._table.version()
        return version != self._read_version

    def after(self, seen: Mapping[str, int], first: str) -> list[Answers]:
        """What was reported after these batches, the reports of a stage before those of the stages behind it.

        Args:
            seen: stage -> its last batch that is known.
            first: the stage that the source writes to.
        """
        with ledger_errors("read", self._uri):
            known = [[("stage", "=", stage), ("batch_id", ">", batch_id)] for stage, batch_id in seen.items()]
            others = [[("stage", "not in", list(seen))]] if seen else None
            rows = self._table.to_pyarrow_table(filters=known + others if others else None)
        is_report = pc.is_null(rows["anchor"])
        reports = [Report(**row) for row in rows.filter(is_report).select(_REPORT).to_pylist()]
        failed: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in rows.filter(pc.invert(is_report)).to_pylist():
            failed.setdefault((row["stage"], row["batch_id"]), []).append({name: row[name] for name in FAILURE})
        following = {report.stage: report.following for report in reports}
        order: dict[str | None, int] = {}
        stage: str | None = first
        while stage is not None and stage not in order:
            order[stage] = len(order)
            stage = following.get(stage)
        reports.sort(key=lambda report: (order.get(report.stage, len(order)), report.batch_id))
        return [Answers(report, failed.get((report.stage, report.batch_id), [])) for report in reports]

    def taken(self, stage: str) -> int:
        """The last batch of its queue that a stage has taken; -1 when there is none."""
        with ledger_errors("read", self._uri):
            rows = self._opened().to_pyarrow_table(columns=["upto"], filters=[("stage", "=", stage)])
        upto = pc.max(rows["upto"]).as_py()
        return -1 if upto is None else int(upto)

    def upkeep(self) -> None:
        """Make one file of many small ones, unless a report comes at the very moment: then the next call does it."""
        table = LedgerTable(self._uri)
        with suppress(LedgerError):
            table.compact()
            table.forget()

    def _opened(self) -> DeltaTable:
        with ledger_errors("read", self._uri):
            return DeltaTable(self._uri)


def _application(stage: str) -> str:
    return f"reliable_spark/{stage}"
