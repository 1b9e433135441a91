"""What is to be done at the end, all of it, whatever a part of it raises."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from reliable_spark.errors import OperatingError

_LOG = logging.getLogger("reliable_spark.topology")


def first_error(calls: Iterable[Callable[[], object]]) -> BaseException | None:
    """Make every call; gives what the first of those raised that raised, the others' errors are logged.

    A `SystemExit` is a user's code that wanted to end its own task: it comes back as an error that ends no program.
    """
    found: BaseException | None = None
    for call in calls:
        try:
            call()
        except BaseException as error:
            if found is not None:
                _LOG.warning("while the topology was closed: %s: %s", type(error).__name__, error)
            elif isinstance(error, SystemExit):
                found = OperatingError(f"a task called sys.exit({error.code!r}) when the topology was closed")
            else:
                found = error
    return found
