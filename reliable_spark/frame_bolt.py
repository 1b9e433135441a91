"""A chain of an AnchoredFrame's methods as a bolt: the tuples that wait for it become one DataFrame."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from reliable_spark.anchoring import anchored
from reliable_spark.engine.columns import MESSAGE_ID
from reliable_spark.errors import UsageError
from reliable_spark.frame import AnchoredFrame
from reliable_spark.ledger.tables import LedgerTable, table_uri
from reliable_spark.settings import Settings
from reliable_spark.topology.bolts import BatchingBolt, OutputCollector
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.tuples import Tuple

Chain = Callable[[AnchoredFrame], AnchoredFrame]

NUMBER: Final = "tuple_number"
"""The column by which the chain's frame tells its tuples apart; the chain need not keep it."""
_PARENT: Final = "tuple_parent"
_ONE_ATTEMPT: Final = Settings(max_attempts=1, max_bad_ratio=1.0)


class FrameBolt(BatchingBolt):
    """Runs a chain of an AnchoredFrame over batches of tuples, in the driver's Spark session.

    Guarantee: what becomes of a row in an AnchoredFrame becomes of its tuple. Rows that come out are emitted anchored
    to the tuple they were made from; a tuple whose rows are done, or were dropped, is acked; one of which a row failed
    or was lost fails, at once: its spout decides about another attempt.

    A batch is run when nothing else is queued and no spout has anything to emit, or when `batch_max` tuples wait.

    Args:
        chain: from a frame with the input's columns to the frame that is emitted; no aggregates, since tuples have
            their answer one by one.
        schema: the columns of the tuples, as DDL or a StructType, in the order of the input's fields.
        batch_max: more tuples than this do not wait.

    Raises:
        UsageError: (when the topology is built) there is no session, or the chain gives no AnchoredFrame of rows.

    Cost: a job and a ledger of its own in a temporary directory for each batch, a second or so; tuples pass through
    the driver.
    """

    def __init__(self, chain: Chain, schema: str | T.StructType, batch_max: int = 10_000) -> None:
        self._chain, self._schema, self._batch_max = chain, schema, batch_max

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """The columns of the chain over no rows at all."""
        frame = self._chain(anchored(self._frame([]), NUMBER))
        if not isinstance(frame, AnchoredFrame):
            raise UsageError(f"the chain of a FrameBolt gives an AnchoredFrame, not {type(frame).__name__}")
        if frame._node.level:
            raise UsageError("the chain of a FrameBolt cannot aggregate: tuples have their answer one by one")
        declarer.declare(frame.columns)

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Nothing waits yet."""
        self._collector, self._name = collector, context.component
        self._waiting: list[Tuple] = []

    def execute(self, input: Tuple) -> None:
        """Let the tuple wait for its batch."""
        if input.is_tick:
            self._collector.ack(input)
            return
        self._waiting.append(input)
        if len(self._waiting) >= self._batch_max:
            self.flush()

    def flush(self) -> bool:
        """Run the chain over what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return False
        rows, failures = self._ran(waiting)
        for number, values in sorted(rows, key=lambda row: row[0]):
            self._collector.emit(values, anchors=waiting[number])
        for number, input in enumerate(waiting):
            if number in failures:
                self._collector.report_error(RuntimeError(failures[number]))
                self._collector.fail(input)
            else:
                self._collector.ack(input)
        return True

    def _ran(self, waiting: list[Tuple]) -> tuple[list[tuple[int, list[Any]]], dict[int, str]]:
        """The rows that came out with the numbers of their tuples, and why tuples failed."""
        rows: list[tuple[int, list[Any]]] = []

        def collect(frame: DataFrame, batch_id: int) -> None:
            rows.extend((int(row[_PARENT]), list(row)[:-1]) for row in frame.collect())

        given = anchored(self._frame([[*each.values, number] for number, each in enumerate(waiting)]), NUMBER)
        done = self._chain(given)
        with tempfile.TemporaryDirectory() as directory:
            ledger = str(Path(directory) / "ledger")
            done.withColumn(_PARENT, done[MESSAGE_ID]).run(collect, ledger=ledger, settings=_ONE_ATTEMPT)
            dead = LedgerTable(table_uri(ledger, "dead_letters")).read(["message_id", "error"]).to_pylist()
        return rows, {int(row["message_id"]): f"{self._name}: {row['error']}" for row in dead}

    def _frame(self, rows: list[list[Any]]) -> DataFrame:
        try:
            spark = SparkSession.active()
        except PySparkRuntimeError:
            raise UsageError(
                "a FrameBolt needs a Spark session: make one before, such as reliable_spark.session('name')"
            ) from None
        schema = self._schema if isinstance(self._schema, T.StructType) else T.StructType.fromDDL(self._schema)
        if not isinstance(schema, T.StructType):
            raise UsageError(f"a FrameBolt's schema names columns, such as 'id long', not {self._schema!r}")
        return spark.createDataFrame(rows, T.StructType([*schema.fields, T.StructField(NUMBER, T.LongType())]))
