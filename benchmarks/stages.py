"""What do stages cost, beside plain Delta-to-Delta streaming of the same three jobs?

python -m benchmarks.stages            1,200,000 lines, 20 single rows, 5 rounds
python -m benchmarks.stages --quick    2,000 lines, a single row, 1 round

Bronze, silver and gold run in one process. First they take lines that lie there, a tenth a batch: the time ends with
the last line's answer in the ledger, or, in plain Spark, with its row in gold. The same work in a single query shows
what the two boundaries add. Then single rows come to the idle chain: a row's latency is from the time of its file to
that of the commit that shows it in gold. Plain Spark writes in `foreachBatch` with a transaction id, so it repeats no
batch either.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import reliable_spark as rs
from benchmarks.lines import make_lines
from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, seconds, times

THROUGHPUT_MIN = 0.8
BATCHES = 10
ROWS_A_QUEUE = 10_000_000
POLL_S = 0.02
PATIENCE_S = 600

Job = tuple[tuple[str, ...], ...]
"""Selections, one after the other."""

BRONZE: Job = (("id", "trim(line) AS line"),)
SILVER: Job = (("id", "line", "split(line, ' ') AS words"),)
GOLD: Job = (("id", "words[0] AS first", "array_max(words) AS last", "length(line) AS length"),)
THREE_JOBS, ONE_JOB = (BRONZE, SILVER, GOLD), (BRONZE + SILVER + GOLD,)


def done(frame: Any, job: Job) -> Any:
    """A frame of Spark's, or an anchored one, with a job done to it."""
    for columns in job:
        frame = frame.selectExpr(*columns)
    return frame


def source_of(lines: Path, directory: Path, batches: int = BATCHES) -> Path:
    """The lines as a file per batch."""
    table = pq.read_table(lines)
    directory.mkdir()
    rows = -(-table.num_rows // batches)
    for number in range(batches):
        pq.write_table(table.slice(number * rows, rows), directory / f"{number}.parquet")
    return directory


def stream_of(spark: SparkSession, source: Path) -> DataFrame:
    """One file a batch."""
    reader = spark.readStream.schema("id long, line string").options(maxFilesPerTrigger=1, maxFileAge="36500d")
    return reader.parquet(str(source))


class Plain:
    """The jobs as plain streaming queries, each reading the table that the one before writes."""

    def __init__(self, spark: SparkSession, source: Path, jobs: Sequence[Job], place: Path) -> None:
        self.gold, self.queries = place / str(len(jobs) - 1), list[StreamingQuery]()
        for number, job in enumerate(jobs):
            frame = stream_of(spark, source) if not number else _table_stream(spark, place / str(number - 1))
            rows = done(frame, job)
            spark.createDataFrame([], rows.schema).write.format("delta").save(str(place / str(number)))
            self.queries.append(_started(rows, place / str(number), place / f"checkpoint-{number}"))

    def wait(self, rows: int) -> None:
        """Wait for all rows in gold."""
        until(lambda: sum(report["numInputRows"] for report in self.queries[-1].recentProgress) >= rows)

    def stop(self) -> None:
        """Stop all queries."""
        for query in self.queries:
            query.stop()


def _table_stream(spark: SparkSession, path: Path) -> DataFrame:
    # as many files as there are, as a stage does
    return spark.readStream.format("delta").option("maxFilesPerTrigger", 1_000_000).load(str(path))


def _started(rows: DataFrame, table: Path, checkpoint: Path) -> StreamingQuery:
    def write(frame: DataFrame, batch_id: int) -> None:
        writer = frame.write.format("delta").mode("append")
        writer.option("txnAppId", str(table)).option("txnVersion", batch_id).save(str(table))

    return rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint)).start()


class Anchored:
    """The jobs as stages of one chain."""

    def __init__(self, spark: SparkSession, source: Path, jobs: Sequence[Job], place: Path) -> None:
        frame = done(rs.anchored(stream_of(spark, source), "id"), jobs[0])
        for number, job in enumerate(jobs[1:]):
            frame = done(frame.stage(f"job{number}", capacity=ROWS_A_QUEUE), job)
        self.gold = place / "gold"
        self.query = frame.start(self.gold, ledger=place / "ledger", settings=rs.Settings(message_timeout_s=600))

    def wait(self, rows: int) -> None:
        """Wait for the answers of all rows."""
        until(lambda: self.query.outcome().acked >= rows, 3 * POLL_S)  # each look reads the dead letters

    def stop(self) -> None:
        """Stop all queries."""
        self.query.stop()


