"""Rows that stop a Spark job: found and answered like any other failure, while the good rows commit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import reliable_spark as rs
from reliable_spark.engine import batches, bolt_run
from tests.spark.running import Runner

ROWS = 200


def texts(spark: SparkSession, poison: dict[int, str], rows: int = ROWS) -> DataFrame:
    """Numbers as text, some of which are none."""
    return spark.createDataFrame([(n, poison.get(n, str(n))) for n in range(rows)], "id long, t string")


def cast(frame: rs.AnchoredFrame) -> rs.AnchoredFrame:
    return frame.select("id", F.expr("cast(t as int)").alias("n"))


NATIVE = {
    "an ANSI cast": (cast, "seven", "CAST_INVALID_INPUT"),
    "a division by zero": (lambda f: f.withColumn("n", F.expr("100 / t")), "0", "DIVIDE_BY_ZERO"),
    "JSON in FAILFAST": (
        lambda f: f.select("id", F.from_json("t", "n int", {"mode": "FAILFAST"})["n"].alias("n")),
        "{",
        "MALFORMED_RECORD_IN_PARSING",
    ),
    "a filter": (lambda f: f.where("cast(t as int) >= 0"), "x", "CAST_INVALID_INPUT"),
    "a fail condition": (lambda f: f.fail("cast(t as int) < 0", "negative"), "x", "CAST_INVALID_INPUT"),
    "an array to explode": (lambda f: f.explode(F.array(F.expr("cast(t as int)")), "n"), "x", "CAST_INVALID_INPUT"),
    "raise_error": (lambda f: f.withColumn("n", F.when(F.col("t") == "x", F.raise_error("no x"))), "x", "no x"),
    "a transform": (lambda f: f.transform(lambda df: df.withColumn("n", F.expr("int(t)"))), "x", "CAST_INVALID_INPUT"),
}


@pytest.mark.parametrize("name", NATIVE)
def test_a_native_error_fails_its_row_only(name: str, spark: SparkSession, run: Runner) -> None:
    """The row is tried again and dies with the error that Spark gave; all others reach the sink."""
    build, poison, error = NATIVE[name]
    attempts = 2 if name == "an ANSI cast" else 1
    good = dict.fromkeys(range(ROWS), '{"n": 1}') if "JSON" in name else {n: str(n + 1) for n in range(ROWS)}
    ran = run(build(rs.anchored(texts(spark, {**good, 17: poison, 100: poison}), "id")), max_attempts=attempts)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts") == (ROWS, ROWS - 2, 2, 2 * attempts)
    assert {row["id"] for row in ran.rows.all} == set(range(ROWS)) - {17, 100}
    letters = ran.outcome.dead_letters().select("message_id", "error_class", "error", "attempts").collect()
    assert {row["message_id"] for row in letters} == {"17", "100"}
    assert all(error in f"{row['error_class']} {row['error']}" and row["attempts"] == attempts for row in letters)


def end_worker(row: rs.TupleRow) -> dict[str, Any]:
    if row["t"] == "exit":
        os._exit(3)
    if row["t"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    return dict(row)


@rs.arrow
def end_worker_by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    if pc.any(pc.is_in(batch.column("t"), pa.array(["exit", "kill"]))).as_py():
        os._exit(3)
    return batch


@pytest.mark.parametrize("bolt", [end_worker, end_worker_by_batch])
@pytest.mark.parametrize("isolated", ["in the task's second attempt", "in a second job"])
def test_a_row_that_ends_its_worker_fails_alone(
    bolt: Any, isolated: str, spark: SparkSession, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """os._exit and SIGKILL, as the out-of-memory killer sends it, in a bolt."""
    if isolated == "in a second job":  # as with a master that repeats no task
        monkeypatch.setattr(bolt_run, "IsolatedOnRetry", lambda task: task)
    frame = rs.anchored(texts(spark, {5: "exit", 50: "kill"}).repartition(2), "id").bolt(bolt, "id long, t string")
    ran = run(frame, max_attempts=1)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts") == (ROWS, ROWS - 2, 2, 2)
    assert {row["id"] for row in ran.rows.all} == set(range(ROWS)) - {5, 50}
    assert {name: text.split(",")[0][:17] for name, text in ran.dead.items()} == dict.fromkeys(
        ["5", "50"], "the Python worker"
    )


def test_a_row_that_ends_its_worker_does_not_end_the_job(
    spark: SparkSession, run: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """The task that died runs again, isolated, and what it had observed before is not counted."""
    frame = rs.anchored(texts(spark, {5: "exit"}).repartition(2), "id").bolt(end_worker, "id long, t string")
    ran = run(frame, max_attempts=1)
    assert ran.counts("anchored", "acked", "dead", "emitted") == (ROWS, ROWS - 1, 1, ROWS - 1)
    assert "looked for" not in caplog.text
    assert "tree by tree" not in caplog.text


def eat_memory(row: rs.TupleRow) -> dict[str, Any]:
    import resource

    if row["t"] == "eat":
        resource.setrlimit(resource.RLIMIT_AS, (1 << 32, 1 << 32))
        bytearray(1 << 33)
    return dict(row)


def test_a_row_that_exceeds_the_memory_of_its_worker_fails_alone(spark: SparkSession, run: Runner) -> None:
    """With a limit, as spark.executor.pyspark.memory sets it, it is an exception like any other."""
    ran = run(rs.anchored(texts(spark, {9: "eat"}), "id").bolt(eat_memory, "id long, t string"), max_attempts=1)
    assert ran.counts("acked", "dead") == (ROWS - 1, 1)
    assert ran.outcome.dead_letters().where("error_class = 'MemoryError'").count() == 1


def test_native_and_python_poison_in_one_batch(spark: SparkSession, run: Runner) -> None:
    """Both are found in the same isolated evaluation."""
    frame = cast(rs.anchored(texts(spark, {3: "x", 4: "exit", 5: "kill"}), "id").bolt(end_worker, "id long, t string"))
    ran = run(frame, max_attempts=1)
    assert ran.counts("acked", "dead") == (ROWS - 3, 3)
    assert ran.outcome.dead_letters().where("error_class = 'CAST_INVALID_INPUT'").count() == 1


@pytest.mark.parametrize("kind", ["a user's own UDF", "the key of an aggregate"])
def test_what_no_guard_sees_is_found_by_splitting(kind: str, spark: SparkSession, run: Runner) -> None:
    """Errors where nothing can be guarded cost jobs, but no row."""
    number = F.udf(lambda text: int(text) + 0, "int")
    source = rs.anchored(texts(spark, {7: "x", 8: "y"}, rows=60), "id")
    if kind == "a user's own UDF":
        frame = source.withColumn("n", number("t"))
    else:
        frame = source.groupBy(F.expr("cast(t as int)").alias("n")).count()
    ran = run(frame, max_attempts=1)
    assert ran.counts("anchored", "acked", "dead") == (60, 58, 2)
    assert set(ran.dead) == {"7", "8"}
    assert len(ran.rows.all) == 58


@pytest.mark.parametrize("kind", ["at once", "traced", pytest.param("all rows", marks=pytest.mark.soak)])
def test_poison_before_an_aggregate_is_tried_again_before_it(kind: str, spark: SparkSession, run: Runner) -> None:
    """What no guard sees is dead after all its attempts, and no replay gives its group, or the one group, again."""
    source = rs.anchored(texts(spark, {2: "x"}, rows=3), "id")
    number = F.expr("cast(t as int)")
    if kind == "all rows":
        frame = source.agg(F.sum(number).alias("n"))
    else:
        frame = source.transform(lambda df: df) if kind == "traced" else source
        frame = frame.groupBy(number.alias("n")).agg(F.count("*").alias("count"))
    ran = run(frame, max_attempts=3)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts", "replayed") == (3, 2, 1, 3, 2)
    assert [(row.message_id, row.attempts) for row in ran.outcome.dead_letters().collect()] == [("2", 3)]
    assert sorted(row["n"] for row in ran.rows.all) == ([1] if kind == "all rows" else [0, 1])


def test_poison_before_an_aggregate_may_get_well(
    spark: SparkSession, run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that passes at a later attempt is in its group, which appears once."""
    mended, wait = tmp_path / "mended", rs.ManualClock.wait
    # the first wait is the one before the second attempt
    monkeypatch.setattr(rs.ManualClock, "wait", lambda *given: (mended.write_bytes(b""), wait(*given))[1])

    def number(text: str) -> int:
        if text == "x" and not mended.exists():
            raise ValueError("not yet")
        return 1

    plain = F.udf(lambda text: number(text), "int")  # noqa: PLW0108 - PySpark reads the types of a named function
    frame = rs.anchored(texts(spark, {2: "x"}, rows=3), "id").groupBy(plain("t").alias("n")).count()
    ran = run(frame)
    assert ran.counts("anchored", "acked", "dead", "failed_attempts", "replayed") == (3, 3, 0, 1, 1)
    assert [tuple(row) for row in ran.rows.all] == [(1, 3)]


