"""Where rows leave a frame before its end: dropped, failed, acked early. Two ways to account for them.

`ObservedExits` counts them inside the one job that evaluates the frame: an observation of their XOR, and of
the failures themselves, sits just below the filter that removes them. `TracedExits` keeps them row by row in
a materialised frame, for the batches of which every single tree has to be folded.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from reliable_spark.engine.columns import ANCHOR, FAILURE, TUPLE_ID
from reliable_spark.engine.lineage import FAILURE_TYPE, column

OBSERVATION_WAIT_S: Final = 60.0
_GONE: Final = "__rs_gone"
_WHY: Final = "__rs_why"


class Exits(Protocol):
    """Removes rows from a frame and accounts for them."""

    def leave(self, frame: DataFrame, gone: Column, failure: Column | None, level: int) -> DataFrame:
        """Remove the rows for which `gone` is true.

        Args:
            frame: a frame with lineage columns.
            gone: a boolean over its columns, never null.
            failure: why, as a FAILURE_TYPE struct; null (or None) where the row is simply done.
            level: how many aggregates the rows have passed.
        """
        ...

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Account for all rows as done, but let them go on."""
        ...


class PlainExits:
    """Removes the rows and accounts for nothing: for definition-time checks and for untracked runs."""

    def leave(self, frame: DataFrame, gone: Column, failure: Column | None, level: int) -> DataFrame:
        """Remove the rows for which `gone` is true."""
        return frame.where(~gone)

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Let all rows go on."""
        return frame


@dataclass(frozen=True)
class Failed:
    """A failed tuple, as the driver hears of it."""

    anchor: int | None
    tuple_id: int
    level: int
    failure: dict[str, Any]


@dataclass
class Observed:
    """What the observations of one evaluation add up to.

    Attributes:
        roots: rows that came in.
        roots_xor: XOR of their ids.
        emitted: rows that reached the end.
        xor: XOR of all root ids and of the shares of all rows that left: 0 when nothing is missing.
        failures: the tuples that failed or were held.
        complete: False when an observation did not report, or without values.
    """

    roots: int = 0
    roots_xor: int = 0
    emitted: int = 0
    xor: int = 0
    failures: list[Failed] = field(default_factory=list)
    complete: bool = True


class ObservedExits:
    """Accounts for rows inside the very job that evaluates the frame; read it with `observed` afterwards."""

    def __init__(self) -> None:
        self._observations: list[tuple[str, int, Observation]] = []

    def leave(self, frame: DataFrame, gone: Column, failure: Column | None, level: int) -> DataFrame:
        """Remove the rows for which `gone` is true, and observe the XOR of their shares and their failures."""
        metrics = [F.bit_xor(F.when(gone, column(TUPLE_ID))).alias("xor")]
        if failure is not None:
            failed = gone & failure.isNotNull()
            ids = (column(ANCHOR).alias("anchor"), column(TUPLE_ID).alias("tuple_id"))
            record = F.to_json(F.struct(*ids, failure.alias("failure")))
            metrics.append(F.listagg(F.when(failed, record), F.lit("\n")).alias("failures"))
        return self._observe("exit", level, frame, metrics).where(~gone)

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Observe the XOR of all rows, which go on without being tracked."""
        return self._observe("exit", level, frame, [F.bit_xor(column(TUPLE_ID)).alias("xor")])

    def roots(self, frame: DataFrame) -> DataFrame:
        """Observe the rows that come in."""
        metrics = [F.count(F.lit(1)).alias("rows"), F.bit_xor(column(TUPLE_ID)).alias("xor")]
        return self._observe("roots", 0, frame, metrics)

    def leaves(self, frame: DataFrame) -> DataFrame:
        """Observe the rows that reach the end."""
        metrics = [F.count(F.lit(1)).alias("rows"), F.bit_xor(column(TUPLE_ID)).alias("xor")]
        return self._observe("leaves", 0, frame, metrics)

    def _observe(self, kind: str, level: int, frame: DataFrame, metrics: list[Column]) -> DataFrame:
        observation = Observation()
        self._observations.append((kind, level, observation))
        return frame.observe(observation, *metrics)

    def observed(self) -> Observed:
        """Add the observations up, after the one action that evaluated the frame."""
        result = Observed()
        deadline = time.monotonic() + OBSERVATION_WAIT_S
        for kind, level, observation in self._observations:
            metrics = observed_values(observation, deadline)
            if metrics is None:
                return Observed(complete=False)
            result.xor ^= metrics.get("xor") or 0
            if kind == "roots":
                result.roots += metrics.get("rows") or 0
                result.roots_xor ^= metrics.get("xor") or 0
            elif kind == "leaves":
                result.emitted += metrics.get("rows") or 0
            for line in filter(None, (metrics.get("failures") or "").split("\n")):
                record = json.loads(line)
                result.failures.append(
                    Failed(record.get("anchor"), record.get("tuple_id", 0), level, record["failure"])
                )
        return result


def observed_values(observation: Observation, deadline: float) -> dict[str, Any] | None:
    """Read an observation, but never wait for ever: one whose job never ran would not report.

    Args:
        observation: of a frame on which an action has ended.
        deadline: on the monotonic clock.

    Returns:
        None when it did not report, or was cut out of the plan.
    """
    future = observation._jo.future()  # type: ignore[union-attr]
    while not future.isCompleted():
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)
    # a part of the plan that adaptive execution proves empty takes its observations along, although rows went in
    is_there = observation._jo.getRow().length() > 0  # type: ignore[union-attr]
    return observation.get if is_there else None


@dataclass
class TracedExits:
    """Materialises the frame wherever rows leave it, so that each of them can be told apart later.

    Attributes:
        gone: frames of (_anchor, _tuple_id, _failure) of the rows that left.
    """

    gone: list[DataFrame] = field(default_factory=list)

    def leave(self, frame: DataFrame, gone: Column, failure: Column | None, level: int) -> DataFrame:
        """Remove the rows for which `gone` is true, and keep their lineage."""
        reason = F.lit(None).cast(FAILURE_TYPE) if failure is None else failure.cast(FAILURE_TYPE)
        # evaluated once: both the rows that go and the rows that stay are read from this
        fixed = frame.withColumn(_GONE, gone).withColumn(_WHY, reason).localCheckpoint(eager=True)
        left = fixed.where(column(_GONE)).select(ANCHOR, TUPLE_ID, column(_WHY).alias(FAILURE))
        self.gone.append(left)
        return fixed.where(~column(_GONE)).drop(_GONE, _WHY)

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Keep the lineage of all rows, which go on without being tracked."""
        fixed = frame.localCheckpoint(eager=True)
        self.gone.append(fixed.select(ANCHOR, TUPLE_ID, F.lit(None).cast(FAILURE_TYPE).alias(FAILURE)))
        return fixed
