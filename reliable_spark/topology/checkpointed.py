"""What every bolt of a stateful topology is wrapped in: barriers are aligned, acted on and passed on.

Source: Storm's `topology/BaseStatefulBoltExecutor`, `StatefulBoltExecutor`, `CheckpointTupleForwarder`. Stricter:
inputs are aligned; a task that started again fails the next prepare also when it keeps no state, since what it lost
is in the states of others; a rollback fails the waiting tuples too, whose siblings it fails elsewhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from reliable_spark.core.barriers import Alignment, Arrival, Barrier, barrier_channels
from reliable_spark.core.checkpoints import Action, last_seen
from reliable_spark.core.graph import CHECKPOINT_SPOUT, CHECKPOINT_STREAM
from reliable_spark.errors import StateError, UsageError
from reliable_spark.state.base import StateProvider
from reliable_spark.topology.bolts import BoltWrapper, OutputCollector, RichBolt
from reliable_spark.topology.checkpoint_collectors import AnchoringCollector, HoldingCollector
from reliable_spark.topology.checkpoint_spout import PROVIDER_KEY, CheckpointSpout
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.spouts import Spout
from reliable_spark.topology.stateful import StatefulBolt
from reliable_spark.topology.tuples import Tuple


class CheckpointForwarder(BoltWrapper[RichBolt]):
    """Runs a bolt without a state: tuples go straight to it, barriers through it once they are on every input."""

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Prepare the user's bolt."""
        self._collector = collector
        self._alignment = Alignment(barrier_channels(context.graph.components[context.component], context.tasks))
        self._behind_barrier: deque[Tuple] = deque()
        self._last_txid: float = float("-inf")
        self._is_initialised = False
        self.bolt.prepare(configuration, context, self._user_collector())

    def execute(self, input: Tuple) -> None:
        """Take a barrier, hold what is behind one, and give the rest to the user's bolt."""
        if input.source_stream == CHECKPOINT_STREAM:
            self._take_barrier(input)
        elif self._alignment.is_blocked(input.source_task):
            self._behind_barrier.append(input)
        else:
            self._execute(input)

    # ------------------------------------------------------------------------------------------- for subclasses

    def _user_collector(self) -> OutputCollector:
        return AnchoringCollector(self._collector)

    def _execute(self, input: Tuple) -> None:
        self.bolt.execute(input)

    def _prepare_state(self, txid: int) -> None:
        """Nothing to prepare."""

    def _commit_state(self, txid: int) -> None:
        """Nothing to commit."""

    def _roll_back_state(self) -> None:
        """Nothing to roll back."""

    def _init_state(self) -> None:
        """Nothing to begin with."""

    # ------------------------------------------------------------------------------------------- barriers

    def _take_barrier(self, input: Tuple) -> None:
        barrier = Barrier(input["txid"], Action(input["action"]), input["attempt"])
        if barrier.txid < self._last_txid:
            self._collector.ack(input)
            return
        self._alignment.abandon_before(barrier.attempt)
        self._execute_unblocked()  # what waited behind an abandoned barrier came before this one
        if self._alignment.arrive(input.source_task, barrier.attempt) is Arrival.COMPLETE:
            self._complete(barrier, input)
        else:
            self._collector.ack(input)

    def _complete(self, barrier: Barrier, input: Tuple) -> None:
        """Act, pass on anchored to the last barrier, ack that one: the coordinator's tree ends when all bolts did."""
        try:
            self._act(barrier)
        except UsageError:
            raise  # the program is wrong, not the state
        except Exception as error:
            self._collector.report_error(error)
            self._collector.fail(input)
        else:
            self._last_txid = last_seen(barrier.action, barrier.txid)
            self._collector.emit(list(input.values), input, CHECKPOINT_STREAM)
            self._collector.ack(input)
        self._execute_unblocked()

    def _act(self, barrier: Barrier) -> None:
        if barrier.action is Action.PREPARE:
            if not self._is_initialised:
                raise StateError("the task began anew since the last checkpoint: what it lost has to be rolled back")
            self._prepare_state(barrier.txid)
        elif barrier.action is Action.COMMIT:
            self._commit_state(barrier.txid)
        elif barrier.action is Action.ROLLBACK:
            self._roll_back_state()
        elif not self._is_initialised:
            self._init_state()
            self._is_initialised = True

    def _execute_unblocked(self) -> None:
        waiting, self._behind_barrier = self._behind_barrier, deque()
        for each in waiting:
            self.execute(each)


class StatefulBoltExecutor(CheckpointForwarder):
    """Runs a stateful bolt: gives it its state, checkpoints that, and lets acks go after the commit.

    Args:
        bolt: the user's.
    """

    bolt: StatefulBolt[Any]

    @property
    def state(self) -> Any:
        """The task's state, whatever the user's bolt calls it."""
        return self._state

    def prepare(self, configuration: Mapping[str, Any], context: TopologyContext, collector: OutputCollector) -> None:
        """Find the task's state and prepare the user's bolt, which sees the state only when recovery is done."""
        provider: StateProvider = configuration[PROVIDER_KEY]
        self._state = provider.state(f"{context.component}-{context.task_index}")
        self._before_init: list[Tuple] = []
        self._is_rolled_back = False
        super().prepare(configuration, context, collector)

    def _user_collector(self) -> OutputCollector:
        self._held = HoldingCollector(self._collector)
        return self._held

    def _execute(self, input: Tuple) -> None:
        if self._is_rolled_back:
            # a part of its tree may have been rolled back and failed: it would be counted beside its replay
            self._collector.fail(input)
        elif self._is_initialised:
            self.bolt.execute(input)
        else:
            self._before_init.append(input)

    def _act(self, barrier: Barrier) -> None:
        super()._act(barrier)
        self._is_rolled_back = barrier.action is Action.ROLLBACK

    def _prepare_state(self, txid: int) -> None:
        self.bolt.pre_prepare(txid)
        self._state.prepare_commit(txid)
        self._held.prepare()

    def _commit_state(self, txid: int) -> None:
        self.bolt.pre_commit(txid)
        self._state.commit(txid)
        self._held.commit()

    def _roll_back_state(self) -> None:
        self.bolt.pre_rollback()
        self._state.rollback()
        self._held.rollback()
        waiting, self._before_init = self._before_init, []
        for each in waiting:
            self._collector.fail(each)

    def _init_state(self) -> None:
        self.bolt.init_state(self._state)
        self._behind_barrier.extendleft(reversed(self._before_init))
        self._before_init = []


def with_checkpoints(components: Mapping[str, Spout | RichBolt]) -> dict[str, Spout | RichBolt]:
    """The objects of a stateful topology: the coordinator is added and every bolt wrapped."""
    wrapped: dict[str, Spout | RichBolt] = {CHECKPOINT_SPOUT: CheckpointSpout()}
    for name, each in components.items():
        if isinstance(each, StatefulBolt):
            wrapped[name] = StatefulBoltExecutor(each)
        else:
            wrapped[name] = CheckpointForwarder(each) if isinstance(each, RichBolt) else each
    return wrapped
