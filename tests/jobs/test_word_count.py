"""The word count job: every file counts once, whatever it holds, and a second run counts only what is new."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs import word_count as job
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.counts import Counts

TEXTS = {"a.txt": "One two\r\ntwo, THREE!\n\n", "b.txt": "two Äpfel", "empty.txt": "", "blank.txt": "\n \n"}


def total(output: Path) -> dict[str, int]:
    counts = DeltaTable(str(output / "counts")).to_pandas()
    return {str(word): int(count) for word, count in counts.groupby("word")["count"].sum().items()}


@pytest.mark.spark
def test_every_file_counts_once(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts, output = tmp_path / "texts", tmp_path / "output"
    texts.mkdir()
    for name, text in TEXTS.items():
        (texts / name).write_text(text, encoding="utf-8", newline="")
    arguments = ["--input", str(texts), "--output", str(output), "--files-per-batch", "3", "--top", "1"]

    assert job.main(arguments) == 0
    right = {"one": 1, "two": 3, "three": 1, "äpfel": 1}
    assert total(output) == right
    counts = audit(str(output / "ledger"))
    assert (counts.anchored, counts.acked, counts.dead, counts.pending) == (3, 3, 0, 0), "an empty file is no row"
    shown = capsys.readouterr().out
    assert "files: anchored 3 = acked 3 + dead 0 + pending 0" in shown
    assert "3  two\n" in shown
    assert "1  one\n" not in shown

    (texts / "new.txt").write_text("four two")
    assert job.main([*arguments[:-4], "--files-per-batch", "1"]) == 0
    assert total(output) == right | {"two": 4, "four": 1}
    assert audit(str(output / "ledger")).acked == 4


@pytest.mark.spark
def test_files_without_a_word_are_acked(spark: SparkSession, tmp_path: Path) -> None:
    """Each is a batch of its own, of which nothing reaches the sink."""
    texts, output = tmp_path / "texts", tmp_path / "output"
    texts.mkdir()
    for name in ("empty.txt", "blank.txt"):
        (texts / name).write_text(TEXTS[name])
    assert job.main(["--input", f"{texts}/*.txt", "--output", str(output), "--files-per-batch", "1"]) == 0
    assert audit(str(output / "ledger")) == Counts(anchored=1, acked=1)
    assert total(output) == {}


def test_input_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        job.main(["--input", str(tmp_path / "texts"), "--output", str(tmp_path / "output")])
    assert stopped.value.code == 2
    assert "neither a directory nor a glob" in capsys.readouterr().err
