from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import xor

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.acker import (
    Answers,
    Folded,
    Kind,
    Messages,
    Trees,
    Verdict,
    combine,
    fold,
    merge,
    rotate,
)

INIT, ACK, FAIL, RESET = Kind.INIT, Kind.ACK, Kind.FAIL, Kind.RESET
Message = tuple[int, int, int, int]
ids = st.integers(-(2**63), 2**63 - 1)


def init(anchor: int, value: int, task: int = 3) -> Message:
    """The spout's message."""
    return (INIT, anchor, value, task)


def ack(anchor: int, value: int) -> Message:
    """A bolt's message: own id XOR children's ids."""
    return (ACK, anchor, value, -1)


def fail(anchor: int) -> Message:
    """A bolt's failure."""
    return (FAIL, anchor, 0, -1)


def reset(anchor: int) -> Message:
    """A bolt asking for more time."""
    return (RESET, anchor, 0, -1)


class Acker:
    """One acker with its pending trees, fed batch by batch."""

    def __init__(self, high_water: int | None = None) -> None:
        self.trees = Trees.empty()
        self.generation = 0
        self.high_water = high_water

    def feed(self, *messages: Message) -> list[tuple[int, Verdict, int]]:
        """One batch; its answers as (anchor, verdict, task)."""
        folded = fold(Messages.of(messages))
        self.trees, answers = merge(self.trees, folded, self.generation, self.high_water)
        return told(answers)

    def tick(self) -> list[tuple[int, Verdict, int]]:
        """One rotation; its answers."""
        self.generation += 1
        self.trees, answers = rotate(self.trees, self.generation)
        return told(answers)

    def value(self, anchor: int) -> int | None:
        """The XOR of a pending tree, None when there is no such entry."""
        return dict(zip(self.trees.anchor.tolist(), self.trees.ack_val.tolist(), strict=True)).get(anchor)


def told(answers: Answers) -> list[tuple[int, Verdict, int]]:
    """Answers as rows."""
    rows = zip(answers.anchor.tolist(), answers.verdict.tolist(), answers.task.tolist(), strict=True)
    return [(anchor, Verdict(verdict), task) for anchor, verdict, task in rows]


def rows(table: Folded | Trees) -> dict[str, list[int]]:
    """Columns as lists, to compare."""
    found: dict[str, list[int]] = table.to_arrow().to_pydict()
    return found


# ------------------------------------------------------------------------------------- worked cases


def test_chain_of_the_seed() -> None:
    """Created 100 and 200, done 100 and 200: values 100, 172, 200, and the ack at the last (seed 001, A4)."""
    acker = Acker()
    steps = [init(7, 100), ack(7, 200), ack(7, 100)]
    assert [(acker.feed(step), acker.value(7)) for step in steps] == [([], 100), ([], 100 ^ 200), ([], 200)]
    assert acker.feed(ack(7, 200)) == [(7, Verdict.ACKED, 3)]
    assert acker.value(7) is None


def test_chain_with_storms_messages() -> None:
    """Storm says the same chain in three messages: init 100, ack 100^200, ack 200 (A4)."""
    acker = Acker()
    assert (acker.feed(init(7, 100)), acker.feed(ack(7, 100 ^ 200))) == ([], [])
    assert acker.feed(ack(7, 200)) == [(7, Verdict.ACKED, 3)]


def test_fan_out_of_the_seed() -> None:
    """A to B and C: the value after each of the six steps is the seed's, zero only at the last (seed 001)."""
    acker = Acker()
    values = []
    for step in [init(7, 100), ack(7, 200), ack(7, 300), ack(7, 100), ack(7, 200)]:
        assert acker.feed(step) == []
        values.append(acker.value(7))
    assert values == [100, 100 ^ 200, 100 ^ 200 ^ 300, 200 ^ 300, 300]
    assert acker.feed(ack(7, 300)) == [(7, Verdict.ACKED, 3)]


