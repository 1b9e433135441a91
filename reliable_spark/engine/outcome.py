"""What a run came to: the ledger's counts, and its open and dead trees as DataFrames."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame, SparkSession

from reliable_spark.engine.states import newest_rows, state_uri
from reliable_spark.ledger.counts import Counts
from reliable_spark.ledger.ledger import Ledger


@dataclass(frozen=True)
class Outcome(Counts):
    """The counts of a ledger at one moment, and ways to look closer.

    Invariant: `anchored == acked + dead + pending`.

    Attributes:
        ledger: where the ledger lies.
    """

    ledger: str = ""
    pending_version: int = 0
    dead_letters_version: int = 0
    spark: SparkSession | None = None

    @classmethod
    def of(cls, ledger: Ledger, spark: SparkSession) -> Outcome:
        """Take the counts of an open ledger."""
        with ledger.lock:
            return cls(
                **asdict(ledger.counts()),
                ledger=ledger.path,
                pending_version=ledger.version_of("pending"),
                dead_letters_version=ledger.version_of("dead_letters"),
                spark=spark,
            )

    def dead_letters(self) -> DataFrame:
        """The trees that will not be tried again, each with its reason and its source row as `payload`."""
        return self._table("dead_letters", self.dead_letters_version)

    def pending_trees(self) -> DataFrame:
        """The trees that wait for their next attempt or their timeout, as they were at that moment."""
        return self._table("pending", self.pending_version)

    def state(self, name: str) -> DataFrame:
        """What the bolt of that name has put, as text: its frame's `key`, and under it each `name` with its `value`."""
        assert self.spark is not None
        rows = newest_rows(self.spark, state_uri(self.ledger, name))
        return rows.selectExpr("key", "CAST(name AS STRING) AS name", "CAST(value AS STRING) AS value")

    def _table(self, name: str, version: int) -> DataFrame:
        assert self.spark is not None
        reader = self.spark.read.format("delta").option("versionAsOf", version)
        return reader.load(f"{self.ledger.rstrip('/')}/{name}")

    def __str__(self) -> str:
        """The counts as text."""
        return Counts.__str__(self)
