"""The delivery modes: what reaches a sink of trees that fail in part, with bolts that never do the same twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from reliable_spark.ledger.audit import audit

ROWS = 40


def words(row: rs.TupleRow) -> Iterator[dict[str, Any]]:
    """Three children; on its first attempt every fourth row fails at the last of them."""
    return iter([{"id": row["id"], "word": f"{row['id']} {number}", "attempt": row.attempt} for number in range(3)])


def fail_some(row: rs.TupleRow) -> dict[str, Any]:
    if row["id"] % 4 == 0 and row["word"].endswith("2") and row.attempt == 1:
        raise ConnectionError("at the first attempt")
    if row["id"] % 10 == 9 and row["word"].endswith("2"):
        raise rs.Fail("never", retry=False)
    return dict(row)


SCHEMA = "id long, word string, attempt int"


def tree(spark: SparkSession) -> rs.AnchoredFrame:
    return rs.anchored(spark.range(ROWS), "id").bolt(words, SCHEMA).bolt(fail_some, SCHEMA)


def settings(delivery: str) -> rs.Settings:
    return rs.Settings(delivery=delivery)


DEAD = {n for n in range(ROWS) if n % 10 == 9}
FLAKY = {n for n in range(ROWS) if n % 4 == 0}
WHOLE = Counter({f"{n} {number}": 1 for n in set(range(ROWS)) - DEAD for number in range(3)})


@pytest.mark.parametrize("sink", ["delta", "function"])
def test_exactly_once_gives_whole_trees_only(spark: SparkSession, tmp_path: Path, sink: str) -> None:
    """Of a tree that fails in part nothing is in the sink, and of one that is acked everything, once."""
    given: list[Any] = []
    target: Any = str(tmp_path / "sink") if sink == "delta" else lambda rows, batch_id: given.extend(rows.collect())
    ledger = str(tmp_path / "ledger")
    outcome = tree(spark).run(target, ledger=ledger, settings=settings("exactly_once"), clock=rs.ManualClock())
    rows = spark.read.format("delta").load(target).collect() if sink == "delta" else given
    assert Counter(row["word"] for row in rows) == WHOLE
    assert (outcome.acked, outcome.dead, outcome.emitted) == (ROWS - len(DEAD), len(DEAD), len(rows))
    assert audit(ledger).balanced
    assert not list((tmp_path / "ledger").glob("staged/*"))


def test_at_least_once_gives_the_parts_of_failed_attempts_too(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of an acked tree is missing; what a failed attempt had emitted stays."""
    sink = str(tmp_path / "sink")
    outcome = tree(spark).run(sink, ledger=tmp_path / "ledger", clock=rs.ManualClock())
    written = Counter(row["word"] for row in spark.read.format("delta").load(sink).collect())
    assert set(WHOLE) <= set(written)
    assert written[f"{min(FLAKY)} 0"] == 2
    assert outcome.replayed == len(FLAKY)


def test_at_most_once_tries_nothing_again(spark: SparkSession, tmp_path: Path) -> None:
    """What fails is dead at once, whatever `max_attempts` says, and no row is in the sink twice."""
    sink = str(tmp_path / "sink")
    outcome = tree(spark).run(sink, ledger=tmp_path / "ledger", settings=settings("at_most_once"))
    written = Counter(row["word"] for row in spark.read.format("delta").load(sink).collect())
    assert (outcome.replayed, outcome.dead) == (0, len(FLAKY | DEAD))
    assert max(written.values()) == 1


def test_exactly_once_leaves_out_what_a_group_cannot_keep(spark: SparkSession, tmp_path: Path) -> None:
    """A row of which one group fails is in no other group either."""
    lines = spark.createDataFrame([(1, "a b"), (2, "a c"), (3, "c")], "id long, line string")
    frame = (
        rs.anchored(lines, "id")
        .explode(F.split("line", " "), "word")
        .groupBy("word")
        .agg(F.count("*").alias("n"))
        .fail("word = 'b'", "no b", retry=False)
    )
    rows: list[Any] = []
    outcome = frame.run(
        lambda given, batch_id: rows.extend(given.collect()),
        ledger=tmp_path / "ledger",
        settings=settings("exactly_once"),
        clock=rs.ManualClock(),
    )
    assert {row["word"]: row["n"] for row in rows} == {"a": 1, "c": 2}
    assert (outcome.acked, outcome.dead) == (2, 1)


