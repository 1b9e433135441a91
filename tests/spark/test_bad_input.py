"""Bad input, tried: each line of docs/errors.md is a clear error, and nothing is lost when the cause is mended."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.ledger.schema import BATCHES, LEDGER_VERSION

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
SCHEMA = "id long, word string"

Call = Callable[[rs.AnchoredFrame], object]


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], SCHEMA)


def run(frame: rs.AnchoredFrame, ledger: Path, sink: object = None, **settings: Any) -> rs.Outcome:
    return frame.run(sink, ledger=str(ledger), settings=rs.Settings(**settings), clock=rs.ManualClock())


def balance(outcome: rs.Outcome) -> tuple[int, int, int, int]:
    assert outcome.balanced
    return outcome.anchored, outcome.acked, outcome.dead, outcome.pending


def batches(ledger: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(ledger / "batches")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["batch_id"])


def words_in(spark: SparkSession, sink: Path) -> list[str]:
    return sorted(row["word"] for row in spark.read.format("delta").load(str(sink)).collect())


def refused(error: pytest.ExceptionInfo[BaseException], directory: Path | None = None) -> str:
    """The error as docs/errors.md shows it, which it must; paths are those below the test's directory."""
    message = str(error.value).splitlines()[0]
    if directory is not None:
        message = message.replace(f"{directory}/", "")
    assert f"\n{error.type.__name__}: {message}\n" in PAGE
    return message


