"""Where the parts of a chain lie inside its ledger's directory."""

from __future__ import annotations

import re
from typing import Final

from reliable_spark.errors import UsageError
from reliable_spark.ledger.tables import table_uri

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def queue_path(ledger: str, name: str) -> str:
    """The Delta table of a queue."""
    return table_uri(ledger, f"queues/{name}")


def stage_ledger(ledger: str, name: str) -> str:
    """The ledger of the query that reads a queue: its own batches, and the rows of them that failed."""
    return table_uri(ledger, f"stages/{name}")


def check_name(name: str) -> None:
    """Refuse what would not be one directory.

    Raises:
        UsageError: the name is not letters, digits, "_" and "-", beginning with a letter.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"stage(): a stage's name is made of letters, digits, '_' and '-', not {name!r}")