def test_same_tuple_twice_as_anchor() -> None:
    """An input named twice as anchor has two edges to its child, XORed: acked once, at the end (A3)."""
    acker = Acker()
    edges = 200 ^ 300
    for anchor in (1, 2, 3):
        assert acker.feed(init(anchor, 100), ack(anchor, 100 ^ edges)) == []
        assert acker.feed(ack(anchor, edges)) == [(anchor, Verdict.ACKED, 3)]


def test_bolt_error_fails_the_tree_at_once() -> None:
    """A fail is answered in its own batch, before any tick, once for each tree and never by an ack (A7)."""
    acker = Acker()
    acker.feed(init(1, 100), init(2, 200))
    assert acker.feed(fail(1), fail(2), fail(1)) == [(1, Verdict.FAILED, 3), (2, Verdict.FAILED, 3)]
    assert acker.feed(ack(1, 100), ack(2, 200)) == []


def test_child_keeps_the_parents_lineage() -> None:
    """When the sink fails every third child, exactly those roots fail and the others are acked (A8)."""
    acker = Acker()
    acker.feed(*(init(root, 1000 + root) for root in range(12)))
    acker.feed(*(ack(root, (1000 + root) ^ (2000 + root)) for root in range(12)))
    answers = acker.feed(*(fail(root) if root % 3 == 0 else ack(root, 2000 + root) for root in range(12)))
    expected = [Verdict.FAILED if root % 3 == 0 else Verdict.ACKED for root in range(12)]
    assert [verdict for _, verdict, _ in answers] == expected


def test_unanchored_child_cannot_fail_the_root() -> None:
    """A pass-through that emits unanchored acks its input alone, so nothing later reaches the root (A8)."""
    assert Acker().feed(init(1, 100), ack(1, 100)) == [(1, Verdict.ACKED, 3)]


def test_ledger_overflow_is_refused() -> None:
    """High water 8: of a burst of 100, 17 are held and 83 failed at once; the held ones expire (B5)."""
    acker = Acker(high_water=8)
    refused = acker.feed(*(init(root, 1000 + root) for root in range(100)))
    assert refused == [(root, Verdict.FAILED, 3) for root in range(17, 100)]
    expired = [answer for _ in range(3) for answer in acker.tick()]
    assert expired == [(root, Verdict.TIMED_OUT, 3) for root in range(17)]


def test_ack_before_init() -> None:
    """An ack that overtakes its init is remembered: acked by the init, or by what is still missing (X1)."""
    acker = Acker()
    assert acker.feed(ack(7, 100)) == []
    assert acker.feed(init(7, 100)) == [(7, Verdict.ACKED, 3)]
    assert (acker.feed(ack(8, 100)), acker.feed(init(8, 100 ^ 200))) == ([], [])
    assert acker.feed(ack(8, 200)) == [(8, Verdict.ACKED, 3)]


def test_fail_before_init() -> None:
    """A fail that overtakes its init goes out with the init, unless every tuple was acked as well."""
    acker = Acker()
    assert acker.feed(fail(7), fail(8), ack(8, 100)) == []
    assert acker.feed(init(7, 100), init(8, 100)) == [(7, Verdict.FAILED, 3), (8, Verdict.ACKED, 3)]


def test_tuple_delivered_to_nobody() -> None:
    """An init of value 0 is acked at once, and only once (X3)."""
    acker = Acker()
    assert acker.feed(init(7, 0)) == [(7, Verdict.ACKED, 3)]
    assert len(acker.trees) == 0


def test_reset() -> None:
    """A reset is answered while the tree is owned; of an unknown tree it leaves a stray for 3 ticks (X4)."""
    acker = Acker()
    assert acker.feed(reset(7)) == []
    assert acker.trees.task.tolist() == [-1]
    assert acker.feed(init(7, 100)) == []
    assert acker.tick() == []
    assert acker.feed(reset(7)) == [(7, Verdict.RESET, 3)]
    assert acker.trees.generation.tolist() == [1]
    assert acker.feed(ack(7, 100)) == [(7, Verdict.ACKED, 3)]
    assert acker.feed(reset(7)) == []
    assert [(acker.tick(), len(acker.trees)) for _ in range(3)] == [([], 1), ([], 1), ([], 0)]


