"""What does a state cost: beside Storm's stateful bolt, beside Spark's own state, and when it has grown large?

python -m benchmarks.stateful --storm DIRECTORY            1,000,000 lines, 10,000,000 keys, 5 rounds
python -m benchmarks.stateful --quick                      1,000 lines, 20,000 keys, 1 round; without Storm

Against Storm, words are counted with every line tracked and every total durable on Delta, committed four times on the
way; Storm's bolt keeps its counts in memory and checkpoints them once a second, as its peer has it. Against Spark,
both are given single words, which Spark does not track. A restart is a new process, whose workers have no copies.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import reliable_spark as rs
from benchmarks.lines import WORDS_PER_LINE, make_lines
from benchmarks.measure import Line, Options, SkippedError, faster, in_turns, line_of, run, seconds, timed, times
from benchmarks.storm import FAILING_SHARE, Peer, parsed

STORM = ((5_000, 10.0, 0.1), (100_000, 2.0, 1.0))
"""Storm's `topology.max.spout.pending`, as shipped and so high that it hardly waits for checkpoints; how many times as
fast we have to be; and which share of the lines Storm gets."""

NOTE = "ours adds up the words of a batch before the state"
COMMITS = 4
TOUCHED = 10_000
LARGE = 10_000_000
GROWN_AT_ONCE = 1_000_000
GROWTH_MAX = 1.5
RESTART_MAX_S = 60
SCHEMA = "word string, total long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


def add(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    """Add to a word's total what the row brings."""
    total = state.get("total", 0) + row["count"]
    state.put("total", total)
    return {"word": row["word"], "total": total}


def stream(spark: SparkSession, files: str) -> DataFrame:
    """The rows of Parquet files as a stream, a file in each batch."""
    reader = spark.readStream.schema(spark.read.parquet(files).schema)
    return reader.option("maxFilesPerTrigger", 1).parquet(files)


def finished(frame: rs.AnchoredFrame, directory: str) -> rs.Outcome:
    """Run a stream to its end on a new ledger; every row has to be acked."""
    shutil.rmtree(directory, ignore_errors=True)
    query = frame.start(None, ledger=f"{directory}/ledger", trigger="availableNow")
    query.await_termination()
    outcome = query.outcome()
    if (outcome.anchored, outcome.pending) != (outcome.acked, 0):
        raise AssertionError(str(outcome))
    return outcome


# ------------------------------------------------------------------------------------------------- beside Storm


def count_lines(spark: SparkSession, files: str, directory: str) -> rs.Outcome:
    """Count the words of lines: Spark adds up those of a batch, the bolt adds that to the totals."""
    words = rs.anchored(stream(spark, files), "id").explode(F.split("line", " "), "word")
    counts = words.groupBy("word").agg(F.count("*").alias("count"))
    return finished(counts.stateful(add, key="word", schema=SCHEMA, name="totals"), directory)


def check_totals(spark: SparkSession, files: str, directory: str) -> None:
    """Refuse to compare the times of different counts."""
    totals = count_lines(spark, files, directory).state("totals").selectExpr("key AS word", "CAST(value AS LONG)")
    words = spark.read.parquet(files).select(F.explode(F.split("line", " ")).alias("word"))
    wrong = totals.exceptAll(words.groupBy("word").count()).count()
    if wrong or totals.count() != words.distinct().count():
        raise AssertionError(f"{wrong} totals are wrong")


def against_storm(spark: SparkSession, options: Options, directory: str) -> list[Line]:
    """Lines a second; as many lines there as make it run for some seconds.

    Raises:
        SkippedError: nobody said where Storm's word count is.
    """
    files, peer, found = f"{directory}/lines", None, []
    count = 1_000 if options.quick else 1_000_000
    with suppress(SkippedError):
        peer = Peer.of(options)
    source = peer.lines(count, FAILING_SHARE).with_suffix(".parquet") if peer else make_lines(count, options.data)
    spark.read.parquet(str(source)).select("id", "line").repartition(COMMITS).write.parquet(files)
    check_totals(spark, files, f"{directory}/ours")
    if peer is None:
        return []
    for pending, bar, share in STORM:
        text = peer.lines(max(1_000, int(count * share)), FAILING_SHARE)
        ours = partial(rate, count, partial(count_lines, spark, files, f"{directory}/ours"))
        pairs = in_turns(ours, partial(storm_rate, peer, text, pending), options, is_peer_fresh=True)
        against = f"Storm's stateful bolt, in memory, max.spout.pending {pending:,}"
        about = {"work": f"stateful word count, {count:,} lines", "against": against, "unit": "lines/s", "note": NOTE}
        found.append(line_of(pairs, times, bar=bar, direction="at least", **about))
    return found


def rate(count: int, work: Callable[[], object]) -> float:
    """How many a second."""
    return count / seconds(work)


def storm_rate(peer: Peer, text: Path, pending: int) -> float:
    """Lines a second, from the first emit to the last ack."""
    arguments = ["--input", str(text), "--ackers", "1", "--stateful", "--pending", str(pending)]
    result = parsed(peer.call("one", *arguments, "--label", "stateful word count"))
    return float(result["lines"] / result["seconds"])


# ------------------------------------------------------------------------------------------- beside Spark's state


