"""Windows that are a part of the checkpoint: when their tuples are acked, and what a crash or a restart leaves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reliable_spark import Count, Duration
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.state import MemoryStateProvider
from reliable_spark.state.layers import LayeredState
from tests.state import pieces
from tests.state.pieces import running
from tests.state.windows import Remembers, by_events, feed, fired, windowed
from tests.topology.pieces import Does, fail

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


@pytest.mark.parametrize("value", [None, float("inf")])
def test_what_has_no_event_time_fails_alone(value: float | None) -> None:
    """At once; it is in no window and in no checkpoint, and holds none up."""
    topology = running(windowed(by_events()))
    feed(topology, 603)
    topology.feed("s", [value], message_id="wrong")
    topology.settle()
    assert (topology.fails("s"), len(topology.errors("w"))) == (["wrong"], 1)
    feed(topology, 626)
    topology.advance(1)
    assert (fired(topology), topology.acks("s"), topology.errors("w")) == ([[603], [603]], [603, 626], [])


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
