"""What the cluster tests submit: a run that waits at known rows until the test lets it go on."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import reliable_spark as rs

GATE_WITHIN_S = 240.0
POLL_S = 0.05
FEW = 100

PassGate = Callable[[int], None]


def gate_in(directory: Path, gated: list[int]) -> PassGate:
    """Make the function that says which process has come to a gated row, and waits until the test opens."""

    def pass_gate(row: int) -> None:
        if row not in gated:
            return
        (directory / f"arrived-{row}-{os.getpid()}").touch()
        deadline = time.monotonic() + GATE_WITHIN_S
        while not (directory / "go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError("nobody opened the gate")
            time.sleep(POLL_S)

    return pass_gate


def through_gate(name: str, pass_gate: PassGate) -> Column:
    """The column as it is, once it has passed."""

    def same(value: int) -> int:
        pass_gate(value)
        return value

    return F.udf(same, "long", useArrow=False)(name)


def through_a_bolt(rows: DataFrame, pass_gate: PassGate) -> rs.AnchoredFrame:
    """A narrow stage: a bolt that fails for every hundredth row once, and for every thousandth for good."""

    def double(row: rs.TupleRow) -> dict[str, Any]:
        pass_gate(row["id"])
        if row["id"] % 1000 == 13:
            raise rs.Fail("never", retry=False)
        if row["id"] % 100 == 7 and row.attempt == 1:
            raise ConnectionError("not now")
        return {"id": row["id"], "doubled": 2 * row["id"]}

    return rs.anchored(rows, "id").bolt(double, "id long, doubled long")


def through_a_transform(rows: DataFrame, pass_gate: PassGate) -> rs.AnchoredFrame:
    """The same bolt above a function of the user's, for which all rows are materialised before the bolt waits."""
    return through_a_bolt(rows, pass_gate).transform(lambda frame: frame)


def through_a_filter(rows: DataFrame, pass_gate: PassGate) -> rs.AnchoredFrame:
    """A map stage that waits, and from which only the first few rows get into the shuffle."""
    few = rs.anchored(rows, "id").withColumn("passed", through_gate("id", pass_gate)).where(f"passed < {FEW}")
    return few.groupBy("passed").count()


def through_a_shuffle(rows: DataFrame, pass_gate: PassGate) -> rs.AnchoredFrame:
    """A map stage that explodes, and a reduce stage that waits: it starts when the map stage is done."""
    grouped = rs.anchored(rows, "id").explode("elements", "element").groupBy("element")
    counted = grouped.agg(F.count(F.lit(1)).alias("count"), F.sum("id").alias("ids"))
    return counted.withColumn("element", through_gate("element", pass_gate))


CASES = {
    "bolt": through_a_bolt,
    "transform": through_a_transform,
    "filter": through_a_filter,
    "shuffle": through_a_shuffle,
}


def main() -> int:
    """Run the case; 0 when the ledger balances with nothing pending."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", type=Path, required=True, help="directory for the sink and the ledger")
    parser.add_argument("--gate", type=Path, required=True, help="directory in which to say that a row is reached")
    parser.add_argument("--gate-at", type=int, action="append", required=True, help="a row's id, or a group")
    arguments = parser.parse_args()
    spark = rs.session(f"cluster test: {arguments.case}")
    rows = spark.read.parquet(arguments.input)
    frame = CASES[arguments.case](rows, gate_in(arguments.gate, arguments.gate_at))
    outcome = frame.run(arguments.output / "sink", ledger=arguments.output / "ledger")
    print(outcome)
    return 0 if outcome.balanced and not outcome.pending else 1


if __name__ == "__main__":
    sys.exit(main())
