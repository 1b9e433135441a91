"""A shard's state on a worker's own disk: a disposable copy, so that a batch costs what it changes.

Nothing durable lies in it. It is known to hold everything up to a file of the state's table; what came after is read
when it is next needed. A worker that has no copy, or one of another history, makes a new one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import lmdb
import pyarrow as pa

from reliable_spark.errors import StateError, UnstorableError
from reliable_spark.state.change_files import ChangeFile

BYTES_MAX: Final = 1 << 38
"""How large a copy may grow: address space, not disk or memory."""

OPEN_MAX: Final = 32
"""How many copies a process keeps open, since it has only so much address space."""

GROUP_BYTES_MAX: Final = 255
NAME_BYTES_MAX: Final = 200
"""A key may take 511 bytes in LMDB. A longer group is known by its hash; a longer name is refused."""

_END: Final = b"\0"
_NULL_GROUP: Final = b"\xff"
_HASHED: Final = b"\xfe"
_APPLIED: Final = b"\xfd"
"""No UTF-8 text begins with these three."""

_open: dict[tuple[int, str], lmdb.Environment] = {}

Group = str | None


def place_of(group: Group) -> bytes:
    """Where the entries of a group begin."""
    if group is None:
        return _NULL_GROUP + _END
    text = group.encode("utf-8", "surrogatepass")
    if len(text) > GROUP_BYTES_MAX:
        return _HASHED + blake2b(text, digest_size=32).digest() + _END
    return text + _END


def check_name(name: bytes) -> None:
    """Refuse a name that is too long.

    Raises:
        UnstorableError: it is.
    """
    if len(name) > NAME_BYTES_MAX:
        raise UnstorableError(f"a key of a bolt's state takes at most {NAME_BYTES_MAX} bytes, this one {len(name)}")


class Reading:
    """One moment of a copy."""

    def __init__(self, transaction: Any) -> None:
        self._transaction = transaction
        self._get = transaction.get

    def get(self, group: Group, name: bytes) -> bytes | None:
        """The value of a name in a group."""
        value: bytes | None = self._get(place_of(group) + name)
        return value

    def scan(self, group: Group) -> Iterator[tuple[bytes, bytes]]:
        """The names of a group and their values."""
        place = place_of(group)
        with self._transaction.cursor() as cursor:
            if not cursor.set_range(place):
                return
            for key, value in cursor.iternext():
                if not key.startswith(place):
                    return
                # a name is JSON, which has no zero byte: with one it is another group's, whose text goes on
                if _END not in key[len(place) :]:
                    yield key[len(place) :], value


class LocalCopy:
    """The copy of one shard. Several processes may use it at once.

    Args:
        directory: where it lies, or will.
    """

    def __init__(self, directory: Path) -> None:
        self._environment = _environment(str(directory))

    @classmethod
    def of(cls, table_id: str, shard: str) -> LocalCopy:
        """This machine's copy: in Spark's local directory, which goes with the application, else in the temporary."""
        local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
        return cls(Path(local) / "reliable_spark_state" / table_id / shard)

    def catch_up(self, files: Sequence[ChangeFile], read: Callable[[Sequence[str]], pa.Table]) -> int:
        """Apply what is new.

        Args:
            files: the shard's, in their order.
            read: gives the rows of some of them.

        Returns:
            How many files were applied. Cost: that of their rows; of all rows where the copy is new or strange.
        """
        with _errors(), self._environment.begin() as transaction:
            if transaction.get(_APPLIED, b"") == _stem(files):
                return 0
        with _errors(), self._environment.begin(write=True) as transaction:
            stems = [file.stem.encode() for file in files]
            applied = transaction.get(_APPLIED, b"")
            first = stems.index(applied) + 1 if applied in stems else 0
            if first == 0:
                transaction.drop(self._environment.open_db(), delete=False)
            for file in files[first:]:
                _apply(read([file.path]), transaction)
            transaction.put(_APPLIED, _stem(files))
            return len(files) - first

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """The copy as it is now, whatever others apply to it meanwhile."""
        with _errors(), self._environment.begin() as transaction:
            yield Reading(transaction)


def _stem(files: Sequence[ChangeFile]) -> bytes:
    return files[-1].stem.encode() if files else b""


def _apply(rows: pa.Table, transaction: Any) -> None:
    for batch in rows.to_batches():
        keys, names, values = (batch.column(column).to_pylist() for column in ("key", "name", "value"))
        pairs: Iterable[tuple[bytes, bytes]] = (
            (place_of(key) + name, value)
            for key, name, value in zip(keys, names, values, strict=True)
            if value is not None
        )
        with transaction.cursor() as cursor:
            cursor.putmulti(pairs)
        if batch.column("value").null_count:
            for key, name, value in zip(keys, names, values, strict=True):
                if value is None:
                    transaction.delete(place_of(key) + name)


def _environment(directory: str) -> lmdb.Environment:
    """One handle per process and directory: LMDB allows no second, and none that a parent process has opened."""
    known = (os.getpid(), directory)
    environment = _open.pop(known, None)
    if environment is None:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with _errors():
            # nothing is synced: what a crash of the machine destroys is made anew
            environment = lmdb.open(directory, map_size=BYTES_MAX, sync=False, metasync=False, readahead=False)
            environment.reader_check()
    _open[known] = environment  # the one used last stands last
    while len(_open) > OPEN_MAX:
        _open.pop(next(iter(_open))).close()
    return environment


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except lmdb.Error as error:
        raise StateError(f"the local copy of a state cannot be used: {error}") from error
