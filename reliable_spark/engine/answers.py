"""Put the incomplete trees of an evaluation together with their source rows, on the driver or in Spark."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, Observation, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from reliable_spark.engine.batch import Source
from reliable_spark.engine.columns import (
    ANCHOR,
    ATTEMPT,
    FAILURE,
    FIRST_SEEN_AT,
    HELD,
    MESSAGE_ID,
    NULL_MESSAGE_ID,
    SPOUT,
)
from reliable_spark.engine.evaluation import Evaluation
from reliable_spark.engine.lineage import column
from reliable_spark.engine.observed import OBSERVATION_WAIT_S, observed_values
from reliable_spark.engine.settlement import HIGH_WATER, Moment, Settlement, settle_trees
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.ledger.schema import dead_letters_schema, pending_schema

DRIVER_ROWS_MAX: Final = 100_000
"""More incomplete trees than this in one batch are settled and written by Spark instead of the driver."""

MEASURED_ROWS_MIN: Final = 100
"""Fewer incomplete trees than this are brought to the driver unmeasured."""

PAYLOAD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Incomplete trees whose source rows are larger than this together are settled by Spark too."""


@dataclass
class Found:
    """The incomplete trees with their source rows.

    Attributes:
        frame: one row per tree in the columns that `settle_trees` reads.
    """

    frame: DataFrame
    _evaluation: Evaluation
    _second_read: Observation

    def is_same(self) -> bool:
        """Tell, after one action on `frame`, whether that read of the source gave the rows that were evaluated.

        Two evaluations that disagree in count or XOR settle nothing.
        """
        read = observed_values(self._second_read, time.monotonic() + OBSERVATION_WAIT_S)
        if read is None:
            return False
        return (read["rows"], read["xor"] or 0) == (self._evaluation.rows, self._evaluation.roots_xor)


def with_payloads(evaluation: Evaluation, source: Source) -> Found:
    """Join the incomplete trees with the rows that they come from.

    Args:
        evaluation: what was evaluated; some of it is not complete.
        source: where the batch comes from; its columns become the payload.

    Returns:
        The trees, not read yet. Cost: a broadcast join, so one more read of the batch's source.
    """
    assert evaluation.incomplete is not None
    second_read = Observation()
    observed = (F.count(F.lit(1)).alias("rows"), F.bit_xor(column(ANCHOR)).alias("xor"))
    rows = evaluation.source if evaluation.roots_xor is None else evaluation.source.observe(second_read, *observed)
    packed = F.struct(*(column(name) for name in source.columns)).cast(from_arrow_type(source.payload_arrow()))
    described = source.described(rows).select(  # the user's columns packed: they may be called what ours are
        *map(column, (ANCHOR, SPOUT, MESSAGE_ID, ATTEMPT, FIRST_SEEN_AT)), packed.alias("payload")
    )
    frame = described.join(F.broadcast(evaluation.incomplete), ANCHOR).select(
        column(ANCHOR).alias("anchor"),
        "ack_val",
        column(SPOUT).alias("spout"),
        column(MESSAGE_ID).alias("message_id"),
        F.coalesce("attempts", column(ATTEMPT)).cast("int").alias("attempt"),
        "status",
        column(FAILURE)["bolt"].alias("bolt"),
        column(FAILURE)["error_class"].alias("error_class"),
        column(FAILURE)["error"].alias("error"),
        column(FAILURE)["traceback"].alias("traceback"),
        column(FAILURE)["retry"].alias("retry"),
        column(FIRST_SEEN_AT).alias("first_seen_at"),
        "payload",
    )
    return Found(frame, evaluation, second_read)


def is_too_much(found: DataFrame, count: int) -> bool:
    """Tell whether the driver should not hold these trees; reads them unless they are too many anyway."""
    if count > DRIVER_ROWS_MAX:
        return True
    size = found.agg(F.sum(F.octet_length(F.to_json("payload")))).first()
    return bool(size and size[0] and size[0] > PAYLOAD_BYTES_MAX)


