"""What runs in the workers for a bolt with a state; free of Spark.

The task of a shard reads what the state was from its local copy, keeps what is changed in memory, writes it as one
file when the rows are through, and says so in one more row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from reliable_spark.bolts import HOLD, BatchContext, children_of
from reliable_spark.engine.columns import CHANGE, CHILD_COUNT, CHILD_INDEX, HELD
from reliable_spark.engine.given import readable, tuple_rows
from reliable_spark.engine.worker import OF_THE_TASK, Answers, BoltTask
from reliable_spark.errors import StateError, UnstorableError
from reliable_spark.state.change_files import Change, ChangeFiles, changed_rows, newest, shard_name
from reliable_spark.state.change_table import Snapshot
from reliable_spark.state.keyed import KeyedState, Stored
from reliable_spark.state.local_copy import Group, LocalCopy

KEY: Final = "__rs_key"
SHARD: Final = "__rs_shard"
"""Working columns: the key as text, and the number of its shard."""


@dataclass(frozen=True)
class StateVersion:
    """Which state an evaluation starts from.

    Attributes:
        snapshot: what is committed.
        shards: into how many shards rows are divided.
        changes: files that the same evaluation has written before, in rounds of which this is a later one.
    """

    snapshot: Snapshot = field(default_factory=Snapshot)
    shards: int = 1
    changes: tuple[Change, ...] = ()


class Layered:
    """A committed state below the changes of earlier rounds.

    Args:
        stored: what is committed.
        rows: the changes.
    """

    def __init__(self, stored: Stored, rows: pa.Table) -> None:
        self._stored = stored
        self._rows: dict[Group, dict[bytes, bytes | None]] = {}
        for row in newest(rows, drop_deleted=False).to_pylist():
            self._rows.setdefault(row["key"], {})[row["name"]] = row["value"]

    def get(self, group: Group, name: bytes) -> bytes | None:
        """The value of a name in a group."""
        own = self._rows.get(group, {})
        return own[name] if name in own else self._stored.get(group, name)

    def scan(self, group: Group) -> Iterator[tuple[bytes, bytes]]:
        """The names of a group and their values."""
        merged = dict(self._stored.scan(group)) | self._rows.get(group, {})
        return ((name, value) for name, value in merged.items() if value is not None)


@dataclass
class StatefulTask(BoltTask):
    """A bolt with its state, ready to be sent to the workers and mapped over the Arrow batches of one shard.

    Guarantee: a row that fails or is held has changed nothing. The task's last row names the file of its changes.

    Args:
        state_name: whose state it is.
        version: what the state was before.
    """

    state_name: str = ""
    version: StateVersion = field(default_factory=StateVersion)
    state: KeyedState | None = None
    keys: Sequence[Group] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Map the bolt over the batches of one shard, then write what it has changed."""
        filled = (batch for batch in batches if batch.num_rows)
        first = next(filled, None)
        if first is None:
            return
        self.failure_bytes = 0
        shard = shard_name(first.column(SHARD)[0].as_py(), self.version.shards)
        copy = LocalCopy.of(self.version.snapshot.table_id, shard)
        files = ChangeFiles(self.version.snapshot.uri)
        copy.catch_up(self.version.snapshot.files.get(shard, ()), files.read)
        earlier = [change.file.path for change in self.version.changes if change.file.shard == shard]
        with copy.reading() as reading:
            self.state = KeyedState(Layered(reading, files.read(earlier)) if earlier else reading)
            bolt = self.bolt.function
            if hasattr(bolt, "init_state"):
                bolt.init_state(self.state)
            for batch in itertools.chain([first], filled):
                answered = self.process(batch)
                yield answered
            changed = self.state.changes()
        if changed:
            file = files.write(shard, changed_rows(changed), self.version.snapshot.sequence + len(earlier))
            yield self._report(Change(self.state_name, file), answered.schema)

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Run the bolt on one batch and lay out its answers, with an empty column for what is reported."""
        self.keys = batch.column(KEY).to_pylist()
        laid_out = super().process(batch.drop_columns([KEY, SHARD]))
        return laid_out.append_column(CHANGE, pa.nulls(laid_out.num_rows, pa.string()))

    def _run_rows(self, rows: pa.RecordBatch, context: BatchContext) -> Answers:
        """Run the rows in turn. One whose answer turns out not to fit is taken back, with all that came after it."""
        assert self.state is not None
        failures: dict[int, Any] = {}
        while True:
            mark = self.state.mark()
            children, parents, raised = self._execute(rows, context, failures)
            answers = self._build(children, np.asarray(parents, dtype=np.int64), {**failures, **raised})
            misfits = answers.failures.keys() - failures.keys() - raised.keys()
            if not misfits:
                self.state.keep()
                return answers
            self.state.undo(mark)
            failures |= {position: answers.failures[position] for position in misfits}

    def _execute(
        self, rows: pa.RecordBatch, context: BatchContext, failed: dict[int, Any]
    ) -> tuple[list[Any], list[int], dict[int, Any]]:
        state, keys = self.state, self.keys
        values, call = readable(rows, self._call())
        assert state is not None
        children: list[Any] = []
        parents: list[int] = []
        raised: dict[int, Any] = {}
        for position, row in enumerate(tuple_rows(values, context)):
            if position in failed:
                continue
            mark = state.mark()
            state.turn_to(keys[position])
            try:
                result = call(row, state)
                if type(result) is dict:
                    children.append(result)
                    parents.append(position)
                    continue
                if result is not HOLD:
                    made = children_of(result)
                    children += made
                    parents += [position] * len(made)
                    continue
                raised[position] = self.failure_of(HELD, "held: neither acked nor failed", "", True)
            except UnstorableError as error:
                raised[position] = self._failure(error)
            except (StateError, *OF_THE_TASK):
                raise
            except BaseException as error:
                raised[position] = self._failure(error)
            state.undo(mark)
        return children, parents, raised

    def _call(self) -> Callable[[Any, KeyedState], Any]:
        bolt: Any = self.bolt.function
        if hasattr(bolt, "init_state"):
            execute: Any = bolt.execute
            return lambda row, state: execute(row)
        function: Callable[[Any, KeyedState], Any] = bolt
        return function

    def _report(self, change: Change, layout: pa.Schema) -> pa.RecordBatch:
        """A row that belongs to no tree and leaves as one that was dropped."""
        said = {CHILD_INDEX: [0], CHILD_COUNT: [0], CHANGE: [change.to_json()]}
        return pa.RecordBatch.from_arrays(
            [pa.array(said.get(each.name, [None]), each.type) for each in layout], schema=layout
        )