def test_a_sink_function_is_told_under_which_id_it_is_called(spark: SparkSession, tmp_path: Path) -> None:
    """The third argument names query, batch and attempt; a second call after an error is another attempt."""
    calls: list[rs.Delivery] = []

    def sink(rows: DataFrame, batch_id: int, delivery: rs.Delivery) -> None:
        assert batch_id == delivery.batch_id
        calls.append(delivery)
        if len(calls) == 1:
            raise ConnectionError("the store is away")

    frame = spark.range(3).anchored("id")
    for mode, places in (("at_least_once", "a"), ("exactly_once", "b")):
        calls.clear()
        with pytest.raises(rs.SinkError, match="the store is away"):
            frame.run(sink, ledger=tmp_path / places, settings=settings(mode))
        assert frame.run(sink, ledger=tmp_path / places, settings=settings(mode)).acked == 3
        assert [(call.batch_id, call.attempt) for call in calls] == [(0, 1), (0, 2)]
        assert len({call.query_id for call in calls}) == 1


def test_at_most_once_does_not_call_a_function_again(spark: SparkSession, tmp_path: Path) -> None:
    """After an error in the function the batch is settled, and its rows are not written again."""
    calls: list[int] = []

    def sink(rows: DataFrame, batch_id: int) -> None:
        calls.append(batch_id)
        raise ConnectionError("the store is away")

    frame, mode = spark.range(3).anchored("id"), settings("at_most_once")
    with pytest.raises(rs.SinkError, match="is settled and its rows are not written again"):
        frame.run(sink, ledger=tmp_path / "ledger", settings=mode)
    assert frame.run(sink, ledger=tmp_path / "ledger", settings=mode).acked == 3
    assert calls == [0]


def by_dice(row: rs.TupleRow) -> dict[str, Any] | None:
    """Another answer at each call: by chance, by the time, by a service that is away now and then."""
    if random.random() < 0.4:
        raise ConnectionError("away")
    if time.time_ns() % 7 == 0:
        return None
    return {"id": row["id"], "value": random.random()}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_bolts_that_never_do_the_same_twice_are_settled_as_they_were_written(
    spark: SparkSession, tmp_path: Path, delivery: str
) -> None:
    """The verdict is that of the very evaluation which wrote the sink: the numbers fit to the row."""
    sink = str(tmp_path / "sink")
    frame = rs.anchored(spark.range(500).repartition(4), "id").bolt(by_dice, "id long, value double")
    mode = rs.Settings(delivery=delivery, max_bad_ratio=1)
    outcome = frame.run(sink, ledger=tmp_path / "ledger", settings=mode, clock=rs.ManualClock())
    ids = [row["id"] for row in spark.read.format("delta").load(sink).collect()]
    dead = {int(row["message_id"]) for row in outcome.dead_letters().collect()}
    assert len(ids) == len(set(ids)) == outcome.emitted
    assert not dead & set(ids)
    assert (outcome.balanced, outcome.lost) == (True, 0)
    assert 0 < outcome.dead < 100  # 32 are expected; none of 500 by chance once in 10^14 runs


def test_a_source_that_reads_differently_each_time_is_materialised(spark: SparkSession, tmp_path: Path) -> None:
    """When the second read gives other rows than were evaluated, nothing of both is settled."""
    counter = tmp_path / "reads"

    def drifting(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            with counter.open("a") as file:
                file.write(".")
            yield batch.slice(0, batch.num_rows - len(counter.read_text()) % 5)

    drifting_rows = spark.range(0, 40, 1, 1).mapInArrow(drifting, "id long")
    frame = rs.anchored(drifting_rows, "id").fail("id = 3", "three", retry=False)
    sink = str(tmp_path / "sink")
    outcome = frame.run(sink, ledger=tmp_path / "ledger", clock=rs.ManualClock())
    written = spark.read.format("delta").load(sink).count()
    assert len(counter.read_text()) > 2
    assert (outcome.anchored, outcome.dead) == (written + 1, 1)
    assert spark.read.format("delta").load(f"{tmp_path}/ledger/batches").where("checksum_ok").count() == 0


def test_a_sink_function_gets_a_batch_that_had_to_be_traced_once(spark: SparkSession, tmp_path: Path) -> None:
    """A row without an id shares its tree with nobody: nothing was staged that could be thrown away."""
    rows: list[str] = []

    def sink(frame: DataFrame, batch_id: int) -> None:
        rows.extend(row["v"] for row in frame.collect())

    frame = spark.createDataFrame([(1, "a"), (None, "b"), (2, "c")], "id int, v string").anchored("id")
    outcome = frame.bolt(lambda row: {"v": row["v"]}, "v string").run(
        sink, ledger=str(tmp_path / "ledger"), settings=settings("exactly_once")
    )
    assert sorted(rows) == ["a", "c"]
    assert (outcome.anchored, outcome.acked, outcome.dead) == (3, 2, 1)


def test_a_sink_may_be_a_uri(spark: SparkSession, tmp_path: Path) -> None:
    """However many slashes it has, it is the same table."""
    place = tmp_path / "sink"
    for sink in (place.as_uri(), f"file:{place}"):
        spark.range(3).anchored("id").run(sink, ledger=tmp_path / "ledger")
    assert spark.read.format("delta").load(str(place)).count() == 6
