"""What does a row cost that stops the Spark job, beside the same batch without it?

python -m benchmarks.poison            1,000,000 rows, 5 rounds
python -m benchmarks.poison --quick    10,000 rows, 1 round

Each line: the batch with poison, the batch without it, the difference, and the jobs that it took.
"""

from __future__ import annotations

import logging
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.measure import Line, Options, in_turns, line_of, more, run, seconds

POISON = "x"
POISONS = (1, 50)
SETTINGS = rs.Settings(max_attempts=1)

Frame = Callable[[DataFrame], rs.AnchoredFrame]


@rs.arrow
def end_worker(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A bolt whose native code dies of a row."""
    if pc.any(pc.equal(batch.column("t"), POISON)).as_py():
        os._exit(3)
    return batch


def cast(rows: DataFrame) -> rs.AnchoredFrame:
    """An ANSI cast, which raises."""
    return rs.anchored(rows, "id").select("id", F.expr("cast(t as int) + 1").alias("n"))


def bolt(rows: DataFrame) -> rs.AnchoredFrame:
    """A bolt, which dies."""
    return rs.anchored(rows, "id").bolt(end_worker, "id long, t string")


KINDS: dict[Frame, str] = {cast: "native error", bolt: "dying worker"}


def table(spark: SparkSession, directory: Path, rows: int, poison: int) -> DataFrame:
    """Numbers as text, some of which are none."""
    where = str(directory / f"{rows}-{poison}")
    bad = [index * rows // poison + rows // (2 * poison) for index in range(poison)]
    text = F.when(F.col("id").isin(bad), POISON).otherwise(F.col("id").cast("string")) if bad else F.col("id")
    spark.range(rows).select("id", text.cast("string").alias("t")).write.parquet(where)
    return spark.read.parquet(where)


def deliver(frame: rs.AnchoredFrame, directory: Path, dead: int) -> None:
    """Run into a Delta sink and check the answers."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        outcome = frame.run(f"{place}/sink", ledger=f"{place}/ledger", settings=SETTINGS)
        if (outcome.dead, outcome.pending, outcome.balanced) != (dead, 0, True):
            raise AssertionError(str(outcome))


def jobs_of(spark: SparkSession) -> Callable[[], int]:
    """Ask how many jobs Spark has run so far."""
    context: Any = spark.sparkContext
    return lambda: int(context._jsc.sc().dagScheduler().numTotalJobs())


def compare(frame: Frame, clean: DataFrame, poisoned: tuple[DataFrame, int], options: Options) -> Line:
    """Run the same batch with poison and without, in turns."""
    rows, poison = poisoned
    jobs, counts = jobs_of(clean.sparkSession), []

    def with_poison(place: Path) -> float:
        before = jobs()
        took_s = seconds(partial(deliver, frame(rows), place, poison))
        counts.append(jobs() - before)
        return took_s

    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        without = partial(seconds, partial(deliver, frame(clean), place, 0))
        pairs = in_turns(partial(with_poison, place), without, options)
    work = f"{poison} x {KINDS[frame]} in {clean.count():,} rows"
    note = f"{statistics.median_low(counts[options.warm_up :])} jobs"
    return line_of(pairs, more, work=work, against="the batch without", unit="s", measure="s more", note=note)


def measure(options: Options) -> list[Line]:
    """Measure each kind of poison against the same batch without it."""
    spark, count = rs.session("poison benchmark"), 10_000 if options.quick else 1_000_000
    poisons = POISONS[:1] if options.quick else POISONS
    logger = logging.getLogger("reliable_spark")
    level = logger.level
    logger.setLevel(logging.ERROR)
    spark.sparkContext.setLogLevel("OFF")  # the errors are meant
    try:
        with tempfile.TemporaryDirectory() as directory:
            clean, *poisoned = [(table(spark, Path(directory), count, poison), poison) for poison in (0, *poisons)]
            return [compare(frame, clean[0], rows, options) for rows in poisoned for frame in KINDS]
    finally:
        spark.sparkContext.setLogLevel("ERROR")
        logger.setLevel(level)


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