def test_poison_that_only_a_whole_group_makes_is_said_so(spark: SparkSession, tmp_path: Path) -> None:
    """An aggregate that overflows over rows that are good one by one can be blamed on none of them."""
    rows = spark.createDataFrame([(n, 9_000_000_000_000_000_000) for n in range(4)], "id long, n long")
    frame = rs.anchored(rows, "id").groupBy().agg(F.sum("n").alias("n"))
    with pytest.raises(rs.OperatingError, match="although each part of it passes"):
        frame.run(None, ledger=tmp_path / "ledger")


def test_errors_that_are_not_about_rows_fail_the_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A source file that is gone is no row's fault: a clear error, and nothing is settled or dead."""
    spark.range(50).write.parquet(str(tmp_path / "source"))
    frame = rs.anchored(spark.read.parquet(str(tmp_path / "source")), "id").withColumn("n", F.col("id") + 1)
    for file in (tmp_path / "source").glob("*.parquet"):
        file.unlink()
    with pytest.raises(rs.OperatingError, match="not because of a row of it") as raised:
        frame.run(None, ledger=tmp_path / "ledger")
    assert "FAILED_READ_FILE" in str(raised.value)
    assert spark.read.format("delta").load(f"{tmp_path}/ledger/batches").count() == 0


def test_a_batch_that_is_mostly_poison_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    """A wrong cast must not dead-letter everything: nothing of the batch is written."""
    poison = dict.fromkeys(range(150), "x")
    with pytest.raises(rs.TooManyFailures, match="150 of 200 rows"):
        cast(rs.anchored(texts(spark, poison), "id")).run(str(tmp_path / "sink"), ledger=tmp_path / "ledger")
    assert spark.read.format("delta").load(str(tmp_path / "sink")).count() == 0


