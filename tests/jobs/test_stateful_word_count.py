"""The stateful word count job: totals are those of all files, over batches and over runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs import stateful_word_count as job
from reliable_spark.ledger.audit import audit

TEXTS = {"a.txt": "One two\r\ntwo, THREE!\n\n", "b.txt": "two Äpfel", "c.txt": "\n \n"}


@pytest.mark.spark
def test_totals_are_those_of_all_files(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run adds what is new; the changes end with the totals, and never name one twice."""
    texts, output = tmp_path / "texts", tmp_path / "output"
    texts.mkdir()
    for name, text in TEXTS.items():
        (texts / name).write_text(text, encoding="utf-8", newline="")
    arguments = ["--input", str(texts), "--output", str(output), "--files-per-batch", "2"]
    assert job.main(arguments) == 0
    (texts / "new.txt").write_text("four two")
    assert job.main([*arguments, "--top", "1"]) == 0
    shown = capsys.readouterr().out
    assert "4  two\n" in shown
    counts, changes = audit(str(output / "ledger")), DeltaTable(str(output / "changes")).to_pandas()
    assert (counts.anchored, counts.acked, counts.emitted) == (4, 4, len(changes))
    assert dict(changes.groupby("word")["total"].max()) == {"one": 1, "two": 4, "three": 1, "äpfel": 1, "four": 1}
    assert not changes.duplicated().any()


def test_input_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt directory is an error before Spark starts, not a run over nothing."""
    with pytest.raises(SystemExit):
        job.main(["--input", str(tmp_path / "missing"), "--output", str(tmp_path / "output")])
    assert "missing is neither a directory nor a glob" in capsys.readouterr().err