@pytest.mark.parametrize("one_batch", [True, False])
def test_double_ack_of_an_inner_tuple(one_batch: bool) -> None:
    """An inner tuple acked twice cancels itself: the tree is never acked and times out (X7)."""
    acker = Acker()
    messages = [init(7, 100), ack(7, 100 ^ 200), ack(7, 100 ^ 200), ack(7, 200)]
    for batch in [messages] if one_batch else [[message] for message in messages]:
        assert acker.feed(*batch) == []
    assert [acker.tick() for _ in range(3)] == [[], [], [(7, Verdict.TIMED_OUT, 3)]]


def test_double_ack_of_the_last_leaf() -> None:
    """The last leaf acked twice gives one ack, one stray entry and no second answer (X7)."""
    acker = Acker()
    assert acker.feed(init(7, 100), ack(7, 100)) == [(7, Verdict.ACKED, 3)]
    assert acker.feed(ack(7, 100)) == []
    assert rows(acker.trees) == {
        "anchor": [7], "ack_val": [100], "task": [-1], "failed": [False], "generation": [0]
    }  # fmt: skip
    assert [acker.tick() for _ in range(3)] == [[], [], []]


def test_diamond_with_a_common_root() -> None:
    """A tuple joined from two branches of one root carries e1^e2; only the sink's ack ends the tree (X9)."""
    acker = Acker()
    to_a, to_b, from_a, from_b, edge_1, edge_2 = 11, 22, 33, 44, 55, 66
    assert acker.feed(init(7, to_a ^ to_b)) == []
    assert acker.feed(ack(7, to_a ^ from_a), ack(7, to_b ^ from_b)) == []
    assert acker.feed(ack(7, from_a ^ edge_1), ack(7, from_b ^ edge_2)) == []
    assert acker.feed(ack(7, edge_1 ^ edge_2)) == [(7, Verdict.ACKED, 3)]


def test_joined_tuple_answers_both_roots() -> None:
    """A tuple joined from two roots fails both when it fails and completes both when it is acked (X9)."""
    acker = Acker()
    acker.feed(init(1, 11), init(2, 22, task=4), ack(1, 11 ^ 55), ack(2, 22 ^ 66))
    assert acker.feed(fail(1), fail(2)) == [(1, Verdict.FAILED, 3), (2, Verdict.FAILED, 4)]
    acker.feed(init(8, 11), init(9, 22, task=4), ack(8, 11 ^ 55), ack(9, 22 ^ 66))
    assert acker.feed(ack(8, 55), ack(9, 66)) == [(8, Verdict.ACKED, 3), (9, Verdict.ACKED, 4)]


@pytest.mark.parametrize("one_batch", [True, False])
def test_high_water_accepts_nine_of_ten(one_batch: bool) -> None:
    """High water 4: nine trees are accepted and the tenth is failed, fed together or one by one (X16)."""
    acker = Acker(high_water=4)
    messages = [init(root, 100 + root) for root in range(10)]
    batches = [messages] if one_batch else [[message] for message in messages]
    assert [answer for batch in batches for answer in acker.feed(*batch)] == [(9, Verdict.FAILED, 3)]
    assert len(acker.trees) == 9


def test_high_water_frees_places_first() -> None:
    """Of two places freed in a batch a stray takes one, a new tree one; a complete tree needs none."""
    acker = Acker(high_water=1)
    acker.feed(*(init(root, 100) for root in (1, 2, 3)))
    arriving = [init(4, 100), init(5, 100), init(6, 100), ack(6, 100), ack(7, 5)]
    answers = {anchor: verdict for anchor, verdict, _ in acker.feed(*arriving, ack(1, 100), fail(2))}
    assert answers == {1: Verdict.ACKED, 2: Verdict.FAILED, 5: Verdict.FAILED, 6: Verdict.ACKED}
    assert acker.trees.anchor.tolist() == [3, 4, 7]


