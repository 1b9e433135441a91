"""How many milliseconds more does a micro-batch of one row take than in a plain query that writes each batch once?

python -m benchmarks.micro_batch            30 batches each, 5 rounds
python -m benchmarks.micro_batch --quick    3 batches each, 1 round

Both read the same files, one a batch, into a Delta table; the plain one writes in `foreachBatch` with a transaction
id, so it repeats no batch either. The times are Spark's own for the whole batch.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import reliable_spark as rs
from benchmarks.measure import Line, Options, in_turns, line_of, more, run

MORE_MS_MAX = 60
WARM_UP_SHARE = 6
"""One of so many batches is not counted: the first ones."""


def one_row_files(count: int, directory: Path) -> Path:
    """Write as many files of one row."""
    directory.mkdir(parents=True)
    for number in range(count):
        (directory / f"{number:06d}.json").write_text(json.dumps({"id": number}), encoding="utf-8")
    return directory


def stream_of(spark: SparkSession, source: Path) -> DataFrame:
    """One file a batch."""
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))


def plain_ms(spark: SparkSession, source: Path) -> float:
    """The median batch of the plain query."""
    with tempfile.TemporaryDirectory() as place:

        def write(frame: DataFrame, batch_id: int) -> None:
            writer = frame.write.format("delta").mode("append")
            writer.option("txnAppId", place).option("txnVersion", batch_id).save(f"{place}/sink")

        writer = stream_of(spark, source).writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        return median_ms(query, len(list(source.iterdir())))


def anchored_ms(spark: SparkSession, source: Path) -> float:
    """The median batch of ours."""
    with tempfile.TemporaryDirectory() as place:
        frame = rs.anchored(stream_of(spark, source), "id")
        query = frame.start(f"{place}/sink", ledger=f"{place}/ledger", trigger="availableNow")
        query.await_termination()
        files, outcome = len(list(source.iterdir())), query.outcome()
        if (outcome.acked, outcome.pending) != (files, 0):
            raise AssertionError(str(outcome))
        return median_ms(query.streaming_query, files)


def median_ms(query: StreamingQuery, batches: int) -> float:
    """The median of the batches' durations after the first few."""
    progress = [report for report in query.recentProgress if report["numInputRows"]]
    if len(progress) != batches:
        raise AssertionError(f"Spark reports {len(progress)} of {batches} batches")
    durations = [report["durationMs"]["triggerExecution"] for report in progress]
    return float(statistics.median(durations[batches // WARM_UP_SHARE :]))


def measure(options: Options) -> list[Line]:
    """Compare the two."""
    spark, batches = rs.session("micro-batch benchmark"), 3 if options.quick else 30
    with tempfile.TemporaryDirectory() as directory:
        source = one_row_files(batches, Path(directory) / "source")
        pairs = in_turns(partial(anchored_ms, spark, source), partial(plain_ms, spark, source), options)
    about = {"work": "micro-batch of 1 row into Delta", "against": "plain foreachBatch", "measure": "ms more"}
    return [line_of(pairs, more, unit="ms", bar=MORE_MS_MAX, **about)]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
