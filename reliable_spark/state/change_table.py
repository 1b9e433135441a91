"""The Delta table of a bolt's state on Spark, as the driver sees it: which files it has, and one commit per batch.

Workers write the files, and read them; the driver only moves their names. So a commit costs a few milliseconds
whatever the size of the state or of the change.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from reliable_spark.errors import StateError
from reliable_spark.state.change_files import SHARD, TABLE, ChangeFile
from reliable_spark.state.delta import RETENTION_HOURS, delta_errors

MERGE_RATIO: Final = 2
"""A file that has more than this many times the rows of all newer ones together is left alone by compaction."""

_CONFIGURATION: Final = {
    "delta.logRetentionDuration": f"interval {RETENTION_HOURS} hours",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_HOURS} hours",
}


@dataclass(frozen=True)
class Snapshot:
    """A state as of one commit, to be sent to the workers.

    Attributes:
        uri: the table.
        table_id: tells the table from one that is made anew in its place.
        sequence: the number for what is written next.
        files: those of each shard, in their order.
    """

    uri: str = ""
    table_id: str = ""
    sequence: int = 0
    files: Mapping[str, Sequence[ChangeFile]] = field(default_factory=dict)


class ChangeTable:
    """The table of one bolt.

    Guarantee: a batch's files become part of the state in one commit, once, however often it is asked for.

    Args:
        uri: where it lies; it is made where there is none.
        application: whose batches they are: the ledger's id.
        kept_by: the columns of the key with their types, kept with the table; empty where nobody asks.

    Raises:
        StateError: it cannot be read or made, or is kept by another key.
    """

    def __init__(self, uri: str, application: str, kept_by: str = "") -> None:
        self._uri, self._application = uri, application
        with delta_errors("open", uri):
            self._table = DeltaTable.create(
                uri, TABLE, "ignore", partition_by=[SHARD], configuration=_CONFIGURATION, description=kept_by
            )
        known = self._table.metadata().description
        if kept_by and known and known != kept_by:
            raise StateError(
                f"the state {uri} is kept by ({known}), not by ({kept_by}): "
                "give a bolt with another key another name by name=, or a ledger of its own"
            )
        self._read()

    def _read(self) -> None:
        with delta_errors("read", self._uri):
            actions = pa.table(self._table.get_add_actions(flatten=True))
        files: defaultdict[str, list[ChangeFile]] = defaultdict(list)
        for row in actions.select(["path", "size_bytes", "num_records"]).to_pylist():
            file = ChangeFile(row["path"], row["size_bytes"], row["num_records"])
            files[file.shard].append(file)
        self._files = {shard: sorted(each, key=lambda file: file.stem) for shard, each in files.items()}

    @property
    def snapshot(self) -> Snapshot:
        """The state as of the last commit."""
        newest = max((file.sequence for each in self._files.values() for file in each), default=0)
        files = {shard: tuple(each) for shard, each in self._files.items()}
        return Snapshot(self._uri, str(self._table.metadata().id), newest + 1, files)

    @property
    def shards(self) -> int | None:
        """Into how many shards it is divided; None while it is empty."""
        return next((int(shard.rpartition("-")[2]) for shard in self._files), None)

    @property
    def committed(self) -> int:
        """The last batch that has changed it; -1 when none has."""
        version = self._table.transaction_version(self._application)
        return -1 if version is None else version

    def commit(self, files: Sequence[ChangeFile], batch_id: int) -> None:
        """Make a batch's files part of the state, unless they are already.

        Raises:
            StateError: the table cannot be written, or somebody else has done so.
        """
        if self.committed >= batch_id:
            return
        self._write(files, (), CommitProperties(app_transactions=[Transaction(self._application, batch_id)]))

    def replace(self, old: Iterable[ChangeFile], new: Iterable[ChangeFile]) -> None:
        """Exchange files for others that hold the same."""
        self._write(new, old, None)

    def worth_merging(self) -> dict[str, Sequence[ChangeFile]]:
        """The files of each shard to make one of: so many that a key is rewritten a logarithmic number of times."""
        chosen = {shard: _mergeable(files) for shard, files in self._files.items()}
        return {shard: files for shard, files in chosen.items() if len(files) > 1}

    def is_oldest(self, file: ChangeFile) -> bool:
        """Tell whether a shard has nothing older than this file."""
        return self._files[file.shard][0] == file

    def forget(self) -> None:
        """Delete files that no version of the last hour has. Cost: the directory is listed."""
        with delta_errors("vacuum", self._uri):
            self._table.create_checkpoint()
            self._table.vacuum(RETENTION_HOURS, dry_run=False, enforce_retention_duration=False, full=True)
            self._table.cleanup_metadata()

    def _write(self, new: Iterable[ChangeFile], old: Iterable[ChangeFile], properties: CommitProperties | None) -> None:
        now, is_change = int(time.time() * 1000), properties is not None
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {SHARD: file.shard}, now, is_change, json.dumps({"numRecords": file.rows}))
            for file in new
        ]
        actions += [RemoveAction(file.path, is_change, now, file.size, {SHARD: file.shard}) for file in old]
        with delta_errors("write", self._uri):
            self._table.create_write_transaction(actions, "append", TABLE, [SHARD], commit_properties=properties)
            self._table.update_incremental()
        self._read()


def check_not_ahead(table: ChangeTable, last_batch_id: int, uri: str) -> None:
    """Refuse a state that knows more batches than the ledger.

    Raises:
        StateError: the ledger was rolled back.
    """
    if table.committed > last_batch_id:
        raise StateError(
            f"the state {uri} has batch {table.committed} of this ledger, which only knows of batch {last_batch_id}: "
            "the ledger was rolled back, and going on would count rows twice"
        )


def _mergeable(files: Sequence[ChangeFile]) -> Sequence[ChangeFile]:
    newer = 0
    for place in range(len(files) - 1, -1, -1):
        if files[place].rows > MERGE_RATIO * newer and newer:
            return files[place + 1 :]
        newer += files[place].rows
    return files
