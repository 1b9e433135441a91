"""A sink that keeps nothing: the rows are evaluated and forgotten."""

from __future__ import annotations

from pyspark.sql import DataFrame

from reliable_spark.sinks.base import Prepared


class NoopSink:
    """Evaluates the rows and writes nothing; for measuring, and for bolts that are the sink themselves."""

    settles_first = True

    def open(self, rows: DataFrame) -> None:
        """Anything goes."""

    def bind(self, application: str) -> None:
        """No transaction ids are needed."""

    def recover(self, batch_id: int, actions: tuple[str, ...]) -> None:
        """Nothing can be unfinished."""

    def prepare(self, rows: DataFrame) -> Prepared:
        """Evaluate every row."""
        rows.write.format("noop").mode("overwrite").save()
        return Prepared()

    def commit(self, prepared: Prepared, batch_id: int) -> None:
        """Nothing to show."""

    def discard(self, prepared: Prepared) -> None:
        """Nothing to forget."""
