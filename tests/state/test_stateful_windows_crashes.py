"""Windows that are a state, with a crash after any delivery: what fires and what stays is that of a clean run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import reliable_spark as rs
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.state import MemoryStateProvider
from reliable_spark.testing import FeedSpout, TestTopology
from tests.state import pieces
from tests.state.pieces import running
from tests.state.test_random_crashes import Killer
from tests.state.windows import Remembers

PHASE_S = 10
"""The times of one phase lie within the lag of each other, so that none of them is late when it comes again."""


class Numbers(pieces.Count):
    """Counts how often each number was in a window."""

    def execute(self, input: Any) -> None:
        for number in input[0]:
            self.counts.put(number, self.counts.get(number, 0) + 1)
        self.collector.ack(input)


class Ends(Remembers):
    """Its state has what each window held, by its end, once for each time that it fired."""

    def execute(self, window: Any) -> None:
        numbers = sorted(each["number"] for each in window.items)
        key = str(window.end)
        self.seen.put(key, [*self.seen.get(key, []), numbers])
        self.collector.emit([numbers])


def built(bolt: rs.StatefulWindowedBolt[Any], tasks: int) -> rs.TopologyBuilder:
    builder = rs.TopologyBuilder()
    builder.set_spout("s", FeedSpout(["key", "ts", "number"]))
    builder.set_bolt("w", bolt, tasks).fields_grouping("s", ["key"])
    builder.set_bolt("end", Numbers()).shuffle_grouping("w")
    return builder


def run(topology: TestTopology, phases: list[list[tuple[str, int]]]) -> None:
    """Feed one phase after the other, each until it is acked; then one tuple for each task that ends all windows."""
    last = [("abcdef"[key], 3 * PHASE_S) for key in range(6)]
    number = 0
    for phase, tuples in enumerate([*phases, last]):
        fed = {}
        for key, at in tuples:
            fed[number] = [key, phase * PHASE_S + at, number]
            topology.feed("s", fed[number], message_id=number)
            topology.advance(0.4)
            number += 1
        answer_all(topology, fed)
    topology.advance(3)


def answer_all(topology: TestTopology, fed: dict[int, list[Any]]) -> None:
    """Feed again what fails, until everything is acked."""
    open_ids = set(fed)
    for _ in range(200):
        open_ids -= set(topology.acks("s"))
        for number in topology.fails("s"):
            topology.feed("s", fed[number], message_id=number)
        if not open_ids:
            return
        topology.advance(1)
    raise AssertionError(f"never acked: {open_ids}")


def stored(provider: MemoryStateProvider, tasks: int) -> list[dict[Any, Any]]:
    """What the windows hold and have fired, task by task."""
    found = []
    for task in range(tasks):
        held = {key: each for key, each in provider.state(f"$windows-w-{task}") if key != "marks"}
        found.append({"held": sorted(each[1] for each in held.values()), **dict(provider.state(f"w-{task}"))})
    return found


PHASES = st.lists(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, PHASE_S - 1)), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)
VICTIMS = st.sampled_from([(CHECKPOINT_SPOUT, 0), ("w", 0), ("w", 1), ("end", 0)])


@settings(max_examples=60)
@given(PHASES, st.sampled_from([(5, 5), (10, 5), (3, 7)]), VICTIMS, st.integers(1, 150))
def test_event_time_windows_after_a_crash_are_those_of_a_clean_run(
    phases: list[list[tuple[str, int]]], windows: tuple[int, int], victim: tuple[str, int], after: int
) -> None:
    """Each fired once with the same tuples; unless the task died with acks of a commit, which then count again."""

    def begun(provider: MemoryStateProvider) -> TestTopology:
        length, slide = windows
        bolt = Ends().with_window(rs.Duration(length), rs.Duration(slide)).with_timestamp("ts", lag_s=PHASE_S)
        return running(built(bolt, 2), provider)

    clean, crashed = MemoryStateProvider(), MemoryStateProvider()
    run(begun(clean), phases)
    crashing = begun(crashed)
    killer = Killer(crashing, after, victim)
    run(crashing, phases)
    expected, found = stored(clean, 2), stored(crashed, 2)
    if killer.may_count_twice:
        for one, other in zip(expected, found, strict=True):
            assert set(one) <= set(other)
            assert all(numbers(one[end]) <= numbers(other[end]) for end in one)
    else:
        assert found == expected
        assert dict(crashed.state("end-0")) == dict(clean.state("end-0"))


@settings(max_examples=60)
@given(PHASES, st.integers(1, 4), VICTIMS, st.integers(1, 150))
def test_no_crash_loses_or_doubles_what_is_counted(
    phases: list[list[tuple[str, int]]], length: int, victim: tuple[str, int], after: int
) -> None:
    """Tumbling windows by count: every tuple is in one that fired or in the one that is open."""
    provider = MemoryStateProvider()
    topology = running(built(Ends().with_tumbling_window(rs.Count(length)), 2), provider)
    killer = Killer(topology, after, victim)
    run(topology, phases)
    found: Counter[int] = Counter()
    for task in stored(provider, 2):
        held = {each[2] for each in task.pop("held")}
        fired = Counter(number for windows in task.values() for window in windows for number in window)
        found += fired + Counter(held - set(fired))  # the last window that fired is held until the next one does
    expected = Counter(range(sum(map(len, phases)) + 6))
    assert found >= expected if killer.may_count_twice else found == expected


def numbers(windows: list[Any]) -> set[Any]:
    """What is in any of them."""
    return {str(number) for window in windows for number in window}
