"""Source rows with their roots: from the source, or from what is pending in the ledger."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from reliable_spark.engine.column_types import nullable, refuse_unstorable
from reliable_spark.engine.columns import (
    ANCHOR,
    ATTEMPT,
    FIRST_SEEN_AT,
    LINEAGE,
    MESSAGE_ID,
    SPOUT,
    TUPLE_ID,
)
from reliable_spark.engine.lineage import column, literal, message_id_text, replay_id, root_id
from reliable_spark.engine.plan import Node, Spout, spouts
from reliable_spark.errors import ColumnError, LedgerError, nearest
from reliable_spark.ledger.schema import storable


@dataclass(frozen=True)
class Source:
    """The rows of all spouts of a graph as one frame, so that a batch has one payload type.

    Attributes:
        spouts: the spouts, in a fixed order; their names differ.
        frame: their rows below each other, with a column that names the spout when there are several.
        has_whole_trees: each row is all of its tree, so its tuple id is its anchor too.
    """

    spouts: tuple[Spout, ...]
    frame: DataFrame
    has_whole_trees: ClassVar[bool] = True

    @classmethod
    def of_node(cls, node: Node) -> Source:
        """Put the spouts of a graph together."""
        return cls.of([each.step for each in spouts(node) if isinstance(each.step, Spout)])

    @classmethod
    def of(cls, spouts: Sequence[Spout]) -> Source:
        """Put the spouts' frames together.

        Raises:
            ColumnError: two spouts have a column of the same name with different types.
        """
        spouts = _with_own_names(spouts)
        if len(spouts) == 1:
            return cls(tuple(spouts), spouts[0].frame)
        seen: dict[str, tuple[str, str]] = {}
        for spout in spouts:
            for field in spout.frame.schema.fields:
                kind = field.dataType.simpleString()
                there, other = seen.setdefault(field.name.lower(), (kind, spout.name))
                if there != kind:
                    raise ColumnError(
                        f"column {field.name!r} is {there} in spout {other!r} but {kind} in {spout.name!r}: "
                        "rename or cast one of them"
                    )
        frame = spouts[0].frame.withColumn(SPOUT, F.lit(spouts[0].name))
        for spout in spouts[1:]:
            frame = frame.unionByName(spout.frame.withColumn(SPOUT, F.lit(spout.name)), allowMissingColumns=True)
        return cls(tuple(spouts), frame)

    @property
    def spark(self) -> SparkSession:
        """The session that the source belongs to."""
        return self.frame.sparkSession

    @property
    def columns(self) -> list[str]:
        """The source columns, which are the payload of a dead letter."""
        return [name for name in self.frame.columns if name != SPOUT]

    @property
    def payload(self) -> T.StructType:
        """The payload's type."""
        return T.StructType([self.frame.schema[name] for name in self.columns])

    def payload_arrow(self) -> pa.DataType:
        """The payload's type as the ledger stores it.

        Raises:
            SchemaError: a column has a type that the ledger cannot store.
        """
        fields = []
        for field in self.payload.fields:
            refuse_unstorable(field.dataType, field.name)
            arrow = to_arrow_type(field.dataType, timezone="UTC")
            fields.append(pa.field(field.name, storable(arrow, field.name)))
        return pa.struct(fields)

    def first_attempt(self, frame: DataFrame) -> DataFrame:
        """Give source rows their roots.

        Args:
            frame: rows with the columns of `self.frame`.
        """
        anchors = [root_id(spout.name, spout.message_id, spout.frame.schema) for spout in self.spouts]
        message_ids = [message_id_text(spout.message_id, spout.frame.schema) for spout in self.spouts]
        anchor = self._of_each_spout(anchors)
        return frame.selectExpr(
            "*",
            f"{anchor} AS {ANCHOR}",
            f"{anchor} AS {TUPLE_ID}",
            f"1 AS {ATTEMPT}",
            f"{self._of_each_spout(message_ids)} AS {MESSAGE_ID}",
        )

    def _of_each_spout(self, expressions: Sequence[str]) -> str:
        """The expression of the spout that a row comes from."""
        if len(expressions) == 1:
            return expressions[0]
        cases = zip(self.spouts, expressions, strict=True)
        return f"CASE {' '.join(f'WHEN {_is_from(spout)} THEN {own}' for spout, own in cases)} END"

    def next_attempt(self, pending: DataFrame) -> DataFrame:
        """Give pending trees the roots of their next attempt.

        Args:
            pending: rows of the ledger's `pending` table.
        """
        raised = pending.withColumn(ATTEMPT, (column("attempt") + 1).cast("int")).withColumn(ANCHOR, column("anchor"))
        anchored = raised.withColumn(ANCHOR, F.expr(replay_id()))
        values = [
            F.col("payload").getField(field.name).cast(nullable(field.dataType)).alias(field.name)
            for field in self.payload.fields
        ]
        return anchored.select(
            *values,
            column(ANCHOR),
            column(ANCHOR).alias(TUPLE_ID),
            column(ATTEMPT),
            column("message_id").alias(MESSAGE_ID),
            column("spout").alias(SPOUT),
            column("first_seen_at").alias(FIRST_SEEN_AT),
        )

    def described(self, rows: DataFrame) -> DataFrame:
        """Rows of a batch with their spout, and when their trees were first seen: null for those of a first attempt."""
        made = {SPOUT: F.lit(self.spouts[0].name), FIRST_SEEN_AT: F.lit(None).cast("timestamp")}
        return rows.withColumns({name: value for name, value in made.items() if name not in rows.columns})

    def of_spout(self, rows: DataFrame, spout: Spout) -> DataFrame:
        """The rows of one spout with its own columns and the lineage columns."""
        if len(self.spouts) == 1:
            others = [name for name in (SPOUT, FIRST_SEEN_AT) if name in rows.columns]
            return rows.drop(*others) if others else rows
        own = rows.where(_is_from(spout))
        return own.select(*(column(name) for name in spout.frame.columns), *LINEAGE)


def check_spouts(source: Source, trees: pa.Table, ledger: str) -> None:
    """Refuse trees of a spout that a graph with several does not have: their rows would go into none of them.

    Raises:
        LedgerError: there are some.
    """
    names = [spout.name for spout in source.spouts]
    if len(names) == 1:
        return  # which takes them all
    for spout in pc.unique(trees["spout"]).to_pylist():
        if spout not in names:
            rows = pc.sum(pc.equal(trees["spout"], spout)).as_py()
            raise LedgerError(
                f"the ledger {ledger} has {rows:,} pending rows of a spout {spout!r}, and this query has none of "
                f"that name{nearest(spout, names)}: call it that again until they are answered"
            )


def _is_from(spout: Spout) -> str:
    return f"{SPOUT} = {literal(spout.name)}"


def _with_own_names(spouts: Sequence[Spout]) -> list[Spout]:
    """Number the spouts whose name another one has already: spout, spout-2, spout-3."""
    given = {spout.name for spout in spouts}
    named: list[Spout] = []
    for spout in spouts:
        taken = {each.name for each in named}
        numbered = (f"{spout.name}-{number}" for number in itertools.count(2))
        free = (name for name in numbered if name not in taken | given)
        named.append(replace(spout, name=next(free)) if spout.name in taken else spout)
    return named
