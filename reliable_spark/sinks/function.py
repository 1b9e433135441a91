"""A sink that is the user's function, called at least once or at most once per batch."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from reliable_spark.errors import ReliableSparkError, SinkError
from reliable_spark.sinks.base import Delivery, LastBatch, Prepared, call


class FunctionSink:
    """Hands the rows of each batch to a function of (DataFrame, batch id) or (DataFrame, batch id, delivery).

    Guarantee: the function sees rows that are evaluated already, so it may run no action or several.

    - `settles_first=False` (at_least_once): it is called before the ledger is settled, and again under the same
      batch id after a crash in between. Bolts that are not deterministic may have made other rows by then:
      replace what the attempt before has written, or append.
    - `settles_first=True` (at_most_once): it is called after the ledger is settled, and never again.

    Args:
        function: called on the driver.
        settles_first: see above.
    """

    is_begun = True
    version = None

    def __init__(self, function: Callable[..., Any], *, settles_first: bool) -> None:
        self._function = function
        self.settles_first = settles_first

    @property
    def identity(self) -> str:
        """Functions are not told apart: a new version of the program may bring a new one."""
        return json.dumps({"function": "called"})

    def open(self, schema: T.StructType) -> None:
        """The function is not called before there are rows."""

    def bind(self, query_id: str, last: LastBatch) -> None:
        """The function is handed the ids with each batch."""

    def unfinished(self, last: LastBatch) -> Prepared | None:
        """A batch that was not settled runs again as a whole; one that was is not called again."""
        return None

    def prepare(self, rows: DataFrame) -> Prepared:
        """Materialise the rows: a lost block fails the job instead of being computed anew."""
        return Prepared(rows=rows.localCheckpoint(eager=True))

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        """Call the function.

        Raises:
            SinkError: the function raised. At least once: the batch is not settled and will run again. At most
                once: it is settled, and its rows are not written again.
        """
        assert prepared.rows is not None
        try:
            call(self._function, prepared.rows, delivery)
        except ReliableSparkError:
            raise
        except Exception as error:
            what = "is settled and its rows are not written again" if self.settles_first else "will run again"
            raise SinkError(f"the sink function raised in batch {delivery.batch_id}, which {what}: {error}") from error
        finally:
            self.discard(prepared)

    def discard(self, prepared: Prepared) -> None:
        """Give the memory back."""
        release(prepared.rows)


def release(checkpointed: DataFrame | None) -> None:
    """Free the blocks of a frame made by `localCheckpoint`; Spark itself would wait for its garbage collector."""
    if checkpointed is not None and hasattr(checkpointed, "_jdf"):
        plan = checkpointed._jdf.queryExecution().logical()
        if plan.getClass().getSimpleName() == "LogicalRDD":
            plan.rdd().unpersist(False)
