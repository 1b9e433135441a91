"""Account for the rows that leave inside the one job that evaluates a frame: by observations, and by its workers."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from reliable_spark.engine.bolt_run import BoltRun, WorkerReports
from reliable_spark.engine.columns import ANCHOR, TUPLE_ID
from reliable_spark.engine.exits import Leaving
from reliable_spark.engine.lineage import literal
from reliable_spark.engine.reports import Task

OBSERVATION_WAIT_S: Final = 60.0
_LINE: Final = "\n"


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
        reports: what tasks have told.
        complete: False when an observation did not report, or without values, or rows were left out on purpose.
        tasks: for each bolt whose workers counted roots, the tasks that have told so.
    """

    roots: int = 0
    roots_xor: int = 0
    emitted: int = 0
    xor: int = 0
    failures: list[Failed] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)
    complete: bool = True
    tasks: list[Counter[Task]] = field(default_factory=list)


class ObservedExits:
    """Accounts for rows inside the very job that evaluates the frame; read it with `observed` afterwards.

    An observation takes each row out of the generated code, which it cuts in two, so there are as few as possible.

    Args:
        counts_rare: account for exits that are rare too. Without, such a row is missing from the checksum, which is
            then not 0: nothing is proved by mistake.
        workers: hears from the workers of bolts; without, what leaves in a bolt is observed like all else.
    """

    def __init__(self, counts_rare: bool = True, workers: WorkerReports | None = None) -> None:
        self._counts_rare, self._workers = counts_rare, workers
        self.reports: list[str] = []
        self._bolts: list[tuple[BoltRun, int]] = []
        self._entrusted: dict[DataFrame, str] = {}
        self._observations: list[tuple[str, int, Observation]] = []
        self._last_exit: tuple[DataFrame, DataFrame, Leaving] | None = None
        self.has_skipped = False

    def leave(self, frame: DataFrame, leaving: Leaving) -> DataFrame:
        """Remove the rows that leave, and observe the XOR of their shares and their failures."""
        metrics = [f"bit_xor(CASE WHEN {leaving.gone} THEN {TUPLE_ID} END) AS xor", *_told(leaving)]
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

    def entrusted(self, frame: DataFrame, without_id: str) -> bool:
        """Leave it to the workers of the bolt that reads the roots to count them, if that is all right.

        Args:
            frame: the roots.
            without_id: whether one has no message id, as SQL.
        """
        if self._workers is None or not self.skips_rare():
            return False
        self._entrusted[frame] = without_id
        return True

    def reported(self, run: BoltRun) -> DataFrame | None:
        """The children of a bolt whose workers report the XOR of the shares and the failures of all other rows."""
        if self._workers is None:
            return None
        run = replace(run, without_id=self._entrusted.get(run.frame))
        children, number = self._workers.of(run)
        self._bolts.append((run, number))
        return children

    def leaves(self, frame: DataFrame) -> DataFrame:
        """Account for the rows that reach the end; together with the last exit when that is right before it."""
        if self._bolts and self._bolts[-1][0].is_last:
            return frame
        if self._last_exit is None or self._last_exit[0] is not frame:
            return self._observe("leaves", 0, frame, ["count(1) AS rows", f"bit_xor({TUPLE_ID}) AS xor"])
        _, before, leaving = self._last_exit
        self._observations.pop()
        metrics = [f"count_if(NOT ({leaving.gone})) AS rows", f"bit_xor({TUPLE_ID}) AS xor", *_told(leaving)]
        return leaving.stay(self._observe("leaves", leaving.level, before, metrics))

    def _observe(self, kind: str, level: int, frame: DataFrame, metrics: list[str]) -> DataFrame:
        observation = Observation()
        self._observations.append((kind, level, observation))
        return frame.observe(observation, *map(F.expr, metrics))

    def observed(self) -> Observed:
        """Add the observations up, after the one action that evaluated the frame."""
        result = self._reported()
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
            result.reports += filter(None, (metrics.get("reports") or "").split(_LINE))
            for line in filter(None, (metrics.get("failures") or "").split(_LINE)):
                record = json.loads(line)
                result.failures.append(
                    Failed(record.get("anchor"), record.get("tuple_id", 0), level, record["failure"])
                )
        return result

    def _reported(self) -> Observed:
        result = Observed()
        for run, number in self._bolts:
            assert self._workers is not None
            report = self._workers.take(number)
            result.xor ^= report.xor ^ report.roots.xor
            result.failures += [
                Failed(anchor, tuple_id, run.level, failure) for anchor, tuple_id, failure in report.failures
            ]
            if run.is_last:
                result.emitted += report.made
            if run.without_id is not None:
                result.roots += report.roots.rows
                result.roots_xor ^= report.roots.xor
                result.complete = result.complete and not report.roots.without_id
                result.tasks.append(report.roots.tasks)
        return result


def _told(leaving: Leaving) -> list[str]:
    """The failures of the rows that leave, and what tasks tell, each as one text with a line for each."""
    told = []
    if leaving.report is not None:
        told.append(f"listagg({leaving.report}, {literal(_LINE)}) AS reports")
    if leaving.failure is not None:
        failed = f"({leaving.gone}) AND ({leaving.failure}) IS NOT NULL"
        ids = f"'anchor', {ANCHOR}, 'tuple_id', {TUPLE_ID}"
        record = f"to_json(named_struct({ids}, 'failure', {leaving.failure}))"
        told.append(f"listagg(CASE WHEN {failed} THEN {record} END, {literal(_LINE)}) AS failures")
    return told


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
