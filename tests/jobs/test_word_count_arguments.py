"""What both word counts over files say of arguments that cannot be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import stateful_word_count, word_count

JOBS = pytest.mark.parametrize("job", [word_count, stateful_word_count], ids=["word_count", "stateful_word_count"])


@JOBS
@pytest.mark.parametrize("option", ["--files-per-batch", "--top"])
def test_a_number_of_nothing_is_refused(
    job: Any, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before Spark starts."""
    with pytest.raises(SystemExit) as stopped:
        job.main(["--input", str(tmp_path), "--output", str(tmp_path / "output"), option, "0"])
    assert stopped.value.code == 2
    assert f"argument {option}: invalid positive value: '0'" in capsys.readouterr().err


@JOBS
@pytest.mark.spark
def test_a_uri_that_leads_nowhere_is_one_line(
    job: Any, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only Spark can tell."""
    assert job.main(["--input", f"file:{tmp_path}/missing", "--output", str(tmp_path / "output")]) == 1
    told = capsys.readouterr().err
    name = job.__name__.rpartition(".")[2]
    assert told.startswith(f"{name}: [PATH_NOT_FOUND]")
    assert told.count("\n") == 1
