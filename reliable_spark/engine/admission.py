"""How much a running query takes at once: what its source's own option says, or less, so that batches stay short.

Spark fixes the limit of a source (`maxFilesPerTrigger`, `maxOffsetsPerTrigger`) when a query starts, and asks the
source with it before each micro-batch. Between two batches the limit that it asks with can be replaced; then the source
itself divides what there is, as ever, and nothing is read twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from reliable_spark.core.admission import Bounds, Ran, next_size
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.protocol import Origin

_LOG = logging.getLogger(__name__)

UNLIMITED: Final = 2**31 - 1
_FILES, _ROWS = "files", "rows"
_UNITS: Final = {"FileStreamSource": _FILES, "DeltaSource": _FILES, "KafkaMicroBatchStream": _ROWS}
"""Spark's class of a source -> what it can be limited by."""
_LIMITS: Final = {"ReadMaxFiles": _FILES, "ReadMaxRows": _ROWS, "ReadAllAvailable": None}


class ReadLimit:
    """What the one source of a running query is asked with, in files or rows.

    Attributes:
        unit: "files" or "rows"; None when the source cannot be limited so, or there are several.
        most: the limit of the source's own option.

    Args:
        spark: the session that started the query.
        query_id: Spark's id of the query, one of whose batches is in hand.
    """

    def __init__(self, spark: SparkSession, query_id: str) -> None:
        found: Any = spark.streams.get(query_id)
        self._java: Any = spark._jvm
        self._execution = found._jsq.streamingQuery()
        self.unit, self.most = None, UNLIMITED
        sources = self._execution.uniqueSources()
        if sources.size() != 1:
            return
        self._source, limit = sources.head()._1(), sources.head()._2()
        unit, kind = _UNITS.get(_class_of(self._source)), _class_of(limit)
        if kind not in _LIMITS or _LIMITS[kind] not in (None, unit):
            return
        self.unit = unit
        if _LIMITS[kind] is not None:
            self.most = int(limit.maxFiles() if unit == _FILES else limit.maxRows())

    def set(self, units: int) -> None:
        """Let the next micro-batch take at most so many."""
        limits = self._java.org.apache.spark.sql.connector.read.streaming.ReadLimit
        limit = limits.maxFiles(units) if self.unit == _FILES else limits.maxRows(units)
        sources = self._execution.uniqueSources().updated(self._source, limit)
        # as Scala's compiler calls the setter
        getattr(self._execution, "uniqueSources_$eq")(sources)

    def taken(self, rows: int) -> int:
        """How many units the batch in hand has, of which the rows are counted."""
        if self.unit == _ROWS:
            return rows
        # the frame that Spark hands over hides what it is made of
        leaves = self._execution.lastExecution().optimizedPlan().collectLeaves()
        found = (leaves.apply(number) for number in range(leaves.size()))
        return sum(len(leaf.relation().inputFiles()) for leaf in found if _class_of(leaf) == "LogicalRelation")


class Admission:
    """Fits the size of a query's batches to the time that they should last, and to the room behind them.

    Args:
        loop: runs the batches.
        spark: the session that starts the query.
        clock_s: a clock that only goes forward.
    """

    def __init__(self, loop: Loop, spark: SparkSession, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.loop = loop
        self._spark, self._clock_s = spark, clock_s
        self._limit: ReadLimit | None = None
        self._size = 0

    def run(self, frame: DataFrame, origin: Origin) -> None:
        """Run a batch, and say how much the next one may take."""
        loop, before, began_s = self.loop, self.loop.ledger.last_batch_id, self._clock_s()
        loop.run_source(frame, origin)
        last, target_s = loop.ledger.last, loop.settings.target_batch_s
        if target_s is None or last is None or last["batch_id"] == before:
            return
        limit = self._limit_of(origin)
        if limit.unit is None:
            return
        rows: int = last["anchored"]
        ran = Ran(limit.taken(rows), rows, self._clock_s() - began_s)
        if ran.units:
            self._size = next_size(self._size or ran.units, ran, Bounds(target_s, self.room(), limit.most))
            limit.set(self.admitted(self._size))

    def room(self) -> int:
        """How many rows may become pending."""
        pending: int = self.loop.ledger.pending.num_rows
        return self.loop.settings.max_pending - pending

    def admitted(self, size: int) -> int:
        """What the source is asked with when a batch of this size is wanted."""
        return size

    def _limit_of(self, origin: Origin) -> ReadLimit:
        if self._limit is None:
            assert origin.query_id is not None
            self._limit = ReadLimit(self._spark, origin.query_id)
            if self._limit.unit is None:
                _LOG.warning(
                    "target_batch_s has no effect: only a single source of files, Delta or Kafka can be limited"
                )
        return self._limit


def _class_of(java: Any) -> str:
    name: str = java.getClass().getSimpleName()
    return name
