"""Errors provoked for real, by whose fault they are and what is said of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reliable_spark.engine.causes import TEXT_CHARACTERS_MAX, Blame, blame, explain
from reliable_spark.errors import SinkError, TooManyFailures, UsageError

EXECUTOR_LOST = (  # as a cluster of one executor said it, whose task had called System.exit(3)
    "Job aborted due to stage failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in "
    "stage 0.0 (TID 0) (192.0.2.2 executor 0): ExecutorLostFailure (executor 0 exited {} the running tasks) "
    "Reason: Command exited with code 3\nDriver stacktrace:"
)


def raised(provoke: Callable[[], object]) -> Exception:
    try:
        provoke()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    """Four numbers, and the last as a text that is none."""
    return spark.range(0, 4, 1, 1).selectExpr("id", "if(id = 3, 'x', cast(id as string)) as text").localCheckpoint()


@pytest.mark.parametrize(
    ("expression", "error_class", "text"),
    [
        ("cast(text as int)", "CAST_INVALID_INPUT", "The value 'x' of the type \"STRING\" cannot be cast"),
        ("cast(text as date)", "CAST_INVALID_INPUT", "The value '0' of the type"),
        ("1 / (id - 2)", "DIVIDE_BY_ZERO", "Division by zero."),
        ("9223372036854775807 + id", "ARITHMETIC_OVERFLOW", "overflow."),
        ("array(1, 2)[id]", "INVALID_ARRAY_INDEX", "The index 2 is out of bounds."),
        ("map(id, 1, 3, 2)", "DUPLICATED_MAP_KEY", "Duplicate map key 3"),
        ("raise_error(text)", "USER_RAISED_EXCEPTION", "0"),
        ("from_json(text, 'a int', map('mode', 'FAILFAST'))", "MALFORMED_RECORD_IN_PARSING.WITHOUT", "Malformed"),
        ("to_number(text, '9')", "INVALID_FORMAT.MISMATCH_INPUT", "The format is invalid"),
        ("reflect('java.lang.Integer', 'parseInt', text)", "NumberFormatException", 'For input string: "x"'),
        ("reflect('java.util.Objects', 'requireNonNull', nullif(text, 'x'))", "NullPointer", "NullPointer"),
        ("cast('x' as int)", "CAST_INVALID_INPUT", "The value 'x'"),
    ],
)
def test_a_row_that_an_expression_raises_for(rows: DataFrame, expression: str, error_class: str, text: str) -> None:
    """It is the row's fault, whichever exception it is, and what is said has neither code nor stack."""
    error = raised(rows.selectExpr(expression).collect)
    assert blame(error) is Blame.ROWS
    found_class, found_text = explain(error)
    assert found_class.startswith(error_class)
    assert found_text.startswith(text)
    assert "\tat " not in found_text
    assert "SQLSTATE" not in found_text


def test_a_row_that_python_raises_for(rows: DataFrame) -> None:
    """The exception is the one that Python raised, in a function of rows as in one of batches."""

    def of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise KeyError("two\nlines")
        yield from ()

    error = raised(rows.select(F.udf(lambda text: int(text) + 1, "int")("text")).collect)
    assert blame(error) is Blame.ROWS
    assert explain(error) == ("ValueError", "invalid literal for int() with base 10: 'x'")
    error = raised(rows.mapInArrow(of_batches, "a int").collect)
    assert blame(error) is Blame.ROWS
    assert explain(error) == ("KeyError", "'two\\nlines'")


