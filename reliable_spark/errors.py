"""Every error of the library, as one tree, split by whose fault it is.

ReliableSparkError
├── UsageError            the program is wrong: raised where the call is made, before any row is read
│   ├── ColumnError       a column that is not there, twice there, reserved, or of the wrong type
│   ├── SchemaError       a schema or a type that cannot be parsed, computed or stored
│   ├── SettingsError     a setting that is unknown or out of range
│   └── TopologyError     a topology that cannot be built: an unknown, reserved or repeated name, a cycle
└── OperatingError        the world is wrong: raised while running; nothing was settled, start again
    ├── LedgerError       the ledger cannot be read, written or trusted
    ├── SinkError         the sink refused
    ├── StateError        a bolt's state cannot be read or written, or is asked for a transaction out of turn
    └── TooManyFailures   the share of bad rows is over `max_bad_ratio`: the batch was not settled
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ReliableSparkError(Exception):
    """Base of all errors that this library raises on its own account."""


class UsageError(ReliableSparkError):
    """The program asks for something that cannot be; raised at the call, before any row is read."""


class ColumnError(UsageError):
    """A column is missing, ambiguous, reserved or of the wrong type."""


class SchemaError(UsageError):
    """A schema does not parse, or holds a type that the ledger cannot store."""


class SettingsError(UsageError):
    """A setting is unknown or out of its range."""


class TopologyError(UsageError):
    """A topology names what is not there, repeats or reserves a name, or has a cycle."""


class OperatingError(ReliableSparkError):
    """Something outside the program failed; nothing was settled, so a restart loses nothing."""


class LedgerError(OperatingError):
    """The ledger cannot be read, written or trusted."""


class SinkError(OperatingError):
    """The sink refused the rows of a batch; the batch was not settled."""


class StateError(OperatingError):
    """The state of a bolt cannot be read or written, or is asked for a transaction out of turn."""


class UnstorableError(StateError):
    """No state can store this value or key: it is the fault of the row or tuple in hand, and of no other."""


class TooManyFailures(OperatingError):
    """More than `max_bad_ratio` of a batch failed; nothing of it was written or settled."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say which valid name is nearest to a wrong one, as the tail of an error message.

    Args:
        name: what the caller wrote.
        valid: the names that would have been right.

    Returns:
        `"; did you mean 'x'?"`, or the list of valid names, or an empty string when there are none.
    """
    choices = list(valid)
    by_lower = {choice.lower(): choice for choice in choices}
    match = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if match:
        return f"; did you mean {by_lower[match[0]]!r}?"
    return f"; there are: {', '.join(choices)}" if choices else ""
