"""A Delta table as the sink, written in two steps: the files first, the commit when the verdict is stored.

Spark's own `save` evaluates and commits in one call, so what the evaluation found out comes too late. Here
Delta's transaction writes the files (constraints, partitions and statistics as ever), which nobody sees until
the commit; the ledger stores the verdict together with the list of files; then they are committed under a
transaction id. A crash in between is mended from that list. Measured against `save` with `txnAppId` in
docs/decisions/0002-two-phase-delta-sink.md.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from reliable_spark.errors import ReliableSparkError, SinkError, nearest
from reliable_spark.sinks.base import Prepared


class DeltaSink:
    """Appends to a Delta table; creates it where there is none.

    Guarantee: a batch's rows become visible in one commit, once, after the ledger has settled the batch.

    Args:
        path: the table's path or URI.
        spark: a classic session; a Connect session has no access to Delta's transactions.
    """

    settles_first = True

    def __init__(self, path: str, spark: SparkSession) -> None:
        self.path = path
        self._spark = spark
        self._application = ""
        self._known = False

    def open(self, rows: DataFrame) -> None:
        """Compare the rows' columns with the table's; a table that is not there yet is made by the first batch.

        Raises:
            SinkError: the path holds something else, or a table that these rows do not fit into.
        """
        try:
            if not self._is_table():
                self._refuse_other_files()
                return
            held = self._spark.read.format("delta").load(self.path).schema
            stored = self._log().update(False, self._none(), self._none()).metadata().schemaString()
        except ReliableSparkError:
            raise
        except Exception as error:
            raise SinkError(f"the sink {self.path} cannot be opened as a Delta table: {_cause(error)}") from error
        if '"delta.identity.' in stored:
            raise SinkError(f"the sink {self.path} has an identity column, which only Spark's own writer can fill")
        by_lower = {field.name.lower(): field for field in held.fields}
        for field in rows.schema.fields:
            there = by_lower.get(field.name.lower())
            if there is None:
                raise SinkError(f"the sink {self.path} has no column {field.name!r}{nearest(field.name, held.names)}")
            if there.dataType.simpleString() != field.dataType.simpleString():
                raise SinkError(
                    f"the sink {self.path} has column {field.name!r} as {there.dataType.simpleString()}, "
                    f"the rows have it as {field.dataType.simpleString()}"
                )

    def bind(self, application: str) -> None:
        """Write under the transaction ids of this application."""
        self._application = application

    def recover(self, batch_id: int, actions: tuple[str, ...]) -> None:
        """Commit the files of the last settled batch, unless the table has them already."""
        if actions and self._committed() < batch_id:
            self._commit(actions, batch_id)

    def prepare(self, rows: DataFrame) -> Prepared:
        """Write the files; nobody sees them.

        Raises:
            SinkError: a constraint of the table, or the storage, refused them.
        """
        if not self._is_table():
            # not `rows.limit(0)`: only the first action on the rows reports their observations
            self._spark.createDataFrame([], rows.schema).write.format("delta").save(self.path)
        transaction = self._log().startTransaction(self._none(), self._none())
        try:
            written = transaction.writeFiles(rows._jdf, self._none())
        except Py4JJavaError as error:
            if "DeltaInvariantViolationException" in str(error.java_exception):
                reason = str(error.java_exception.getMessage()).splitlines()[0]
                raise SinkError(f"the sink {self.path} refused a row: {reason}") from error
            raise
        return Prepared(actions=tuple(written.apply(index).json() for index in range(written.size())))

    def commit(self, prepared: Prepared, batch_id: int) -> None:
        """Make the files part of the table, under the batch's transaction id."""
        if prepared.actions:
            self._commit(prepared.actions, batch_id)

    def discard(self, prepared: Prepared) -> None:
        """Leave the files to VACUUM: they are in no version of the table."""

    def _commit(self, actions: tuple[str, ...], batch_id: int) -> None:
        delta = self._delta()
        listed = self._jvm().java.util.ArrayList()
        for action in actions:
            listed.add(delta.actions.Action.fromJson(action))
        listed.add(delta.actions.SetTransaction(self._application, batch_id, self._none()))
        sequence = self._jvm().scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()
        append = self._jvm().org.apache.spark.sql.streaming.OutputMode.Append()
        operation = delta.DeltaOperations.StreamingUpdate(append, self._application, batch_id, self._none())
        try:
            self._log().startTransaction(self._none(), self._none()).commit(sequence, operation)
        except Exception as error:
            raise SinkError(
                f"batch {batch_id} is settled, but its files could not be committed to {self.path}: "
                f"{_cause(error)}; the next start commits them"
            ) from error

    def _committed(self) -> int:
        version: int = self._log().startTransaction(self._none(), self._none()).txnVersion(self._application)
        return version

    def _is_table(self) -> bool:
        from delta.tables import DeltaTable

        self._known = self._known or bool(DeltaTable.isDeltaTable(self._spark, self.path))
        return self._known

    def _refuse_other_files(self) -> None:
        """Refuse a path where something else lies: a table made over it would own those files."""
        place = self._jvm().org.apache.hadoop.fs.Path(self.path)
        files = place.getFileSystem(self._spark._jsparkSession.sessionState().newHadoopConf())
        if not files.exists(place):
            return
        if not files.getFileStatus(place).isDirectory():
            raise SinkError(f"the sink {self.path} is a file, not a directory")
        if len(files.listStatus(place)):
            raise SinkError(f"the sink {self.path} holds files, but no Delta table: choose an empty directory")

    def _jvm(self) -> Any:
        return self._spark._jvm

    def _delta(self) -> Any:
        return self._jvm().org.apache.spark.sql.delta

    def _log(self) -> Any:
        return self._delta().DeltaLog.forTable(self._spark._jsparkSession, self.path)

    def _none(self) -> Any:
        return self._jvm().scala.Option.empty()


def _cause(error: Exception) -> str:
    """The first line of what went wrong, in Java where that is where it went wrong."""
    text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error).strip()
    return text.splitlines()[0] if text else type(error).__name__
