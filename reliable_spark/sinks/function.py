"""A sink that is the user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from reliable_spark.errors import ReliableSparkError, SinkError
from reliable_spark.sinks.base import Prepared


class FunctionSink:
    """Hands the rows of each batch to a function of (DataFrame, batch id).

    Guarantee: the function sees rows that are evaluated already, so it may run no action or several. It is
    called at least once per batch, again with the same batch id after a crash before the ledger was settled:
    write under the batch id, or twice is possible.

    Args:
        function: called on the driver with the DataFrame and the ledger's batch id, which rises by one
            with every batch, replays included.
    """

    settles_first = False

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self._function = function

    def open(self, rows: DataFrame) -> None:
        """The function is not called before there are rows."""

    def bind(self, application: str) -> None:
        """No transaction ids are needed."""

    def recover(self, batch_id: int, actions: tuple[str, ...]) -> None:
        """A batch that was not settled runs again as a whole."""

    def prepare(self, rows: DataFrame) -> Prepared:
        """Materialise the rows: a lost block fails the job instead of being computed anew."""
        return Prepared(rows=rows.localCheckpoint(eager=True))

    def commit(self, prepared: Prepared, batch_id: int) -> None:
        """Call the function.

        Raises:
            SinkError: the function raised; the batch is not settled and will run again.
        """
        assert prepared.rows is not None
        try:
            self._function(prepared.rows, batch_id)
        except ReliableSparkError:
            raise
        except Exception as error:
            raise SinkError(f"the sink function raised in batch {batch_id}: {error}") from error
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