# -------------------------------------------------------------------- refused at the call, before a row is read


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        pytest.param(lambda frame: frame.where("wrod = 'a'"), rs.ColumnError, id="missing-column"),
        pytest.param(lambda frame: frame["wrod"], rs.ColumnError, id="missing-column-by-name"),
        pytest.param(lambda frame: frame.join(other(frame), "wrod"), rs.ColumnError, id="missing-join-key"),
        pytest.param(lambda frame: frame.explode("word", "letter"), rs.ColumnError, id="not-an-array"),
        pytest.param(lambda frame: frame.unionByName(frame.select("id")), rs.ColumnError, id="missing-in-the-other"),
        pytest.param(lambda frame: frame.drop("id").unionByName(frame), rs.ColumnError, id="missing-in-this"),
        pytest.param(lambda frame: frame.where("id >"), rs.UsageError, id="unparsable-condition"),
        pytest.param(lambda frame: frame.withColumn("_attempt", F.lit(1)), rs.ColumnError, id="reserved"),
        pytest.param(lambda frame: frame.select(F.struct("*").alias("all")), rs.UsageError, id="nested-star"),
        pytest.param(lambda frame: frame.select(letters()), rs.UsageError, id="generator"),
        pytest.param(lambda frame: frame.select(F.sum("id")), rs.UsageError, id="aggregate-in-select"),
        pytest.param(lambda frame: frame.bolt(str, "word strin"), rs.SchemaError, id="schema-of-no-type"),
        pytest.param(lambda frame: frame.bolt(str, "word: string,,"), rs.SchemaError, id="schema-of-no-syntax"),
        pytest.param(lambda frame: frame.bolt(str, "a int, A int"), rs.SchemaError, id="schema-twice"),
        pytest.param(lambda frame: frame.bolt(str, ""), rs.SchemaError, id="schema-empty"),
        pytest.param(lambda frame: frame.bolt(str, "t interval"), rs.SchemaError, id="schema-that-Arrow-lacks"),
        pytest.param(lambda frame: frame.bolt(Lock().acquire, "n long"), rs.UsageError, id="a-function-with-a-lock"),
        pytest.param(lambda frame: frame.run(42, ledger="ledger"), rs.UsageError, id="no-sink"),
        pytest.param(lambda frame: frame.run(lambda rows: None, ledger="x"), rs.UsageError, id="sink-of-rows-alone"),
        pytest.param(lambda frame: frame.run(), rs.UsageError, id="no-ledger"),
        pytest.param(lambda frame: frame.run(None, "x", {"ackers": 2}), rs.SettingsError, id="settings-as-a-dict"),
        pytest.param(lambda frame: frame.run("lake", ledger="lake"), rs.UsageError, id="sink-is-the-ledger"),
        pytest.param(lambda frame: frame.run("lake", ledger="lake/ledger"), rs.UsageError, id="sink-over-the-ledger"),
        pytest.param(lambda frame: frame.run("lake/state/x", ledger="lake"), rs.UsageError, id="sink-in-the-ledger"),
        pytest.param(lambda frame: frame.start(ledger="ledger"), rs.UsageError, id="static-given-to-start"),
        pytest.param(lambda frame: frame.distinct(), AttributeError, id="untracked-method"),
        pytest.param(lambda frame: frame.selct("id"), AttributeError, id="misspelt-method"),
    ],
)
def test_a_mistake_is_refused_where_it_is_written(rows: DataFrame, call: Call, kind: type[Exception]) -> None:
    """The error says what is wrong in one line, and what would be right; the frame can be used as before."""
    frame = rows.anchored("id")
    with pytest.raises(kind) as error:
        call(frame)
    refused(error)
    assert frame.columns == ["id", "word"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        pytest.param(lambda frame: frame[0], "frame[] takes a name as text, not int", id="a-position"),
        pytest.param(lambda frame: frame[F.col("id") > 1], "frame[] takes a name as text, not Column", id="a-filter"),
        pytest.param(lambda frame: frame.explode(5, "x"), "takes an array column, not int", id="explode-a-number"),
        pytest.param(lambda frame: frame.explode("word", 5), "takes a name as text, not int", id="alias-of-a-number"),
        pytest.param(lambda frame: frame.withColumn(None, F.lit(1)), "takes a name as text, not None", id="no-name"),
        pytest.param(lambda frame: frame.withColumns([F.lit(1)]), "takes a dict of columns by name", id="no-dict"),
        pytest.param(lambda frame: frame.withColumnRenamed("id", 5), "takes a name as text", id="rename-to-a-number"),
        pytest.param(lambda frame: frame.selectExpr(F.col("id")), "takes SQL as text, not Column", id="column-as-SQL"),
        pytest.param(lambda frame: frame.transform(None), "takes a function of a DataFrame", id="no-function"),
        pytest.param(lambda frame: frame.transform(lambda df: 5), "that returns a DataFrame, not int", id="no-frame"),
        pytest.param(lambda frame: frame.groupBy(3).count(), "there is no column 3: positions are 1 to 2", id="third"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_one_line(rows: DataFrame, call: Call, said: str) -> None:
    """The error names the method and what it takes, instead of an AttributeError of ours."""
    with pytest.raises(rs.UsageError, match=re.escape(said)):
        call(rows.anchored("id"))


@pytest.mark.parametrize("message_id", [None, 5, F.lit, {"id": 1}, ["id", 5]])
def test_a_message_id_that_is_no_name_is_refused(rows: DataFrame, message_id: Any) -> None:
    """A column, as PySpark takes it elsewhere, is none: the id is found again in rows of the ledger."""
    given = message_id("id") if callable(message_id) else message_id
    with pytest.raises(rs.UsageError, match="takes the name of a message id column, or a list of names"):
        rows.anchored(given)


def test_columns_that_delta_cannot_have_are_refused_in_one_line(rows: DataFrame, tmp_path: Path) -> None:
    """Before a row is read; renamed, they are written."""
    spaced = rows.anchored("id").withColumnRenamed("word", "the word")
    with pytest.raises(rs.SinkError, match=r"^the sink .* cannot be made: .*column names") as error:
        run(spaced, tmp_path / "ledger", tmp_path / "sink")
    assert "\n" not in str(error.value)
    outcome = run(spaced.withColumnRenamed("the word", "word"), tmp_path / "ledger", tmp_path / "sink")
    assert balance(outcome) == (3, 3, 0, 0)


def other(frame: rs.AnchoredFrame) -> DataFrame:
    spark = SparkSession.active()
    return spark.createDataFrame([], frame.schema)


def letters() -> Any:
    return F.explode(F.split("word", "")).alias("letter")


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda frame: frame.withColumn("all", F.struct("*")), id="withColumn"),
        pytest.param(lambda frame: frame.where(F.to_json(F.struct("*")) != ""), id="where"),
        pytest.param(lambda frame: frame.fail(F.lit(True), F.to_json(F.struct("*"))), id="fail"),
        pytest.param(lambda frame: frame.groupBy("word").agg(F.max(F.struct("*"))), id="agg"),
    ],
)
def test_a_star_never_takes_the_lineage_columns_along(rows: DataFrame, call: Call) -> None:
    """A star inside an expression is refused by every method, not by select alone."""
    with pytest.raises(rs.UsageError, match="star"):
        call(rows.anchored("id"))


