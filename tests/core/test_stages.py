"""Which batches went through a chain of stages: by counts and XORs alone, whatever the order of reports."""

from __future__ import annotations

from functools import reduce
from operator import xor

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.stages import Chain, Queued, Report


def queued(batch_id: int, *ids: int) -> Queued:
    return Queued(batch_id, len(ids), reduce(xor, ids, 0), frozenset({batch_id}))


def test_a_batch_is_finished_when_the_last_stage_has_taken_it() -> None:
    """Not before: between two stages it stands in the second queue."""
    chain = Chain()
    chain.put("a", queued(0, 5, 6))
    assert (chain.places(0), chain.depth("a")) == ([("a", 0)], 2)
    assert [set(each) for each in chain.report(Report("a", 7, 0, 2, 5 ^ 6, "b", 1, 9))] == [{0}, set()]
    assert (chain.places(0), chain.depth("a"), chain.depth("b")) == ([("b", 7)], 0, 1)
    assert [set(each) for each in chain.report(Report("b", 3, 7, 1, 9))] == [{0}, {0}]
    assert not chain.has(0)


def test_a_stage_may_take_several_batches_at_once() -> None:
    """They are finished together; one that it did not take is not."""
    chain = Chain()
    for batch_id in range(3):
        chain.put("a", queued(batch_id, batch_id + 10))
    assert [set(each) for each in chain.report(Report("a", 0, 1, 2, 10 ^ 11))] == [{0, 1}, {0, 1}]
    assert chain.has(2)


def test_a_stage_that_gives_nothing_on_finishes_its_batches() -> None:
    """Everything was filtered or has failed there: no later stage will speak of it."""
    chain = Chain()
    chain.put("a", queued(0, 1))
    assert [set(each) for each in chain.report(Report("a", 0, 0, 1, 1, "b", 0, 0))] == [{0}, {0}]


def test_rows_that_disappear_between_two_stages_finish_nothing() -> None:
    """A smaller count, or another XOR with the same count, and the batch stays open for its timeout."""
    for rows, folded in ((1, 5), (2, 5 ^ 7)):
        chain = Chain()
        chain.put("a", queued(0, 5, 6))
        chain.put("a", queued(1, 8))
        assert [set(each) for each in chain.report(Report("a", 0, 0, rows, folded))] == [{0}, set()]
        assert chain.has(0)
        assert chain.missing == {0}
        assert [set(each) for each in chain.report(Report("a", 1, 1, 1, 8))] == [{1}, {1}]


def test_a_report_without_rows_changes_nothing() -> None:
    """A stage that only timed something out, or met a commit that only deletes."""
    chain = Chain()
    chain.put("a", queued(0, 5))
    assert [set(each) for each in chain.report(Report("a", 0, -1, 0, 0))] == [set(), set()]
    assert chain.has(0)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[int]], list[str], list[tuple[str, int]]]:
    """Batches of ids, a chain of one to four stages, and an order in which stages take what is there."""
    batches = draw(st.lists(st.lists(st.integers(1, 2**40), min_size=1, max_size=4), min_size=1, max_size=6))
    stages = [f"q{number}" for number in range(draw(st.integers(1, 4)))]
    turns = draw(st.lists(st.tuples(st.sampled_from(["put", *stages]), st.integers(1, 3)), max_size=40))
    return batches, stages, turns


class Stages:
    """Stages that take batches from their queues and make other rows of them; one may lose a row, once."""

    def __init__(self, batches: list[list[int]], stages: list[str], loses: bool) -> None:
        self.chain, self.stages, self.loses = Chain(), stages, loses
        self.todo = list(enumerate(batches))
        self.queues: dict[str, list[tuple[int, list[int]]]] = {stage: [] for stage in stages}
        self.numbers = dict.fromkeys(stages, 0)
        self.finished: list[int] = []
        self.lost_in: set[int] = set()

    def put(self) -> None:
        if self.todo:
            batch_id, ids = self.todo.pop(0)
            self.chain.put(self.stages[0], queued(batch_id, *ids))
            self.queues[self.stages[0]].append((batch_id, ids))

    def take(self, stage: str, count: int) -> None:
        taken, self.queues[stage] = self.queues[stage][:count], self.queues[stage][count:]
        if not taken:
            return
        ids = [each for _, batch in taken for each in batch]
        if self.loses and stage == self.stages[-1] and not self.lost_in:
            self.lost_in |= next(item.origins for item in self.chain.waiting[stage] if item.batch_id == taken[0][0])
            ids = ids[1:]
        following = dict(zip(self.stages, self.stages[1:], strict=False)).get(stage)
        number, out = self.numbers[stage], [*ids, 3, 3] if following else []
        self.numbers[stage] += 1
        told = (len(ids), reduce(xor, ids, 0), following, len(out), reduce(xor, out, 0))
        if following:
            self.queues[following].append((number, out))
        self.finished.extend(self.chain.report(Report(stage, number, taken[-1][0], *told))[1])

    def check(self, batches: int) -> None:
        put = set(range(batches)) - {batch_id for batch_id, _ in self.todo}
        assert {each for each in range(batches) if self.chain.has(each)} == put - set(self.finished)

    def end(self, batches: int) -> None:
        for _ in range(batches):
            self.put()
        for stage in self.stages:
            for _ in range(batches):
                self.take(stage, 1)


@given(runs(), st.booleans())
def test_whatever_the_order_each_batch_is_finished_once_or_has_lost_something(
    run: tuple[list[list[int]], list[str], list[tuple[str, int]]], loses: bool
) -> None:
    """Every stage takes some of the batches in its queue, whenever it likes; in the end all have come through."""
    batches, stages, turns = run
    model = Stages(batches, stages, loses)
    for turn, count in turns:
        if turn == "put":
            model.put()
        elif turn in stages:
            model.take(turn, count)
        model.check(len(batches))
    model.end(len(batches))
    assert len(model.finished) == len(set(model.finished))
    assert set(model.finished) == set(range(len(batches))) - model.chain.missing
    assert bool(model.chain.missing) == loses
    assert model.lost_in <= model.chain.missing
