"""Does settling twice as many failed trees take about twice as long, and not more?

python -m benchmarks.settle            100,000 and 200,000 on the driver, 200,000 and 400,000 in Spark, 5 rounds
python -m benchmarks.settle --quick    1,000 and 2,000, 1 round

Every tree has failed; one in ten for the last time. Each time a real ledger, made before the clock starts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import reliable_spark as rs
from benchmarks.measure import Line, Options, in_turns, line_of, run, seconds, times
from reliable_spark.core.retries import RetryPolicy
from reliable_spark.engine.answers import TreesInSpark
from reliable_spark.engine.settlement import Moment, Settlement, settle_trees
from reliable_spark.ledger.ledger import BatchRecord, Ledger

RATIO_MAX = 2.2
PAYLOAD = pa.struct([("id", pa.int64()), ("line", pa.string())])
BEGUN_AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
MOMENT = Moment(0, BEGUN_AT, BEGUN_AT + timedelta(seconds=1), RetryPolicy(3, 1.0, 60.0), message_timeout_s=30.0)
Settle = Callable[[Ledger], Settlement]


def failed_trees(count: int) -> pa.Table:
    """Failed trees with their source rows, as `settle_trees` takes them."""
    random, numbers = np.random.default_rng(11), np.arange(count)
    ids = pa.array(random.integers(-(2**63), 2**63 - 1, count))
    names = pa.array(numbers).cast(pa.string())
    payload = pa.StructArray.from_arrays([pa.array(numbers), names], fields=list(PAYLOAD))
    same = {"spout": "lines", "status": "failed", "bolt": "split", "error_class": "ValueError", "error": "a bad line"}
    return pa.table(
        {
            "anchor": ids,
            "ack_val": ids,
            "message_id": names,
            "attempt": pa.array(np.where(numbers % 10, 1, 3).astype(np.int32)),
            **{name: pa.repeat(pa.scalar(value), count) for name, value in same.items()},
            "traceback": pa.nulls(count, pa.string()),
            "retry": pa.repeat(pa.scalar(True), count),
            "first_seen_at": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "payload": payload,
        }
    )


def on_the_driver(found: pa.Table, ledger: Ledger) -> Settlement:
    """Settle as the loop does with trees that the driver holds."""
    settlement = settle_trees(found, MOMENT)
    ledger.settle(record_of(settlement), pa.concat_tables([ledger.pending, settlement.pending]), settlement.dead)
    return settlement


def in_spark(spark: SparkSession, found: Path, ledger: Ledger) -> Settlement:
    """Settle as the loop does with more trees than the driver should hold."""
    ledger.mark(MOMENT.batch_id, ledger.pending)
    settlement = TreesInSpark(spark.read.parquet(str(found)), PAYLOAD).settle(MOMENT, ledger)
    ledger.reload()
    ledger.settle(record_of(settlement), None, settlement.dead)
    return settlement


def record_of(settlement: Settlement) -> BatchRecord:
    """The batch of which all trees have failed."""
    counts = {"anchored": settlement.failed, "failed": settlement.failed, "dead": settlement.dead_count}
    return BatchRecord(MOMENT.batch_id, "source", MOMENT.begun_at, MOMENT.now, **counts)  # type: ignore[arg-type]


def settling_s(settle: Settle, count: int) -> float:
    """How long a settlement takes on a new ledger; it has to balance."""
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger.open(f"{directory}/ledger", PAYLOAD)
        took_s = seconds(partial(settle, ledger))
        counts = ledger.counts()
        ledger.close()
    dead = -(-count // 10)
    if (counts.anchored, counts.pending, counts.dead, counts.balanced) != (count, count - dead, dead, True):
        raise AssertionError(str(counts))
    return took_s


def compare(settle_of: Callable[[Any], Settle], sizes: dict[int, Any], where: str, options: Options) -> Line:
    """Settle the larger number and the smaller one, in turns."""
    (small, few), (large, many) = sizes.items()
    ours, peer = partial(settling_s, settle_of(many), large), partial(settling_s, settle_of(few), small)
    pairs, work = in_turns(ours, peer, options), f"settle {large:,} failed trees {where}"
    return line_of(pairs, times, work=work, against=f"{small:,} of them", unit="s", bar=RATIO_MAX)


def measure_driver(options: Options) -> Line:
    """Settle without Spark."""
    sizes = (1_000, 2_000) if options.quick else (100_000, 200_000)
    found = {count: failed_trees(count) for count in sizes}
    return compare(lambda table: partial(on_the_driver, table), found, "on the driver", options)


def measure_spark(options: Options) -> Line:
    """Settle in Spark."""
    spark = rs.session("settle benchmark")
    sizes = (1_000, 2_000) if options.quick else (200_000, 400_000)
    with tempfile.TemporaryDirectory() as directory:
        found = {count: Path(directory) / f"{count}.parquet" for count in sizes}
        for count, file in found.items():
            pq.write_table(failed_trees(count), file)
        return compare(lambda file: partial(in_spark, spark, file), found, "in Spark", options)


def measure(options: Options) -> list[Line]:
    """Measure both ways."""
    return [measure_driver(options), measure_spark(options)]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
