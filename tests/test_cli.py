"""The command line, in this process: no JVM is started."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from reliable_spark import jars
from reliable_spark.cli import app
from reliable_spark.errors import LedgerError
from reliable_spark.ledger import audit as ledger_audit
from reliable_spark.ledger.counts import Counts
from reliable_spark.ledger.ledger import BatchRecord, Ledger
from reliable_spark.ledger.schema import dead_letters_schema

runner = CliRunner()


def fake_audit(monkeypatch: pytest.MonkeyPatch, answer: Counts | Exception) -> None:
    def count(path: str) -> Counts:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ledger_audit, "audit", count)


def test_json_has_exactly_the_invariant_and_says_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit --json` prints the four counts and the verdict, and exits 0 when they balance."""
    fake_audit(monkeypatch, Counts(anchored=6, acked=3, dead=2, pending=1, replayed=9))
    result = runner.invoke(app, ["audit", "ledger", "--json"])
    assert json.loads(result.stdout) == {
        "anchored": 6,
        "acked": 3,
        "dead": 2,
        "pending": 1,
        "balanced": True,
    }
    assert result.exit_code == 0


LETTERS = pa.schema([("id", pa.int64()), ("raw", pa.binary()), ("day", pa.date32()), ("price", pa.decimal128(5, 2))])


@pytest.fixture
def with_dead_letters(tmp_path: Path) -> str:
    """A ledger in which row 2 has died after row 1."""
    path, now = str(tmp_path / "ledger"), datetime(2026, 1, 1, tzinfo=timezone.utc)
    payload = pa.struct(list(LETTERS))
    ledger = Ledger.open(path, payload)
    for number in (1, 2):
        row = {"id": number, "raw": b"\xff", "day": date(2026, 1, 1), "price": Decimal("1.50")}
        died_at = now + timedelta(days=number)
        letter = {
            "message_id": str(number),
            "attempts": 3,
            "bolt": "[red]parse",
            "error": "no\nnumber",
            "died_at": died_at,
        }
        rows = pa.Table.from_pylist([{**letter, "payload": row}], schema=dead_letters_schema(payload))
        ledger.settle(BatchRecord(number, "source", now, now, anchored=1, failed=1, dead=1), None, rows)
    ledger.close()
    return path


def test_dead_letters_are_shown_as_they_are(with_dead_letters: str) -> None:
    """The newest first, each in one row; brackets in a text are no markup."""
    result = runner.invoke(app, ["dead-letters", with_dead_letters], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    second, first = result.stdout.splitlines()[1:]
    assert [each.strip() for each in second.split("  ") if each.strip()] == [
        "2",
        "3",
        "[red]parse",
        "no number",
        "2026-01-03 00:00:00+00:00",
    ]
    assert first.split()[0] == "1"


def test_dead_letters_as_json_have_all_columns(with_dead_letters: str) -> None:
    """One object a line, at most as many as wanted; what JSON has no type for is text."""
    result = runner.invoke(app, ["dead-letters", with_dead_letters, "--json", "--limit", "1"])
    (letter,) = map(json.loads, result.stdout.splitlines())
    assert letter["payload"] == {"id": 2, "raw": "ff", "day": "2026-01-01", "price": "1.50"}
    assert (letter["error"], letter["died_at"]) == ("no\nnumber", "2026-01-03T00:00:00+00:00")
    everything = runner.invoke(app, ["dead-letters", with_dead_letters, "--json", "--limit", "0"])
    assert len(everything.stdout.splitlines()) == 2


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_broken_invariant_exits_1(monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    """A ledger that does not balance is told by the exit code in both forms."""
    fake_audit(monkeypatch, Counts(anchored=6, acked=3))
    assert runner.invoke(app, ["audit", "ledger", *options]).exit_code == 1


def test_plain_form_shows_every_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has the invariant's counts and the history's."""
    fake_audit(monkeypatch, Counts(anchored=1_234, acked=1_234, failed_attempts=77, emitted=5_678))
    shown = runner.invoke(app, ["audit", "ledger"]).stdout
    assert all(text in shown for text in ("1,234", "failed attempts", "77", "5,678", "balanced"))


def test_an_error_is_one_line_on_standard_error_and_exit_2(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that cannot be read gives its reason, no trace, and nothing on standard output."""
    fake_audit(monkeypatch, LedgerError("there is no ledger at nowhere"))
    result = runner.invoke(app, ["audit", "nowhere", "--json"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "reliable-spark: there is no ledger at nowhere\n"


def test_jars_are_printed_as_spark_submit_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jars` prints one line of paths with commas between."""
    monkeypatch.setattr(jars, "delta_jars", lambda: ["/a.jar", "/b.jar"])
    assert runner.invoke(app, ["jars"]).stdout == "/a.jar,/b.jar\n"


@pytest.mark.parametrize("command", [["--help"], ["jars", "--help"], ["audit", "--help"], ["dead-letters", "--help"]])
def test_help_is_given(command: list[str]) -> None:
    """Every command explains itself."""
    result = runner.invoke(app, command)
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_a_missing_ledger_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    """The real audit of a directory without a ledger exits 2."""
    assert runner.invoke(app, ["audit", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize("command", ["audit", "dead-letters", "accept-restore"])
def test_a_store_that_cannot_be_reached_is_one_line_without_secrets(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """What the store says is there in one line, and exit 2; what signs the URI is not."""

    def unreachable(uri: str) -> bool:
        raise OSError(f"Generic S3 error\n  \x1b[31m↳\x1b[0m no answer from {uri}\n  ↳ sig=hidden is wrong")

    monkeypatch.setattr(DeltaTable, "is_deltatable", unreachable)
    result = runner.invoke(app, [command, "s3://me:word@bucket/x?sig=hidden&se=2026"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("reliable-spark: cannot read the ledger table s3://me:...@bucket/x")
    assert "no answer from s3://" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not any(each in result.stderr for each in ("hidden", "se=2026", "word", "\x1b"))
