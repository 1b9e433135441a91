"""The job with states that is killed: rows are divided, then counted by two bolts, one behind the other.

Run by spark-submit. Rows fail, die or are held before the states, in the first one, and in the second one, where the
first has counted them already and the other part of their tree may have gone through.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq

import reliable_spark as rs
from reliable_spark.state.serializers import JsonSerializer
from tests.crash.job import given, kill, run, source, split

IN_THE_BOLT = "in a bolt with a state"
IN_A_FILE = "in a change file"
BEHIND_A_FILE = "behind a change file"
IN_A_WORKER = (IN_THE_BOLT, IN_A_FILE, BEHIND_A_FILE)
"""Where a Python worker takes everything along: with a row counted, half of a file written, a file told to nobody."""

KEYS = 5
STATES = ("count", "mark")
LEAF = "id long, child int, value double"
SHARDS, OTHER_SHARDS = 2, 3

Leaf = Callable[[rs.TupleRow, Any], dict[str, Any]]


def count(row: rs.TupleRow, state: Any) -> dict[str, Any]:
    """Count the leaves of a key, and fail or hold some that are counted; draw a value for each."""
    n = state.get("n", 0) + 1
    state.put("n", n)
    number = (row["id"] * 7) % 100  # below 40 it has had its share in `split`
    if 40 <= number < 50 and row.attempt == 1:
        raise ValueError("try again")
    if 50 <= number < 55 and row.attempt == 1:
        return rs.HOLD  # type: ignore[return-value]
    return {**row, "value": random.random(), "n": n}


def mark(kill_from: int | None, place: str) -> Leaf:
    """A bolt that notes how often a leaf has come and with which value, and then fails one leaf of some trees.

    Args:
        kill_from: the process ends when a leaf of this row comes, or of a later one.
        place: and where.
    """

    def mark_leaf(row: rs.TupleRow, state: Any) -> dict[str, Any]:
        times, _ = state.get(row["child"], (0, None))
        state.put(row["child"], (times + 1, row["value"]))
        if kill_from is not None and row["id"] >= kill_from:
            end(place)
        number = (row["id"] * 7) % 100
        if 55 <= number < 65 and row["child"] and row.attempt == 1:
            raise ValueError("try again")
        if 65 <= number < 75 and row["child"]:
            raise rs.Fail("never", retry=False)
        return dict(row)

    return mark_leaf


def end(place: str) -> None:
    """End the process here, or let this worker end it when it writes its file."""
    if place == IN_THE_BOLT:
        kill()
    write = pq.write_table

    def write_and_die(rows: Any, path: str, *, filesystem: Any, **options: Any) -> None:
        write(rows, path, filesystem=filesystem, **options)
        if place == IN_A_FILE:
            with filesystem.open_input_stream(path) as file:
                content = file.read()
            with filesystem.open_output_stream(path) as file:
                file.write(content[: len(content) // 2])
        kill()

    pq.write_table = write_and_die  # what writes a change file


def main(arguments: list[str]) -> None:
    told = given(arguments)
    shards = OTHER_SHARDS if told.kill_at.startswith("divide") else SHARDS
    rs.session("crash").conf.set("spark.sql.shuffle.partitions", shards)
    kill_from = told.row if told.kill_at in IN_A_WORKER else None
    leaves = source(told).bolt(split(False, None), LEAF).selectExpr("*", f"(id + child) % {KEYS} AS k")
    counted = leaves.stateful(count, key="k", schema=f"{LEAF}, k long, n long")
    marker = mark(kill_from, told.kill_at)
    outcome = run(counted.stateful(marker, key="id", schema=f"{LEAF}, k long, n long", name="mark"), told)
    deserialize = JsonSerializer().deserialize
    states = {
        state: [
            (int(row["key"]), deserialize(row["name"].encode()), deserialize(row["value"].encode()))
            for row in rows.collect()
        ]
        for state in STATES
        for rows in [outcome.state(state)]
    }
    (told.directory / "states.json").write_text(json.dumps(states))
    print(outcome)


if __name__ == "__main__":
    main(sys.argv[1:])