def test_poison_is_retried_and_may_get_well(spark: SparkSession, run: Runner, tmp_path: Path) -> None:
    """A worker that died at the first attempt only: the replay acks the row."""

    def dies_first(row: rs.TupleRow) -> dict[str, Any]:
        if row["t"] == "x" and row.attempt == 1:
            os._exit(1)
        return dict(row)

    ran = run(rs.anchored(texts(spark, {11: "x"}), "id").bolt(dies_first, "id long, t string"))
    assert ran.counts("acked", "dead", "failed_attempts", "replayed") == (ROWS, 0, 1, 1)


def test_one_native_poison_costs_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """The failed job, one guarded job, and what finds the payload: not a search."""
    context: Any = spark.sparkContext
    before = context._jsc.sc().dagScheduler().numTotalJobs()
    frame = cast(rs.anchored(texts(spark, {17: "x"}), "id"))
    frame.run(str(tmp_path / "sink"), ledger=tmp_path / "ledger", settings=rs.Settings(max_attempts=1))
    assert context._jsc.sc().dagScheduler().numTotalJobs() - before <= 10


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_rows_lost_with_an_executor_are_evaluated_again(
    delivery: str, spark: SparkSession, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Materialised blocks that are gone fail the job; the batch is taken once more, and nothing is counted twice."""
    lost = iter([True, True])
    once_or_traced = batches.SparkBatches._once_or_traced

    def loses(self: Any, batch: Any) -> Any:
        evaluated = once_or_traced(self, batch)
        if next(lost, False):
            raise RuntimeError("[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_1_0 not found!")
        return evaluated

    monkeypatch.setattr(batches.SparkBatches, "_once_or_traced", loses)
    ran = run(rs.anchored(texts(spark, {}), "id").where("id < 100"), delivery=delivery)
    assert ran.counts("anchored", "acked", "emitted") == (ROWS, ROWS, 100)


def test_a_poisoned_stream_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """One bad row in each of three micro-batches: the query ends, and has written all others."""
    for number in range(3):
        texts(spark, {number: "x"}, rows=20).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long, t string").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    ids = stream.withColumn("file", F.input_file_name())
    query = cast(ids.anchored(["file", "id"])).start(
        str(tmp_path / "sink"),
        ledger=tmp_path / "ledger",
        settings=rs.Settings(max_attempts=1),
        trigger="availableNow",
    )
    query.await_termination()
    outcome = query.outcome()
    assert (outcome.anchored, outcome.acked, outcome.dead) == (60, 57, 3)
    assert spark.read.format("delta").load(str(tmp_path / "sink")).count() == 57


def test_values_of_good_rows_are_the_same_with_and_without_guards(spark: SparkSession, run: Runner) -> None:
    """What a guard computes is what Spark computes, to the type."""
    columns = [
        F.col("id"),
        F.expr("cast(t as int) * 2").alias("n"),
        F.struct(F.col("t").alias("a"), F.array("id").alias("b")).alias("s"),
        F.current_date().alias("d"),
    ]
    ran = run(rs.anchored(texts(spark, {17: "x"}), "id").select(*columns), max_attempts=1)
    plain = texts(spark, {}).where("id <> 17").select(*columns)
    assert ran.rows.schema.simpleString() == plain.schema.simpleString()
    assert sorted(ran.rows.all) == sorted(plain.collect())
    assert isinstance(ran.rows.schema, T.StructType)