def test_late_messages_of_a_refused_tree_tell_nobody() -> None:
    """What is said later about a refused tree becomes a stray that goes by rotation (X16)."""
    acker = Acker(high_water=0)
    assert acker.feed(init(1, 100), init(2, 200)) == [(2, Verdict.FAILED, 3)]
    assert acker.feed(ack(2, 200), fail(2)) == []
    assert [acker.tick() for _ in range(3)] == [[], [], [(1, Verdict.TIMED_OUT, 3)]]
    assert len(acker.trees) == 0


def test_entry_expires_at_the_third_tick() -> None:
    """A tree nobody finishes is TIMED_OUT for its own task at the third tick, progress or not (X16)."""
    acker = Acker()
    acker.feed(init(7, 100, task=5))
    assert acker.tick() == []
    acker.feed(ack(7, 100 ^ 200))
    assert (acker.tick(), acker.tick()) == ([], [(7, Verdict.TIMED_OUT, 5)])


# ------------------------------------------------------------------------------------- laws

kinds = st.sampled_from(Kind)
messages_of_few_trees = st.lists(
    st.builds(lambda kind, anchor, value: (kind, anchor, value, 3 if kind == INIT else -1), kinds,
              st.integers(-2, 2), st.integers(0, 3)),
    max_size=30,
)  # fmt: skip


@given(messages=messages_of_few_trees, data=st.data())
def test_order_of_messages_is_irrelevant(messages: list[Message], data: st.DataObject) -> None:
    """Any order of the same messages folds to the same."""
    shuffled = data.draw(st.permutations(messages))
    assert rows(fold(Messages.of(shuffled))) == rows(fold(Messages.of(messages)))


@given(parts=st.lists(messages_of_few_trees, min_size=1, max_size=4))
def test_folding_parts_then_whole_is_folding_the_whole(parts: list[list[Message]]) -> None:
    """Folds of parts combined, from either end, are the fold of everything."""
    folds = [fold(Messages.of(part)) for part in parts]
    whole = rows(fold(Messages.of(message for part in parts for message in part)))
    assert rows(reduce(combine, folds)) == whole
    assert rows(reduce(lambda done, part: combine(part, done), reversed(folds))) == whole
    assert rows(combine(Folded.empty(), combine(folds[0], Folded.empty()))) == rows(folds[0])


@dataclass
class Edges:
    """A tree as the ids of its edges and a cut of their two mentions into messages and batches."""

    mentions: list[int]
    cuts: list[int]

    def batches(self) -> list[list[Message]]:
        """The first message is the init; each has the XOR of its mentions."""
        borders = [0, *sorted(self.cuts), len(self.mentions)]
        values = [reduce(xor, self.mentions[low:high], 0) for low, high in pairwise(borders)]
        messages = [init(7, values[0]), *(ack(7, value) for value in values[1:])]
        return [messages[:2], messages[2:]]


@st.composite
def trees_of_edges(draw: st.DrawFn, *, lost: int) -> Edges:
    """Distinct edges, each mentioned twice in any order, except for some number that are mentioned once."""
    edges = draw(st.lists(ids.filter(bool), min_size=1, max_size=8, unique=True))
    mentions = draw(st.permutations(edges + edges[lost:]))
    return Edges(mentions, draw(st.lists(st.integers(0, len(mentions)), max_size=6)))


@given(tree=trees_of_edges(lost=0))
def test_tree_whose_every_edge_occurs_twice_is_acked(tree: Edges) -> None:
    """However the mentions are cut into messages and ordered, exactly one ack goes out."""
    acker = Acker()
    answers = [answer for batch in tree.batches() for answer in acker.feed(*batch)]
    assert answers == [(7, Verdict.ACKED, 3)]


@given(tree=trees_of_edges(lost=1))
def test_tree_with_an_edge_occurring_once_is_not_acked(tree: Edges) -> None:
    """With one mention of one edge lost, folding everything leaves exactly that edge open."""
    acker = Acker()
    assert acker.feed(*(message for batch in tree.batches() for message in batch)) == []
    assert acker.value(7) not in (None, 0)