Chain = Callable[[SparkSession, Path, Sequence[Job], Path], Plain | Anchored]


def until(is_so: Callable[[], bool], poll_s: float = POLL_S) -> None:
    """Wait for something."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise AssertionError("the rows do not arrive")
        time.sleep(poll_s)


def load_s(spark: SparkSession, source: Path, jobs: Sequence[Job], chain: Chain) -> float:
    """How long all lines take, from the start of the queries."""
    rows = sum(pq.read_metadata(file).num_rows for file in source.glob("*.parquet"))
    with tempfile.TemporaryDirectory() as place:

        def work() -> None:
            running = chain(spark, source, jobs, Path(place))
            try:
                running.wait(rows)
            finally:
                took.append(running)

        took: list[Plain | Anchored] = []
        duration_s = seconds(work)
        took[0].stop()
        check(spark, took[0].gold, rows)
        return duration_s


def check(spark: SparkSession, gold: Path, rows: int) -> None:
    """Refuse a wrong answer."""
    found = spark.read.format("delta").load(str(gold)).selectExpr("count(*)", "count(DISTINCT id)").first()
    if found is None or tuple(found) != (rows, rows):
        raise AssertionError(f"{rows} rows are expected in gold, not {found}")


def latency_ms(spark: SparkSession, rows: int, chain: Chain) -> float:
    """The median latency of single rows in an idle chain."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        source = place / "source"
        source.mkdir()
        running = chain(spark, source, THREE_JOBS, place)
        took = [one_row_ms(number, source, running) for number in range(rows + 1)]
        running.stop()
        return statistics.median(took[1:])


def one_row_ms(number: int, source: Path, running: Plain | Anchored) -> float:
    """Give a row, and wait until gold has it and it is answered."""
    before = set(commits(running.gold))
    part = source.parent / "row.part"
    pq.write_table(pa.table({"id": [number], "line": [f"row {number} alone"]}), part)
    given_ns = time.time_ns()
    part.rename(source / f"{number}.parquet")
    until(lambda: has_rows(set(commits(running.gold)) - before))
    running.wait(number + 1)
    shown_ns = min(commit.stat().st_mtime_ns for commit in set(commits(running.gold)) - before if has_rows({commit}))
    return (shown_ns - given_ns) / 1e6


def commits(table: Path) -> list[Path]:
    """The commits of a Delta table."""
    return list((table / "_delta_log").glob("*[0-9].json"))


def has_rows(of: set[Path]) -> bool:
    """Whether one of these commits adds a file."""
    return any('"add"' in commit.read_text(encoding="utf-8") for commit in of)


def measure(options: Options) -> list[Line]:
    """Measure both in turns: the chain, the single query, and single rows."""
    spark, count, rows = rs.session("stages benchmark"), *((2_000, 1) if options.quick else (1_200_000, 20))
    with tempfile.TemporaryDirectory() as directory:
        source = source_of(make_lines(count, options.data), Path(directory) / "source", 2 if options.quick else BATCHES)

        def taken(chain: Chain) -> tuple[float, ...]:
            loads = (load_s(spark, source, jobs, chain) for jobs in (THREE_JOBS, ONE_JOB))
            return (*loads, latency_ms(spark, rows, chain))

        pairs = in_turns(partial(taken, Anchored), partial(taken, Plain), options)
    return lines_of(pairs, count)


def lines_of(pairs: Sequence[tuple[tuple[float, ...], tuple[float, ...]]], count: int) -> list[Line]:
    """The three comparisons."""
    against = "plain Delta to Delta"
    chain, alone, latency = ([(ours[number], peer[number]) for ours, peer in pairs] for number in range(3))
    a_row_us = 1e6 / (len(THREE_JOBS) - 1) / count
    boundary = [
        ((ours - ours_alone) * a_row_us, (peer - peer_alone) * a_row_us)
        for (ours, peer), (ours_alone, peer_alone) in zip(chain, alone, strict=True)
    ]
    work = f"{count:,} lines through three stages"
    return [
        line_of(chain, faster, work=work, against=against, unit="s", bar=THROUGHPUT_MIN, direction="at least"),
        line_of(boundary, times, work="a stage boundary, per row", against=against, unit="µs"),
        line_of(latency, times, work="a row through three idle stages", against=against, unit="ms"),
    ]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
