"""The benchmarks run; how fast they are is not a test's business."""

from __future__ import annotations

import importlib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from benchmarks.__main__ import NAMES
from benchmarks.lines import make_lines


def test_lines_are_the_same_each_time(tmp_path: Path) -> None:
    """The seeded lines have ten words each and do not depend on when they were made."""
    first, second = (pq.read_table(make_lines(100, tmp_path / name)) for name in ("a", "b"))
    assert first == second
    assert first["id"].to_pylist() == list(range(100))
    assert {len(line.split(" ")) for line in first["line"].to_pylist()} == {10}


WITH_SPARK = [name for name in NAMES if name not in ("acker", "storm", "multilang")]
"""Those that need Spark and nothing else; the others are tested without it."""
SLOW = ("stages", "stateful", "flights", "scaling", "settle", "poison")
"""Those that start several queries or processes, or many jobs."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak) if name in SLOW else name for name in WITH_SPARK]
)
def test_a_benchmark_runs(spark: SparkSession, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The quick form measures both sides and checks their answers."""
    importlib.import_module(f"benchmarks.{name}").main(["--quick", "--data", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all("ratio" in line for line in lines)
