"""The protocol without Spark, Delta or a disk: everything durable is a Python object, and any effect can be the last.

A `World` is what survives a crash. Each change of it asks `World.reach` first, which raises `Crash` when the
moment has come. What a process would lose is thrown away with its `Loop`.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import reliable_spark as rs
from reliable_spark.core.ids import replay_id, root_id
from reliable_spark.engine.batch import Source
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.plan import Spout
from reliable_spark.engine.protocol import Batch, Evaluated, Origin
from reliable_spark.engine.redrive import redrive
from reliable_spark.engine.run import last_batch
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.ledger.tables import Mode
from reliable_spark.sinks.base import Delivery, LastBatch, Prepared

PAYLOAD = pa.struct([("id", pa.int64())])
QUERY = "query"
ONE_SPOUT = Source((Spout("spout", None, ()),), None)  # type: ignore[arg-type]


class Crash(BaseException):
    """The process is gone."""


@dataclass
class MemoryTable:
    """A table as a list of versions."""

    world: World
    name: str
    versions: list[tuple[pa.Table, int]]
    description: str

    @property
    def version(self) -> int:
        return len(self.versions) - 1

    @property
    def schema(self) -> pa.Schema:
        return self.versions[-1][0].schema

    def refresh(self) -> int:
        return self.version

    def written_batch(self) -> int:
        return self.versions[-1][1]

    def read(self, columns: list[str] | None = None, version: int | None = None) -> pa.Table:
        table = self.versions[self.version if version is None else version][0]
        assert table.num_columns, f"version {version} of {self.name} is forgotten"
        return table.select(columns) if columns else table

    def write(self, rows: pa.Table, batch_id: int, mode: Mode) -> int:
        self.world.reach(f"before {self.name}")
        rows = rows.cast(self.schema)
        whole = rows if mode == "overwrite" else pa.concat_tables([self.versions[-1][0], rows])
        self.versions.append((whole, batch_id))
        self.world.wrote(self.name, mode)
        self.world.reach(f"after {self.name}")
        return self.version

    def restore(self, version: int) -> int:
        self.world.reach(f"before restore of {self.name}")
        self.versions.append((self.read(version=version), self.written_batch()))
        return self.version

    def compact(self) -> int:
        self.world.reach(f"compact {self.name}")
        self.versions.append((self.read().combine_chunks(), self.written_batch()))
        return self.version

    def forget(self) -> None:
        self.world.reach(f"forget old versions of {self.name}")
        gone = (pa.table({}), -1)
        self.versions[:-1] = [gone] * (len(self.versions) - 1)


@dataclass
class MemoryTables:
    """The tables of a world's ledger."""

    world: World

    def exists(self, name: str) -> bool:
        return name in self.world.tables

    def create(self, schemas: Mapping[str, pa.Schema], description: str = "") -> None:
        for name, schema in schemas.items():
            if name not in self.world.tables:
                self.world.reach(f"create {name}")
                self.world.tables[name] = MemoryTable(self.world, name, [(schema.empty_table(), -1)], description)

    def open(self, *names: str) -> list[MemoryTable]:
        return [self.world.tables[name] for name in names]


Leaf = tuple[int, int, int]
"""Row id, number of the evaluation that made it, number of the child."""


@dataclass
class World:
    """What survives a crash, and what the test knows of it.

    Attributes:
        crash_in: how many effects are left until the crash; None means no crash.
        redrives: how often dead letters are still to be tried again.
    """

    rng: random.Random
    deterministic: bool
    micro_batches: list[list[int]]
    tables: dict[str, MemoryTable] = field(default_factory=dict)
    committed: int = -1
    sink: Counter[Leaf] = field(default_factory=Counter)
    sink_batches: dict[int, list[Leaf]] = field(default_factory=dict)
    staged: dict[str, list[Leaf]] = field(default_factory=dict)
    calls: dict[int, list[tuple[int, list[Leaf], int | None]]] = field(default_factory=lambda: defaultdict(list))
    clock: rs.ManualClock = field(default_factory=rs.ManualClock)
    evaluations: list[dict[int, tuple[bool, list[Leaf]]]] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)
    state: Counter[int] = field(default_factory=Counter)
    state_batches: set[int] = field(default_factory=set)
    in_hand: int | None = None
    crash_in: int | None = None
    redrives: int = 0
    trail: list[str] = field(default_factory=list)

    def reach(self, effect: str) -> None:
        self.trail.append(effect)
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                self.trail.append("CRASH")
                raise Crash(effect)

    def check_state(self) -> None:
        """A state has counted every row that a settled evaluation was done with, once, and no other."""
        done = Counter(
            row for number in self.settled for row, (is_done, _) in self.evaluations[number].items() if is_done
        )
        assert self.state == done, f"the state is {self.state}, settled is {done}"

    def wrote(self, table: str, mode: Mode) -> None:
        """The commit point of the ledger: now the evaluation in hand is the one that counts."""
        if table == "batches" and mode == "append" and self.in_hand is not None:
            self.settled.append(self.in_hand)
            self.in_hand = None


