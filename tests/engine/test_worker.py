"""Bolts over plain Arrow batches: every row that goes in comes out as children, dropped, failed or held."""

from __future__ import annotations

import asyncio
from datetime import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reliable_spark as rs
from reliable_spark.bolts import Bolt, kind_of
from reliable_spark.engine.columns import CHILD_COUNT, CHILD_INDEX, FAILURE, HELD, OVERFLOW
from reliable_spark.engine.worker import BoltTask

OUTPUT = pa.schema([("word", pa.string()), ("n", pa.int64())])


def batch_of(values: list[Any]) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "value": pa.array(values, pa.int64()),
            "_anchor": pa.array(range(100, 100 + count), pa.int64()),
            "_tuple_id": pa.array(range(200, 200 + count), pa.int64()),
            "_attempt": pa.array([1] * count, pa.int32()),
            "_message_id": [str(value) for value in values],
        }
    )


def task_of(function: Any, output: pa.Schema = OUTPUT, **options: Any) -> BoltTask:
    limit = options.pop("failure_bytes_max", None)
    return BoltTask(Bolt("bolt", function, kind_of(function), **options), output, limit)


def rows_of(task: BoltTask, values: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.Table.from_batches(task(iter([batch_of(values)]))).to_pylist()
    return rows


def failures_of(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["_anchor"] - 100: row[FAILURE] for row in rows if row[FAILURE]}


def test_a_dict_is_one_child_that_keeps_its_parents_lineage() -> None:
    """A row bolt that returns a dict gives one child with the lineage of its row."""
    (row,) = rows_of(task_of(lambda row: {"word": "a", "n": row["value"], "ignored": 1}), [7])
    assert row == {
        **{"word": "a", "n": 7, "_anchor": 100, "_tuple_id": 200, "_attempt": 1, "_message_id": "7"},
        **{CHILD_INDEX: 0, CHILD_COUNT: 1, FAILURE: None},
    }


def test_a_generator_gives_numbered_children() -> None:
    """Every item of a generator is a child, numbered within its parent."""

    def split(row: Any) -> Any:
        for number in range(row["value"]):
            yield {"word": str(number), "n": number}

    rows = rows_of(task_of(split), [2, 0, 3])
    assert [(row["_anchor"], row[CHILD_INDEX], row[CHILD_COUNT]) for row in rows] == [
        (100, 0, 2),
        (100, 1, 2),
        (102, 0, 3),
        (102, 1, 3),
        (102, 2, 3),
        (101, 0, 0),
    ]


def test_none_drops_the_row_without_a_failure() -> None:
    """A row for which the bolt returns None is there once, with no children and no failure."""
    (row,) = rows_of(task_of(lambda row: None), [1])
    assert (row[CHILD_COUNT], row[FAILURE], row["word"]) == (0, None, None)


def test_hold_leaves_the_row_without_an_answer() -> None:
    """A row for which the bolt returns HOLD is neither acked nor failed."""
    assert failures_of(rows_of(task_of(lambda row: rs.HOLD), [1]))[0]["error_class"] == HELD


def test_an_exception_fails_its_own_row_only() -> None:
    """One bad row of a batch fails; its class, message and traceback travel with it."""

    def pick(row: Any) -> Any:
        if row["value"] == 2:
            raise ValueError("two is bad")
        return {"word": "x", "n": 1}

    rows = rows_of(task_of(pick), [1, 2, 3])
    failure = failures_of(rows)[1]
    assert (failure["bolt"], failure["error_class"], failure["error"], failure["retry"]) == (
        "bolt",
        "ValueError",
        "two is bad",
        True,
    )
    assert "two is bad" in failure["traceback"]
    assert "engine/worker.py" not in failure["traceback"]
    assert sum(row[CHILD_COUNT] for row in rows) == 2


def test_an_exception_half_way_through_a_generator_leaves_no_children() -> None:
    """What a generator gave before it raised is not emitted."""

    def half(row: Any) -> Any:
        yield {"word": "x", "n": 1}
        raise RuntimeError("half way")

    (row,) = rows_of(task_of(half), [1])
    assert (row[CHILD_COUNT], row[FAILURE]["error"]) == (0, "half way")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (5, "returns a dict, an iterable of dicts or None, not int"),
        ("text", "returns a dict, an iterable of dicts or None, not str"),
        ([1], "yields dicts, not int"),
        ({"word": "a"}, "no value for column 'n'"),
        ({"word": "a", "n": "many"}, "column 'n' is declared as int64"),
        ({"word": 3, "n": 3}, "column 'word' is declared as string"),
        ({"word": "\ud800", "n": 3}, "column 'word' is declared as string"),
        ({"word": "a", "n": 2**70}, "column 'n' is declared as int64"),
    ],
)
def test_a_wrong_result_fails_the_row_and_says_what_was_expected(returned: Any, said: str) -> None:
    """A result that does not fit the declared columns fails its row, and the good rows go on."""
    rows = rows_of(task_of(lambda row: returned if row["value"] == 2 else {"word": "w", "n": 1}), [1, 2, 3])
    assert said in failures_of(rows)[1]["error"]
    assert [row["word"] for row in rows if row[CHILD_COUNT]] == ["w", "w"]


