"""The tasks of a spout, their collector, and the executor whose pending map they share.

Source: Storm's `executor/spout/SpoutExecutor`, `executor/spout/SpoutOutputCollectorImpl`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

from reliable_spark.core.graph import DEFAULT_STREAM
from reliable_spark.core.timeouts import RotatingMap
from reliable_spark.process.outbound import NewEdges, Outbound
from reliable_spark.process.world import Emitted, World
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.spouts import Spout
from reliable_spark.topology.tuples import Tuple


class SpoutExecutor:
    """What the spout tasks of one executor share: one map of pending trees, rotated once per tick (STORM-3693).

    Args:
        limit: how many trees may be pending before `next_tuple` is called no more.
    """

    def __init__(self, limit: int) -> None:
        self.tasks: dict[int, SpoutTask] = {}
        self.pending: RotatingMap[int, Emitted] = RotatingMap(2)
        self._limit = limit

    @property
    def is_throttled(self) -> bool:
        """Whether as many trees are pending as may be."""
        return len(self.pending) >= self._limit

    def rotate(self) -> list[Emitted]:
        """One tick: what has been pending for more than one whole period is due to be failed, by its own task."""
        return list(self.pending.rotate().values())

    def forget(self, task: int) -> list[Emitted]:
        """A task died: its trees, which these are, have nobody to be told to, and it has nothing to emit."""
        self.tasks.pop(task, None)
        forgotten = [(root, each) for root, each in self.pending.items() if each.task == task]
        for root, _ in forgotten:
            self.pending.remove(root)
        return [each for _, each in forgotten]


class SpoutCollector:
    """Implements `topology.spouts.SpoutOutputCollector`."""

    def __init__(self, world: World, context: TopologyContext, executor: SpoutExecutor, spout: Spout) -> None:
        self._world = world
        self._context = context
        self._executor = executor
        self._spout = spout
        self._outbound = Outbound(world, context)
        self.emits = 0

    def emit(
        self, values: Sequence[Any], stream: str = DEFAULT_STREAM, message_id: Hashable | None = None
    ) -> list[int]:
        """Send a tuple; with a message id its tree is tracked."""
        return self._tracked(partial(self._outbound.emit, values, stream), values, stream, message_id)

    def emit_direct(
        self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM, message_id: Hashable | None = None
    ) -> None:
        """Send a tuple to one task by its id."""
        self._tracked(partial(self._outbound.emit_direct, task, values, stream), values, stream, message_id)

    def pending_count(self) -> int:
        """How many tracked tuples of this executor have no answer yet."""
        return len(self._executor.pending)

    def report_error(self, error: BaseException) -> None:
        """Keep the error for whoever looks."""
        self._world.report(self._context.component, error)

    def _tracked(
        self,
        send: Callable[[NewEdges], list[int]],
        values: Sequence[Any],
        stream: str,
        message_id: Hashable | None,
    ) -> list[int]:
        """Send a tuple as a tree of its own, if it has a message id."""
        if message_id is None or not self._world.is_tracking:
            targets = send(dict)
            self.emits += 1
            if message_id is not None:
                emitted = Emitted(self._world.new_id(), self._context.task, stream, message_id)
                self._world.saw_message(self._context.component, emitted, values)
                self._world.saw_ack(self._context.component, emitted)
                self._spout.ack(message_id)  # without ackers a tuple counts as done once it is emitted
            return targets
        root, init_val = self._world.new_id(), 0

        def new_edges() -> Mapping[int, int]:
            nonlocal init_val
            edge = self._world.new_id()
            init_val ^= edge
            return {root: edge}

        targets = send(new_edges)
        self.emits += 1
        emitted = Emitted(root, self._context.task, stream, message_id)
        self._executor.pending.put(root, emitted)
        self._world.saw_message(self._context.component, emitted, values)
        self._outbound.tell(self._world.acker_of(root), "__ack_init", [root, init_val, self._context.task])
        return targets


class SpoutTask:
    """A task that runs a user's spout.

    Args:
        world: what the tasks share.
        context: which task it is.
        spout: its own copy of the user's spout.
        configuration: the Storm keys that hold for it.
        executor: where it runs.
    """

    def __init__(
        self,
        world: World,
        context: TopologyContext,
        spout: Spout,
        configuration: Mapping[str, Any],
        executor: SpoutExecutor,
    ) -> None:
        self.user = spout
        self.executor = executor
        self._world = world
        self._context = context
        self._collector = SpoutCollector(world, context, executor, spout)
        executor.tasks[context.task] = self
        spout.open(configuration, context, self._collector)

    def next_tuple(self) -> bool:
        """Ask the spout for a tuple once; says whether it emitted one."""
        before = self._collector.emits
        self.user.next_tuple()
        return self._collector.emits > before

    def deliver(self, input: Tuple) -> None:
        """Hear from an acker about a tree; one that is pending no more was answered before, and nothing happens."""
        root, age_ms = input.values
        if input.source_stream == "__ack_reset_timeout":
            pending = self.executor.pending.get(root)
            if pending is not None:
                self.executor.pending.put(root, pending)
            return
        pending = self.executor.pending.remove(root)
        if pending is None:
            return
        assert pending.task == self._context.task, "a tree is answered to the task that emitted it"
        if input.source_stream == "__ack_ack":
            self._acked(pending, age_ms)
        else:
            self.failed(pending)
        self._world.read_time()

    def failed(self, pending: Emitted) -> None:
        """Fail one of the task's own trees."""
        self._world.counts[self._context.task].fresh[self._context.component, pending.stream].failed += 1
        self._world.saw_end(self._context.component, pending, "failed")
        self.user.fail(pending.message_id)

    def close(self) -> None:
        """Let the user's spout close."""
        self.user.close()

    def _acked(self, pending: Emitted, age_ms: float) -> None:
        counted = self._world.counts[self._context.task].fresh[self._context.component, pending.stream]
        counted.acked += 1
        counted.complete_ms += age_ms
        self._world.saw_ack(self._context.component, pending)
        self.user.ack(pending.message_id)
