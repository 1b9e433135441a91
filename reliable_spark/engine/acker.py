"""The acker on Spark: trees are folded in the JVM, and what is not settled by that goes to grouped Arrow UDFs.

One group is one acker, as Storm's mod hashing has it; inside, `reliable_spark.core.acker` decides over all of
its trees at once, so no Python call is made per tree.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from reliable_spark.core.acker import Folded, Trees, Verdict, merge
from reliable_spark.engine.columns import ANCHOR, FAILURE, HELD, TUPLE_ID
from reliable_spark.engine.lineage import FAILURE_TYPE, column
from reliable_spark.ledger.counts import LOST

FAILED: Final = "failed"
_ACKER: Final = "__rs_acker"
_ACK_VAL: Final = "ack_val"
_STATUS: Final = "status"
_SCHEMA: Final = T.StructType(
    [
        T.StructField(ANCHOR, T.LongType()),
        T.StructField(_ACK_VAL, T.LongType()),
        T.StructField(_STATUS, T.StringType()),
        T.StructField(FAILURE, FAILURE_TYPE),
    ]
)


def incomplete_trees(
    units: DataFrame, leaves: DataFrame, gone: list[DataFrame], ackers: int, may_copy: bool
) -> DataFrame:
    """Fold every tree of a batch and return those that are not complete.

    Args:
        units: one row per tree, with its anchor and tuple id.
        leaves: the rows that reached the end, with lineage columns.
        gone: the rows that left before, as `TracedExits` keeps them.
        ackers: how many groups decide.
        may_copy: the rows may hold copies of each other (after `transform`): equal ids count once.

    Returns:
        (_anchor, ack_val, status, _failure), status being "failed", "held" or "lost". Cost: one shuffle of
        (anchor, id) pairs; Python sees the unsettled trees only.
    """
    messages = _messages(units, leaves, gone, may_copy)
    acker = F.pmod(column(ANCHOR), F.lit(ackers)).cast("int").alias(_ACKER)
    folded = messages.groupBy(acker, column(ANCHOR)).agg(
        F.bit_xor("value").alias(_ACK_VAL),
        F.bool_or("init").alias("init"),
        F.bool_or("failed").alias("failed"),
        F.bool_or("held").alias("held"),
        F.first(F.when(column("failed") | column("held"), column(FAILURE)), ignorenulls=True).alias(FAILURE),
    )
    unsettled = folded.where(column("init") & ((column(_ACK_VAL) != 0) | column("failed")))
    return unsettled.groupBy(_ACKER).applyInArrow(decide, _SCHEMA)


def _messages(units: DataFrame, leaves: DataFrame, gone: list[DataFrame], may_copy: bool) -> DataFrame:
    def message(frame: DataFrame, init: bool) -> DataFrame:
        reason = column(FAILURE) if FAILURE in frame.columns else F.lit(None).cast(FAILURE_TYPE)
        held = F.coalesce(reason["error_class"] == HELD, F.lit(False))
        answered = reason.isNull()
        return frame.where(column(ANCHOR).isNotNull()).select(
            column(ANCHOR),
            F.when(answered, column(TUPLE_ID)).otherwise(F.lit(0)).cast("long").alias("value"),
            F.lit(init).alias("init"),
            (reason.isNotNull() & ~held).alias("failed"),
            held.alias("held"),
            reason.alias(FAILURE),
        )

    ends = leaves.select(ANCHOR, TUPLE_ID)
    messages = message(units.select(ANCHOR, TUPLE_ID), True).unionByName(
        message(ends.distinct() if may_copy else ends, False)
    )
    for left in gone:
        messages = messages.unionByName(message(left.distinct() if may_copy else left, False))
    return messages


def decide(table: pa.Table) -> pa.Table:
    """Be one acker: give the verdict on each of the unsettled trees of one group.

    Args:
        table: (acker, _anchor, ack_val, init, failed, held, _failure) of one group.

    Returns:
        The trees that are not complete, with their status.
    """
    table = table.combine_chunks().sort_by(ANCHOR)
    anchors = table[ANCHOR].to_numpy()
    folded = Folded(
        anchor=anchors,
        ack_val=table[_ACK_VAL].to_numpy(),
        task=np.zeros(len(anchors), dtype=np.int32),
        failed=table["failed"].to_numpy(zero_copy_only=False).astype(bool),
        reset=np.zeros(len(anchors), dtype=bool),
    )
    still_open, answers = merge(Trees.empty(), folded, 0)
    status = np.full(len(anchors), "", dtype=object)
    status[np.searchsorted(anchors, still_open.anchor)] = LOST
    status[_as_bool(table["held"]) & (status == LOST)] = HELD
    failed = answers.anchor[answers.verdict == Verdict.FAILED]
    status[np.searchsorted(anchors, failed)] = FAILED
    result = table.select([ANCHOR, _ACK_VAL]).append_column(_STATUS, pa.array(status, pa.string()))
    result = result.append_column(FAILURE, table[FAILURE])
    return result.filter(pa.array(status != ""))


def _as_bool(column_: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    array: np.ndarray[Any, np.dtype[np.bool_]] = column_.to_numpy(zero_copy_only=False).astype(bool)
    return array
