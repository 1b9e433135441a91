"""Sessions on a real JVM: Delta works, the log is quiet, and what cannot work is refused with a reason."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reliable_spark.jars import PACKAGE, delta_jars, spark_home
from reliable_spark.session import configure, session

INCUBATOR = "WARNING: Using incubator modules: jdk.incubator.vector"  # the JVM's own line, not the log's


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PYSPARK_PYTHON": sys.executable,
    }
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def run_python(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-c", code], cwd)


def run_submitted(code: str, cwd: Path, *options: str) -> subprocess.CompletedProcess[str]:
    job = cwd / "job.py"
    job.write_text(code)
    return run([str(spark_home() / "bin" / "spark-submit"), "--master", "local[1]", *options, str(job)], cwd)


def test_an_active_session_is_given_again(spark: SparkSession) -> None:
    """A second call changes nothing, and a builder is given back as it is."""
    assert session("other") is spark
    builder = SparkSession.builder.config("spark.sql.shuffle.partitions", "7")
    assert configure(builder) is builder
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_delta_table_is_written_read_changed_and_streamed(spark: SparkSession, tmp_path: Path) -> None:
    """The two jars are enough for the batch, the table and the streaming interfaces of Delta."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    spark.range(10).withColumn("v", F.col("id") % 3).write.format("delta").save(source)
    changes = spark.range(9, 12).withColumn("v", F.lit(7))
    table = DeltaTable.forPath(spark, source)
    merge = table.alias("t").merge(changes.alias("c"), "t.id = c.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    table.delete("id = 0")

    def write(frame: DataFrame, batch_id: int) -> None:
        options = {"txnAppId": "test", "txnVersion": str(batch_id)}
        frame.write.format("delta").mode("append").options(**options).save(target)

    stream = spark.readStream.format("delta").load(source).writeStream.foreachBatch(write)
    query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sorted(row.id for row in spark.read.format("delta").load(target).collect()) == list(range(1, 12))
    assert table.history().count() == 3


def test_a_worker_begins_with_the_library_which_its_collections_leave_out(spark: SparkSession) -> None:
    """Spark lets a worker collect after each task: what was loaded before it was forked is not looked through."""

    def tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        loaded = "reliable_spark.engine.bolt_run" in sys.modules
        collected = len(gc.get_objects()) < gc.get_freeze_count()
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"loaded": [loaded], "collected": [collected]})

    told = spark.range(0, 2, 1, 2).mapInArrow(tell, "loaded boolean, collected boolean").collect()
    assert {tuple(row) for row in told} == {(True, True)}


def test_a_new_session_is_quiet_and_plain_functions_do_not_hang(tmp_path: Path) -> None:
    """Only the JVM's own line is on standard error, `F.udf` over a scan ends, and a stop is not the end."""
    code = """
from pyspark.sql import functions as F
from reliable_spark.session import session
spark = session("quiet")
assert session() is spark
spark.range(1000).write.format("delta").save("table")
plus_one = F.udf(lambda value: value + 1, "long")
total = spark.read.format("delta").load("table").agg(F.sum(plus_one("id"))).first()[0]
print(spark.sparkContext.appName, total)
spark.stop()
print(session("again").sparkContext.appName, session("again").read.format("delta").load("table").columns)
"""
    done = run_python(code, tmp_path)
    assert done.stdout == "quiet 500500\nagain ['id']\n", done.stderr
    assert [line for line in done.stderr.splitlines() if line.strip() and line != INCUBATOR] == []


def test_an_active_session_without_delta_is_refused(tmp_path: Path) -> None:
    """The error names the settings that are missing, from `session` and from `configure`."""
    code = """
from pyspark.sql import SparkSession
from reliable_spark.errors import UsageError
from reliable_spark.session import configure, session
SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
for refused in (session, lambda: configure(SparkSession.builder)):
    try:
        refused()
    except UsageError as error:
        print(error)
"""
    done = run_python(code, tmp_path)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0] == lines[1]
    assert "spark.sql.extensions=" in lines[0]
    assert "spark.sql.catalog.spark_catalog=" in lines[0]


JOB = """
import os
from reliable_spark.session import session
spark = session("job")
spark.sql("create table t (id long) using delta location '{}/table'".format(os.getcwd()))
print(spark.table("t").columns, spark.conf.get("spark.sql.shuffle.partitions"))
"""


def test_spark_submit_with_jars_keeps_what_it_was_given(tmp_path: Path) -> None:
    """Under `spark-submit` its own settings stay and only the missing ones are added."""
    options = ("--jars", ",".join(delta_jars()), "--conf", "spark.sql.shuffle.partitions=5")
    done = run_submitted(JOB, tmp_path, *options)
    assert done.stdout == "['id'] 5\n", done.stderr


def test_spark_submit_without_delta_says_how_to_get_it(tmp_path: Path) -> None:
    """The error names both ways to start the job with Delta."""
    done = run_submitted(JOB, tmp_path)
    assert done.returncode != 0
    said = done.stdout + done.stderr  # spark-submit sends both of Python's streams to its own standard output
    assert f"--packages {PACKAGE}" in said
    assert '--jars "$(reliable-spark jars)"' in said


@pytest.mark.parametrize("name", ["spark.sql.extensions", "spark.sql.catalog.spark_catalog"])
def test_the_shared_session_has_delta(spark: SparkSession, name: str) -> None:
    """The fixture that every other test uses is a Delta session."""
    assert "delta" in spark.conf.get(name).lower()  # type: ignore[union-attr]
