"""Windows that are a state, on each engine: on Spark they sleep as bytes between two steps.

"microbatch" is the Spark engine with its tasks run and packed in this process; "spark" has its JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from reliable_spark import Count, Duration, Settings, StatefulWindowedBolt
from reliable_spark.microbatch import Here, MicroBatchEngine, with_states_below
from reliable_spark.testing import TestTopology
from reliable_spark.testing.engine import ENGINES
from tests.state.pieces import feed
from tests.state.windows import Remembers, windowed
from tests.topology.test_stateful_parity import EVERYWHERE, Again


@pytest.fixture(params=EVERYWHERE)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of each engine."""
    monkeypatch.setitem(ENGINES, "microbatch", lambda topology, how: MicroBatchEngine(topology, how, Here()))
    if request.param == "spark":
        request.getfixturevalue("spark")
    name: str = request.param
    return name


def test_windows_go_on_after_a_crash_and_in_the_next_run(engine: str, tmp_path: Path) -> None:
    """As they were committed; what came later comes again and enters once."""
    settings = with_states_below(Settings(message_timeout_s=3), tmp_path)
    bolt = Remembers().with_window(Count(3), Count(2))
    with TestTopology(windowed(bolt), settings, engine) as topology:
        feed(topology, 1, 2)
        topology.advance(1)
        assert (topology.acks("s"), topology.emitted("w")) == ([1, 2], [[[1, 2]]])
        feed(topology, 3)
        topology.kill_task("w", 0)
        topology.advance(7)
        assert (topology.acks("s"), topology.fails("s")) == ([], [3])
        feed(topology, 3)
        topology.advance(1)
        feed(topology, 4, 5)  # not committed
        assert topology.emitted("w") == [[[2, 3, 4]]]
    with TestTopology(windowed(bolt), settings, engine) as topology:
        feed(topology, 4, 5, 6)
        topology.advance(1)
        assert (topology.acks("s"), topology.emitted("w")) == ([4, 5, 6], [[[2, 3, 4]], [[4, 5, 6]]])
        assert dict(topology.state("w")) == {"fired": [[1, 2], [2, 3, 4], [4, 5, 6]]}


KINDS: dict[str, tuple[Callable[[], StatefulWindowedBolt[Any]], list[list[int]]]] = {
    "by time": (lambda: Remembers().with_window(Duration(4), Duration(2)), [[3, 1, 4], [3, 1, 4, 9, 0, 2], [9, 0, 2]]),
    "by event time": (
        lambda: Remembers("late").with_window(Duration(4), Duration(2)).with_timestamp("ts", late_stream="late"),
        [[1], [1, 3], [3, 4], [4]],
    ),
    "by count of events": (
        lambda: Remembers().with_tumbling_window(Count(2)).with_timestamp("ts"),
        [[1, 3]],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["process", "microbatch"])
def test_every_kind_of_window_sleeps_and_wakes(
    kind: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same windows on both, the same tuples late, and all acked."""
    monkeypatch.setitem(ENGINES, "microbatch", lambda topology, how: MicroBatchEngine(topology, how, Here()))
    made, expected = KINDS[kind]
    with TestTopology(windowed(made()), with_states_below(Settings(message_timeout_s=3), tmp_path), where) as topology:
        for part in ([3, 1, 4], [9, 0, 2]):
            feed(topology, *part)
            topology.advance(2)
        topology.advance(4)
        assert [values for [values] in topology.emitted("w")] == expected
        assert sorted(topology.acks("s")) == [0, 1, 2, 3, 4, 9]
        if kind == "by event time":
            assert [late[0] for [late] in topology.emitted("w", "late")] == [0, 2]


def test_a_step_that_is_run_again_changes_the_windows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that prepared or committed before it was lost."""
    cluster = Again()
    monkeypatch.setitem(ENGINES, "again", lambda topology, how: MicroBatchEngine(topology, how, cluster))
    settings = with_states_below(Settings(message_timeout_s=10), tmp_path)
    bolt = Remembers().with_window(Count(3), Count(2))
    topology = TestTopology(windowed(bolt), settings, "again")
    engine: Any = topology._engine
    engine._crew.spout_executors.reverse()  # the tuple before the barrier
    cluster.is_failing = True
    for number in range(1, 8):
        engine._world.clock.advance(1)  # and both in one step
        topology.feed("s", [number], message_id=number)
        for _ in range(8):
            with suppress(OSError):
                topology.settle()
    cluster.is_failing = False
    topology.advance(3)
    assert topology.acks("s") == [1, 2, 3, 4, 5, 6, 7]
    assert dict(topology.state("w")) == {"fired": [[1, 2], [2, 3, 4], [4, 5, 6]]}
