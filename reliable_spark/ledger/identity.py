"""Who wrote a ledger: which query, and which version of the library."""

from __future__ import annotations

import json

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.schema import LEDGER_VERSION
from reliable_spark.ledger.tables import Table


def check_version(batches: Table) -> dict[str, str]:
    """Read who wrote a ledger, and refuse one that this version of the library might misread.

    Raises:
        LedgerError: the table is no ledger of ours, or one of another version.
    """
    try:
        identity: dict[str, str] = json.loads(batches.description)
        version = int(identity["ledger_version"])
    except (ValueError, KeyError) as error:
        raise LedgerError("there is a Delta table in the ledger's place, but not a reliable_spark ledger") from error
    if version > LEDGER_VERSION:
        raise LedgerError(
            f"the ledger was written by a newer reliable_spark (ledger version {version}, "
            f"this one reads {LEDGER_VERSION}): upgrade the library"
        )
    if version < LEDGER_VERSION:
        raise LedgerError(
            f"the ledger was written by an older reliable_spark (ledger version {version}, this one writes "
            f"{LEDGER_VERSION}): finish it with the version that wrote it, or start with a new ledger"
        )
    return identity
