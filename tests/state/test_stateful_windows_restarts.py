"""Windows that are a state, from run to run: they go on in the middle, or say why they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reliable_spark import Count, Duration, Settings, StatefulWindowedBolt, TopologyError, UsageError
from reliable_spark.core.checkpoints import Phase
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.process import ProcessEngine
from reliable_spark.settings import TopologySettings
from reliable_spark.state import MemoryStateProvider
from reliable_spark.testing import TestTopology
from reliable_spark.testing.engine import ENGINES
from tests.state import pieces
from tests.state.pieces import running
from tests.state.windows import Remembers, by_events, clock_at, feed, fired, windowed

KINDS: dict[str, Callable[[], StatefulWindowedBolt[Any]]] = {
    "tumbling by count": lambda: Remembers().with_tumbling_window(Count(3)),
    "sliding by count": lambda: Remembers().with_window(Count(4), Count(3)),
    "tumbling by time": lambda: Remembers().with_tumbling_window(Duration(3)),
    "sliding by time": lambda: Remembers().with_window(Duration(4), Duration(2)),
    "by event time": lambda: Remembers().with_window(Duration(4), Duration(2)).with_timestamp("ts", lag_s=2),
    "by count of events": lambda: Remembers().with_window(Count(4), Count(3)).with_timestamp("ts", lag_s=2),
}
TIMES = [1, 3, 2, 5, 4, 7, 5, 8, 9, 11]
"""Never further behind than the lag."""


def started_at(seconds: float, bolt: StatefulWindowedBolt[Any], provider: Any, engines: pytest.MonkeyPatch) -> Any:
    """A topology whose clock begins there."""
    engines.setitem(ENGINES, "later", lambda topology, how: ProcessEngine(topology, how, clock_at(seconds)))
    own = TopologySettings(state_provider=provider)
    return TestTopology(windowed(bolt), Settings(message_timeout_s=10, topology=own), "later")


def run(topology: TestTopology, numbers: range) -> None:
    for number in numbers:
        topology.feed("s", [TIMES[number]], message_id=number)
        topology.advance(1)
    assert topology.acks("s") == list(numbers)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [0, 1, 4, 5, 9, 10])
def test_the_next_run_goes_on_in_the_middle_of_the_windows(
    kind: str, stop: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that fired in both runs are those of one without a stop."""
    whole = started_at(0, KINDS[kind](), MemoryStateProvider(), monkeypatch)
    run(whole, range(len(TIMES)))
    whole.advance(10)
    provider = MemoryStateProvider()
    emitted = []
    for begin, end in ((0, stop), (stop, len(TIMES))):
        topology = started_at(begin, KINDS[kind](), provider, monkeypatch)
        run(topology, range(begin, end))
        if end == len(TIMES):
            topology.advance(10)
        emitted += topology.emitted("w")
        topology.close()
    assert emitted == whole.emitted("w")
    assert len(emitted) > 1
    assert fired(topology) == fired(whole)


def test_what_was_late_is_late_in_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As event time had come so far."""
    provider = MemoryStateProvider()
    for begin, value in ((0, 100), (2, 89)):
        topology = started_at(begin, by_events("late"), provider, monkeypatch)
        feed(topology, value)
        topology.advance(2)
    assert [late[0] for [late] in topology.emitted("w", "late")] == [89]
    assert topology.acks("s") == [89]


def test_windows_that_ended_while_nothing_ran_fire_with_the_first_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time by arrival is the clock's."""
    provider = MemoryStateProvider()
    first = started_at(0, KINDS["tumbling by time"](), provider, monkeypatch)
    run(first, range(1))
    first.close()
    second = started_at(500, KINDS["tumbling by time"](), provider, monkeypatch)
    run(second, range(1, 2))
    second.advance(5)
    assert second.emitted("w") == [[[TIMES[0]]], [[TIMES[1]]]]


