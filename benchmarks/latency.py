"""How long until a line can be read in the Delta table, at 10,000 lines a second, beside plain `foreachBatch`?

python -m benchmarks.latency            20 s each, 5 rounds
python -m benchmarks.latency --quick    1,000 lines a second, 2 s each, 1 round

A line's latency is from the time that Spark's rate source gives it to the write of the Delta commit that shows it,
both taken from the table itself. That source releases whole seconds of lines, so up to a second of each latency is
its own, for both queries alike.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import reliable_spark as rs
from benchmarks.measure import Line, Options, in_turns, line_of, run, times

RATIO_MAX = 1.15
WARM_UP_SHARE = 6
"""One of so many seconds is not counted: the first ones."""

Percentiles = tuple[float, float]
"""The 50th and the 99th, in milliseconds."""


def lines_of(spark: SparkSession, lines_per_s: int) -> DataFrame:
    """Numbered lines with the time at which they were given."""
    return spark.readStream.format("rate").option("rowsPerSecond", lines_per_s).load()


def plain(spark: SparkSession, lines_per_s: int, duration_s: float) -> Percentiles:
    """Write each batch with Spark alone, once."""
    with tempfile.TemporaryDirectory() as place:

        def write(frame: DataFrame, batch_id: int) -> None:
            writer = frame.write.format("delta").mode("append")
            writer.option("txnAppId", place).option("txnVersion", batch_id).save(f"{place}/sink")

        writer = lines_of(spark, lines_per_s).writeStream.foreachBatch(write)
        query = writer.option("checkpointLocation", f"{place}/checkpoint").start()
        let_run(query, duration_s)
        query.stop()
        return percentiles(Path(place) / "sink", duration_s)


def anchored(spark: SparkSession, lines_per_s: int, duration_s: float) -> Percentiles:
    """Write with every line tracked."""
    with tempfile.TemporaryDirectory() as place:
        frame = rs.anchored(lines_of(spark, lines_per_s), "value")
        with frame.start(f"{place}/sink", ledger=f"{place}/ledger") as query:
            let_run(query.streaming_query, duration_s)
        outcome = query.outcome()
        if not outcome.balanced or outcome.anchored != outcome.acked:
            raise AssertionError(str(outcome))
        return percentiles(Path(place) / "sink", duration_s)


def let_run(query: StreamingQuery, duration_s: float) -> None:
    """Wait for that long after the first lines are through."""
    while query.isActive and not any(report["numInputRows"] for report in query.recentProgress):
        time.sleep(0.05)
    time.sleep(duration_s)


def percentiles(sink: Path, duration_s: float) -> Percentiles:
    """Sum up the latencies of all lines but those that were given in the first seconds."""
    given_ms, visible_ms = (np.concatenate(columns) for columns in zip(*commits(sink), strict=True))
    counted = given_ms >= given_ms.min() + 1e3 * duration_s / WARM_UP_SHARE
    median, high = np.percentile((visible_ms - given_ms)[counted], [50, 99])
    return float(median), float(high)


def commits(sink: Path) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """For each commit of a table: when its lines were given and when they became visible, milliseconds."""
    for commit in sorted((sink / "_delta_log").glob("*.json")):
        visible_ms = commit.stat().st_mtime_ns / 1e6
        actions = map(json.loads, commit.read_text(encoding="utf-8").splitlines())
        for action in actions:
            if "add" in action:
                file = sink / unquote(action["add"]["path"])
                given = pq.read_table(file, columns=["timestamp"], partitioning=None)["timestamp"]
                given_ms = pc.cast(given, pa.timestamp("us"), safe=False).cast(pa.int64()).to_numpy() / 1e3
                yield given_ms, np.full(len(given_ms), visible_ms)


def measure(options: Options) -> list[Line]:
    """Compare the two."""
    lines_per_s, duration_s = (1_000, 2) if options.quick else (10_000, 20)
    given = rs.session("latency benchmark"), lines_per_s, duration_s
    pairs = in_turns(partial(anchored, *given), partial(plain, *given), options)
    lines = []
    for number, (name, bar) in enumerate((("p50", None), ("p99", RATIO_MAX))):
        chosen = [(ours[number], peer[number]) for ours, peer in pairs]
        work = f"latency {name}, {lines_per_s:,} lines/s into Delta"
        lines.append(line_of(chosen, times, work=work, against="plain foreachBatch", unit="ms", bar=bar))
    return lines


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
