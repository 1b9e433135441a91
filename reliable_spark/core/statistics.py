"""What Storm's UI counts, over its four windows: exact counts in rings of time buckets. Time is an argument.

Source: Storm's `metric/internal/CountStat` and `LatencyStat` (20 buckets per window), `stats/BoltExecutorStats`
for the capacity, `stats/StatsUtil` for the sums. Storm samples one call in twenty; here every call counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum

BUCKETS = 20
ALL_TIME = ":all-time"
WINDOWS_S: Mapping[str, int] = {"600": 600, "10800": 10_800, "86400": 86_400}
"""The windows that end, under the names of Storm's UI: 10 minutes, 3 hours, 1 day."""
WINDOWS = (*WINDOWS_S, ALL_TIME)

Key = tuple[str, str]
"""An output is (own component, stream), an input (source component, source stream)."""


class Metric(Enum):
    """What is summed up; the times are sums of milliseconds over `*_count` calls."""

    EMITTED = "emitted"
    TRANSFERRED = "transferred"
    EXECUTED = "executed"
    ACKED = "acked"
    FAILED = "failed"
    COMPLETE_MS = "complete_ms"
    PROCESS_MS = "process_ms"
    EXECUTE_MS = "execute_ms"


class Ring:
    """Sums the amounts of the newest `BUCKETS` buckets of time, the current one included.

    Exact: an amount counts for at least `window_s - window_s / BUCKETS` and less than `window_s` seconds.

    Args:
        window_s: length of the window, seconds.
    """

    def __init__(self, window_s: int) -> None:
        self._width_s = window_s / BUCKETS
        self._amounts: list[float] = [0] * BUCKETS
        self._numbers = [-BUCKETS] * BUCKETS

    def add(self, now_s: float, amount: float) -> None:
        """Count an amount at a time; times must not go back by a window or more."""
        number = int(now_s // self._width_s)
        place = number % BUCKETS
        if self._numbers[place] != number:
            self._numbers[place], self._amounts[place] = number, 0
        self._amounts[place] += amount

    def total(self, now_s: float) -> float:
        """The sum over the window that ends now."""
        oldest = int(now_s // self._width_s) - BUCKETS + 1
        return sum(amount for amount, number in zip(self._amounts, self._numbers, strict=True) if number >= oldest)


class Tally:
    """One number over all windows."""

    def __init__(self) -> None:
        self._rings = {name: Ring(window_s) for name, window_s in WINDOWS_S.items()}
        self._all_time: float = 0

    def add(self, now_s: float, amount: float = 1) -> None:
        """Count an amount now."""
        self._all_time += amount
        for ring in self._rings.values():
            ring.add(now_s, amount)

    def total(self, window: str, now_s: float) -> float:
        """The sum over a window, by its name."""
        return self._all_time if window == ALL_TIME else self._rings[window].total(now_s)


@dataclass(slots=True)
class Amounts:
    """What was counted for one output or input since it was last kept: a field for each metric, cheap to add to."""

    emitted: int = 0
    transferred: int = 0
    executed: int = 0
    acked: int = 0
    failed: int = 0
    complete_ms: float = 0
    process_ms: float = 0
    execute_ms: float = 0


class TaskCounts:
    """Everything one task has counted.

    Attributes:
        fresh: what is being counted, by output or input: `counts.fresh[key].emitted += 1`. It is in no window until
            it is kept.

    Args:
        started_s: when the task started, on the clock of all later times.
    """

    def __init__(self, started_s: float = 0.0) -> None:
        self.started_s = started_s
        self.fresh: defaultdict[Key, Amounts] = defaultdict(Amounts)
        self._tallies: defaultdict[tuple[Metric, Key], Tally] = defaultdict(Tally)

    def keep(self, now_s: float) -> None:
        """Put what is fresh into the windows, as counted at a time; cheap enough to be called every second."""
        if self.fresh:
            fresh, self.fresh = self.fresh, defaultdict(Amounts)
            self.add_all(now_s, fresh)

    def add_all(self, now_s: float, counted: Mapping[Key, Amounts]) -> None:
        """Count what somebody has counted at a time."""
        for key, amounts in counted.items():
            for metric in Metric:
                amount = getattr(amounts, metric.value)
                if amount:
                    self.add(metric, key, now_s, amount)

    def add(self, metric: Metric, key: Key, now_s: float, amount: float = 1) -> None:
        """Count an amount of a metric, for one output or input."""
        self._tallies[metric, key].add(now_s, amount)

    def keys(self, *metrics: Metric) -> set[Key]:
        """The outputs or inputs for which one of the metrics was counted."""
        return {key for metric, key in self._tallies if metric in metrics}

    def total(self, metric: Metric, window: str, now_s: float, chosen: Callable[[Key], bool]) -> float:
        """The sum of a metric over a window and the chosen outputs or inputs."""
        return sum(
            tally.total(window, now_s)
            for (counted, key), tally in self._tallies.items()
            if counted is metric and chosen(key)
        )

    def capacity(self, now_s: float) -> float:
        """The share of the last 10 minutes, or of the time since the start, that was spent in execute."""
        span_s = min(now_s - self.started_s, WINDOWS_S["600"])
        return self.total(Metric.EXECUTE_MS, "600", now_s, lambda key: True) / (span_s * 1000) if span_s > 0 else 0.0


@dataclass(frozen=True)
class Figures:
    """The numbers of one row of Storm's UI. A latency of nothing is 0; latencies are means in milliseconds.

    Attributes:
        emitted: calls of emit.
        transferred: tuples sent, one per receiving task.
        executed: calls of execute.
        acked: a spout's complete trees; a bolt's acks of tracked and untracked tuples.
        failed: a spout's failed or timed out trees; a bolt's fails.
        complete_latency_ms: age of a tree in the acker's hands when it was complete.
        process_latency_ms: from the start of execute to the ack of the same tuple.
        execute_latency_ms: inside execute.
    """

    emitted: int
    transferred: int
    executed: int
    acked: int
    failed: int
    complete_latency_ms: float
    process_latency_ms: float
    execute_latency_ms: float


@dataclass(frozen=True)
class ComponentStatistics(Figures):
    """A component's page in Storm's UI; its own numbers are those of all time, without the system's streams.

    Attributes:
        windows: the same by window: "600", "10800", "86400" and ":all-time".
        outputs: the numbers of all time by own stream, system streams included.
        inputs: the numbers of all time by (source component, source stream), system streams included.
        capacity: the busiest task's share of the last 10 minutes spent in execute.
    """

    windows: Mapping[str, Figures]
    outputs: Mapping[str, Figures]
    inputs: Mapping[Key, Figures]
    capacity: float


def component_statistics(component: str, tasks: Iterable[TaskCounts], now_s: float) -> ComponentStatistics:
    """Add up the tasks of one component.

    Args:
        component: its id; outputs are the keys that carry it.
        tasks: what each task counted.
        now_s: the time at which the windows end.
    """
    counts = list(tasks)
    outputs = {key for each in counts for key in each.keys(*Metric) if key[0] == component}
    inputs = {key for each in counts for key in each.keys(*Metric) if key[0] != component}
    windows = {window: _figures(counts, window, now_s, _is_visible(component)) for window in WINDOWS}
    return ComponentStatistics(
        **asdict(windows[ALL_TIME]),
        windows=windows,
        outputs={key[1]: _figures(counts, ALL_TIME, now_s, key.__eq__) for key in sorted(outputs)},
        inputs={key: _figures(counts, ALL_TIME, now_s, key.__eq__) for key in sorted(inputs)},
        capacity=max((each.capacity(now_s) for each in counts), default=0.0),
    )


def _is_visible(component: str) -> Callable[[Key], bool]:
    """The system's streams are hidden, as in Storm's UI, unless the component is the system's own."""
    return lambda key: component.startswith("__") or not key[1].startswith("__")


def _figures(counts: list[TaskCounts], window: str, now_s: float, chosen: Callable[[Key], bool]) -> Figures:
    total = {metric: sum(each.total(metric, window, now_s, chosen) for each in counts) for metric in Metric}
    return Figures(
        emitted=int(total[Metric.EMITTED]),
        transferred=int(total[Metric.TRANSFERRED]),
        executed=int(total[Metric.EXECUTED]),
        acked=int(total[Metric.ACKED]),
        failed=int(total[Metric.FAILED]),
        complete_latency_ms=_mean(total[Metric.COMPLETE_MS], total[Metric.ACKED]),
        process_latency_ms=_mean(total[Metric.PROCESS_MS], total[Metric.ACKED]),
        execute_latency_ms=_mean(total[Metric.EXECUTE_MS], total[Metric.EXECUTED]),
    )


def _mean(total: float, count: float) -> float:
    return total / count if count else 0.0
