"""Windows that are a part of the checkpoint: when their tuples are acked, and what a crash or a restart leaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reliable_spark import Count, Duration, Settings, StatefulWindowedBolt, TopologyError, UsageError
from reliable_spark.core.checkpoints import Phase
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.process import ProcessEngine
from reliable_spark.settings import TopologySettings
from reliable_spark.state import MemoryStateProvider
from reliable_spark.state.layers import LayeredState
from reliable_spark.testing import TestTopology
from reliable_spark.testing.engine import ENGINES
from tests.state import pieces
from tests.state.pieces import running
from tests.state.windows import Remembers, clock_at, fired, windowed
from tests.topology.pieces import Does, fail


def feed(topology: TestTopology, *ids: Any) -> None:
    """Feed one value per id, and settle after each."""
    for each in ids:
        topology.feed("s", [each], message_id=each)
        topology.settle()


def by_events(*late: str) -> StatefulWindowedBolt[Any]:
    bolt = Remembers(*late).with_window(Duration(20), Duration(10))
    return bolt.with_timestamp("ts", lag_s=5, late_stream=late[0] if late else None)


# ------------------------------------------------------------------------------------------------ acks and anchors


def test_h1_a_tuple_is_acked_at_the_commit_that_holds_it() -> None:
    """And stays in its windows; length 5, slide 2."""
    topology = running(windowed(Remembers().with_window(Count(5), Count(2))))
    feed(topology, 1, 2, 3)
    assert topology.acks("s") == []
    topology.advance(1)
    assert topology.acks("s") == [1, 2, 3]
    feed(topology, 4, 5, 6, 7, 8)
    topology.advance(1)
    assert topology.acks("s") == [4, 5, 6, 7, 8]
    assert fired(topology) == [[1, 2], [1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8]]


def test_h2_event_time_windows_and_watermark_rules() -> None:
    """The windows are those of a bolt without a state."""
    topology = running(windowed(by_events()))
    feed(topology, 603, 605, 607, 618, 626, 636)
    topology.advance(1)
    assert fired(topology) == [[603, 605, 607], [603, 605, 607, 618], [618, 626]]
    assert topology.acks("s") == [603, 605, 607, 618, 626, 636]


def test_h3_late_tuple() -> None:
    """It is in no window; a copy goes to the late stream, anchored to it alone; it is acked once, by the commit."""
    builder = windowed(by_events("late"))
    builder.set_bolt("late", Does(lambda bolt, input: bolt.state.append(input))).shuffle_grouping("w", "late")
    topology = running(builder, message_timeout_s=100)
    for at in (603, 605, 607, 618, 626, 636):
        feed(topology, at)
        topology.advance(1)
    topology.acks("s")
    feed(topology, 600)
    [[late]] = topology.emitted("w", "late")
    assert (late.values, late.source_component, late.source_stream, late.edges) == ([600], "s", "default", {})
    topology.advance(2)
    assert topology.acks("s") == []  # its copy has not been acked
    [held] = topology.state("late")
    topology._engine.instance("late", 0).bolt.collector.ack(held)
    topology.settle()
    assert topology.acks("s") == [600]
    feed(topology, 601)
    topology._engine.instance("late", 0).bolt.collector.ack(topology.state("late")[1])
    topology.settle()
    assert topology.acks("s") == []  # now the copy has been, but it is not committed
    topology.advance(1)
    assert topology.acks("s") == [601]
    assert {600, 601}.isdisjoint(value for window in fired(topology) for value in window)


def test_what_is_emitted_is_anchored_to_what_is_not_acked_yet() -> None:
    """What was acked cannot fail any more."""
    topology = running(windowed(Remembers().with_window(Count(3)), after=Does(fail)))
    feed(topology, 1)
    assert topology.fails("s") == [1]
    topology = running(windowed(Remembers().with_tumbling_window(Count(4)), after=Does(fail)))
    feed(topology, 1, 2)
    topology.advance(1)
    assert topology.acks("s") == [1, 2]
    feed(topology, 3, 4)
    assert (topology.emitted("w"), topology.fails("s")) == ([[[1, 2, 3, 4]]], [3, 4])


def test_what_is_emitted_for_a_window_of_acked_tuples_is_not_tracked() -> None:
    """It arrives, and nobody waits for it."""
    topology = running(windowed(Remembers().with_tumbling_window(Duration(3)), after=Does(fail)))
    feed(topology, 1, 2)
    topology.advance(3)
    assert (topology.acks("s"), topology.emitted("w")) == ([1, 2], [[[1, 2]]])
    topology.advance(25)
    assert (topology.fails("s"), topology.executed("end") > 0, topology.pending("s")) == ([], True, 0)


def test_an_acked_tuple_is_no_anchor_by_name_either() -> None:
    """So its tree is not opened again."""

    class NamesAll(Remembers):
        def execute(self, window: Any) -> None:
            for each in window.items:
                self.collector.emit([each[0]], anchors=each)

    topology = running(windowed(NamesAll().with_tumbling_window(Count(2)), after=Does(fail)))
    feed(topology, 1)
    topology.advance(1)
    feed(topology, 2)
    assert (topology.acks("s"), topology.fails("s"), topology.pending("s")) == ([1], [2], 0)


def test_a_tree_that_goes_on_elsewhere_ends_without_what_a_window_emits_later() -> None:
    """The tuple is acked here; its other part is acked after the window fired."""
    builder = windowed(Remembers().with_tumbling_window(Count(2)))
    builder.set_bolt("holds", Does(lambda bolt, input: bolt.state.append(input))).shuffle_grouping("s")
    topology = running(builder)
    feed(topology, 1)
    topology.advance(1)
    feed(topology, 2)
    topology.advance(1)
    holds = topology._engine.instance("holds", 0).bolt
    for each in holds.state:
        holds.collector.ack(each)
    topology.settle()
    assert (topology.acks("s"), topology.state("__acker")) == ([1, 2], 0)


def test_a_window_may_be_longer_than_the_message_timeout() -> None:
    """And hold more tuples than may be pending."""
    topology = running(windowed(Remembers().with_tumbling_window(Duration(100))), max_pending=3)
    for number in range(19):
        feed(topology, number)
        topology.advance(5)
    topology.advance(5)
    assert (topology.acks("s"), topology.fails("s")) == (list(range(19)), [])
    assert fired(topology) == [list(range(19))]


# ------------------------------------------------------------------------------------------------ the transaction


class Watched(MemoryStateProvider):
    """Tells what is asked of its stores, and may refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Any, ...]] = []
        self.look: Callable[[], Any] = lambda: None
        self.refuses: tuple[str, str] | None = None

    def state(self, namespace: str) -> LayeredState[Any, Any]:
        state: LayeredState[Any, Any] = super().state(namespace)
        for step in ("prepare", "commit", "rollback"):
            setattr(state._store, step, partial(self._take, namespace, step, getattr(type(state._store), step)))
        return state

    def _take(self, namespace: str, step: str, take: Any, *arguments: Any) -> None:
        if (namespace, step) == self.refuses:
            self.refuses = None
            raise OSError(f"{namespace} {step}")
        if not namespace.startswith(CHECKPOINT_SPOUT):
            changes = sorted(arguments[1]) if step == "prepare" else self.look()
            self.steps.append((namespace, step, changes))
        take(self._stores[namespace], *arguments)

    def taken(self) -> list[tuple[Any, ...]]:
        steps, self.steps = self.steps, []
        return steps