def test_a_child_may_not_take_the_name_of_another_column(spark: SparkSession) -> None:
    """An alias of explode that a column has already is refused: the column would be gone."""
    frame = spark.createDataFrame([(1, ["a"])], "id long, words array<string>").anchored("id")
    with pytest.raises(rs.ColumnError, match="'id'"):
        frame.explode("words", "id")


def test_a_missing_id_column_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    """The nearest column is named; with that one the rows are answered."""
    with pytest.raises(rs.ColumnError) as error:
        rows.anchored("ide")
    refused(error)
    assert balance(run(rows.anchored("id"), tmp_path / "ledger")) == (3, 3, 0, 0)


def test_a_reserved_column_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    """A source column with the name of a lineage column is refused in any case; renamed, it passes."""
    taken = rows.withColumnRenamed("word", "_Anchor")
    with pytest.raises(rs.ColumnError) as error:
        taken.anchored("id")
    refused(error)
    assert balance(run(taken.withColumnRenamed("_Anchor", "word").anchored("id"), tmp_path / "ledger")) == (3, 3, 0, 0)


@pytest.mark.parametrize(
    "expression",
    ["interval '1' day", "interval '1' month", "make_interval(1)", "null", "named_struct('wait', interval '1' day)"],
)
def test_a_payload_that_the_ledger_cannot_store_is_refused(spark: SparkSession, expression: str) -> None:
    """Such a type would be noticed only when the first row dies; cast to text it passes."""
    frame = spark.sql(f"select 1L as id, {expression} as wait")
    with pytest.raises(rs.SchemaError) as error:
        frame.anchored("id")
    refused(error)
    assert frame.withColumn("wait", F.col("wait").cast("string")).anchored("id").columns == ["id", "wait"]


def test_a_variant_is_refused_or_dies_well(spark: SparkSession, tmp_path: Path) -> None:
    """A payload with a variant is refused at anchored, or its dead letters can be stored."""
    frame = spark.sql("select id, parse_json('1') as wait from range(2)")
    try:
        anchored = frame.anchored("id")
    except rs.SchemaError:
        return
    failing = anchored.fail("id = 1", "one", retry=False).select("id")
    assert balance(run(failing, tmp_path / "ledger")) == (2, 1, 1, 0)


def test_a_stream_given_to_run_is_refused(spark: SparkSession, rows: DataFrame, tmp_path: Path) -> None:
    """Nothing is made on disk; the static frame runs on the same ledger afterwards."""
    stream = spark.readStream.format("rate").load()
    with pytest.raises(rs.UsageError) as error:
        run(stream.anchored("value"), tmp_path / "ledger")
    refused(error)
    assert not (tmp_path / "ledger").exists()
    assert balance(run(rows.anchored("id"), tmp_path / "ledger")) == (3, 3, 0, 0)


# ----------------------------------------------------------------------------------- rows that are not as they should


def test_a_row_without_an_id_is_a_dead_letter(spark: SparkSession, tmp_path: Path) -> None:
    """All id columns null: dead at once with its payload; one of several null: an id like any other."""
    rows = spark.createDataFrame(
        [("a", None, 1), (None, "a", 2), (None, None, 3), (None, None, 4)], "p string, q string, n int"
    )
    outcome = run(rows.anchored(["p", "q"]), tmp_path / "ledger")
    assert balance(outcome) == (4, 2, 2, 0)
    letters = outcome.dead_letters().select("message_id", "attempts", "error_class", "error", "payload.*")
    found = letters.orderBy("n").collect()
    assert [(row["message_id"], row["attempts"], row["n"]) for row in found] == [(None, 1, 3), (None, 1, 4)]
    assert {f"{row['error_class']}: {row['error']}" for row in found} == {line_of("null_message_id")}
    mended = outcome.dead_letters().select("payload.*").withColumn("p", F.col("n").cast("string"))
    assert balance(run(mended.anchored(["p", "q"]), tmp_path / "ledger")) == (6, 4, 2, 0)


