"""A sink that keeps nothing: the rows are evaluated and forgotten."""

from __future__ import annotations

import json

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from reliable_spark.sinks.base import Delivery, LastBatch, Prepared


class NoopSink:
    """Evaluates the rows and writes nothing; for measuring, and for bolts that are the sink themselves."""

    settles_first = True
    is_begun = False
    identity = json.dumps({"noop": ""})
    version = None

    def open(self, schema: T.StructType) -> None:
        """Anything goes."""

    def bind(self, query_id: str, last: LastBatch) -> None:
        """No transaction ids are needed."""

    def unfinished(self, last: LastBatch) -> Prepared | None:
        """Nothing can be unfinished."""
        return None

    def prepare(self, rows: DataFrame) -> Prepared:
        """Evaluate every row."""
        rows.write.format("noop").mode("overwrite").save()
        return Prepared()

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        """Nothing to show."""

    def discard(self, prepared: Prepared) -> None:
        """Nothing to forget."""