def test_windows_and_state_are_committed_before_the_acks() -> None:
    """Both are prepared before one is committed, and both committed while every tuple is pending."""
    provider = Watched()
    topology = running(windowed(Remembers().with_tumbling_window(Count(2))), provider)
    feed(topology, 1, 2, 3)
    provider.taken()
    provider.look = lambda: topology.pending("s")
    topology.advance(1)
    assert provider.taken() == [
        ("$windows-w-0", "prepare", [b'"1"', b'"2"', b'"3"', b'"marks"']),
        ("w-0", "prepare", [b'"fired"']),
        ("$windows-w-0", "commit", 3),
        ("w-0", "commit", 3),
    ]
    assert (topology.acks("s"), topology.pending("s")) == ([1, 2, 3], 0)


def test_a_checkpoint_writes_what_has_changed() -> None:
    """What entered and what left, each under its own key; nothing of what did both, and of what did neither."""
    provider = Watched()
    topology = running(windowed(Remembers().with_tumbling_window(Count(100))), provider)
    feed(topology, *range(99))
    topology.advance(1)
    provider.taken()
    feed(topology, 99)
    topology.advance(1)
    [written] = [changes for namespace, step, changes in provider.taken() if (namespace[0], step) == ("$", "prepare")]
    assert written == [b'"100"', b'"marks"']
    topology.advance(1)
    [written] = [changes for namespace, step, changes in provider.taken() if (namespace[0], step) == ("$", "prepare")]
    assert written == []
    feed(topology, *range(100, 300))
    topology.advance(1)
    [written] = [changes for namespace, step, changes in provider.taken() if (namespace[0], step) == ("$", "prepare")]
    assert len(written) == 201  # 1 to 100 left, 201 to 300 entered; 101 to 200 did both


