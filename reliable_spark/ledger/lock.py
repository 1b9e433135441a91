"""One writer per ledger: a lock that the operating system gives back when its holder dies."""

from __future__ import annotations

from typing import Final

from filelock import FileLock, Timeout

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.tables import local_directory

_NAME: Final = ".writer.lock"


class WriterLock:
    """Keeps a second query off a ledger on a local file system.

    Guarantee: while it is held no other holder can be, in this process or another. On an object store nothing
    can be locked: there the second writer's commit is refused by Delta's own conflict check.

    Args:
        path: the ledger's directory or URI.

    Raises:
        LedgerError: another query holds it, or the directory cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._lock: FileLock | None = None
        directory = local_directory(path)
        if directory is None:
            return
        # taken by the thread that starts a query, given back by the one that ends it
        lock = FileLock(str(directory / _NAME), thread_local=False)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            raise LedgerError(
                f"the ledger {path} is in use by another query: stop that one first, or give each query a ledger "
                "of its own"
            ) from None
        except OSError as error:
            raise LedgerError(f"cannot write the ledger {path}: {error}") from error
        self._lock = lock

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