def test_where_it_was_raised_from_makes_no_difference(rows: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    """A write, a checkpoint, a stream, a broadcast and a call straight into the JVM tell the same."""
    bad = rows.selectExpr("id", "cast(text as int) as number")
    rows.write.format("delta").save(str(tmp_path / "source"))

    def stream() -> None:
        source = spark.readStream.format("delta").load(str(tmp_path / "source"))
        writer = source.selectExpr("cast(text as int)").writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with pytest.raises(Exception, match="STREAM_FAILED"):
            query.awaitTermination(60)
        failure = query.exception()
        assert failure is not None
        raise failure

    def wrapped() -> None:
        try:
            bad.collect()
        except Exception as error:
            raise RuntimeError("while collecting") from error

    for provoke in (
        lambda: bad.write.parquet(str(tmp_path / "parquet")),
        lambda: bad.write.format("delta").save(str(tmp_path / "delta")),
        bad.localCheckpoint,
        lambda: rows.join(F.broadcast(bad), "id").collect(),
        bad._jdf.collectToPython,
        stream,
        wrapped,
    ):
        error = raised(provoke)
        assert blame(error) is Blame.ROWS, repr(error)
        assert explain(error)[0] == "CAST_INVALID_INPUT"


def test_a_row_that_the_table_refuses(rows: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    """A violated constraint is about the row."""
    path = str(tmp_path / "table")
    spark.sql(f"create table delta.`{path}` (id long not null) using delta")
    nulls = rows.selectExpr("nullif(id, 3) as id")
    error = raised(lambda: nulls.write.format("delta").mode("append").save(path))
    assert blame(error) is Blame.ROWS
    assert explain(error) == ("DELTA_NOT_NULL_CONSTRAINT_VIOLATED", "NOT NULL constraint violated for column: id.")


def test_a_long_message_is_cut(rows: DataFrame) -> None:
    """No text is longer than the ledger takes."""
    error = raised(rows.selectExpr("raise_error(repeat(concat('x', text), 5000))").collect)
    error_class, text = explain(error)
    assert error_class == "USER_RAISED_EXCEPTION"
    assert len(text) == TEXT_CHARACTERS_MAX


@pytest.mark.parametrize("code", [-signal.SIGKILL, 7])
def test_a_python_worker_that_dies(rows: DataFrame, code: int) -> None:
    """A worker that was killed and one that exits are crashes, whatever the job that they end."""

    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        os._exit(code) if code > 0 else os.kill(os.getpid(), -code)
        yield from batches

    error = raised(rows.mapInArrow(die, rows.schema).collect)
    assert blame(error) is Blame.CRASH
    error_class, text = explain(error)
    assert error_class == "WorkerCrash"
    assert text.startswith("Python worker exited unexpectedly")


def test_an_executor_that_its_task_has_ended(spark: SparkSession) -> None:
    """It is a crash when a task was the cause, and the world's fault when none was."""
    jvm = spark._jvm
    assert jvm is not None
    for cause, whose in (("caused by one of", Blame.CRASH), ("unrelated to", Blame.WORLD)):
        thrown = jvm.org.apache.spark.SparkException(EXECUTOR_LOST.format(cause))
        error = Py4JJavaError("An error occurred while calling o1.collectToPython.", thrown)
        assert blame(error) is whose
        assert explain(error)[1].endswith("Command exited with code 3")
    assert explain(error)[0] == "SparkException"
    overflown = jvm.org.apache.spark.SparkException(
        "Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times", jvm.java.lang.StackOverflowError()
    )
    error = Py4JJavaError("An error occurred while calling o1.collectToPython.", overflown)
    assert blame(error) is Blame.CRASH  # provoked for real, it ends this very process
    assert explain(error)[0] == "StackOverflowError"


def test_a_program_that_is_wrong(rows: DataFrame, spark: SparkSession) -> None:
    """What the analyser, the parser or PySpark refuse is no row's fault, nor are this library's own errors."""
    provoked = {
        "UNRESOLVED_COLUMN.WITH_SUGGESTION": lambda: rows.select("nope"),
        "PARSE_SYNTAX_ERROR": lambda: rows.selectExpr("a b c"),
        "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE": lambda: rows.selectExpr("array_max(id)"),
        "INVALID_CONF_VALUE.TYPE_MISMATCH": lambda: spark.conf.set("spark.sql.shuffle.partitions", "x"),
        "NOT_SAME_TYPE": lambda: F.col("id").substr(1, F.lit(1)),  # type: ignore[call-overload]
    }
    for error_class, provoke in provoked.items():
        error = raised(provoke)
        assert blame(error) is Blame.DEFINITION, repr(error)
        found_class, text = explain(error)
        assert found_class == error_class
        assert "SQLSTATE" not in text
        assert "LogicalRDD" not in text
    for own in (UsageError("a"), SinkError("b"), TooManyFailures("c")):
        own.__cause__ = raised(lambda: rows.selectExpr("cast(text as int)").collect())
        assert blame(own) is Blame.DEFINITION
        assert explain(own) == (type(own).__name__, str(own))


def test_a_world_that_is_wrong(rows: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    """Files that are gone or broken and places that cannot be written are nobody's fault in here."""
    path, broken = tmp_path / "parquet", tmp_path / "broken"
    rows.write.parquet(str(path))
    frame = spark.read.parquet(str(path))
    for file in path.glob("*.parquet"):
        file.unlink()
    rows.write.csv(str(broken))
    failing = spark.read.option("mode", "FAILFAST").schema("id int, text int").csv(str(broken))
    (tmp_path / "file").write_text("")
    for provoke, error_class in (
        (frame.collect, "FAILED_READ_FILE.FILE_NOT_EXIST"),
        (failing.collect, "FAILED_READ_FILE.NO_HINT"),
        (lambda: spark.read.parquet(str(tmp_path / "nowhere")), "PATH_NOT_FOUND"),
        (lambda: rows.write.format("delta").save(str(tmp_path / "file" / "below")), "DELTA_CANNOT_CREATE_LOG_PATH"),
        ((tmp_path / "gone").read_text, "FileNotFoundError"),
    ):
        error = raised(provoke)
        assert blame(error) is Blame.WORLD, repr(error)
        assert explain(error)[0] == error_class
    assert "NumberFormatException" in explain(raised(failing.collect))[1]


def test_an_unknown_exception_in_a_task(rows: DataFrame) -> None:
    """What was not thrown by the code that computes rows is not blamed on rows: here Arrow's, for a wrong schema."""
    error = raised(rows.mapInArrow(lambda batches: batches, "id string, text int").collect)
    assert blame(error) is Blame.WORLD


def test_a_jvm_that_is_gone(monkeypatch: pytest.MonkeyPatch, rows: DataFrame) -> None:
    """Nothing can be asked of it, and still there is an answer."""
    error = raised(rows.selectExpr("from_json(text, 'a int', map('mode', 'FAILFAST'))").collect)
    assert isinstance(error, Py4JJavaError)

    def refused(*arguments: object) -> None:
        raise ConnectionRefusedError("Connection refused")

    monkeypatch.setattr("py4j.java_gateway.JavaMember.__call__", refused)
    for lost in (error, Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError("refused")):
        assert blame(lost) is Blame.WORLD
        assert explain(lost)[0] == type(lost).__name__