def line_of(error_class: str) -> str:
    return next(line for line in PAGE.splitlines() if line.startswith(f"{error_class}: "))


def test_rows_that_share_an_id_get_an_answer_each(spark: SparkSession, tmp_path: Path) -> None:
    """One of two equal ids fails: it alone is dead, the other is in the sink once, and the repeat is counted."""

    def picky(row: rs.TupleRow) -> rs.TupleRow:
        if row["word"] == "b":
            raise rs.Fail("no b", retry=False)
        return row

    rows = spark.createDataFrame([(1, "a"), (1, "b"), (2, "c")], SCHEMA)
    outcome = run(rows.anchored("id").bolt(picky, SCHEMA), tmp_path / "ledger", str(tmp_path / "sink"))
    assert balance(outcome) == (3, 2, 1, 0)
    assert words_in(spark, tmp_path / "sink") == ["a", "c"]
    assert [row["payload"]["word"] for row in outcome.dead_letters().collect()] == ["b"]
    assert batches(tmp_path / "ledger")[0]["duplicates"] == 1


def test_a_repeated_id_in_a_clean_batch_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Their ids cancel in the checksum on both sides: every row is acked and written."""
    rows = spark.createDataFrame([(1, "a"), (1, "b"), (1, "b")], SCHEMA)
    outcome = run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))
    assert balance(outcome) == (3, 3, 0, 0)
    assert words_in(spark, tmp_path / "sink") == ["a", "b", "b"]


def test_a_bolt_that_returns_the_wrong_thing_fails_its_rows(rows: DataFrame, tmp_path: Path) -> None:
    """Each row is a dead letter that says what was wrong; run again with a mended bolt, all of them are acked."""

    def wrong(row: rs.TupleRow) -> Any:
        return {"a": {"n": row["word"]}, "b": 42, "c": {"m": 1}}[row["word"]]

    outcome = run(rows.anchored("id").bolt(wrong, "n long"), tmp_path / "ledger", max_attempts=1)
    assert balance(outcome) == (3, 0, 3, 0)
    letters = outcome.dead_letters().orderBy("message_id").collect()
    said = [f"{letter['error_class']}: {letter['error']}" for letter in letters]
    assert [line for line in said if f"\n{line}\n" not in PAGE] == []
    assert len(set(said)) == 3
    again = outcome.dead_letters().select("payload.*").anchored("id")
    mended = run(again.bolt(lambda row: {"n": row["id"]}, "n long"), tmp_path / "ledger")
    assert balance(mended) == (6, 3, 3, 0)


def test_too_many_failures_stop_the_run(spark: SparkSession, tmp_path: Path) -> None:
    """A bolt that fails everything is no matter of bad rows: nothing is written, and mended it runs as if new."""
    rows = spark.range(200)

    def counted(wrong: bool) -> rs.AnchoredFrame:
        return rs.anchored(rows, "id").bolt(lambda row: 42 if wrong else {"word": "w"}, "word string")

    with pytest.raises(rs.TooManyFailures) as error:
        run(counted(wrong=True), tmp_path / "ledger", str(tmp_path / "sink"))
    refused(error)
    assert words_in(spark, tmp_path / "sink") == []
    assert balance(run(counted(wrong=False), tmp_path / "ledger", str(tmp_path / "sink"))) == (200, 200, 0, 0)
    assert len(words_in(spark, tmp_path / "sink")) == 200


@pytest.mark.parametrize("with_sink", [True, False], ids=["delta", "none"])
def test_an_expression_that_spark_cannot_evaluate_fails_its_rows(
    rows: DataFrame, tmp_path: Path, with_sink: bool
) -> None:
    """The error is Spark's own; the rows are dead letters, which the mended expression takes."""
    sink = str(tmp_path / "sink") if with_sink else None
    wrong = rows.anchored("id").withColumn("n", F.col("word").cast("int"))
    outcome = run(wrong, tmp_path / "ledger", sink, max_attempts=1)
    assert balance(outcome) == (3, 0, 3, 0)
    letter = outcome.dead_letters().orderBy("message_id").collect()[0]
    assert f"\n{letter['error_class']}: {letter['error']}\n" in PAGE
    again = outcome.dead_letters().select("payload.*").anchored("id")
    mended = again.withColumn("n", F.col("word").try_cast("int"))
    assert balance(run(mended, tmp_path / "ledger", sink)) == (6, 3, 3, 0)