MORNING = datetime(2026, 1, 2, 5, 30)
CUT = [
    pytest.param(pa.int64(), 0.7, "0.7 would be cut to 0", id="float"),
    pytest.param(pa.int8(), Decimal("1.5"), "Decimal('1.5') would be cut to 1", id="decimal"),
    pytest.param(pa.int64(), np.float32(-1.5), "would be cut to -1", id="numpy"),
    pytest.param(pa.date32(), MORNING, "would be cut to 2026-01-02", id="time-of-day"),
    pytest.param(pa.int8(), 300, "column 'n' is declared as int8", id="out-of-range"),
    pytest.param(pa.int64(), True, "column 'n' is declared as int64", id="boolean"),
]
WHOLE = [
    pytest.param(pa.int64(), [2.0, None, 2**60 + 1, np.int32(7)], [2, None, 2**60 + 1, 7], id="integers"),
    pytest.param(pa.int32(), [Decimal(3), np.float64(4)], [3, 4], id="numbers"),
    pytest.param(pa.int32(), [None, None], [None, None], id="nulls"),
    pytest.param(pa.date32(), [MORNING.date(), datetime(2026, 1, 2), None], [MORNING.date()] * 2 + [None], id="dates"),
]


@pytest.mark.parametrize(("kind", "value", "said"), CUT)
def test_a_value_that_would_be_cut_fails_its_row(kind: pa.DataType, value: Any, said: str) -> None:
    """No fraction and no time of day is dropped without a word; the good rows go on."""
    good = MORNING.date() if pa.types.is_date(kind) else 1
    function = task_of(lambda row: {"n": value if row["value"] == 2 else good}, pa.schema([("n", kind)]))
    rows = rows_of(function, [1, 2, 3])
    assert {place: said in failure["error"] for place, failure in failures_of(rows).items()} == {1: True}
    assert [row["n"] for row in rows if row[CHILD_COUNT]] == [good, good]


@pytest.mark.parametrize(("kind", "values", "kept"), WHOLE)
def test_a_value_that_loses_nothing_is_taken(kind: pa.DataType, values: list[Any], kept: list[Any]) -> None:
    """An integral float is an integer, and midnight a date."""
    rows = rows_of(task_of(lambda row: {"n": values[row["value"]]}, pa.schema([("n", kind)])), [*range(len(values))])
    assert not failures_of(rows)
    assert [row["n"] for row in rows] == kept


def test_null_in_a_column_declared_not_null_fails_the_row() -> None:
    """NOT NULL in the declared schema is kept."""
    output = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    rows = rows_of(task_of(lambda row: {"n": None}, output), [1])
    assert "NOT NULL" in failures_of(rows)[0]["error"]


REQUIRED = pa.field("x", pa.int32(), nullable=False)
NESTED = [
    pytest.param(pa.list_(REQUIRED), [1], [1, None], "a[]", id="array"),
    pytest.param(pa.struct([REQUIRED]), {"x": 1}, {"x": None}, "a.x", id="struct"),
    pytest.param(pa.map_(pa.string(), REQUIRED), [("k", 1)], [("k", None)], "a.value", id="map"),
    pytest.param(pa.list_(pa.struct([REQUIRED])), [{"x": 1}, None], [{"x": None}], "a[].x", id="array-of-structs"),
    pytest.param(
        pa.map_(pa.string(), pa.list_(REQUIRED)),
        [("k", [1]), ("l", None)],
        [("k", [None])],
        "a.value[]",
        id="map-of-arrays",
    ),
]


