"""What does a row cost that stops the Spark job, beside the same batch without it?

python -m benchmarks.poison            1,000,000 rows, 3 rounds
python -m benchmarks.poison --quick    10,000 rows, 1 round

Each line: the batch without poison, the batch with it, the difference, and the jobs that it took.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.measure import seconds

POISON = "x"
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


@dataclass(frozen=True)
class Cost:
    """Medians of the rounds."""

    name: str
    clean_s: float
    poisoned_s: float
    jobs: int

    def __str__(self) -> str:
        more = self.poisoned_s - self.clean_s
        times = f"{self.clean_s:.2f} s without, {self.poisoned_s:.2f} s with, {more:.2f} s more"
        return f"{self.name}: {times}, {self.jobs} jobs"


def table(spark: SparkSession, directory: Path, rows: int, poison: int) -> DataFrame:
    """Numbers as text, some of which are none."""
    where = str(directory / f"{rows}-{poison}")
    bad = [index * rows // poison + rows // (2 * poison) for index in range(poison)]
    text = F.when(F.col("id").isin(bad), POISON).otherwise(F.col("id").cast("string")) if bad else F.col("id")
    spark.range(rows).select("id", text.cast("string").alias("t")).write.parquet(where)
    return spark.read.parquet(where)


def run(frame: rs.AnchoredFrame, directory: Path, dead: int) -> None:
    """Run into a Delta sink and check the answers."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        outcome = frame.run(f"{place}/sink", ledger=f"{place}/ledger", settings=SETTINGS)
        if (outcome.dead, outcome.pending, outcome.balanced) != (dead, 0, True):
            raise AssertionError(str(outcome))


def measure(spark: SparkSession, rows: int, rounds: int, directory: Path) -> list[Cost]:
    """Measure each kind of poison against the same batch without it."""
    context: Any = spark.sparkContext
    jobs = context._jsc.sc().dagScheduler().numTotalJobs
    clean = table(spark, directory, rows, 0)
    costs = []
    for poison in (1, 50):
        poisoned = table(spark, directory, rows, poison)
        for name, frame in (("native error", cast), ("dying worker", bolt)):
            pairs = []
            for _ in range(rounds + 1):
                clean_s = seconds(partial(run, frame(clean), directory, 0))
                before = jobs()
                poisoned_s = seconds(partial(run, frame(poisoned), directory, poison))
                pairs.append((clean_s, poisoned_s, jobs() - before))
            clean_s, poisoned_s, count = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
            costs.append(Cost(f"{poison} x {name} in {rows:,} rows", clean_s, poisoned_s, int(count)))
    return costs


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small and once: to see that it works")
    arguments = parser.parse_args(argv)
    logging.getLogger("reliable_spark").setLevel(logging.ERROR)
    spark = rs.session("poison benchmark")
    spark.sparkContext.setLogLevel("OFF")  # the errors are meant
    with tempfile.TemporaryDirectory() as directory:
        for cost in measure(spark, *((10_000, 1) if arguments.quick else (1_000_000, 3)), Path(directory)):
            print(cost)


if __name__ == "__main__":
    main()
