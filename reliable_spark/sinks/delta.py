"""A Delta table as the sink, written in two steps: the files first, the commit when the verdict is stored.

Spark's own `save` evaluates and commits in one call, so what the evaluation found out comes too late. Here
Delta's transaction writes the files (constraints, partitions and statistics as ever), which nobody sees until
the commit; the ledger stores the verdict together with the list of files; then they are committed under a
transaction id. A crash in between is mended from that list. Measured against `save` with `txnAppId` in
docs/decisions/0002-two-phase-delta-sink.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from reliable_spark.errors import ReliableSparkError, SinkError, nearest
from reliable_spark.sinks.base import Delivery, LastBatch, Prepared
from reliable_spark.sinks.files import located


class DeltaSink:
    """Appends to a Delta table; creates it where there is none.

    Guarantee: a batch's rows become visible in one commit, once, after the ledger has settled the batch. That
    the table is the one that was used before, that nobody has rolled it back, and whether it has the last batch,
    is checked at each start.

    Args:
        path: the table's path or URI.
        spark: a classic session; a Connect session has no access to Delta's transactions.
    """

    settles_first = True
    is_begun = False

    def __init__(self, path: str, spark: SparkSession) -> None:
        self.path = path
        self.version: int | None = None
        self._spark = spark
        self._application = ""
        self._schema = T.StructType()

    def open(self, schema: T.StructType) -> None:
        """Compare the rows' columns with the table's; a table that is not there yet is made by `bind`.

        Raises:
            SinkError: the path holds something else, or a table that these rows do not fit into.
        """
        self._schema = schema
        try:
            if not self._is_table():
                self._refuse_other_files()
                return
            held = self._spark.read.format("delta").load(self.path).schema
            stored = self._snapshot().metadata().schemaString()
        except ReliableSparkError:
            raise
        except Exception as error:
            raise SinkError(f"the sink {self.path} cannot be opened as a Delta table: {_cause(error)}") from error
        if '"delta.identity.' in stored:
            raise SinkError(f"the sink {self.path} has an identity column, which only Spark's own writer can fill")
        by_lower = {field.name.lower(): field for field in held.fields}
        for field in schema.fields:
            there = by_lower.get(field.name.lower())
            if there is None:
                raise SinkError(f"the sink {self.path} has no column {field.name!r}{nearest(field.name, held.names)}")
            if there.dataType.simpleString() != field.dataType.simpleString():
                raise SinkError(
                    f"the sink {self.path} has column {field.name!r} as {there.dataType.simpleString()}, "
                    f"the rows have it as {field.dataType.simpleString()}"
                )

    def bind(self, query_id: str, last: LastBatch) -> None:
        """Write under the transaction ids of this ledger, from now on; create the table where there is none.

        Raises:
            SinkError: it is not the table that was used before, or it was restored, or it knows more batches
                than the ledger does.
        """
        self._application = _application(query_id)
        held = json.loads(last.sink) if last.sink else {}
        is_same_place = held.get("delta") == self.path
        if not self._is_table():
            if is_same_place:
                raise SinkError(
                    f"the sink {self.path} is gone, but the ledger counts rows as acked that were written to it: "
                    "bring it back, or start with a new ledger"
                )
            self._create()
        if is_same_place:
            self._refuse_changed(held, last)
        self.version = self._snapshot().version()

    def _create(self) -> None:
        """Make the table as Spark's writer would, without the job and the empty file that that takes.

        Raises:
            SinkError: Delta refuses its columns, or the place cannot be written to.
        """
        from delta.tables import DeltaTable

        java: Any = self._spark
        kept = java._jsparkSession.parseDataType(self._schema.json()).asNullable().json()
        builder = DeltaTable.createIfNotExists(self._spark).location(self.path)
        try:
            builder.addColumns(T.StructType.fromJson(json.loads(kept))).execute()
        except Exception as error:
            raise SinkError(f"the sink {self.path} cannot be made: {_cause(error)}") from error

    def _refuse_changed(self, held: dict[str, str], last: LastBatch) -> None:
        if self._table_id() != held["table_id"]:
            raise SinkError(
                f"the sink {self.path} is another table than the one this ledger has written to: it was deleted and "
                "made anew; start with a new ledger"
            )
        if self._committed() > last.batch_id:
            raise SinkError(
                f"the sink {self.path} has batch {self._committed()} of this ledger, which only knows of batch "
                f"{last.batch_id}: the ledger was rolled back, and going on would skip rows"
            )
        self._refuse_restored(last.sink_version)

    def _refuse_restored(self, after: int | None) -> None:
        for version, operation, _ in self._commits(after):
            if operation == "RESTORE":
                raise SinkError(
                    f"the sink {self.path} was restored to an older state in its version {version}: rows that the "
                    "ledger counts as acked may be gone; start with a new ledger to write them again, or accept it "
                    "with `reliable-spark accept-restore`"
                )

    @classmethod
    def before(cls, path: str, spark: SparkSession, query_id: str) -> DeltaSink:
        """The sink that a ledger was used with before, to ask what is unfinished there."""
        sink = cls(path, spark)
        sink._application = _application(query_id)
        return sink

    @property
    def identity(self) -> str:
        """The table's path and id."""
        return json.dumps({"delta": self.path, "table_id": self._table_id()})

    def unfinished(self, last: LastBatch) -> Prepared | None:
        """The files of the last settled batch, unless the table has them already.

        The transaction id says so, and where a short `delta.setTransactionRetentionDuration` has made the table
        forget it, its history.

        Raises:
            SinkError: the files were deleted before they were committed.
        """
        if not last.actions or not self._is_table() or self._committed() >= last.batch_id or self._has_epoch(last):
            return None
        for action in last.actions:
            added = self._delta().actions.Action.fromJson(action)
            files, place = located(self._spark, f"{self.path.rstrip('/')}/{added.pathAsUri().getPath()}")
            if not files.exists(place):
                raise SinkError(
                    f"batch {last.batch_id} is settled, but its file {place.getName()} was deleted before it was "
                    f"committed to {self.path} (VACUUM?): its rows have to be written again from the source, with a "
                    "new ledger"
                )
        return Prepared(actions=last.actions)

    def _has_epoch(self, last: LastBatch) -> bool:
        wanted = {"queryId": self._application, "epochId": str(last.batch_id)}
        return any(
            {name: value.strip('"') for name, value in parameters.items() if name in wanted} == wanted
            for _, _, parameters in self._commits(last.sink_version)
        )

    def _commits(self, after: int | None) -> Iterator[tuple[int, str, dict[str, str]]]:
        """Version, operation and its parameters of each commit after a version; few, so they are read here."""
        changes = self._log().getChanges(0 if after is None else after + 1, self._none(), False)
        while changes.hasNext():
            change = changes.next()
            for index in range(change._2().size()):
                action = change._2().apply(index)
                if action.getClass().getSimpleName() == "CommitInfo":
                    parameters = action.operationParameters()
                    read = {name: parameters.get(name) for name in ("queryId", "epochId")}
                    found = {name: value.get() for name, value in read.items() if value.isDefined()}
                    yield change._1(), action.operation(), found

    def prepare(self, rows: DataFrame) -> Prepared:
        """Write the files; nobody sees them.

        Raises:
            SinkError: a constraint of the table, or the storage, refused them.
        """
        transaction = self._log().startTransaction(self._none(), self._none())
        try:
            written = transaction.writeFiles(rows._jdf, self._none())
        except Py4JJavaError as error:
            if "DeltaInvariantViolationException" in str(error.java_exception):
                reason = str(error.java_exception.getMessage()).splitlines()[0]
                raise SinkError(f"the sink {self.path} refused a row: {reason}") from error
            raise
        return Prepared(actions=tuple(written.apply(index).json() for index in range(written.size())))

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        """Make the files part of the table, under the batch's transaction id.

        Raises:
            SinkError: the table refused, or was restored since the commit before.
        """
        if not prepared.actions:
            return
        before = self.version
        self.version = self._commit(prepared.actions, delivery.batch_id)
        if before is not None and self.version > before + 1:
            self._refuse_restored(before)

    def discard(self, prepared: Prepared) -> None:
        """Leave the files to VACUUM: they are in no version of the table."""

    def _commit(self, actions: tuple[str, ...], batch_id: int) -> int:
        delta = self._delta()
        listed = self._jvm().java.util.ArrayList()
        for action in actions:
            listed.add(delta.actions.Action.fromJson(action))
        listed.add(delta.actions.SetTransaction(self._application, batch_id, self._none()))
        sequence = self._jvm().scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()
        append = self._jvm().org.apache.spark.sql.streaming.OutputMode.Append()
        operation = delta.DeltaOperations.StreamingUpdate(append, self._application, batch_id, self._none())
        try:
            version: int = self._log().startTransaction(self._none(), self._none()).commit(sequence, operation)
        except Exception as error:
            raise SinkError(
                f"batch {batch_id} is settled, but its files could not be committed to {self.path}: "
                f"{_cause(error)}; the next start commits them"
            ) from error
        return version

    def _committed(self) -> int:
        version: int = self._log().startTransaction(self._none(), self._none()).txnVersion(self._application)
        return version

    def _is_table(self) -> bool:
        from delta.tables import DeltaTable

        return bool(DeltaTable.isDeltaTable(self._spark, self.path))

    def _refuse_other_files(self) -> None:
        """Refuse a path where something else lies: a table made over it would own those files."""
        files, place = located(self._spark, self.path)
        if not files.exists(place):
            return
        if not files.getFileStatus(place).isDirectory():
            raise SinkError(f"the sink {self.path} is a file, not a directory")
        if len(files.listStatus(place)):
            raise SinkError(f"the sink {self.path} holds files, but no Delta table: choose an empty directory")

    def _table_id(self) -> str:
        table_id: str = self._snapshot().metadata().id()
        return table_id

    def _snapshot(self) -> Any:
        return self._log().update(False, self._none(), self._none())

    def _jvm(self) -> Any:
        return self._spark._jvm

    def _delta(self) -> Any:
        return self._jvm().org.apache.spark.sql.delta

    def _log(self) -> Any:
        return self._delta().DeltaLog.forTable(self._spark._jsparkSession, self.path)

    def _none(self) -> Any:
        return self._jvm().scala.Option.empty()


def _application(query_id: str) -> str:
    return f"reliable_spark/{query_id}"


def _cause(error: Exception) -> str:
    """The first line of what went wrong, in Java where that is where it went wrong."""
    text = str(error.java_exception.toString() if isinstance(error, Py4JJavaError) else error).strip()
    return text.splitlines()[0] if text else type(error).__name__
