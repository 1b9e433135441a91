"""Where rows leave a frame before its end: dropped, failed, acked early. Two ways to account for them.

`ObservedExits` counts them inside the one job that evaluates the frame: an observation of their XOR, and of
the failures themselves, sits just below the filter that removes them. `TracedExits` keeps them row by row in
a materialised frame, for the batches of which every single tree has to be folded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from reliable_spark.engine.columns import ANCHOR, FAILURE, TUPLE_ID
from reliable_spark.engine.lineage import FAILURE_TYPE, literal

OBSERVATION_WAIT_S: Final = 60.0
_GONE: Final = "__rs_gone"
_LINE: Final = "\n"
_WHY: Final = "__rs_why"


@dataclass(frozen=True)
class Leaving:
    """Which rows of a frame with lineage columns leave it, and why.

    Attributes:
        gone: a boolean over the frame's columns as SQL, never null.
        failure: why, as SQL that gives a FAILURE_TYPE struct; null (or None) where the row is simply done.
        level: how many aggregates the rows have passed.
        drop: the columns that the rows that stay have no more use for.
    """

    gone: str
    failure: str | None = None
    level: int = 0
    drop: Sequence[str] = ()

    def stay(self, frame: DataFrame) -> DataFrame:
        """The rows that stay."""
        staying = frame.where(f"NOT ({self.gone})")
        return staying.drop(*self.drop) if self.drop else staying


class Exits(Protocol):
    """Removes rows from a frame and accounts for them."""

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave, and account for them."""
        ...

    def skips_rare(self) -> bool:
        """Tell whether rows that hardly any batch has may be removed without accounting for them."""
        ...

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Account for all rows as done, but let them go on."""
        ...


class PlainExits:
    """Removes the rows and accounts for nothing: for definition-time checks and for untracked runs."""

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave."""
        return leaving.stay(frame)

    def skips_rare(self) -> bool:
        """Nothing is accounted for anyway, so no shorter way is needed."""
        return False

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
        complete: False when an observation did not report, or without values, or rows were left out on purpose.
    """

    roots: int = 0
    roots_xor: int = 0
    emitted: int = 0
    xor: int = 0
    failures: list[Failed] = field(default_factory=list)
    complete: bool = True


class ObservedExits:
    """Accounts for rows inside the very job that evaluates the frame; read it with `observed` afterwards.

    An observation interprets its expressions row by row and cuts the generated code in two, so there are as few as
    possible.

    Args:
        counts_rare: account for exits that are rare too. Without, such a row is missing from the checksum, which is
            then not 0: nothing is proved by mistake.
    """

    def __init__(self, counts_rare: bool = True) -> None:
        self._counts_rare = counts_rare
        self._observations: list[tuple[str, int, Observation]] = []
        self._last_exit: tuple[DataFrame, DataFrame, Leaving] | None = None
        self.has_skipped = False

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave, and observe the XOR of their shares and their failures."""
        metrics = [f"bit_xor(CASE WHEN {leaving.gone} THEN {TUPLE_ID} END) AS xor", *_failures(leaving)]
        stayed = leaving.stay(self._observe("exit", leaving.level, frame, metrics))
        self._last_exit = (stayed, frame, leaving)
        return stayed

    def skips_rare(self) -> bool:
        """Tell whether such rows are left out of the checksum, and remember that some may have been."""
        self.has_skipped = self.has_skipped or not self._counts_rare
        return not self._counts_rare

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Observe the XOR of all rows, which go on without being tracked."""
        return self._observe("exit", level, frame, [f"bit_xor({TUPLE_ID}) AS xor"])

    def roots(self, frame: DataFrame, without_id: str | None = None) -> DataFrame:
        """Observe the rows that come in, and whether some have no message id: these are all alike, so they cancel."""
        metrics = ["count(1) AS rows", f"bit_xor({TUPLE_ID}) AS xor"]
        if without_id is not None and not self._counts_rare:
            metrics.append(f"count_if({without_id}) AS skipped")
        return self._observe("roots", 0, frame, metrics)

    def leaves(self, frame: DataFrame) -> DataFrame:
        """Observe the rows that reach the end; together with the last exit when that is right before it."""
        if self._last_exit is None or self._last_exit[0] is not frame:
            return self._observe("leaves", 0, frame, ["count(1) AS rows", f"bit_xor({TUPLE_ID}) AS xor"])
        _, before, leaving = self._last_exit
        self._observations.pop()
        metrics = [f"count_if(NOT ({leaving.gone})) AS rows", f"bit_xor({TUPLE_ID}) AS xor", *_failures(leaving)]
        return leaving.stay(self._observe("leaves", leaving.level, before, metrics))

    def _observe(self, kind: str, level: int, frame: DataFrame, metrics: list[str]) -> DataFrame:
        observation = Observation()
        self._observations.append((kind, level, observation))
        return frame.observe(observation, *map(F.expr, metrics))

    def observed(self) -> Observed:
        """Add the observations up, after the one action that evaluated the frame."""
        result = Observed()
        deadline = time.monotonic() + OBSERVATION_WAIT_S
        for kind, level, observation in self._observations:
            metrics = observed_values(observation, deadline)
            if metrics is None:
                return Observed(complete=False)
            result.xor ^= metrics.get("xor") or 0
            result.complete = result.complete and not metrics.get("skipped")
            if kind == "roots":
                result.roots += metrics.get("rows") or 0
                result.roots_xor ^= metrics.get("xor") or 0
            elif kind == "leaves":
                result.emitted += metrics.get("rows") or 0
            for line in filter(None, (metrics.get("failures") or "").split(_LINE)):
                record = json.loads(line)
                result.failures.append(
                    Failed(record.get("anchor"), record.get("tuple_id", 0), level, record["failure"])
                )
        return result


def _failures(leaving: Leaving) -> list[str]:
    """The failures of the rows that leave, as one text with a line for each."""
    if leaving.failure is None:
        return []
    failed = f"({leaving.gone}) AND ({leaving.failure}) IS NOT NULL"
    ids = f"'anchor', {ANCHOR}, 'tuple_id', {TUPLE_ID}"
    record = f"to_json(named_struct({ids}, 'failure', {leaving.failure}))"
    return [f"listagg(CASE WHEN {failed} THEN {record} END, {literal(_LINE)}) AS failures"]


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

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave, and keep their lineage."""
        why = f"CAST({leaving.failure or 'NULL'} AS {FAILURE_TYPE.simpleString()})"
        # evaluated once: both the rows that go and the rows that stay are read from this
        marked = frame.selectExpr("*", f"{leaving.gone} AS {_GONE}", f"{why} AS {_WHY}")
        fixed = marked.localCheckpoint(eager=True)
        self.gone.append(fixed.where(_GONE).selectExpr(ANCHOR, TUPLE_ID, f"{_WHY} AS {FAILURE}"))
        return fixed.where(f"NOT {_GONE}").drop(_GONE, _WHY, *leaving.drop)

    def skips_rare(self) -> bool:
        """Every row is accounted for."""
        return False

    def note(self, frame: DataFrame, level: int) -> DataFrame:
        """Keep the lineage of all rows, which go on without being tracked."""
        fixed = frame.localCheckpoint(eager=True)
        self.gone.append(fixed.select(ANCHOR, TUPLE_ID, F.lit(None).cast(FAILURE_TYPE).alias(FAILURE)))
        return fixed
