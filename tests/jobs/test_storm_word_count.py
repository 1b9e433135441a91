"""Storm's word count counts every word once when nothing fails, on either engine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import reliable_spark as rs
from jobs import storm_word_count


@pytest.mark.parametrize("engine", ["process", pytest.param("spark", marks=pytest.mark.spark)])
def test_every_word_is_counted(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    """The counts are those of a plain loop, and every line is acked."""
    if engine == "spark":
        request.getfixturevalue("spark")
    (tmp_path / "a.txt").write_text("to be or not to be\n\nto count\n" * 20)
    assert storm_word_count.main(["--input", str(tmp_path), "--engine", engine, "--top", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("        60  to\n        40  be\n")
    assert "60 lines acked, 0 failed" in printed


def test_what_is_aborted_is_taken_again() -> None:
    """A reserved item comes back to the front, a confirmed one never."""
    lines = storm_word_count.LineQueue(["a", "b"])
    assert (lines.take(), lines.take(), lines.take()) == ((0, "a"), (1, "b"), None)
    lines.confirm(0)
    lines.abort(1)
    assert (lines.take(), lines.take()) == ((1, "b"), None)


def test_the_words_of_a_line_that_failed_are_counted_again() -> None:
    """At least once: the queue gives the line to the spout once more."""

    class FailsOnce(storm_word_count.Split):
        failed = False

        def execute(self, input: object, collector: object) -> None:
            if not self.failed:
                self.failed = True
                raise ValueError("once")
            super().execute(input, collector)  # type: ignore[arg-type]

    builder = storm_word_count.topology(["a b"], 1)
    builder._objects["split"].bolt = FailsOnce()  # type: ignore[union-attr]
    with rs.submit_topology("retry", builder, clock=rs.ManualClock()) as running:
        running.await_idle(60)
        assert running.state("count") == Counter("ab")


@pytest.mark.parametrize("name", ["missing", "a.txt"])
def test_input_that_is_no_directory_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt directory is an error, not a run over nothing."""
    (tmp_path / "a.txt").write_text("to be")
    with pytest.raises(SystemExit) as stopped:
        storm_word_count.main(["--input", str(tmp_path / name)])
    assert stopped.value.code == 2
    assert f"{name} is not a directory" in capsys.readouterr().err


def test_no_tasks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    with pytest.raises(SystemExit):
        storm_word_count.main(["--input", str(tmp_path), "--tasks", "0"])
    assert "argument --tasks: invalid positive value: '0'" in capsys.readouterr().err
