"""The job that is killed: a stream of rows through a bolt into a sink, with every kind of answer.

Run by spark-submit. The effect at which it kills itself, JVM and all, is one of those that the loop names in the
log `reliable_spark.effects`, or IN_THE_SINK.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame

import reliable_spark as rs
from reliable_spark.engine import loop

IN_THE_SINK = "in the sink write"
CHILDREN = 2


def kill() -> None:
    """End this process and the JVM that started it, now."""
    os.killpg(int(os.environ["KILLED_GROUP"]), signal.SIGKILL)


class KillAt(logging.Handler):
    """Kills where the loop says what it is about to do."""

    def __init__(self, effect: str) -> None:
        super().__init__()
        self.effect = effect

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == self.effect:
            kill()


def split(is_random: bool, kill_at_row: int | None) -> Callable[[rs.TupleRow], Iterator[dict[str, object]]]:
    """A bolt that makes two of a row, unless it fails, dies or is held."""

    def split_row(row: rs.TupleRow) -> object:
        if row["id"] == kill_at_row:
            kill()
        number = random.randrange(100) if is_random else (row["id"] * 7) % 100
        if number < 20 and row.attempt == 1:
            raise ValueError("try again")
        if 20 <= number < 30:
            raise rs.Fail("never", retry=False)
        if 30 <= number < 40 and row.attempt == 1:
            return rs.HOLD
        value = random.random() if is_random else 0.0
        return [{"id": row["id"], "child": child, "value": value} for child in range(CHILDREN)]

    return split_row  # type: ignore[return-value]


def write_files(directory: Path, delivery: str, dies: bool) -> Callable[[DataFrame, int, rs.Delivery], None]:
    """A sink function as docs/guarantees.md asks for: exactly once in effect, where the mode allows it."""

    def write(rows: DataFrame, batch_id: int, under: rs.Delivery) -> None:
        name = f"{batch_id}-{under.attempt}" if delivery == "at_least_once" else str(batch_id)
        target = directory / f"{name}.json"
        if target.exists():
            assert delivery == "exactly_once", f"batch {batch_id} is delivered twice"
            return
        part = directory / f"{name}.part"
        part.write_text(json.dumps([row.asDict() for row in rows.collect()]))
        if dies:
            kill()
        part.rename(target)

    return write


def given(arguments: list[str]) -> argparse.Namespace:
    """What the chain says; from here on this process dies where it is to die."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--sink", choices=["delta", "function"], required=True)
    parser.add_argument("--delivery", required=True)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--kill-at", default="")
    parser.add_argument("--row", type=int, default=-1)
    told = parser.parse_args(arguments)
    if told.kill_at:
        effects = logging.getLogger("reliable_spark.effects")
        effects.setLevel(logging.DEBUG)
        effects.addHandler(KillAt(told.kill_at))
        if told.kill_at.startswith("upkeep"):
            loop.UPKEEP_BATCHES = 1  # type: ignore[misc]
    return told


def source(told: argparse.Namespace) -> rs.AnchoredFrame:
    """The rows of the source."""
    rows = rs.session("crash").readStream.schema("id long").option("maxFilesPerTrigger", 1)
    return rs.anchored(rows.json(str(told.directory / "in")), "id")


def run(frame: rs.AnchoredFrame, told: argparse.Namespace) -> rs.Outcome:
    """Run the frame into the sink until nothing is pending."""
    out = told.directory / "out"
    out.mkdir(exist_ok=True)
    function = write_files(out, told.delivery, told.kill_at == IN_THE_SINK)
    settings = rs.Settings(
        delivery=told.delivery, backoff_initial_s=0.05, backoff_max_s=0.1, message_timeout_s=0.2, max_bad_ratio=1
    )
    query = frame.start(
        str(out / "table") if told.sink == "delta" else function,
        ledger=told.directory / "ledger",
        settings=settings,
        trigger="availableNow",
    )
    query.await_termination()
    return query.outcome()


def main(arguments: list[str]) -> None:
    told = given(arguments)
    row = told.row if told.kill_at == IN_THE_SINK and told.sink == "delta" else None
    print(run(source(told).bolt(split(told.random, row), "id long, child int, value double"), told))


if __name__ == "__main__":
    main(sys.argv[1:])
