"""What the loop needs of a sink: rows are evaluated first and become visible in a second step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from reliable_spark.errors import UsageError

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Prepared:
    """Rows that were evaluated exactly once and that nobody sees yet.

    Attributes:
        actions: what has to be committed to a Delta table's log, as JSON; can be stored and committed later.
        rows: the materialised rows of a sink that takes a DataFrame.
    """

    actions: tuple[str, ...] = ()
    rows: DataFrame | None = None


class Sink(Protocol):
    """A two-step sink: `prepare` evaluates, `commit` makes visible.

    Attributes:
        settles_first: True when `commit` can be repeated from stored actions, so that the ledger is settled
            before it; False when the rows must be in the sink before the ledger says so.
    """

    settles_first: bool

    def open(self, rows: DataFrame) -> None:
        """Check, before anything is written, that the sink will take rows like these (the frame is empty)."""
        ...

    def bind(self, application: str) -> None:
        """Take the name under which batches are committed."""
        ...

    def recover(self, batch_id: int, actions: tuple[str, ...]) -> None:
        """Finish the commit of the last settled batch where a crash came between."""
        ...

    def prepare(self, rows: DataFrame) -> Prepared:
        """Evaluate the rows, once, with all observations in them."""
        ...

    def commit(self, prepared: Prepared, batch_id: int) -> None:
        """Make the rows visible."""
        ...

    def discard(self, prepared: Prepared) -> None:
        """Forget rows that were prepared but must not be seen."""
        ...


def absolute(path: str | Path) -> str:
    """A local path made absolute, since Python and the JVM may stand in different directories; a URI as it is."""
    text = str(path)
    return text if _SCHEME.match(text) else str(Path(text).absolute())


def resolve_sink(sink: object, spark: SparkSession) -> Sink:
    """Turn what the user gave into a sink.

    Args:
        sink: a Delta path, a function of (DataFrame, batch id), a Sink, or None to write nothing.
        spark: the session that writes.

    Raises:
        UsageError: it is none of these.
    """
    from reliable_spark.sinks.delta import DeltaSink
    from reliable_spark.sinks.function import FunctionSink
    from reliable_spark.sinks.noop import NoopSink

    if sink is None:
        return NoopSink()
    if isinstance(sink, str | Path):
        return DeltaSink(absolute(sink), spark)
    if hasattr(sink, "prepare") and hasattr(sink, "commit"):
        return sink  # type: ignore[return-value]
    if isinstance(sink, Callable):  # type: ignore[arg-type]
        return FunctionSink(sink)  # type: ignore[arg-type]
    raise UsageError(f"a sink is a Delta path or a function of (DataFrame, batch_id), not {type(sink).__name__}")
