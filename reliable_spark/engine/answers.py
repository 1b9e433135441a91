"""Put the incomplete trees of an evaluation together with their source rows, on the driver or in Spark."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from reliable_spark.engine.columns import (
    ANCHOR,
    ATTEMPT,
    FAILURE,
    FIRST_SEEN_AT,
    MESSAGE_ID,
    NULL_MESSAGE_ID,
    SPOUT,
)
from reliable_spark.engine.evaluation import Evaluation
from reliable_spark.engine.lineage import column
from reliable_spark.engine.settlement import Moment, Settlement, settle_trees
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.ledger.schema import dead_letters_schema, pending_schema

DRIVER_ROWS_MAX: Final = 100_000
"""More incomplete trees than this in one batch are settled and written by Spark instead of the driver."""


def with_payloads(evaluation: Evaluation, columns: list[str], payload: pa.DataType) -> DataFrame | None:
    """Join the incomplete trees with the rows that they come from.

    Args:
        evaluation: what was evaluated.
        columns: the source columns, which become the payload.
        payload: the payload's type in the ledger.

    Returns:
        One row per tree in the columns that `settle_trees` reads; None when every tree is done.
        Cost: a broadcast join, so one more read of the batch's source.
    """
    if evaluation.incomplete is None:
        return None
    joined = evaluation.source.join(F.broadcast(evaluation.incomplete), ANCHOR)
    packed = F.struct(*(column(name) for name in columns))
    return joined.select(
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
        packed.cast(from_arrow_type(payload)).alias("payload"),
    )


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


def settle_in_spark(found: DataFrame, moment: Moment, payload: pa.DataType, ledger: Ledger) -> Settlement:
    """Settle more trees than the driver should hold: decided in the workers, written by Spark.

    The tables are marked with the batch id first, so that a crash before the batch's own row is undone.

    Returns:
        The counts; its tables are empty, since Spark has written the rows.
    """
    wanted = settled_schema(payload)
    spark_schema = T.StructType([T.StructField(field.name, from_arrow_type(field.type)) for field in wanted])
    settled = found.mapInArrow(SettleTask(moment, payload), spark_schema).localCheckpoint(eager=True)
    for name, schema, is_dead in (
        ("pending", pending_schema(payload), False),
        ("dead_letters", dead_letters_schema(payload), True),
    ):
        rows = settled.where(column("is_dead") == is_dead).select(*schema.names)
        rows.write.format("delta").mode("append").save(ledger.uri_of(name))
    counts = {row["status"]: row["count"] for row in found.groupBy("status").count().collect()}
    died = settled.where("is_dead").count()
    return Settlement(
        pending=pending_schema(payload).empty_table(),
        dead=dead_letters_schema(payload).empty_table(),
        failed=counts.get("failed", 0),
        lost=counts.get("lost", 0),
        held=counts.get("held", 0),
        dead_count=died,
    )