def test_time_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that does, it goes on from where it was."""
    provider = MemoryStateProvider()
    emitted = []
    for begin in (500, 0, 0):
        topology = started_at(begin, KINDS["tumbling by time"](), provider, monkeypatch)
        feed(topology, begin)
        topology.advance(4)
        emitted += topology.emitted("w")
        topology.close()
    assert emitted == [[[500]], [[0]], [[0]]]


@pytest.mark.parametrize("provider", ["delta", "redis"])
def test_windows_outlive_the_process(provider: str, request: pytest.FixtureRequest, tmp_path: Any) -> None:
    """On each of the providers that do."""
    configuration: dict[str, Any] = {"path": str(tmp_path)}
    if provider == "redis":
        client = request.getfixturevalue("redis_client")
        client.flushdb()
        configuration = {"jedisPoolConfig": {"port": client.get_connection_kwargs()["port"]}}
    own = TopologySettings(state_provider=provider, state_provider_config=configuration)
    emitted = []
    for begin in (0, 12, 24):
        part = list(range(begin, begin + 12))
        with TestTopology(windowed(Remembers().with_tumbling_window(Count(18))), Settings(topology=own)) as topology:
            feed(topology, *part)
            topology.advance(1)
            assert topology.acks("s") == part
            emitted += topology.emitted("w")
    assert emitted == [[list(range(18))], [list(range(18, 36))]]


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("bolt", "message"),
    [
        (Remembers(), "has no window"),
        (Remembers("late").with_window(Count(2)).with_late_tuple_stream("late"), "no time to be late by"),
        (Remembers("late").with_window(Count(2)).with_timestamp("ts", late_stream="later"), "did you mean 'late'"),
    ],
)
def test_windows_that_cannot_work_are_refused(bolt: StatefulWindowedBolt[Any], message: str) -> None:
    """When the topology starts."""
    with pytest.raises(TopologyError, match=message):
        running(windowed(bolt))


def test_other_windows_than_the_state_holds_are_refused() -> None:
    """Counts are no times; another length is taken."""
    provider = MemoryStateProvider()
    topology = running(windowed(Remembers().with_window(Count(5))), provider)
    feed(topology, 1, 2, 3)
    topology.advance(1)
    with pytest.raises(
        TopologyError, match=r"'w' has windows by time of arrival, .* holds windows by count of arrival"
    ):
        running(windowed(Remembers().with_window(Duration(5), Duration(5))), provider)
    topology = running(windowed(Remembers().with_window(Count(2))), provider)
    feed(topology, 4)
    assert topology.emitted("w") == [[[3, 4]]]


def test_values_that_no_state_can_store_are_refused() -> None:
    """With the bolt and who sent them."""
    topology = running(windowed(Remembers().with_tumbling_window(Count(5))))
    topology.feed("s", [Phase.COMMITTED], message_id=1)
    with pytest.raises(UsageError, match="'w' cannot keep a tuple of 's': a state cannot store a Phase"):
        topology.advance(1)


def test_states_without_keys_are_refused() -> None:
    """They have no place for tuples."""

    class Own(MemoryStateProvider):
        def state(self, namespace: str) -> Any:
            return super().state(namespace) if namespace.startswith(CHECKPOINT_SPOUT) else object()

    with pytest.raises(TopologyError, match="'w' keeps its windows in a KeyValueState"):
        running(windowed(Remembers().with_window(Count(5))), Own())


def test_another_number_of_tasks_is_refused() -> None:
    """And changes nothing: with as many as before it goes on."""
    provider = MemoryStateProvider()
    for tasks in (2, 3, 1, 2):
        builder = windowed(Remembers().with_tumbling_window(Count(4)), tasks=tasks)
        if tasks != 2:
            with pytest.raises(TopologyError, match="'w' has another number of tasks than its windows"):
                running(builder, provider)
            continue
        topology = running(builder, provider)
        feed(topology, *"abcdef")
        topology.advance(1)
        assert topology.acks("s") == list("abcdef")
    seen = [value for task in (0, 1) for window in topology.state("w", task).get("fired", []) for value in window]
    assert sorted(seen) == sorted("abcdef" * 2)  # four a run for one task, two for the other


@pytest.mark.parametrize("point", ["prepare", "commit"])
def test_another_bolt_may_have_another_number_of_tasks(point: str) -> None:
    """Though the last run died in the middle of a checkpoint, of which the windows have their part."""
    provider = MemoryStateProvider()

    def begun(tasks: int) -> TestTopology:
        builder = windowed(Remembers().with_tumbling_window(Count(3)))
        builder.set_bolt("count", pieces.Count(), tasks).fields_grouping("s", ["ts"])
        return running(builder, provider)

    def die(txid: int) -> None:
        raise KeyboardInterrupt

    topology = begun(1)
    feed(topology, 1, 2)
    setattr(topology._engine.instance("count", 0).bolt, f"pre_{point}", die)
    with pytest.raises(KeyboardInterrupt):
        topology.advance(1)
    topology = begun(3)
    feed(topology, *([1, 2, 3] if point == "prepare" else [3]))
    topology.advance(1)
    assert topology.emitted("w") == [[[1, 2, 3]]]
    assert sorted(pair for task in range(3) for pair in topology.state("count", task)) == [(1, 1), (2, 1), (3, 1)]


def test_the_names_of_windows_states_are_reserved() -> None:
    """No bolt's state can be in the way."""
    with pytest.raises(TopologyError, match=r"'\$windows-w' is reserved"):
        windowed(Remembers()).set_bolt("$windows-w", pieces.Count())
