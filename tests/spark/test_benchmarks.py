"""The benchmarks run, and their arithmetic is right; how fast they are is not a test's business."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks import word_count
from benchmarks.lines import make_lines
from benchmarks.measure import ratio_of


def test_lines_are_the_same_each_time(tmp_path: Path) -> None:
    """The seeded lines have ten words each and do not depend on when they were made."""
    first, second = (pq.read_table(make_lines(100, tmp_path / name)) for name in ("a", "b"))
    assert first == second
    assert first["id"].to_pylist() == list(range(100))
    assert {len(line.split(" ")) for line in first["line"].to_pylist()} == {10}


def test_ratios_are_medians_of_rounds() -> None:
    """The throughput ratio is the peer's time by ours, by the median."""
    ratio = ratio_of("work", [(2.0, 1.0), (4.0, 4.0), (1.0, 3.0)])
    assert (ratio.ours_s, ratio.peer_s, ratio.throughput_ratio) == (2.0, 3.0, 1.0)


def test_the_word_count_benchmark_runs(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form measures both jobs and checks that every line is acked."""
    word_count.main(["--quick", "--data", str(tmp_path)])
    assert "throughput ratio" in capsys.readouterr().out
