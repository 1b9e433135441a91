"""What the loop needs of a sink: rows are evaluated first and become visible in a second step."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from reliable_spark.errors import SinkError, UsageError
from reliable_spark.ledger.tables import local_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PARTS_OF_LEDGER: Final = frozenset(
    {
        *("batches", "pending", "dead_letters", "journal", "statistics", "checkpoint", "staged", "state"),
        *("acks", "queues", "stages", "reread"),
    }
)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

DeliveryMode = Literal["at_most_once", "at_least_once", "exactly_once"]


@dataclass(frozen=True)
class Prepared:
    """Rows that were evaluated exactly once and that nobody sees yet.

    Attributes:
        actions: what the ledger stores so that a later process can commit; empty when there is nothing to.
        rows: the materialised rows of a sink that takes a DataFrame.
    """

    actions: tuple[str, ...] = ()
    rows: DataFrame | None = None


@dataclass(frozen=True)
class Delivery:
    """Under which identity the rows of a batch are delivered; the third argument of a sink function.

    Attributes:
        query_id: the ledger's id: the same over all restarts, another one for every other ledger.
        batch_id: rises with every batch, replays included.
        attempt: 1 for the first call with this batch, 2 when a crash left unknown whether that was complete.
    """

    query_id: str
    batch_id: int
    attempt: int


@dataclass(frozen=True)
class LastBatch:
    """The last settled batch, as the ledger has it.

    Attributes:
        batch_id: its number; -1 when there is none.
        actions: what it had to commit.
        sink_version: the sink's version before it.
        sink: what the sink was when the ledger was written last.
    """

    batch_id: int = -1
    actions: tuple[str, ...] = ()
    sink_version: int | None = None
    sink: str | None = None


class Sink(Protocol):
    """A two-step sink: `prepare` evaluates, `commit` makes visible.

    Attributes:
        settles_first: True when the ledger is settled before `commit`: it can be repeated from stored actions,
            or must not be; False when the rows must be in the sink before the ledger says so.
        is_begun: True when a batch must be the same under its id when it runs again.
    """

    settles_first: bool
    is_begun: bool

    def open(self, schema: StructType) -> None:
        """Check, before anything is written, that the sink will take rows of this schema."""
        ...

    def bind(self, query_id: str, last: LastBatch) -> None:
        """Take the name under which batches are committed, and check that this is the sink that was used before."""
        ...

    @property
    def identity(self) -> str:
        """What this sink is, as JSON, to recognise it at the next start."""
        ...

    @property
    def version(self) -> int | None:
        """The version of the sink that the last commit has made or met."""
        ...

    def unfinished(self, last: LastBatch) -> Prepared | None:
        """What the last settled batch has still to commit, or None."""
        ...

    def prepare(self, rows: DataFrame) -> Prepared:
        """Evaluate the rows, once, with all observations in them."""
        ...

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        """Make the rows visible."""
        ...

    def discard(self, prepared: Prepared) -> None:
        """Forget rows that were prepared but must not be seen."""
        ...


def absolute(path: str | Path) -> str:
    """A local path made absolute, since Python and the JVM may stand in different directories; a URI as it is."""
    text = str(path)
    return text if _SCHEME.match(text) else str(Path(text).absolute())


def refuse_overlap(sink: object, ledger: str) -> None:
    """Refuse a Delta sink over a ledger, or in place of a part of it: each would take the other's files for its own.

    Raises:
        UsageError: it is such a sink.
    """
    if not isinstance(sink, str | Path):
        return
    table, directory = _normal(absolute(sink)), _normal(ledger)
    if table == directory or table in directory.parents:
        raise UsageError(
            f"the sink {str(sink)!r} is the ledger's own directory or above it, where VACUUM would delete the "
            "ledger's files: give each a directory of its own"
        )
    if directory in table.parents and table.relative_to(directory).parts[0] in _PARTS_OF_LEDGER:
        raise UsageError(f"the sink {str(sink)!r} is a part of the ledger: give it a directory of its own")


def _normal(path: str) -> PurePath:
    local = local_directory(path)
    return PurePath(path) if local is None else PurePath(os.path.normpath(local))


def resolve_sink(sink: object, spark: SparkSession, delivery: DeliveryMode, ledger: str) -> Sink:
    """Turn what the user gave into a sink.

    Args:
        sink: a Delta path, a function of (DataFrame, batch id), a Sink, or None to write nothing.
        spark: the session that writes.
        delivery: the guarantee that is asked for.
        ledger: the ledger's directory, where rows may be staged.

    Raises:
        UsageError: it is none of these, or a function that takes other arguments.
    """
    from reliable_spark.sinks.delta import DeltaSink
    from reliable_spark.sinks.function import FunctionSink
    from reliable_spark.sinks.noop import NoopSink
    from reliable_spark.sinks.staged import StagedFunctionSink

    if sink is None:
        return NoopSink()
    if isinstance(sink, str | Path):
        # as Hadoop writes a URI: Delta takes file:///sink and file:/sink for two places
        return DeltaSink(re.sub("^file:/+", "file:/", absolute(sink)), spark)
    if hasattr(sink, "prepare") and hasattr(sink, "commit"):
        return sink  # type: ignore[return-value]
    if not callable(sink):
        raise UsageError(f"a sink is a Delta path or a function of (DataFrame, batch_id), not {type(sink).__name__}")
    _refuse_other_arguments(sink)
    if delivery == "exactly_once":
        return StagedFunctionSink(sink, spark, staging_directory(ledger))
    return FunctionSink(sink, settles_first=delivery == "at_most_once")


def hand_over(sink: Sink, last: LastBatch, spark: SparkSession, query_id: str, ledger: str) -> LastBatch:
    """What of the last settled batch is a bound sink's to finish: nothing, when it was written to another one.

    Raises:
        SinkError: that other sink has not got everything yet.
    """
    if last.sink is None or last.sink == sink.identity:
        return last
    unfinished = None
    held = json.loads(last.sink)
    if "delta" in held:
        from reliable_spark.sinks.delta import DeltaSink

        unfinished = DeltaSink.before(held["delta"], spark, query_id).unfinished(last)
    elif held.get("function") == "staged":
        from reliable_spark.sinks.staged import StagedFunctionSink

        unfinished = StagedFunctionSink(print, spark, staging_directory(ledger)).unfinished(last)
    if unfinished:
        where = held.get("delta", "a function")
        raise SinkError(
            f"batch {last.batch_id} of this ledger has still to be committed to {where}: start once with that sink "
            "before you change to another"
        )
    return replace(last, actions=())


def staging_directory(ledger: str) -> str:
    """Where rows wait for a function that is to see them exactly once."""
    return f"{ledger.rstrip('/')}/staged"


def call(function: Callable[..., Any], rows: DataFrame, delivery: Delivery) -> None:
    """Call a sink function with the arguments that it takes: the rows, the batch id, and perhaps the delivery."""
    arguments: tuple[Any, ...] = (rows, delivery.batch_id, delivery)
    function(*(arguments if _takes_delivery(function) else arguments[:2]))


def _refuse_other_arguments(function: Callable[..., Any]) -> None:
    given = (None,) * (3 if _takes_delivery(function) else 2)
    with suppress(ValueError):  # some builtins do not tell
        signature = inspect.signature(function)
        try:
            signature.bind(*given)
        except TypeError as error:
            raise UsageError(f"a sink is called with (DataFrame, batch_id), but this one takes {signature}") from error


def _takes_delivery(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return False
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len([each for each in positional if each.default is each.empty]) > 2
