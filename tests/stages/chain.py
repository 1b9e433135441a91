"""A chain of a source and two stages without Spark: real loops, ledgers and reports, rows as Python tuples.

What survives a crash is in `Durable`. Every effect asks `Durable.reach` first, which raises `Crash` when the moment
has come; what a process would lose is thrown away with its loop.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import reliable_spark as rs
from reliable_spark.core.ids import replay_id, root_id, share
from reliable_spark.engine.protocol import Batch, Evaluated, Origin
from reliable_spark.engine.run import last_batch
from reliable_spark.ledger.ledger import Ledger
from reliable_spark.sinks.base import Delivery, LastBatch, Prepared
from reliable_spark.stages import source_loop, stage_loop
from reliable_spark.stages.acks import Acks
from reliable_spark.stages.backlog import Backlog
from reliable_spark.stages.places import stage_ledger
from reliable_spark.stages.queue import Put, QueueSink
from reliable_spark.stages.source_loop import SourceLoop
from reliable_spark.stages.stage_loop import StageLoop

QUEUES = ("bronze", "silver")
PAYLOAD = pa.struct([("id", pa.int64())])
UTC = pa.timestamp("us", tz="UTC")


class Crash(BaseException):
    """The process is gone."""


class Row(NamedTuple):
    """A row on its way, with its lineage."""

    id: int
    root: int
    tuple_id: int
    attempt: int


Fails = Callable[[str, int, int], bool | None]
"""(where, id, attempt) -> None: fine; True: fails; False: fails for good."""


@dataclass
class Durable:
    """What survives, and what the test decides.

    Attributes:
        micro_batches: the source's.
        offsets: reader -> its micro-batches, each with what it ends with; the last one may not be committed.
        queues: queue -> batch id -> rows.
        sink: how often each id was written at the end.
        swallowed: rows of this queue that disappear before its stage reads them.
        crash_in: how many effects are left until the crash.
    """

    path: Path
    fails: Fails
    micro_batches: list[list[int]]
    offsets: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    committed: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    queues: dict[str, dict[int, list[Row]]] = field(default_factory=lambda: defaultdict(dict))
    sink: Counter[int] = field(default_factory=Counter)
    sink_batches: set[int] = field(default_factory=set)
    swallowed: set[str] = field(default_factory=set)
    most: Counter[str] = field(default_factory=Counter)
    clock: rs.ManualClock = field(default_factory=rs.ManualClock)
    crash_in: int | None = None
    effects: int = 0

    def reach(self) -> None:
        self.effects += 1
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                raise Crash


class Queue(QueueSink):
    """A queue whose commits are entries of a dictionary."""

    def __init__(self, durable: Durable, name: str) -> None:
        self.durable, self.name = durable, name
        self.path, self.version, self.batch_id, self.put = name, None, -1, Put()

    @property
    def identity(self) -> str:
        return json.dumps({"delta": self.name})

    def prepare(self, rows: Any) -> Prepared:
        self.durable.reach()
        folded = 0
        for row in rows:
            folded ^= row.tuple_id
        self.put = Put(len(rows), folded)
        return Prepared(actions=tuple(json.dumps(row) for row in rows))

    def unfinished(self, last: LastBatch) -> Prepared | None:
        is_there = not last.actions or last.batch_id in self.durable.queues[self.name]
        return None if is_there else Prepared(last.actions)

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        self.durable.reach()
        if prepared.actions:
            queue = self.durable.queues[self.name]
            assert delivery.batch_id > max(queue, default=-1), "a batch is committed twice"
            queue[delivery.batch_id] = [Row(*json.loads(action)) for action in prepared.actions]
        self.durable.reach()


class End(Queue):
    """The sink behind the last stage."""

    def unfinished(self, last: LastBatch) -> Prepared | None:
        is_there = not last.actions or last.batch_id in self.durable.sink_batches
        return None if is_there else Prepared(last.actions)

    def commit(self, prepared: Prepared, delivery: Delivery) -> None:
        self.durable.reach()
        assert delivery.batch_id not in self.durable.sink_batches
        self.durable.sink_batches.add(delivery.batch_id)
        self.durable.sink.update(json.loads(action)[0] for action in prepared.actions)
        self.durable.reach()


class Batches:
    """Evaluates a batch in Python: each row of the source becomes two, later ones stay one."""

    def __init__(self, durable: Durable, where: str, sink: Queue) -> None:
        self.durable, self.where, self.sink = durable, where, sink
        self.source = SimpleNamespace(spark=None, spouts=[SimpleNamespace(name=where)])
        self.evaluator = SimpleNamespace(ackers=1)
        self.taken = (0, 0)

    def of_source(self, rows: list[Any], batch_id: int, begun_at: Any) -> Batch:
        if self.where == "source":
            roots = {each: root_id("s", [str(each)], 1) for each in rows}
            rows = [Row(each, root, root, 1) for each, root in roots.items()]
        return Batch(batch_id, "source", rows, begun_at)

    def of_pending(self, trees: pa.Table, batch_id: int, begun_at: Any) -> Batch:
        rows = []
        for tree in trees.to_pylist():
            root = replay_id(tree["anchor"], tree["attempt"] + 1)
            rows.append(Row(tree["payload"]["id"], root, root, tree["attempt"] + 1))
        return Batch(batch_id, "replay", rows, begun_at)

    def evaluate(self, batch: Batch) -> Evaluated:
        out, failed, folded = [], {}, 0
        for row in batch.rows:
            folded ^= row.tuple_id
            verdict = self.durable.fails(self.where, row.id, row.attempt)
            children = 2 if self.where == "source" else 1
            shares = [row._replace(tuple_id=share(row.tuple_id, place, children)) for place in range(children)]
            if verdict is not None:
                # where a row becomes two, one of them fails and the other goes on
                failed[row.root] = (row, verdict)
                shares = shares[1:]
            out += shares
        self.taken = (len(batch.rows), folded)
        trees = found(failed, None if self.where == "source" else verdict_payload) if failed else None
        return Evaluated(self.sink.prepare(out), len(batch.rows), len(out), trees=trees)

    def upkeep(self) -> None: ...

    def release(self) -> None: ...


def verdict_payload(row: Row, retry: bool) -> dict[str, Any]:
    return {"retry": retry}


def found(failed: dict[int, tuple[Row, bool]], payload: Callable[[Row, bool], dict[str, Any]] | None) -> pa.Table:
    """Failed trees as `settle_trees` takes them."""
    count = len(failed)
    pairs = list(failed.values())
    held = pa.struct([("retry", pa.bool_())]) if payload else PAYLOAD
    payloads = [payload(*pair) if payload else {"id": pair[0].id} for pair in pairs]
    return pa.table(
        {
            "anchor": pa.array(list(failed), pa.int64()),
            "ack_val": pa.array([0] * count, pa.int64()),
            "spout": pa.array(["s"] * count),
            "message_id": pa.array([str(row.id) for row, _ in pairs]),
            "attempt": pa.array([row.attempt if payload is None else 1 for row, _ in pairs], pa.int32()),
            "status": pa.array(["failed"] * count),
            **{name: pa.array(["no"] * count) for name in ("bolt", "error_class", "error", "traceback")},
            "retry": pa.array([retry for _, retry in pairs]),
            "first_seen_at": pa.nulls(count, UTC),
            "payload": pa.array(payloads, held),
        }
    )


class SourceRows:
    """Finds rows where `Durable` has them."""

    durable: Durable

    def __init__(self, source: Any, checkpoint: str, ledger: str) -> None: ...

    def failed(self, batch: Any, failed: dict[int, dict[str, Any]]) -> pa.Table:
        ids = self.durable.micro_batches[batch.number]
        assert json.loads(batch.end) == batch.number
        mine = {root_id("s", [str(each)], 1): Row(each, 0, 0, 1) for each in ids}
        return found({root: (row, failed[root]["retry"]) for root, row in mine.items() if root in failed}, None)

    def roots_of(self, batch: Any) -> set[int]:
        return {root_id("s", [str(each)], 1) for each in self.durable.micro_batches[batch.number]}

    def roots_in(self, queue: str, batch_id: int) -> set[int]:
        return {row.root for row in self.durable.queues[queue].get(batch_id, [])}


class Checkpoint:
    """The offsets of one reader: the source's are batch numbers, a stage's the last batch it has read."""

    durable: Durable

    def __init__(self, spark: Any, path: str) -> None:
        self.path = path
        self.reader = Path(path).parent.name if "stages" in path else "source"

    def offset_text(self, number: int) -> str | None:
        offsets = self.durable.offsets[self.reader]
        return str(offsets[number]) if 0 <= number < len(offsets) else None


@dataclass
class Chain:
    """The running loops; each can be crashed and started again."""

    durable: Durable
    settings: rs.Settings
    capacity: int = 4
    loops: dict[str, Any] = field(default_factory=dict)

    def loop(self, name: str) -> Any:
        """The loop of the source or of a stage, started if it is not running."""
        if name not in self.loops:
            self.loops[name] = self._started(name)
        return self.loops[name]

    def _started(self, name: str) -> Any:
        durable, root = self.durable, str(self.durable.path / "ledger")
        place = (*QUEUES, "end").index(name) + 1 if name in QUEUES else 0
        writes = (*QUEUES, "end")[place]
        sink = End(durable, writes) if writes == "end" else Queue(durable, writes)
        acks = Acks(root)
        backlog = None if writes == "end" else Backlog(writes, self.capacity, acks)
        payload = PAYLOAD if name == "source" else pa.struct([("retry", pa.bool_())])
        ledger = Ledger.open(root if name == "source" else stage_ledger(root, name), payload)
        batches, settings = Batches(durable, name, sink), self.settings
        try:
            if name == "source":
                assert backlog is not None
                loop: Any = SourceLoop(batches, ledger, sink, settings, durable.clock, acks=acks, backlog=backlog)
            else:
                own = settings.model_copy(update={"max_attempts": 1})
                arguments = (batches, ledger, sink, own, durable.clock)
                loop = StageLoop(*arguments, stage=name, queue=name, acks=acks, backlog=backlog)
            loop.finish(last_batch(ledger))
        except BaseException:
            ledger.close()
            raise
        return loop

    def act(self, name: str, action: str) -> None:
        """Run a micro-batch, or what is due; a crash throws the loop away."""
        try:
            loop = self.loop(name)
            if action == "due":
                loop.run_due()
            elif not loop.is_full():
                self._micro_batch(name, loop)
        except Crash:
            if name in self.loops:
                self.loops.pop(name).ledger.close()

    def _micro_batch(self, name: str, loop: Any) -> None:
        durable = self.durable
        offsets, number = durable.offsets[name], durable.committed[name] + 1
        if number == len(offsets):
            queue = durable.queues[name]
            last = number if name == "source" else max(queue, default=-1)
            if last >= len(durable.micro_batches) if name == "source" else last <= (offsets[-1] if offsets else -1):
                return
            offsets.append(last)
        if name == "source":
            rows: list[Any] = durable.micro_batches[number]
        else:
            after = offsets[number - 1] if number else -1
            taken = [rows for each, rows in sorted(durable.queues[name].items()) if after < each <= offsets[number]]
            rows = [row for each in taken for row in each]
            if name in durable.swallowed and rows:
                durable.swallowed.discard(name)
                rows = rows[1:]
        loop.run_source(rows, Origin(name, number, str(offsets[number])))
        durable.committed[name] = number
        waiting = sum(len(rows) for each, rows in durable.queues[QUEUES[0]].items() if each > self._read(QUEUES[0]))
        durable.most[QUEUES[0]] = max(durable.most[QUEUES[0]], waiting)

    def _read(self, name: str) -> int:
        read = self.durable.committed[name]
        return self.durable.offsets[name][read] if read >= 0 else -1

    def close(self) -> None:
        for loop in self.loops.values():
            loop.ledger.close()


def wire(monkeypatch: pytest.MonkeyPatch, durable: Durable) -> None:
    """Put the simulation where Spark and the disk would be, and let every write be the last."""
    for owner in (SourceRows, Checkpoint):
        monkeypatch.setattr(owner, "durable", durable, raising=False)
    monkeypatch.setattr(source_loop, "SourceRows", SourceRows)
    for module in (source_loop, stage_loop):
        monkeypatch.setattr(module, "Checkpoint", Checkpoint)
    monkeypatch.setattr(stage_loop, "last_batch_before", lambda queue, text: int(text))

    def forget(queue: str, upto: int) -> bool:
        name = Path(queue).name
        durable.queues[name] = {each: rows for each, rows in durable.queues[name].items() if each > upto}
        return True

    monkeypatch.setattr(source_loop, "forget_taken", forget)
    for writer, name in ((Ledger, "settle"), (Acks, "append")):
        monkeypatch.setattr(writer, name, _crashing(durable, getattr(writer, name)))


def _crashing(durable: Durable, effect: Callable[..., Any]) -> Callable[..., Any]:
    def crashing(self: Any, *arguments: Any) -> Any:
        durable.reach()
        result = effect(self, *arguments)
        durable.reach()
        return result

    return crashing