# ------------------------------------------------------------------------------------------------------- the ledger


def test_a_ledger_that_cannot_be_made_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    """The table is named, and no sink is touched; a directory that can be written serves."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(rs.LedgerError) as error:
        run(rows.anchored("id"), tmp_path / "file", str(tmp_path / "sink"))
    refused(error, tmp_path)
    assert not (tmp_path / "sink").exists()
    assert balance(run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))) == (3, 3, 0, 0)


def test_a_ledger_that_breaks_while_it_is_written_settles_nothing(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    """The batch that could not be settled runs again under its own id, which keeps the sink from doubling."""
    log, aside = tmp_path / "ledger" / "batches" / "_delta_log", tmp_path / "aside"
    called: list[int] = []

    def write_and_break(frame: DataFrame, batch_id: int) -> None:
        options = {"txnAppId": "test", "txnVersion": str(batch_id)}
        frame.write.format("delta").mode("append").options(**options).save(str(tmp_path / "sink"))
        called.append(batch_id)
        if len(called) == 1:
            log.rename(aside)
            log.write_text("in the way")

    with pytest.raises(rs.LedgerError, match="cannot write the ledger table"):
        run(rows.anchored("id"), tmp_path / "ledger", write_and_break)
    log.unlink()
    aside.rename(log)
    assert balance(run(rows.anchored("id"), tmp_path / "ledger", write_and_break)) == (3, 3, 0, 0)
    assert called == [0, 0]
    assert words_in(spark, tmp_path / "sink") == ["a", "b", "c"]


def test_a_ledger_of_a_newer_version_is_left_alone(rows: DataFrame, tmp_path: Path) -> None:
    """It could be misread: nothing is read or written; another ledger serves."""
    identity = json.dumps({"ledger_version": LEDGER_VERSION + 1, "ledger_id": "x"})
    newer = DeltaTable.create(str(tmp_path / "ledger" / "batches"), BATCHES, description=identity)
    with pytest.raises(rs.LedgerError) as error:
        run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))
    refused(error, tmp_path)
    newer.update_incremental()
    assert newer.version() == 0
    assert not (tmp_path / "sink").exists()
    assert balance(run(rows.anchored("id"), tmp_path / "other", str(tmp_path / "sink"))) == (3, 3, 0, 0)


def test_a_table_that_is_no_ledger_is_left_alone(rows: DataFrame, tmp_path: Path) -> None:
    """Somebody else's Delta table at that place is not written to."""
    rows.write.format("delta").save(str(tmp_path / "ledger" / "batches"))
    with pytest.raises(rs.LedgerError) as error:
        run(rows.anchored("id"), tmp_path / "ledger")
    refused(error, tmp_path)
    assert not (tmp_path / "ledger" / "pending").exists()


def test_a_ledger_of_another_source_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    """One payload type per ledger: the other source needs its own, and the first goes on with this one."""
    assert balance(run(rows.anchored("id"), tmp_path / "ledger")) == (3, 3, 0, 0)
    with pytest.raises(rs.LedgerError) as error:
        run(rows.select("id").anchored("id"), tmp_path / "ledger")
    refused(error, tmp_path)
    assert balance(run(rows.anchored("id"), tmp_path / "ledger")) == (6, 6, 0, 0)


def test_a_ledger_without_a_settled_batch_takes_the_mended_source(rows: DataFrame, tmp_path: Path) -> None:
    """What a refused run has made of its ledger does not refuse the run that is right."""
    rows.write.format("delta").save(str(tmp_path / "sink"))
    with pytest.raises(rs.SinkError):
        run(rows.withColumnRenamed("word", "wort").anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))
    assert balance(run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))) == (3, 3, 0, 0)