@pytest.mark.parametrize(("kind", "good", "bad", "where"), NESTED)
@pytest.mark.parametrize("how", ["row", "arrow", "pandas"])
def test_null_in_a_nested_field_declared_not_null_fails_its_row(
    how: str, kind: pa.DataType, good: Any, bad: Any, where: str
) -> None:
    """Only the row with the null fails, by the name of the field; what comes out is nullable throughout, for Spark."""
    loose = pa.schema([("a", BoltTask(Bolt("", len, "row"), pa.schema([("a", kind)])).declared[0].type)])

    def answer(value: int) -> Any:
        return [good, None, bad, good][value]

    def by_row(row: Any) -> Any:
        return {"a": answer(row["value"])}

    def by_arrow(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = [good, *map(answer, batch["value"].to_pylist())]
        return pa.record_batch({"a": pa.array(values, loose.field("a").type)}).slice(1)

    def by_pandas(frame: Any) -> Any:
        return frame.assign(a=[answer(value) for value in frame["value"]])

    function = {"row": by_row, "arrow": rs.arrow(by_arrow), "pandas": rs.pandas(by_pandas)}[how]
    output = pa.schema([("a", kind)])
    made = pa.Table.from_batches(task_of(function, output)(iter([batch_of([0, 1, 2, 3])])))
    failures = failures_of(made.to_pylist())
    assert {place: failure["error"] for place, failure in failures.items()} == {
        2: f"column {where!r} is declared NOT NULL, but the bolt returned null"
    }
    assert made.schema.field("a").type == loose.field("a").type
    assert [row["a"] for row in made.to_pylist() if row[CHILD_COUNT]] == [good, None, good]


def test_fail_decides_about_the_retry_itself() -> None:
    """`Fail(retry=False)` is fatal, `Fail` alone is not, whatever the bolt was told."""

    def fail(row: Any) -> Any:
        raise rs.Fail("no", retry=row["value"] == 1)

    failures = failures_of(rows_of(task_of(fail, fatal=(rs.Fail,)), [1, 2]))
    assert (failures[0]["retry"], failures[1]["retry"]) == (True, False)


@pytest.mark.parametrize(
    ("options", "retry"),
    [({}, True), ({"fatal": (LookupError,)}, False), ({"retry": (OSError,)}, False), ({"retry": (KeyError,)}, True)],
)
def test_fatal_beats_retry_and_subclasses_count(options: dict[str, Any], retry: bool) -> None:
    """Exceptions are fatal or retried by class; what is in neither list is fatal."""

    def look(row: Any) -> Any:
        return dict(row)["missing"]

    assert failures_of(rows_of(task_of(look, **options), [1]))[0]["retry"] is retry


def test_attempt_and_message_id_are_visible() -> None:
    """A row knows which attempt it is, and the message id of its root."""
    (row,) = rows_of(task_of(lambda row: {"word": row.message_id, "n": row.attempt}), [42])
    assert (row["word"], row["n"]) == ("42", 1)


def test_hostile_errors_are_bounded_and_readable() -> None:
    """Errors with huge, broken or failing texts still make a failure of bounded, valid text."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def rage(row: Any) -> Any:
        raise (ValueError("x" * 10_000_000), ValueError("\ud800\x00"), Rude(), RecursionError("deep"), SystemExit(3))[
            row["value"]
        ]

    failures = failures_of(rows_of(task_of(rage), [0, 1, 2, 3, 4]))
    assert len(failures) == 5
    assert len(failures[0]["error"]) <= 2_001
    assert failures[1]["error"] == "\\ud800\\x00"
    assert "no text" in failures[2]["error"]
    assert failures[4]["error_class"] == "SystemExit"


@pytest.mark.parametrize("error", [asyncio.CancelledError("late"), SystemExit(3), BaseException("late")])
def test_whatever_a_bolt_raises_is_about_its_row(error: BaseException) -> None:
    """Exceptions that are no `Exception` fail their row like others: of row bolts, of values, of batch bolts."""

    class Lazy(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise error

    def by_row(row: Any) -> Any:
        if row["value"] == 1:
            raise error
        return Lazy() if row["value"] == 2 else {"word": "w", "n": 1}

    def by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        if {1, 2}.intersection(batch["value"].to_pylist()):
            raise error
        return same(batch)

    for function in (by_row, rs.arrow(by_batch)):
        failures = failures_of(rows_of(task_of(function), [0, 1, 2, 3]))
        assert {place: failure["error_class"] for place, failure in failures.items()} == dict.fromkeys(
            (1, 2), type(error).__name__
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("mark", [lambda function: function, rs.arrow])
def test_what_ends_the_task_is_about_no_row(error: type[BaseException], mark: Any) -> None:
    """An interrupt goes through, whatever kind of bolt it meets."""

    def interrupted(rows: Any) -> Any:
        raise error

    with pytest.raises(error):
        rows_of(task_of(mark(interrupted)), [1, 2])


def test_too_much_text_about_failures_is_marked_as_overflow() -> None:
    """Beyond the limit a failure carries no details, only that there was one."""

    def bad(row: Any) -> Any:
        raise ValueError("y" * 500)

    failures = failures_of(rows_of(task_of(bad, failure_bytes_max=2_000), [0, 1, 2, 3, 4, 5]))
    assert len(failures) == 6
    assert failures[5] == {"bolt": "bolt", "error_class": OVERFLOW, "error": "", "traceback": "", "retry": True}


PAIR = pa.struct([("x", pa.int64())])
UNREADABLE = [
    pytest.param(pa.array([0, 253402300800 * 10**6, 0], pa.timestamp("us", "UTC")), id="year-10000"),
    pytest.param(pa.array([0, -(10**6), 0], pa.int32()).cast(pa.date32()), id="before-year-1"),
    pytest.param(pa.array([[("k", 1)], [("k", 1), ("k", 2)], []], pa.map_(pa.string(), pa.int64())), id="key-twice"),
]


@pytest.mark.parametrize("values", UNREADABLE)
@pytest.mark.parametrize("takes_context", [True, False])
def test_a_row_that_python_cannot_represent_fails_alone(values: pa.Array, takes_context: bool) -> None:
    """A value that has no form in Python fails its row, by the names of bolt and column; the others are run."""
    seen = []

    def look(row: Any) -> Any:
        seen.append(row["value"])
        return {"word": row.message_id if takes_context else "w", "n": len(row)}

    batch = batch_of([1, 2, 3]).append_column("other", values)
    rows = pa.Table.from_batches(task_of(look)(iter([batch]))).to_pylist()
    failure = failures_of(rows)[1]
    assert (failure["bolt"], failure["error_class"]) == ("bolt", "ValueError")
    assert failure["error"].startswith("column 'other' holds what Python cannot represent: ")
    assert (seen, [row["n"] for row in rows if row[CHILD_COUNT]]) == ([1, 3], [2, 2])


def test_a_map_whose_keys_cannot_be_those_of_a_dict_is_a_list_of_pairs() -> None:
    """So are the maps beside it in the same column, but not those of other columns."""
    seen: list[Any] = []

    def look(row: Any) -> Any:
        seen.append((row["odd"], row["even"]))

    odd = pa.array([[({"x": 1}, 2)], None], pa.map_(PAIR, pa.int64()))
    even = pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    batch = batch_of([1, 2]).append_column("odd", odd).append_column("even", even)
    assert not failures_of(pa.Table.from_batches(task_of(look)(iter([batch]))).to_pylist())
    assert seen == [([({"x": 1}, 2)], {"k": 1}), (None, {})]


@rs.arrow
def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch["value"]
    if 13 in values.to_pylist():
        raise ValueError("13")
    return pa.RecordBatch.from_pydict({"word": values.cast(pa.string()), "n": values})


@rs.pandas
def repeated(frame: Any) -> Any:
    if (frame["value"] == 13).any():
        raise ValueError("13")
    taken = frame.loc[frame.index.repeat(frame["value"])]
    return taken.assign(word="w", n=taken["value"])


@given(st.lists(st.integers(0, 15), min_size=1, max_size=40))
def test_a_batch_bolt_fails_exactly_the_rows_that_it_raises_for(values: list[int]) -> None:
    """However the bad rows lie in a batch, halving finds all of them and no other."""
    rows = rows_of(task_of(same), values)
    assert set(failures_of(rows)) == {place for place, value in enumerate(values) if value == 13}
    good = sorted(row["_anchor"] - 100 for row in rows if row[CHILD_COUNT])
    assert good == [place for place, value in enumerate(values) if value != 13]


@given(st.lists(st.integers(0, 15), min_size=1, max_size=40))
def test_the_index_of_a_pandas_bolt_points_at_the_parent(values: list[int]) -> None:
    """An index value absent means dropped, repeated means several children, also after halving."""
    rows = rows_of(task_of(repeated), values)
    for place, value in enumerate(values):
        own = [row for row in rows if row["_anchor"] == 100 + place]
        if value == 13:
            assert own[0][FAILURE]["error"] == "13"
        else:
            assert [row[CHILD_INDEX] for row in own if row[CHILD_COUNT]] == list(range(value))
            assert [row["n"] for row in own] == [value or None] * max(value, 1)


@pytest.mark.parametrize(("values", "dtype"), [([2**60 + 1, None, -1], "Int64"), ([2**60 + 1, 2, -1], "int64")])
def test_a_pandas_bolt_gets_every_digit(values: list[int | None], dtype: str) -> None:
    """An integer among nulls is no float, whose neighbours it could not be told from."""

    @rs.pandas
    def look(frame: Any) -> Any:
        assert frame["value"].dtype == dtype
        return frame.assign(word="w", n=frame["value"] + 1)

    rows = rows_of(task_of(look), values)
    assert [row["n"] for row in rows] == [None if value is None else value + 1 for value in values]
    assert not failures_of(rows)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda batch: 5, "returns a RecordBatch or a Table, not int"),
        (lambda batch: pa.table({"word": ["a"]}), "no column 'n'"),
        (lambda batch: pa.table({"word": ["a"] * 2, "n": [1] * 2}), "needs a column '_parent'"),
        (lambda batch: pa.table({"word": ["a"], "n": [1], "_parent": [1]}), "outside 0..0"),
        (lambda batch: pa.table({"word": ["a"], "n": [1], "_parent": [0.5]}), "whole numbers"),
        (lambda batch: pa.table({"word": ["a"], "n": [1.5]}), "column 'n' is declared as int64"),
    ],
)
def test_a_wrong_batch_result_fails_its_rows(result: Any, said: str) -> None:
    """A batch function that returns something else fails the rows, with what was expected."""
    rows = rows_of(task_of(rs.arrow(result)), [1])
    assert said in failures_of(rows)[0]["error"]


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (rs.arrow(lambda batch: same(batch).slice(0, 2)), "returns 2 rows for 5 needs a column '_parent'"),
        (rs.pandas(lambda frame: repeated(frame).reset_index()), "outside 0..4"),
    ],
)
def test_an_answer_with_the_wrong_parents_fails_all_rows_of_the_batch(result: Any, said: str) -> None:
    """The batch is not cut down to where a part of it happens to fit."""
    failures = failures_of(rows_of(task_of(result), [1, 2, 3, 4, 5]))
    assert set(failures) == {0, 1, 2, 3, 4}
    assert all(said in failure["error"] and failure["error_class"] == "ShapeError" for failure in failures.values())


def test_wrong_parents_found_after_halving_fail_their_half() -> None:
    """A row that raises is parted from the others first; then each part is answered for by itself."""
    rows = rows_of(task_of(rs.arrow(lambda batch: same(batch).slice(0, 1))), [1, 13, 2, 3])
    assert {place: failure["error_class"] for place, failure in failures_of(rows).items()} == {
        **{1: "ValueError", 2: "ShapeError", 3: "ShapeError"}
    }


def test_parents_of_an_arrow_bolt_may_be_absent_and_repeated() -> None:
    """`_parent` says which row each row returned came from."""

    @rs.arrow
    def fan(batch: pa.RecordBatch) -> pa.Table:
        return pa.table({"word": ["a", "b", "c"], "n": [1, 2, 3], "_parent": [2, 0, 2]})

    rows = rows_of(task_of(fan), [1, 2, 3])
    assert {(row["_anchor"], row[CHILD_INDEX], row[CHILD_COUNT], row["word"]) for row in rows} == {
        (102, 0, 2, "a"),
        (100, 0, 1, "b"),
        (102, 1, 2, "c"),
        (101, 0, 0, None),
    }


def test_a_batch_bolt_with_a_second_parameter_gets_ids_and_attempts() -> None:
    """The context holds the message ids and attempts of the very rows in hand, also after halving."""

    @rs.arrow
    def look(batch: pa.RecordBatch, context: rs.BatchContext) -> pa.RecordBatch:
        if batch.num_rows > 1:
            raise ValueError("one at a time")
        return pa.RecordBatch.from_pydict({"word": context.message_ids, "n": context.attempts})

    rows = rows_of(task_of(look), [5, 6, 7])
    assert [(row["word"], row["n"]) for row in rows] == [("5", 1), ("6", 1), ("7", 1)]