class Counter(StatefulProcessor):
    """The same count for Spark's own state."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """One number per word."""
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - PySpark's names
        """Give every row of a word its total."""
        before = self._total.get()
        total = before[0] if before else 0
        for frame in rows:
            yield pd.DataFrame({"word": key[0], "total": range(total + 1, total + 1 + len(frame))})
            total += len(frame)
        self._total.update((total,))

    def close(self) -> None:
        """Nothing to close."""


def count_words(spark: SparkSession, files: str, directory: str) -> None:
    """Count a stream of words row by row, each tracked."""
    words = stream(spark, files).withColumn("count", F.lit(1))
    finished(rs.anchored(words, "id").stateful(add, key="word", schema=SCHEMA), directory)


def count_with_spark(spark: SparkSession, files: str, directory: str) -> None:
    """Count the same stream with `transformWithStateInPandas`; nothing is tracked."""
    shutil.rmtree(directory, ignore_errors=True)
    counted = (
        stream(spark, files)
        .groupBy("word")
        .transformWithStateInPandas(Counter(), outputStructType=SCHEMA, outputMode="Update", timeMode="None")
    )
    writer = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    writer.option("checkpointLocation", f"{directory}/checkpoint").start().awaitTermination()


def against_spark(spark: SparkSession, options: Options, directory: str) -> Line:
    """Row by row, both in Python; every row gets the total that it makes."""
    files, lines = f"{directory}/words", 1_000 if options.quick else 20_000
    split = spark.read.parquet(str(make_lines(lines, options.data))).selectExpr("id", "posexplode(split(line, ' '))")
    split.selectExpr(f"id * {WORDS_PER_LINE} + pos AS id", "col AS word").coalesce(1).write.parquet(files)
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        ours, theirs = f"{directory}/ours", f"{directory}/theirs"
        # once is enough: nearly all of the time goes to Python
        few = replace(options, warm_ups=1)
        pairs = in_turns(timed(count_words, spark, files, ours), timed(count_with_spark, spark, files, theirs), few)
    finally:
        spark.conf.set(PROVIDER, str(before))
    work = f"stateful count of {lines * WORDS_PER_LINE:,} words, row by row"
    about = {"work": work, "against": "transformWithStateInPandas, RocksDB", "unit": "s"}
    return line_of(pairs, faster, bar=1.0, direction="at least", **about)


# ------------------------------------------------------------------------------------------------- large states


def touch(spark: SparkSession, ledger: str, first_id: int, keys: DataFrame) -> float:
    """Run a batch over keys, and say how long it took from its beginning to the commit of its state."""
    rows = keys.selectExpr(f"id + {first_id} AS id", "CAST(key AS STRING) AS word", "1 AS count")
    return seconds(partial(rs.anchored(rows, "id").stateful(add, key="word", schema=SCHEMA).run, None, ledger=ledger))


def spread(spark: SparkSession, keys: int) -> DataFrame:
    """As many keys as a batch touches, from all over the state."""
    return spark.range(min(TOUCHED, keys)).withColumn("key", F.col("id") * max(1, keys // TOUCHED))


def batch_of(spark: SparkSession, keys: int, ledger: str) -> Callable[[], float]:
    """Let a state grow; what comes back measures batches that touch the same number of its keys each time."""
    for first in range(0, keys, GROWN_AT_ONCE):
        grown = spark.range(first, min(keys, first + GROWN_AT_ONCE))
        touch(spark, ledger, 0, grown.withColumn("key", F.col("id")))
    next_id = keys

    def one() -> float:
        nonlocal next_id
        next_id += TOUCHED
        return touch(spark, ledger, next_id, spread(spark, keys))

    return one


def against_size(spark: SparkSession, options: Options, directory: str) -> list[Line]:
    """The same change of a small state and of a large one; then the large one in a process that is new."""
    keys, large = 2 * TOUCHED if options.quick else LARGE, f"{directory}/large"
    small = batch_of(spark, TOUCHED, f"{directory}/small")
    pairs = in_turns(batch_of(spark, keys, large), small, options)
    work = f"batch of {TOUCHED:,} keys, state of {keys:,}"
    found = [line_of(pairs, times, work=work, against=f"state of {TOUCHED:,}", unit="s", bar=GROWTH_MAX)]
    restarted = [sys.executable, "-m", "benchmarks.stateful", "--restart", large, str(keys)]
    first_s = float(subprocess.run(restarted, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1])
    work = f"restart with {keys:,} keys to the end of the first batch"
    found.append(Line(work, "a bound", None, None, "s", first_s, bar=RESTART_MAX_S, measure="s"))
    return found


def restart(ledger: str, keys: int) -> None:
    """Print how long a process took from its beginning to the end of its first batch, Spark's start included."""
    begun = time.perf_counter()
    spark = rs.session("restart")
    touch(spark, ledger, 10 * keys, spread(spark, keys))
    print(time.perf_counter() - begun)


# ------------------------------------------------------------------------------------------------------- all


def measure(options: Options) -> list[Line]:
    """Compare with Storm where it is, with Spark, and with a smaller state."""
    spark = rs.session("state benchmark")
    with tempfile.TemporaryDirectory() as directory:
        return [
            *against_storm(spark, options, f"{directory}/storm"),
            against_spark(spark, options, f"{directory}/spark"),
            *against_size(spark, options, f"{directory}/size"),
        ]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--restart"]:
        restart(sys.argv[2], int(sys.argv[3]))
    else:
        main()