@dataclass
class MemoryBatches:
    """Evaluates rows by dice: some trees have children, fail, are held or lose a part."""

    world: World
    whole_trees: bool
    sink: Any
    evaluated_ids: set[int] = field(default_factory=set)
    source: Source = ONE_SPOUT

    def of_source(self, rows: list[int], batch_id: int, begun_at: datetime) -> Batch:
        roots = [
            {"anchor": root_id("spout", (str(row),), 1), "attempt": 1, "first_seen_at": None, "id": row} for row in rows
        ]
        return Batch(batch_id, "source", roots, begun_at)

    def of_pending(self, trees: pa.Table, batch_id: int, begun_at: datetime) -> Batch:
        wanted = trees.select(["anchor", "attempt", "first_seen_at", "payload"]).to_pylist()
        roots = [
            {
                "anchor": replay_id(tree["anchor"], tree["attempt"] + 1),
                "attempt": tree["attempt"] + 1,
                "first_seen_at": tree["first_seen_at"],
                "id": tree["payload"]["id"],
            }
            for tree in wanted
        ]
        return Batch(batch_id, "replay", roots, begun_at)

    def evaluate(self, batch: Batch) -> Evaluated:
        self.world.reach("evaluate")
        self.evaluated_ids.add(batch.batch_id)
        number = len(self.world.evaluations)
        leaves: list[Leaf] = []
        incomplete = []
        self.world.evaluations.append({})
        for root in batch.rows:
            status, children = self._tree(root["id"], root["attempt"])
            own = [(root["id"], number, child) for child in range(children)]
            self.world.evaluations[number][root["id"]] = (status == "done", own)
            if status == "done" or not self.whole_trees:
                leaves += own
            if status != "done":
                incomplete.append(_incomplete(root, status))
        self.world.in_hand = number
        self.world.check_state()
        done = [row for row, (is_done, _) in self.world.evaluations[number].items() if is_done]
        trees = pa.Table.from_pylist(incomplete, schema=_TREES) if incomplete else None
        return Evaluated(
            self.sink.prepare(leaves),
            len(batch.rows),
            len(leaves),
            changes=(json.dumps(done),) if done else (),
            trees=trees,
        )

    def commit_states(self, changes: Sequence[str], batch_id: int) -> None:
        if batch_id not in self.world.state_batches:
            self.world.reach("before commit of states")
            self.world.state_batches.add(batch_id)
            for change in changes:
                self.world.state.update(json.loads(change))
            self.world.reach("after commit of states")

    def upkeep(self) -> None:
        self.world.reach("upkeep of states")

    def release(self) -> None:
        pass

    def _tree(self, row: int, attempt: int) -> tuple[str, int]:
        dice = random.Random(row * 1_000 + attempt) if self.world.deterministic else self.world.rng
        status = dice.choices(["done", "failed", "fatal", "held", "lost"], [6, 3, 1, 1, 1])[0]
        return status, dice.randrange(4)


def _incomplete(root: dict[str, Any], status: str) -> dict[str, Any]:
    return {
        "anchor": root["anchor"],
        "ack_val": root["anchor"],
        "spout": "spout",
        "message_id": str(root["id"]),
        "attempt": root["attempt"],
        "status": "failed" if status == "fatal" else status,
        "bolt": "bolt",
        "error_class": "ValueError",
        "error": "dice",
        "traceback": None,
        "retry": status != "fatal",
        "first_seen_at": root["first_seen_at"],
        "payload": {"id": root["id"]},
    }


_TREES = pa.schema(
    [
        ("anchor", pa.int64()),
        ("ack_val", pa.int64()),
        ("spout", pa.string()),
        ("message_id", pa.string()),
        ("attempt", pa.int32()),
        ("status", pa.string()),
        *((name, pa.string()) for name in ("bolt", "error_class", "error", "traceback")),
        ("retry", pa.bool_()),
        ("first_seen_at", pa.timestamp("us", tz="UTC")),
        ("payload", PAYLOAD),
    ]
)