# --------------------------------------------------------------------------------------------------------- the sink


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda frame: frame.withColumnRenamed("word", "wort"), id="column"),
        pytest.param(lambda frame: frame.withColumn("word", F.lit(1)), id="type"),
    ],
)
def test_rows_that_do_not_fit_the_sink_are_refused(
    spark: SparkSession,
    rows: DataFrame,
    tmp_path: Path,
    change: Callable[[rs.AnchoredFrame], rs.AnchoredFrame],
) -> None:
    """Said before anything runs; with columns that fit, the same ledger and sink serve."""
    sink = tmp_path / "sink"
    rows.limit(0).write.format("delta").save(str(sink))
    with pytest.raises(rs.SinkError) as error:
        run(change(rows.anchored("id")), tmp_path / "ledger", str(sink))
    refused(error, tmp_path)
    assert balance(run(rows.anchored("id"), tmp_path / "ledger", str(sink))) == (3, 3, 0, 0)
    assert words_in(spark, sink) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("table", "mend"),
    [
        pytest.param("id long, word string", "drop constraint few", id="check"),
        pytest.param("id long, word string, n int not null", "drop column n", id="not-null"),
    ],
)
def test_a_constraint_of_the_sink_refuses_the_batch(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, table: str, mend: str
) -> None:
    """Delta's constraint is enforced; nothing is settled or visible, and without it the run goes through."""
    sink = f"delta.`{tmp_path / 'sink'}`"
    spark.sql(f"create table {sink} ({table}) using delta tblproperties ('delta.columnMapping.mode' = 'name')")
    if "constraint" in mend:
        spark.sql(f"alter table {sink} add constraint few check (id < 3)")
    with pytest.raises(rs.SinkError) as error:
        run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))
    refused(error, tmp_path)
    assert words_in(spark, tmp_path / "sink") == []
    spark.sql(f"alter table {sink} {mend}")
    assert balance(run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))) == (3, 3, 0, 0)
    assert words_in(spark, tmp_path / "sink") == ["a", "b", "c"]


@pytest.mark.parametrize("given", [True, False], ids=["given", "left-to-the-table"])
def test_an_identity_column_of_the_sink_is_refused(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, given: bool
) -> None:
    """Its numbers are kept by Spark's own writer, so here they would repeat: refused before anything runs."""
    sink = str(tmp_path / "sink")
    spark.sql(f"create table delta.`{sink}` (no bigint generated always as identity, {SCHEMA}) using delta")
    frame = rows.withColumn("no", F.col("id")).anchored("id") if given else rows.anchored("id")
    with pytest.raises(rs.SinkError) as error:
        run(frame, tmp_path / "ledger", sink)
    refused(error, tmp_path)
    assert words_in(spark, tmp_path / "sink") == []


def test_a_sink_that_is_a_file_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    """The path is named, with the reason and not only that there is one."""
    (tmp_path / "sink").write_text("in the way")
    with pytest.raises(rs.SinkError) as error:
        run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))
    refused(error, tmp_path)


def test_a_sink_that_holds_other_files_is_refused(rows: DataFrame, tmp_path: Path) -> None:
    """A directory of somebody else's files does not become a Delta table, whose VACUUM would delete them."""
    rows.write.parquet(str(tmp_path / "sink"))
    with pytest.raises(rs.SinkError) as error:
        run(rows.anchored("id"), tmp_path / "ledger", str(tmp_path / "sink"))
    refused(error, tmp_path)


def test_a_sink_function_that_raises_is_called_again(rows: DataFrame, tmp_path: Path) -> None:
    """The batch is not settled; the next start calls the function with the same batch id and all rows."""
    seen: list[tuple[int, int]] = []

    def full_once(frame: DataFrame, batch_id: int) -> None:
        seen.append((batch_id, frame.count()))
        if len(seen) == 1:
            raise RuntimeError("disk full")

    with pytest.raises(rs.SinkError) as error:
        run(rows.anchored("id"), tmp_path / "ledger", full_once)
    refused(error)
    assert batches(tmp_path / "ledger") == []
    assert balance(run(rows.anchored("id"), tmp_path / "ledger", full_once)) == (3, 3, 0, 0)
    assert seen == [(0, 3), (0, 3)]
