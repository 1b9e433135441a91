"""Spark's own checkpoint of a streaming query, read to see whether it belongs to the ledger."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pyspark.sql import SparkSession

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.sinks.files import located


class Checkpoint:
    """The checkpoint directory of one query.

    Args:
        spark: a classic session.
        path: the directory or URI.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path, self.spark = path, spark

    def query_id(self) -> str | None:
        """The id of the query that the checkpoint belongs to; None when there is no checkpoint."""
        text = self._read("metadata")
        return json.loads(text)["id"] if text else None

    def last_committed(self) -> int | None:
        """The last micro-batch that Spark has committed."""
        files, place = self._located("commits")
        if not files.exists(place):
            return None
        names = [status.getPath().getName() for status in files.listStatus(place)]
        return max((int(name) for name in names if name.isdigit()), default=None)

    def offset_text(self, source_batch_id: int) -> str | None:
        """The offsets that a micro-batch ends with, as Spark has written them; None when there are none."""
        return self._read(f"offsets/{source_batch_id}")

    def offsets(self, source_batch_id: int) -> str | None:
        """A hash of the offsets that a micro-batch ends with; its time of day is left out."""
        text = self.offset_text(source_batch_id)
        if text is None:
            return None
        # line 1 is the version, line 2 the metadata with the time; the sources' offsets follow
        return hashlib.sha256("\n".join(text.split("\n")[2:]).encode()).hexdigest()

    def check_belongs_to(self, ledger: Ledger) -> None:
        """Refuse a checkpoint and a ledger that have not been written together.

        Raises:
            LedgerError: one of them is missing, older than the other, or another query's.
        """
        streamed, query_id, committed = ledger.streamed(), self.query_id(), self.last_committed()
        if streamed and query_id is None:
            raise LedgerError(
                f"the ledger {ledger.path} has settled batches of a stream, but its checkpoint {self.path} is gone: "
                "a new one would read the source from its beginning again; bring it back, or start with a new ledger"
            )
        if streamed and query_id not in streamed:
            raise LedgerError(
                f"the checkpoint {self.path} is another query's than the one that wrote the ledger {ledger.path}"
            )
        if committed is not None and committed > streamed.get(query_id or "", -1):
            raise LedgerError(
                f"the checkpoint {self.path} has committed micro-batch {committed}, which the ledger {ledger.path} "
                "does not know: it was deleted or rolled back, and going on would leave rows out of it; bring it "
                "back, or start with a new ledger"
            )

    def _read(self, name: str) -> str | None:
        files, place = self._located(name)
        if not files.exists(place):
            return None
        stream = files.open(place)
        try:
            java: Any = self.spark._jvm
            text: str = java.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return text

    def _located(self, name: str) -> tuple[Any, Any]:
        return located(self.spark, f"{self.path}/{name}")