@dataclass
class MemoryTransactions:
    """A sink with transactions, as Delta is: files first, one commit under the batch id."""

    world: World
    settles_first = True
    is_begun = False
    identity = "transactions"
    version = None

    def unfinished(self, last: LastBatch) -> Prepared | None:
        is_there = last.batch_id in self.world.sink_batches
        return Prepared(last.actions) if last.actions and not is_there else None

    def prepare(self, leaves: list[Leaf]) -> Prepared:
        self.world.reach("files written")
        return Prepared((json.dumps(leaves),) if leaves else ())

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        if prepared.actions:
            leaves = [tuple(leaf) for leaf in json.loads(prepared.actions[0])]
            self.world.reach("before commit")
            assert delivery.batch_id not in self.world.sink_batches
            self.world.sink_batches[delivery.batch_id] = leaves
            self.world.sink.update(leaves)
            self.world.reach("after commit")

    def discard(self, prepared: Prepared) -> None:
        pass


@dataclass
class MemoryFunction:
    """A function that appends what it is given."""

    world: World
    settles_first: bool
    is_begun = True
    identity = "function"
    version = None

    def unfinished(self, last: LastBatch) -> Prepared | None:
        return None

    def prepare(self, leaves: list[Leaf]) -> Prepared:
        return Prepared(rows=leaves)  # type: ignore[arg-type]

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        leaves: list[Leaf] = prepared.rows  # type: ignore[assignment]
        self.world.reach("before call")
        self.world.calls[delivery.batch_id].append((delivery.attempt, leaves, self.world.in_hand))
        self.world.sink.update(leaves)
        self.world.reach("after call")

    def discard(self, prepared: Prepared) -> None:
        pass


@dataclass
class MemoryStaged:
    """A function that does nothing when it has completed the batch before."""

    world: World
    settles_first = True
    is_begun = True
    identity = "function"
    version = None

    def unfinished(self, last: LastBatch) -> Prepared | None:
        return Prepared(last.actions) if last.actions and last.actions[0] in self.world.staged else None

    def prepare(self, leaves: list[Leaf]) -> Prepared:
        name = str(len(self.world.evaluations))
        self.world.staged[name] = leaves
        self.world.reach("staged")
        return Prepared((name,))

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        leaves = self.world.staged[prepared.actions[0]]
        self.world.reach("before call")
        self.world.calls[delivery.batch_id].append((delivery.attempt, leaves, self.world.in_hand))
        if delivery.batch_id not in self.world.sink_batches:
            self.world.sink_batches[delivery.batch_id] = leaves
            self.world.sink.update(leaves)
        self.world.reach("after call")
        del self.world.staged[prepared.actions[0]]

    def discard(self, prepared: Prepared) -> None:
        pass


SINKS: dict[tuple[str, str], Callable[[World], Any]] = {
    ("transactions", "at_most_once"): MemoryTransactions,
    ("transactions", "at_least_once"): MemoryTransactions,
    ("transactions", "exactly_once"): MemoryTransactions,
    ("function", "at_most_once"): lambda world: MemoryFunction(world, settles_first=True),
    ("function", "at_least_once"): lambda world: MemoryFunction(world, settles_first=False),
    ("function", "exactly_once"): MemoryStaged,
}


def process(world: World, sink_kind: str, settings: rs.Settings) -> Ledger:
    """One process from its start to its end: the source to its end, and every replay and timeout."""
    world.clock.advance(world.rng.choice([0.0, 0.5, 3.0]))  # nobody restarts a query in no time
    ledger = Ledger.open("memory", PAYLOAD, MemoryTables(world))
    sink = SINKS[sink_kind, settings.delivery](world)
    world.in_hand = None
    loop = Loop(MemoryBatches(world, settings.delivery == "exactly_once", sink), ledger, sink, settings, world.clock)
    loop.finish(last_batch(ledger))
    while world.committed + 1 < len(world.micro_batches):
        if world.rng.random() < 0.5:
            loop.run_due()
        number = world.committed + 1
        loop.run_source(world.micro_batches[number], Origin(QUERY, number, f"offsets {number}"))
        world.reach("micro-batch committed by Spark")
        world.committed = number
        if world.redrives and world.rng.random() < 0.3:
            take_back(world, loop)
    replay_all(world, loop)
    while world.redrives:
        take_back(world, loop)
        replay_all(world, loop)
    return ledger


def replay_all(world: World, loop: Loop) -> None:
    """Wait until nothing is pending."""
    while (wait_s := loop.seconds_until_due()) is not None:
        world.clock.advance(max(wait_s, 0))
        loop.run_due()


def take_back(world: World, loop: Loop) -> None:
    """Redrive all dead letters."""
    taken = redrive(loop, None)
    waiting = loop.ledger.pending
    own = waiting.filter(pc.equal(waiting["batch_id"], loop.ledger.last_batch_id))
    assert taken in (0, own.num_rows), "not all that was taken back waits"
    assert loop.ledger.dead_letters().num_rows == 0, "a dead letter was left"
    world.redrives -= 1