@given(value=ids, fails=st.integers(1, 3), data=st.data())
def test_zero_beats_failed(value: int, fails: int, data: st.DataObject) -> None:
    """A tree that is both complete and failed within a batch is acked."""
    messages = data.draw(st.permutations([init(7, value), ack(7, value), *[fail(7)] * fails]))
    assert Acker().feed(*messages) == [(7, Verdict.ACKED, 3)]


@given(steps=st.lists(st.none() | st.tuples(kinds, st.integers(0, 3), st.integers(0, 3)), max_size=50))
def test_at_most_one_final_verdict_per_tree(steps: list[tuple[int, int, int] | None]) -> None:
    """A tree initialised once is acked, failed or timed out at most once, whatever is said about it later."""
    acker = Acker(high_water=1)
    initialised: set[int] = set()
    ended: list[int] = []
    for step in steps:
        if step is None:
            answers = acker.tick()
        elif step[0] == INIT and step[1] in initialised:
            continue
        else:
            initialised |= {step[1]} if step[0] == INIT else set()
            answers = acker.feed((*step, 3))
        ended += [anchor for anchor, verdict, _ in answers if verdict != Verdict.RESET]
    assert len(ended) == len(set(ended))
    assert set(ended) <= initialised


@given(puts=st.lists(st.integers(0, 6), min_size=1, max_size=10), buckets=st.integers(2, 5))
def test_expiry_within_the_last_tick(puts: list[int], buckets: int) -> None:
    """With n buckets a tree leaves exactly at the n-th tick after its put: aged (n - 1, n] ticks."""
    trees = Trees.empty()
    for generation in range(7 + buckets):
        trees, answers = rotate(trees, generation, buckets)
        assert answers.anchor.tolist() == [tree for tree, put in enumerate(puts) if put + buckets == generation]
        new = [init(tree, 1) for tree, put in enumerate(puts) if put == generation]
        trees, _ = merge(trees, fold(Messages.of(new)), generation)
    assert len(trees) == 0


# ------------------------------------------------------------------------------------- Storm's own rules


@dataclass
class Entry:
    """Storm's AckObject."""

    value: int = 0
    task: int = -1
    failed: bool = False
    generation: int = 0


