"""The command line, in this process: no JVM is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from reliable_spark import jars
from reliable_spark.cli import app
from reliable_spark.errors import LedgerError
from reliable_spark.ledger import audit as ledger_audit
from reliable_spark.ledger.counts import Counts

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


@pytest.mark.parametrize("command", [["--help"], ["jars", "--help"], ["audit", "--help"]])
def test_help_is_given(command: list[str]) -> None:
    """Every command explains itself."""
    result = runner.invoke(app, command)
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def test_a_missing_ledger_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    """The real audit of a directory without a ledger exits 2."""
    assert runner.invoke(app, ["audit", str(tmp_path / "none")]).exit_code == 2


@pytest.mark.parametrize("command", ["audit", "accept-restore"])
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
