"""Bolts over windows: by count or by time, by arrival or by event time.

Source: Storm's `topology/base/BaseWindowedBolt`, `windowing/TupleWindow`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.core.windows import Window
from reliable_spark.errors import UsageError
from reliable_spark.topology.bolts import Anchors, OutputCollector, _Component
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.periods import check_lag, check_period
from reliable_spark.topology.tuples import Tuple

if TYPE_CHECKING:
    from typing_extensions import Self

TupleWindow = Window[Tuple]
"""What a windowed bolt executes: `items`, of which `new` came since the last window, and what `expired` since then."""


@dataclass(frozen=True)
class Count:
    """So many tuples."""

    tuples: int

    def __post_init__(self) -> None:
        """Check that it is a number of tuples."""
        if type(self.tuples) is not int or self.tuples < 1:
            raise UsageError(f"a window has a whole number of tuples, 1 or more, not {self.tuples!r}")


@dataclass(frozen=True)
class Duration:
    """So much time."""

    seconds: float

    def __post_init__(self) -> None:
        """Check that it is a time that passes."""
        check_period("a window's duration", self.seconds)


@dataclass(frozen=True)
class Windowing:
    """What a windowed bolt was told about its windows.

    Attributes:
        length: what a window covers; None until `with_window` says.
        slide: what comes between two windows, of the same kind.
        timestamp_field: the field that event time is read from; None: the time of arrival.
        lag_s: how far behind the newest tuple of its stream a tuple may come.
        watermark_interval_s: how often event time is looked at.
        late_stream: where tuples go that come later than that; None: they are acked and dropped.

    Raises:
        UsageError: `lag_s` or `watermark_interval_s` is no time.
    """

    length: Count | Duration | None = None
    slide: Count | Duration = Count(1)
    timestamp_field: str | None = None
    lag_s: float = 0.0
    watermark_interval_s: float = 1.0
    late_stream: str | None = None

    def __post_init__(self) -> None:
        """Check the times, with which nothing would fire."""
        check_lag("lag_s", self.lag_s)
        check_period("watermark_interval_s", self.watermark_interval_s)


class WindowedCollector:
    """What a windowed bolt emits through: what names no anchors is anchored to every tuple of the window."""

    def __init__(self, collector: OutputCollector) -> None:
        self._collector = collector
        self.window: Sequence[Tuple] = ()

    def emit(self, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM) -> list[int]:
        """Send a tuple; see `OutputCollector.emit`."""
        return self._collector.emit(values, self.window if anchors is None else anchors, stream)

    def emit_direct(
        self, task: int, values: Sequence[Any], anchors: Anchors = None, stream: str = DEFAULT_STREAM
    ) -> None:
        """Send a tuple to one task; see `OutputCollector.emit_direct`."""
        self._collector.emit_direct(task, values, self.window if anchors is None else anchors, stream)

    def report_error(self, error: BaseException) -> None:
        """Show an error to whoever watches the topology."""
        self._collector.report_error(error)


class WindowedBolt(_Component):
    """A bolt that executes windows of tuples.

    Guarantee: a tuple is acked when it has left the windows, and exactly once; until then its tree waits. What is
    emitted for a window is anchored to all of it, so that it fails all of it. A late tuple is acked at once.

    An exception that leaves `execute` kills the task, and the trees of what it held time out.
    """

    windowing: Windowing = Windowing()

    def with_window(self, length: Count | Duration, slide: Count | Duration | None = None) -> Self:
        """Slide a window of this length, by default on by every tuple.

        Raises:
            UsageError: one is a number of tuples and the other a time, or neither.
        """
        slide = slide or Count(1)
        for what, given in (("length", length), ("slide", slide)):
            if not isinstance(given, Count | Duration):
                raise UsageError(f"a window's {what} is a Count of tuples or a Duration in seconds, not {given!r}")
        if type(slide) is not type(length):
            raise UsageError(f"a window of {length} slides by a {type(length).__name__} too, not by {slide}")
        self.windowing = replace(self.windowing, length=length, slide=slide)
        return self

    def with_tumbling_window(self, length: Count | Duration) -> Self:
        """Let one window follow upon the other."""
        return self.with_window(length, length)

    def with_timestamp(
        self, field: str, lag_s: float = 0.0, late_stream: str | None = None, watermark_interval_s: float = 1.0
    ) -> Self:
        """Go by event time: seconds, as a number, or a datetime; a tuple fails whose field has neither.

        See `Windowing` for the arguments and errors.
        """
        if not isinstance(field, str):
            raise UsageError(f"a field is named by a text, not {field!r}")
        self.windowing = replace(
            self.windowing,
            timestamp_field=field,
            lag_s=lag_s,
            late_stream=late_stream,
            watermark_interval_s=watermark_interval_s,
        )
        return self

    def with_late_tuple_stream(self, stream: str) -> Self:
        """Send late tuples there; a copy of each is the stream's one value. Needs `with_timestamp`."""
        self.windowing = replace(self.windowing, late_stream=stream)
        return self

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: WindowedCollector) -> None:
        """Called once per task before the first window; keep the collector."""

    def execute(self, window: TupleWindow) -> None:
        """Called once per window that has anything in it."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Called when the topology is closed, not when the task dies."""