class StormAcker:
    """`daemon/Acker.execute` read line by line: one message at a time, a dictionary for the rotating map."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}

    def execute(self, message: Message, generation: int) -> Verdict | None:
        """Handle one message; the answer sent to the spout, if any."""
        kind, anchor, value, task = message
        if anchor not in self.entries:
            self.entries[anchor] = Entry(generation=generation)
        entry = self.entries[anchor]
        if kind == INIT:
            entry.value ^= value
            entry.task = task
        elif kind == ACK:
            entry.value ^= value
        else:
            entry.failed |= kind == FAIL
            entry.generation = generation
        return self._answer(anchor, entry, kind)

    def _answer(self, anchor: int, entry: Entry, kind: int) -> Verdict | None:
        if entry.task < 0:
            return None
        if entry.value == 0 or entry.failed:
            del self.entries[anchor]
            return Verdict.ACKED if entry.value == 0 else Verdict.FAILED
        return Verdict.RESET if kind == RESET else None

    def rotate(self, generation: int) -> None:
        """Drop what three rotations did not renew, telling nobody."""
        self.entries = {anchor: entry for anchor, entry in self.entries.items() if entry.generation > generation - 3}


@dataclass
class Told:
    """What Storm answered about one tree during one batch, and whether the order of the messages mattered."""

    verdicts: set[Verdict]
    order_mattered: bool

    @classmethod
    def by(cls, storm: StormAcker, messages: Sequence[Message], generation: int) -> Told:
        """Feed all messages of a batch about one tree."""
        verdicts: set[Verdict] = set()
        value = storm.entries.get(messages[0][1], Entry()).value
        value_after_zero = False
        for message in messages:
            value ^= message[2] if message[0] <= ACK else 0
            value_after_zero |= Verdict.ACKED in verdicts and message[0] <= ACK
            answer = storm.execute(message, generation)
            verdicts |= set() if answer is None else {answer}
        return cls(verdicts, value_after_zero or (Verdict.FAILED in verdicts and value == 0))


batches_of_trees = st.lists(st.lists(st.tuples(kinds, st.integers(0, 3), st.integers(0, 3)), max_size=8), max_size=6)


def with_one_init(batches: Sequence[Sequence[tuple[int, int, int]]]) -> list[list[Message]]:
    """The batches as messages, later inits of a tree turned into acks, as a spout inits a tree once."""
    seen: set[int] = set()
    found: list[list[Message]] = []
    for batch in batches:
        found.append([])
        for kind, anchor, value in batch:
            found[-1].append(init(anchor, value) if kind == INIT and anchor not in seen else
                             (ACK if kind == INIT else kind, anchor, value, -1))  # fmt: skip
            seen |= {anchor} if kind == INIT else set()
    return found


@given(raw=batches_of_trees)
def test_merge_agrees_with_storm(raw: list[list[tuple[int, int, int]]]) -> None:
    """Answers and entries are Storm's, but for a fail and a zero, or a value after the zero, in one batch."""
    storm, acker, done = StormAcker(), Acker(), set[int]()
    for batch in with_one_init(raw):
        owned = {anchor for anchor, entry in storm.entries.items() if entry.task >= 0}
        answers = {anchor: verdict for anchor, verdict, _ in acker.feed(*batch)}
        for tree in {message[1] for message in batch} - done:
            about = [message for message in batch if message[1] == tree]
            expected = Told.by(storm, about, acker.generation)
            final = expected.verdicts - {Verdict.RESET}
            # A tree that ended leaves a stray in Storm and none here when both came in one batch.
            done |= {tree} if final or expected.order_mattered else set()
            if expected.order_mattered:
                continue
            # A reset that comes with its init may come before it, and is answered here all the same.
            reset_with_init = tree not in owned and any(message[0] == RESET for message in about)
            if final or not reset_with_init:
                assert {answers.get(tree)} - {None} == (final or expected.verdicts)
        assert entries(acker.trees, done) == {tree: entry for tree, entry in storm.entries.items() if tree not in done}
        acker.tick()
        storm.rotate(acker.generation)


def entries(trees: Trees, done: set[int]) -> dict[int, Entry]:
    """Pending trees as Storm's entries."""
    columns = (column.to_pylist() for column in trees.to_arrow().columns)
    return {anchor: Entry(*rest) for anchor, *rest in zip(*columns, strict=True) if anchor not in done}


# ------------------------------------------------------------------------------------- columns, Arrow, memory


def test_pending_tree_takes_at_most_32_bytes() -> None:
    """Memory per pending tree is constant and at most 32 bytes, however many messages it had."""
    count = 100_000
    acker = Acker()
    anchors = np.arange(count)
    for kind, task in ((INIT, 3), (ACK, -1), (ACK, -1)):
        columns = (np.full(count, kind, dtype=np.int8), anchors + 2**40 * (kind + 1), np.full(count, task))
        folded = fold(Messages(anchors, columns[0], columns[1], columns[2].astype(np.int32)))
        acker.trees, _ = merge(acker.trees, folded, 0)
    assert len(acker.trees) == count
    assert acker.trees.nbytes <= 32 * count


def test_merge_leaves_its_arguments_alone() -> None:
    """Merging is a function: trees and fold are the same before and after."""
    trees, _ = merge(Trees.empty(), fold(Messages.of([init(1, 10), fail(2)])), 0)
    folded = fold(Messages.of([ack(1, 10), init(2, 20), reset(3)]))
    before = rows(trees), rows(folded)
    assert rows(merge(trees, folded, 5)[0]) == rows(merge(trees, folded, 5)[0])
    assert (rows(trees), rows(folded)) == before


def test_nothing_folds_and_merges_to_nothing() -> None:
    """Empty messages, trees and folds are ordinary inputs."""
    folded = fold(Messages.of([]))
    trees, answers = merge(Trees.empty(), folded, 0, high_water=0)
    assert (len(folded), len(trees), len(answers), len(rotate(trees, 9)[1])) == (0, 0, 0, 0)


