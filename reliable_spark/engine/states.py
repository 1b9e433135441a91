"""The states of a query's bolts, as the driver keeps them: opened, committed with each batch, divided, compacted."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from reliable_spark.engine.plan import Node, stateful_steps
from reliable_spark.engine.stateful_task import SHARD, StateVersion
from reliable_spark.ledger.ledger import effects
from reliable_spark.ledger.tables import table_uri
from reliable_spark.state.change_files import ROWS, Change, ChangeFile, ChangeFiles, newest, shard_name
from reliable_spark.state.change_table import ChangeTable, check_not_ahead
from reliable_spark.state.delta import table_name

DIRECTORY: Final = "state"
"""Where in a ledger's directory the states lie, each a table by its bolt's name."""

log = logging.getLogger("reliable_spark")


def state_uri(ledger: str, name: str) -> str:
    """Where a bolt's state lies."""
    return table_uri(table_uri(ledger, DIRECTORY), table_name(name))


def is_one_file_each(reports: Iterable[str]) -> bool:
    """Tell whether every shard has told of one file at most: of two, nobody knows whose rows went on."""
    told = [(change.state, change.file.shard) for change in map(Change.from_json, reports)]
    return len(told) == len(set(told))


class States:
    """The states of one query.

    Guarantee: the changes of a settled batch become part of the states once, those of any other evaluation never.

    Args:
        node: the end of the graph.
        spark: runs what is too large for the driver.
        ledger: its directory.
        ledger_id: its id, under which batches are committed.
        last_batch_id: the last settled batch.

    Raises:
        StateError: a table cannot be opened, is kept by another key, or knows more batches than the ledger.
    """

    def __init__(self, node: Node, spark: SparkSession, ledger: str, ledger_id: str, last_batch_id: int) -> None:
        self._spark, self._ledger, self._ledger_id = spark, ledger, ledger_id
        self._tables = {step.name: self._opened(step.name, step.kept_by) for step in stateful_steps(node)}
        for name, table in self._tables.items():
            check_not_ahead(table, last_batch_id, self._uri(name))
        self._shards = int(str(spark.conf.get("spark.sql.shuffle.partitions")))

    def version(self, name: str, changes: Iterable[Change]) -> StateVersion:
        """What a bolt's state is now, with the changes of the evaluation in hand."""
        own = tuple(change for change in changes if change.state == name)
        return StateVersion(self._tables[name].snapshot, self._shards, own)

    def commit(self, reports: Sequence[str], batch_id: int) -> None:
        """Make the changes of a settled batch part of the states, those that are not yet.

        Raises:
            StateError: a table cannot be written.
        """
        files: defaultdict[str, list[ChangeFile]] = defaultdict(list)
        for change in map(Change.from_json, reports):
            files[change.state].append(change.file)
        # a bolt that is no longer in the frame has changed its state all the same
        gone = {name: self._opened(name) for name in files if name not in self._tables}
        for name, table in (self._tables | gone).items():
            if name in files:
                effects.debug("commit state %s", name)
                table.commit(files[name], batch_id)
        effects.debug("committed states")

    def _uri(self, name: str) -> str:
        return state_uri(self._ledger, name)

    def _opened(self, name: str, kept_by: str = "") -> ChangeTable:
        return ChangeTable(self._uri(name), self._ledger_id, kept_by)

    def divide(self) -> None:
        """Bring every state into as many shards as rows are divided into now.

        Cost: a Spark job over a state that is divided otherwise.
        """
        for name, table in self._tables.items():
            if table.shards not in (None, self._shards):
                log.warning("state %s is divided anew, from %d shards into %d", name, table.shards, self._shards)
                old = [file for files in table.snapshot.files.values() for file in files]
                new = self._divided(self._uri(name), table.snapshot.sequence)
                effects.debug("divide state %s", name)
                table.replace(old, new)

    def _divided(self, uri: str, sequence: int) -> list[ChangeFile]:
        shard = F.expr(f"CAST(pmod(xxhash64(key), {self._shards}) AS INT) AS {SHARD}")
        rows = newest_rows(self._spark, uri).select("*", shard).repartitionById(self._shards, F.col(SHARD))
        return _files_of(rows, Divide(uri, self._shards, sequence))

    def upkeep(self) -> None:
        """Compact what has become many files. Cost: a Spark job over the files that are worth it."""
        for name, table in self._tables.items():
            merges = [
                Merge(self._uri(name), tuple(files), table.is_oldest(files[0]))
                for files in table.worth_merging().values()
            ]
            if merges:
                merged = self._spark.sparkContext.parallelize(merges, len(merges)).map(lambda merge: merge()).collect()
                effects.debug("upkeep: compact state %s", name)
                table.replace([file for merge in merges for file in merge.files], merged)
                effects.debug("upkeep: forget files of state %s", name)
                table.forget()


@dataclass(frozen=True)
class Merge:
    """Makes one file of several of a shard, on a worker.

    Attributes:
        uri: the table.
        files: they, in their order.
        is_all: whether nothing is older, so that nothing is left for deleted keys to hide.
    """

    uri: str
    files: tuple[ChangeFile, ...]
    is_all: bool

    def __call__(self) -> ChangeFile:
        """Write the file."""
        files, last = ChangeFiles(self.uri), self.files[-1]
        rows = newest(files.read([file.path for file in self.files]), drop_deleted=self.is_all)
        return files.write(last.shard, rows, last.sequence, last.stem)


@dataclass(frozen=True)
class Divide:
    """Writes one file of each shard, on the workers.

    Attributes:
        uri: the table.
        shards: how many there are.
        sequence: the number of the files.
    """

    uri: str
    shards: int
    sequence: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one shard; what comes back is the file as JSON."""
        filled = [batch for batch in batches if batch.num_rows]
        if filled:
            rows = pa.Table.from_batches(filled)
            shard = shard_name(rows[SHARD][0].as_py(), self.shards)
            file = ChangeFiles(self.uri).write(shard, rows.select(ROWS.names), self.sequence)
            yield pa.RecordBatch.from_pydict({"file": [Change("", file).to_json()]})


def _files_of(rows: DataFrame, divide: Divide) -> list[ChangeFile]:
    told = rows.mapInArrow(divide, "file string").collect()
    return [Change.from_json(row["file"]).file for row in told]


def newest_rows(spark: SparkSession, uri: str) -> DataFrame:
    """A state's committed entries: of each key and name the newest, without those deleted."""
    rows = spark.read.format("delta").load(uri)
    last = rows.groupBy("key", "name").agg(F.max_by(F.struct("sequence", "value"), "sequence").alias("last"))
    return last.select("last.sequence", "key", "name", "last.value").where("value IS NOT NULL")
