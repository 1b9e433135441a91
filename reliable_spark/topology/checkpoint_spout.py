"""The coordinator of checkpoints: sends barriers to all bolts and hears from all at once, by one tuple tree.

Source: Storm's `spout/CheckpointSpout`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from reliable_spark.core.barriers import BARRIER_FIELDS, Attempt
from reliable_spark.core.checkpoints import FIRST, Action, CheckpointState, Phase, next_action, next_state
from reliable_spark.core.graph import CHECKPOINT_SPOUT, CHECKPOINT_STREAM
from reliable_spark.state.base import KeyValueState, StateProvider
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.spouts import Spout, SpoutOutputCollector

INTERVAL_KEY = "topology.state.checkpoint.interval.ms"
PROVIDER_KEY = "topology.state.provider"
NAMESPACE = f"{CHECKPOINT_SPOUT}-0"

_STATE = "__state"
_STARTS = "__starts"


def stored_checkpoint(store: KeyValueState[str, Any]) -> CheckpointState:
    """How far the last checkpoint got; `FIRST` before there was one."""
    txid, phase = store.get(_STATE, FIRST)
    return CheckpointState(txid, Phase(phase))


def store_checkpoint(store: KeyValueState[str, Any], state: CheckpointState) -> None:
    """Keep it, before anybody acts on it."""
    store.put(_STATE, (state.txid, state.phase.value))
    store.commit()


class CheckpointSpout(Spout):
    """Runs the table of `core.checkpoints`, one action at a time.

    Guarantee: what a transaction may have reached is stored before it begins and after each of its answers, so that
    a coordinator that starts again, as every one does, in recovery, knows whether to roll back or forward. An action
    that fails begins a recovery at once; one of a recovery that fails is sent again when an interval has passed.

    `has_checkpointed` says whether it has brought a checkpoint of its own to its end.
    """

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """The barriers."""
        declarer.declare_stream(CHECKPOINT_STREAM, BARRIER_FIELDS)

    def open(self, configuration: Mapping[str, Any], context: TopologyContext, collector: SpoutOutputCollector) -> None:
        """Read how far the last coordinator got."""
        provider: StateProvider = configuration[PROVIDER_KEY]
        self._collector = collector
        self._clock = context.clock
        self._interval_s = configuration[INTERVAL_KEY] / 1000
        self._store = cast("KeyValueState[str, Any]", provider.state(NAMESPACE))
        self.state = stored_checkpoint(self._store)
        self._store.put(_STARTS, self._store.get(_STARTS, 0) + 1)
        self._save(self.state)
        self._attempt: Attempt = (self._store.get(_STARTS, 0), 0)
        self.is_recovering, self._is_in_progress, self.has_checkpointed = True, False, False
        self._begun_s = self._retry_s = float("-inf")

    def next_tuple(self) -> None:
        """Send the next action if none is in progress and it is time."""
        if self._is_in_progress or not self._is_due():
            return
        if self.state.phase is Phase.COMMITTED and not self.is_recovering:
            self._begun_s = self._now_s()
            self._save(next_state(self.state, recovering=False))
        self._is_in_progress = True
        self._attempt = (self._attempt[0], self._attempt[1] + 1)
        values = [self.state.txid, self._action().value, self._attempt]
        self._collector.emit(values, CHECKPOINT_STREAM, message_id=self.state.txid)

    def ack(self, message_id: int) -> None:
        """Every bolt did it."""
        if message_id == self.state.txid:
            is_over = self._action() is Action.INITSTATE
            self.has_checkpointed |= self._action() is Action.COMMIT and not self.is_recovering
            self._save(next_state(self.state, self.is_recovering))
            self.is_recovering = self.is_recovering and not is_over
            self._retry_s = float("-inf")
        self._is_in_progress = False

    def fail(self, message_id: int) -> None:
        """Some bolt did not do it, or is gone: recover."""
        if self.is_recovering:
            self._retry_s = self._now_s() + self._interval_s
        self.is_recovering = True
        self._is_in_progress = False

    def _action(self) -> Action:
        return next_action(self.state, self.is_recovering)

    def _is_due(self) -> bool:
        if self.is_recovering:
            return self._now_s() >= self._retry_s
        return self.state.phase is not Phase.COMMITTED or self._now_s() >= self._begun_s + self._interval_s

    def _save(self, state: CheckpointState) -> None:
        store_checkpoint(self._store, state)
        self.state = state

    def _now_s(self) -> float:
        return self._clock.now().timestamp()