def is_every_tree_found(found: pa.Table, evaluation: Evaluation) -> bool:
    """Tell whether the second read of the source gave exactly the rows that failed.

    It does not when the source is not repeatable, or when rows share a message id: then only a traced
    evaluation can tell which of them failed. Rows without any id die all alike, so they may be many.
    """
    anchors = Counter(found["anchor"].to_pylist())
    without_id = {
        anchor
        for anchor, error_class in zip(found["anchor"].to_pylist(), found["error_class"].to_pylist(), strict=True)
        if error_class == NULL_MESSAGE_ID
    }
    twins = any(count > 1 and anchor not in without_id for anchor, count in anchors.items())
    return len(anchors) == evaluation.incomplete_count and not twins


@dataclass
class SettleTask:
    """`settle_trees` as a function over Arrow batches, for more trees than the driver should hold."""

    moment: Moment
    payload: pa.DataType

    def __call__(self, batches: Any) -> Any:
        """Settle each batch of trees; the rows carry both tables' columns and a flag."""
        wanted = settled_schema(self.payload)
        for batch in batches:
            found = pa.Table.from_batches([batch])
            settlement = settle_trees(_with_payload(found, self.payload), self.moment)
            for rows, is_dead in ((settlement.pending, False), (settlement.dead, True)):
                columns = [
                    rows[field.name].cast(field.type)
                    if field.name in rows.column_names
                    else pa.nulls(len(rows), field.type)
                    for field in wanted
                    if field.name != "is_dead"
                ]
                yield from pa.table([*columns, pa.repeat(pa.scalar(is_dead), len(rows))], schema=wanted).to_batches()


def settled_schema(payload: pa.DataType) -> pa.Schema:
    """The columns of both `pending` and `dead_letters`, and a flag that says which of them a row is for."""
    fields = {
        field.name: field for schema in (pending_schema(payload), dead_letters_schema(payload)) for field in schema
    }
    return pa.schema([*fields.values(), pa.field("is_dead", pa.bool_())])


def _with_payload(found: pa.Table, payload: pa.DataType) -> pa.Table:
    place = found.schema.get_field_index("payload")
    return found.set_column(place, "payload", found["payload"].cast(payload))


@dataclass(frozen=True)
class TreesInSpark:
    """More incomplete trees than the driver should hold.

    Attributes:
        found: them, with their source rows.
        payload: the payload's type in the ledger.
    """

    found: DataFrame
    payload: pa.DataType

    def settle(self, moment: Moment, ledger: Ledger) -> Settlement:
        """Decide in the workers, and let Spark append to the ledger's tables, which are marked with the batch.

        Returns:
            The counts; its tables are empty, since Spark has written the rows.
        """
        wanted = settled_schema(self.payload)
        spark_schema = T.StructType([T.StructField(field.name, from_arrow_type(field.type)) for field in wanted])
        found = _below_high_water(self.found, moment.held_room)
        task = SettleTask(replace(moment, held_room=None), self.payload)
        settled = found.mapInArrow(task, spark_schema).localCheckpoint(eager=True)
        tables = {"pending": pending_schema(self.payload), "dead_letters": dead_letters_schema(self.payload)}
        for name, schema in tables.items():
            rows = settled.where(column("is_dead") == (name == "dead_letters")).select(*schema.names)
            rows.write.format("delta").mode("append").save(ledger.uri_of(name))
        counts = {row["status"]: row["count"] for row in found.groupBy("status").count().collect()}
        return Settlement(
            pending=tables["pending"].empty_table(),
            dead=tables["dead_letters"].empty_table(),
            failed=counts.get("failed", 0) + counts.get(HIGH_WATER, 0),
            lost=counts.get("lost", 0),
            held=counts.get(HELD, 0),
            dead_count=settled.where("is_dead").count(),
        )


def _below_high_water(found: DataFrame, room: int | None) -> DataFrame:
    """Mark the held trees for which no room is left; which ones those are is decided by their ids."""
    is_held = column("status") == HELD
    if room is None or found.where(is_held).limit(room + 1).count() <= room:
        return found
    number = F.row_number().over(Window.partitionBy(is_held).orderBy("anchor"))
    return found.withColumn("status", F.when(is_held & (number > room), HIGH_WATER).otherwise(column("status")))
