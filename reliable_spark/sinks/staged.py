"""A sink function called exactly once as far as that can be: always with the same rows under the same id."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from reliable_spark.errors import ReliableSparkError, SinkError
from reliable_spark.sinks.base import Delivery, LastBatch, Prepared, call
from reliable_spark.sinks.files import located


class StagedFunctionSink:
    """Hands each batch's rows to a function from files that the ledger knows of.

    Guarantee: the rows of a batch are written to the staging directory before the ledger is settled, and the
    function is called after it. Every further call for that batch, after a crash or an error, comes with exactly
    the same rows and the same (query id, batch id), also when bolts are not deterministic. A function that does
    nothing when it has completed that id before is therefore called exactly once in effect.

    Args:
        function: called on the driver with (DataFrame, batch id) or (DataFrame, batch id, delivery).
        spark: a classic session.
        directory: where rows are staged as Parquet.
    """

    settles_first = True
    is_begun = True
    identity = json.dumps({"function": "staged"})
    version = None

    def __init__(self, function: Callable[..., Any], spark: SparkSession, directory: str) -> None:
        self._function, self._spark, self._directory = function, spark, directory

    def open(self, schema: T.StructType) -> None:
        """The function is not called before there are rows."""

    def bind(self, query_id: str, last: LastBatch) -> None:
        """Remove what was staged for batches that were never settled."""
        wanted = {json.loads(action).get("staged") for action in last.actions}
        files, place = located(self._spark, self._directory)
        if files.exists(place):
            for status in files.listStatus(place):
                if status.getPath().getName() not in wanted:
                    files.delete(status.getPath(), True)

    def unfinished(self, last: LastBatch) -> Prepared | None:
        """The last settled batch, as long as its files are there: they are deleted when the function is done."""
        if not last.actions:
            return None
        files, place = located(self._spark, self._place(last.actions))
        return Prepared(actions=last.actions) if files.exists(place) else None

    def prepare(self, rows: DataFrame) -> Prepared:
        """Write the rows to the staging directory; this is their one evaluation."""
        name = uuid.uuid4().hex
        rows.write.parquet(f"{self._directory}/{name}")
        return Prepared(actions=(json.dumps({"staged": name, "schema": rows.schema.json()}),))

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        """Call the function with the staged rows, then delete them.

        Raises:
            SinkError: the function raised; the next start calls it again with the same rows.
        """
        schema = T.StructType.fromJson(json.loads(json.loads(prepared.actions[0])["schema"]))
        rows = self._spark.read.schema(schema).parquet(self._place(prepared.actions))
        try:
            call(self._function, rows, delivery)
        except ReliableSparkError:
            raise
        except Exception as error:
            raise SinkError(
                f"the sink function raised in batch {delivery.batch_id}: {error}; the next start calls it again "
                "with the same rows"
            ) from error
        self.discard(prepared)

    def discard(self, prepared: Prepared) -> None:
        """Delete the staged rows, where there are any."""
        if prepared.actions:
            files, place = located(self._spark, self._place(prepared.actions))
            files.delete(place, True)

    def _place(self, actions: tuple[str, ...]) -> str:
        return f"{self._directory}/{json.loads(actions[0])['staged']}"
