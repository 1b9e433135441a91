"""Runs a windowed bolt as a rich one. Source: Storm's `topology/WindowedBoltExecutor`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, Protocol

from reliable_spark.core.graph import CHECKPOINT_STREAM
from reliable_spark.core.windows import CountWindows, OrderedCountWindows, TimeWindows, Watermarks
from reliable_spark.errors import TopologyError, nearest
from reliable_spark.topology.bolts import BoltWrapper, OutputCollector, ReportedFail
from reliable_spark.topology.context import TICK_KEY, TopologyContext
from reliable_spark.topology.periods import PENDING_KEY, TIMEOUT_KEY
from reliable_spark.topology.tuples import Tuple
from reliable_spark.topology.windowed import Count, Duration, TupleWindow, WindowedBolt, WindowedCollector, Windowing


class _TimedWindows(Protocol):
    """Windows that fire as time goes on."""

    @property
    def progress(self) -> Any: ...
    def add(self, item: Tuple, at: float) -> None: ...
    def advance(self, to: float) -> list[TupleWindow]: ...
    def resume(self, progress: Any, held: Iterable[tuple[Tuple, float]]) -> None: ...


class WindowedBoltExecutor(BoltWrapper[WindowedBolt]):
    """Puts tuples into windows, fires them on ticks or on counts, and acks what leaves."""

    def component_configuration(self) -> Mapping[str, Any]:
        """As the user's bolt has it; ticks come as often as windows may fire."""
        windowing = self.bolt.windowing
        own = {**self.bolt.component_configuration()}
        if windowing.timestamp_field is not None:
            own[TICK_KEY] = windowing.watermark_interval_s
        elif isinstance(windowing.slide, Duration):
            own[TICK_KEY] = round(windowing.slide.seconds, 6)  # as windows count, so that they end at ticks
        return own

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Check the windows and prepare the user's bolt.

        Raises:
            TopologyError: there is no length, or the windows hold tuples longer, or more of them, than may be.
        """
        component = context.graph.components[context.component]
        check_windowing(context.component, self.bolt.windowing, component.streams)
        self._check_limits(context.component, configuration)
        self._collector, self._clock = collector, context.clock
        self._windowed = WindowedCollector(collector)
        self._began_s = self._clock.now().timestamp()
        inputs = ((each.component, each.stream) for each in component.inputs)
        self._streams = frozenset(each for each in inputs if each[1] != CHECKPOINT_STREAM)
        self._open_windows()
        self.bolt.prepare(configuration, context, self._windowed)

    def execute(self, input: Tuple) -> None:
        """Put a tuple into its windows; on a tick let time go on."""
        if input.is_tick:
            self._advance()
            self._collector.ack(input)
        elif self.bolt.windowing.timestamp_field is not None:
            self._take_event(input, self.bolt.windowing.timestamp_field)
        elif self._timed is not None:
            self._put(input, self._now_s())
        elif self._counted is not None:
            self._entered(input, 0.0)
            self._fire(self._counted.add(input))

    # ------------------------------------------------------------------------------------------- for subclasses

    def _check_limits(self, component: str, configuration: Mapping[str, Any]) -> None:
        check_limits(component, self.bolt.windowing, configuration)

    def _open_windows(self) -> None:
        """Begin with nothing in them."""
        self._counted, self._timed = _windows(self.bolt.windowing)
        self._watermarks = Watermarks(self._streams, self.bolt.windowing.lag_s)

    def _entered(self, input: Tuple, at: float) -> None:
        """A tuple is put into the windows."""

    def _left(self, input: Tuple) -> None:
        """A tuple has left the windows, which have been executed."""
        self._collector.ack(input)

    def _anchors(self, items: Sequence[Tuple]) -> Sequence[Tuple]:
        """What a window's output is anchored to, if the user's bolt does not say."""
        return items

    def _now_s(self) -> float:
        """Seconds since the task began, as ticks are counted, to the microsecond."""
        return round(self._clock.now().timestamp() - self._began_s, 6)

    # ------------------------------------------------------------------------------------------- windows

    def _take_event(self, input: Tuple, field: str) -> None:
        value = input[field]
        at = _seconds(value)
        if at is not None:
            self._take(input, at)
            return
        said = f"{value!r} in the field {field!r} from {input.source_component!r}"
        self._collector.report_error(ReportedFail(f"an event time is a number of seconds or a datetime, not {said}"))
        self._collector.fail(input)  # the others that are held have nothing to do with it

    def _take(self, input: Tuple, at: float) -> None:
        if self._watermarks.accepts((input.source_component, input.source_stream), at):
            self._put(input, at)
            return
        if self.bolt.windowing.late_stream is not None:
            self._collector.emit([input.detached()], input, self.bolt.windowing.late_stream)
        self._collector.ack(input)

    def _put(self, input: Tuple, at: float) -> None:
        assert self._timed is not None
        self._entered(input, at)
        self._timed.add(input, at)

    def _advance(self) -> None:
        if self._timed is None:
            return
        to = self._watermarks.advance() if self.bolt.windowing.timestamp_field is not None else self._now_s()
        if to is not None:
            self._fire(self._timed.advance(to))

    def _fire(self, windows: list[TupleWindow]) -> None:
        """Execute each window, then let go what has left: what is emitted is in the trees before they can end."""
        for window in windows:
            if window.items:
                self._windowed.window = self._anchors(window.items)
                self.bolt.execute(window)
            for each in window.expired:
                self._left(each)


def check_windowing(component: str, windowing: Windowing, streams: Mapping[str, Any]) -> None:
    """Raise TopologyError for windows that are not told what they need, or late tuples that have nowhere to go."""
    if windowing.length is None:
        raise TopologyError(f"windowed bolt {component!r} has no window: call with_window or with_tumbling_window")
    if windowing.late_stream is None:
        return
    if windowing.timestamp_field is None:
        raise TopologyError(
            f"bolt {component!r} has a late tuple stream and no time to be late by: call with_timestamp"
        )
    if windowing.late_stream not in streams:
        hint = nearest(windowing.late_stream, streams) or "; it declares none"
        raise TopologyError(f"late tuple stream {windowing.late_stream!r} of {component!r} is not declared{hint}")


def check_limits(component: str, windowing: Windowing, configuration: Mapping[str, Any]) -> None:
    """Raise TopologyError for windows whose tuples would time out, or keep their spout from emitting, in the window."""
    length, slide = windowing.length, windowing.slide
    if isinstance(length, Count) and isinstance(slide, Count):
        held: float = length.tuples + slide.tuples
        limit, what = configuration[PENDING_KEY], "pending tuples"
    else:
        assert isinstance(length, Duration)
        assert isinstance(slide, Duration)
        held = length.seconds + slide.seconds
        limit, what = configuration[TIMEOUT_KEY], "seconds"
        limit = limit if configuration["topology.enable.message.timeouts"] else None
    if limit is not None and held > limit:
        raise TopologyError(
            f"bolt {component!r} holds tuples for {length} + {slide}, but {limit} {what} are the limit: they are acked "
            "only when they leave the window; a StatefulWindowedBolt acks them at checkpoints"
        )


def _windows(windowing: Windowing) -> tuple[CountWindows[Tuple] | None, _TimedWindows | None]:
    """What fires on tuples, and what fires as time goes on."""
    length, slide = windowing.length, windowing.slide
    if isinstance(length, Duration) and isinstance(slide, Duration):
        return None, TimeWindows(length.seconds, slide.seconds)
    assert isinstance(length, Count)
    assert isinstance(slide, Count)
    counted: CountWindows[Tuple] = CountWindows(length.tuples, slide.tuples)
    return (counted, None) if windowing.timestamp_field is None else (None, OrderedCountWindows(counted))


def _seconds(value: Any) -> float | None:
    """An event time in seconds; None if it is neither a finite number nor a datetime."""
    try:
        seconds = value.timestamp() if isinstance(value, datetime) else value
        is_time = isinstance(seconds, int | float) and not isinstance(seconds, bool) and isfinite(seconds)
    except (OverflowError, ValueError, OSError):  # a number or a year that is too great
        return None
    return seconds if is_time else None