def test_trees_survive_arrow() -> None:
    """Trees written as Arrow, in any order of rows, are read back the same and without copying numbers."""
    trees, _ = merge(Trees.empty(), fold(Messages.of([init(1, 10), fail(-2), ack(5, 7), init(9, 3)])), 4)
    table = trees.to_arrow()
    assert [str(field.type) for field in table.schema] == ["int64", "int64", "int32", "bool", "int32"]
    again = Trees.from_arrow(table)
    assert rows(again) == rows(trees)
    assert np.shares_memory(again.ack_val, trees.ack_val)
    assert rows(Trees.from_arrow(table.take([2, 0, 3, 1]))) == rows(trees)
    with pytest.raises(ValueError, match="distinct"):
        Trees.from_arrow(pa.concat_tables([table, table]))


def test_trees_read_from_arrow_can_go_on() -> None:
    """Arrow memory is read-only, and merging and rotating do not write to it."""
    trees, _ = merge(Trees.empty(), fold(Messages.of([init(1, 10), fail(2)])), 0)
    trees, answers = merge(Trees.from_arrow(trees.to_arrow()), fold(Messages.of([ack(1, 10), init(2, 5)])), 1)
    assert told(answers) == [(1, Verdict.ACKED, 3), (2, Verdict.FAILED, 3)]
    assert len(trees) == 0


def test_fold_of_spark_is_read_in_any_order() -> None:
    """A fold by Spark may be unsorted, chunked, wider typed, twice per anchor, null where it saw nothing."""
    table = pa.table(
        {
            "acker": [0, 0, 0, 0],
            "anchor": pa.chunked_array([[9, 1], [9, 5]]),
            "ack_val": pa.array([6, None, 3, 8]),
            "task": pa.array([None, 2, 4, None], pa.int64()),
            "failed": [True, None, False, False],
            "reset": pa.array([None, None, None, True], pa.bool_()),
        }
    )
    assert rows(Folded.from_arrow(table)) == {
        "anchor": [1, 5, 9],
        "ack_val": [0, 8, 5],
        "task": [2, -1, 4],
        "failed": [False, False, True],
        "reset": [False, True, False],
    }
    with pytest.raises(ValueError, match="anchor must not be null"):
        Folded.from_arrow(table.set_column(1, "anchor", pa.array([1, None, 2, 3])))
    with pytest.raises(KeyError):
        Folded.from_arrow(table.drop_columns(["reset"]))


def test_sorted_fold_is_read_without_a_copy() -> None:
    """A fold that comes sorted in one chunk is used where it lies."""
    folded = fold(Messages.of([init(1, 10), ack(2, 20)]))
    assert np.shares_memory(Folded.from_arrow(folded.to_arrow()).ack_val, folded.ack_val)


def test_answers_as_arrow() -> None:
    """Answers leave with the types the ledger expects, empty ones too."""
    _, answers = merge(Trees.empty(), fold(Messages.of([init(1, 0), init(2, 5), fail(2)])), 0)
    assert answers.to_arrow().to_pydict() == {"anchor": [1, 2], "verdict": [0, 1], "task": [3, 3]}
    assert [str(field.type) for field in Answers.empty().to_arrow().schema] == ["int64", "int8", "int32"]


def test_impossible_messages_are_refused() -> None:
    """An unknown kind, an init without a task, unequal columns, floats and one bucket are errors."""
    with pytest.raises(ValueError, match="kind"):
        Messages.of([(4, 1, 1, 1)])
    with pytest.raises(ValueError, match="task of an INIT"):
        Messages.of([init(1, 1, task=-1)])
    with pytest.raises(ValueError, match="verdict must have shape"):
        Answers(np.array([1, 2]), np.array([1], dtype=np.int8), np.array([1, 2], dtype=np.int32))
    with pytest.raises(TypeError, match="float64"):
        Answers(np.array([1.5]), np.array([1], dtype=np.int8), np.array([1], dtype=np.int32))
    with pytest.raises(ValueError, match="buckets"):
        rotate(Trees.empty(), 1, buckets=1)
