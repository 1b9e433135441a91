"""The changes of a state as Parquet files: written by whoever made them, and part of the state once they are committed.

A file holds, for one shard, the newest value of each key that was changed. Its name begins with a number that rises
with every batch, so the files of a shard, by name, are its history. A file that was compacted has the name of the
last one that it stands for, with another ending: what is known to hold up to that name needs to read neither.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem, LocalFileSystem, PyFileSystem, SubTreeFileSystem

from reliable_spark.errors import StateError
from reliable_spark.ledger.tables import local_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

SHARD: Final = "shard"
ROWS: Final = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("name", pa.binary(), nullable=False),
        pa.field("value", pa.binary()),
    ]
)
"""The bolt's key as text, the name and the value under it as JSON; no value: deleted. The highest sequence counts."""

TABLE: Final = ROWS.append(pa.field(SHARD, pa.string(), nullable=False))

_COMPACTED: Final = ".compacted"
_SUFFIX: Final = ".parquet"


@dataclass(frozen=True)
class ChangeFile:
    """A file of a state's table.

    Attributes:
        path: below the table.
        size: in bytes.
        rows: how many keys it has.
    """

    path: str
    size: int
    rows: int

    @property
    def shard(self) -> str:
        """Whose changes it holds."""
        return PurePosixPath(self.path).parent.name.removeprefix(f"{SHARD}=")

    @property
    def stem(self) -> str:
        """What its shard holds when everything up to this file is applied goes by this name."""
        return PurePosixPath(self.path).name.removesuffix(_SUFFIX).removesuffix(_COMPACTED)

    @property
    def sequence(self) -> int:
        """The number that its name begins with."""
        return int(self.stem.partition("-")[0])


@dataclass(frozen=True)
class Change:
    """A file that a batch wants to add to a state.

    Attributes:
        state: the name of the state.
        file: what it adds.
    """

    state: str
    file: ChangeFile

    def to_json(self) -> str:
        """As text, for the ledger."""
        return json.dumps({"state": self.state, **asdict(self.file)})

    @classmethod
    def from_json(cls, text: str) -> Change:
        """What the text was made of."""
        read = json.loads(text)
        return cls(read.pop("state"), ChangeFile(**read))


def shard_name(index: int, count: int) -> str:
    """How a shard is called: with the number of shards, so that a table says itself how it is divided."""
    return f"{index:05d}-of-{count:05d}"


@contextmanager
def state_errors(doing: str, where: str) -> Iterator[None]:
    """Turn what Arrow and the file system raise into a StateError that names the table."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise StateError(f"cannot {doing} the state {where}: {error}") from error


class ChangeFiles:
    """The files below one table, also where there is no JVM and no handle on the table.

    Args:
        uri: the table's directory.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._system = _file_system(uri)

    def write(self, shard: str, rows: pa.Table, sequence: int, stem: str | None = None) -> ChangeFile:
        """Write a file that is no part of the table yet.

        Args:
            shard: whose changes they are.
            rows: they, without a sequence of their own if they are new.
            sequence: their number, higher than that of every file before.
            stem: the file that this one stands for with all before it; None where it is a new one.
        """
        name = f"{stem}{_COMPACTED}" if stem else f"{sequence:012d}-{uuid.uuid4().hex}"
        path = f"{SHARD}={shard}/{name}{_SUFFIX}"
        if "sequence" not in rows.column_names:
            rows = rows.append_column(ROWS.field("sequence"), pa.repeat(pa.scalar(sequence, pa.int64()), len(rows)))
        with state_errors("write", self._uri):
            self._system.create_dir(f"{SHARD}={shard}", recursive=True)
            pq.write_table(rows.select(ROWS.names).cast(ROWS), path, filesystem=self._system, compression="zstd")
            size = self._system.get_file_info(path).size
        return ChangeFile(path, size, len(rows))

    def read(self, paths: Sequence[str]) -> pa.Table:
        """The rows of some files, below each other in the order given."""
        with state_errors("read", self._uri):
            read = [pq.read_table(path, filesystem=self._system, schema=ROWS, partitioning=None) for path in paths]
        return pa.concat_tables(read) if read else ROWS.empty_table()


def newest(rows: pa.Table, *, drop_deleted: bool) -> pa.Table:
    """Of each key the last row, sorted by key.

    Args:
        rows: in the order in which they were written.
        drop_deleted: leave out keys that are deleted, since nothing older is left that they could hide.
    """
    numbered = rows.append_column("place", pa.array(range(len(rows)), pa.int64()))
    last = numbered.group_by(["key", "name"]).aggregate([("place", "max")])
    kept = rows.take(last["place_max"])
    if drop_deleted:
        kept = kept.filter(kept["value"].is_valid())
    return kept.sort_by([("key", "ascending"), ("name", "ascending")])


def changed_rows(changed: Mapping[tuple[str | None, bytes], bytes | None]) -> pa.Table:
    """Changes by (key, name) as rows without a sequence."""
    columns: list[Sequence[Any]] = [[key for key, _ in changed], [name for _, name in changed], list(changed.values())]
    schema = pa.schema([field for field in ROWS if field.name != "sequence"])
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)], schema=schema)


def _file_system(uri: str) -> FileSystem:
    directory = local_directory(uri)
    if directory:
        return SubTreeFileSystem(str(directory), LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(uri))