@pytest.mark.parametrize("namespace", ["$windows-w-0", "w-0"])
@pytest.mark.parametrize("step", ["prepare", "commit"])
def test_windows_and_state_go_back_or_forward_together(namespace: str, step: str) -> None:
    """Whichever of the two is refused: back when it was to be prepared, forward when both were."""
    provider = Watched()
    topology = running(windowed(Remembers().with_window(Count(3))), provider)
    feed(topology, 1)
    topology.advance(1)
    feed(topology, 2)
    provider.refuses = (namespace, step)
    topology.advance(1)
    assert [str(each) for each in topology.errors("w")] == [f"{namespace} {step}"]
    if step == "prepare":
        assert (topology.acks("s"), topology.fails("s"), fired(topology)) == ([1], [2], [[1]])
        feed(topology, 2)
        topology.advance(1)
        assert topology.acks("s") == [2]
    else:
        assert (topology.acks("s"), topology.fails("s")) == ([1, 2], [])
    feed(topology, 3)
    assert fired(topology) == [[1], [1, 2], [1, 2, 3]]


def test_the_hooks_are_those_of_a_stateful_bolt() -> None:
    """In the same order."""
    topology = running(windowed(Remembers().with_window(Count(3))))
    hooks = topology._engine.instance("w", 0).bolt.bolt.hooks
    assert hooks == ["init_state", ("prepare", 0), ("commit", 0)]
    feed(topology, 1)
    topology.kill_task("end", 0)
    topology.advance(1)
    assert hooks[3:] == [("prepare", 1), "rollback"]


# ------------------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize("victim", ["w", "end"])
def test_a_task_that_dies_between_two_checkpoints(victim: str) -> None:
    """The windows hold what they held at the commit; what came later comes again and enters once."""
    topology = running(windowed(Remembers().with_window(Count(3), Count(1))))
    feed(topology, 1, 2)
    topology.advance(1)
    feed(topology, 3, 4)
    topology.kill_task(victim, 0)
    feed(topology, 5)
    topology.advance(1)
    assert fired(topology) == [[1], [1, 2]]
    topology.advance(25)
    assert (topology.acks("s"), sorted(topology.fails("s"))) == ([1, 2], [3, 4, 5])
    feed(topology, 3, 4, 5)
    topology.advance(1)
    assert topology.acks("s") == [3, 4, 5]
    assert fired(topology) == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]


def test_windows_that_fired_since_the_commit_fire_again() -> None:
    """So a later bolt that loses their untracked output with its task gets it once more."""

    class Sizes(pieces.Count):
        def execute(self, input: Any) -> None:
            self.counts.put(len(input[0]), self.counts.get(len(input[0]), 0) + 1)
            self.collector.ack(input)

    topology = running(windowed(Remembers().with_tumbling_window(Duration(2.5)), after=Sizes()))
    feed(topology, "a", "b")
    topology.advance(2.5)
    assert (topology.acks("s"), topology.emitted("w")) == (["a", "b"], [[["a", "b"]]])
    assert dict(topology.state("end")) == {2: 1}
    topology.kill_task("end", 0)
    topology.advance(1)
    assert (fired(topology), dict(topology.state("end"))) == ([], {})
    topology.advance(3)
    assert topology.emitted("w") == [[["a", "b"]]]
    assert (fired(topology), dict(topology.state("end"))) == ([["a", "b"]], {2: 1})


def test_a_restored_tuple_is_read_like_any_other() -> None:
    """Its values by place and by field, and where it came from; of its tree it knows nothing any more."""
    found: list[Any] = []

    class Looks(Remembers):
        def execute(self, window: Any) -> None:
            found.extend(window.items)

    topology = running(windowed(Looks().with_tumbling_window(Count(2))))
    feed(topology, ("a", b"b"))
    topology.advance(1)
    topology.kill_task("w", 0)
    topology.advance(5)
    feed(topology, 2)
    [old, new] = found
    assert (old["ts"], old[0], old.as_dict()) == (("a", b"b"), ("a", b"b"), {"ts": ("a", b"b")})
    origin = [(each.source_component, each.source_stream, each.source_task) for each in found]
    assert origin[0] == origin[1]
    assert (old.edges, len(new.edges), list(old.fields)) == ({}, 1, ["ts"])


# ------------------------------------------------------------------------------------------------ restarts

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
