"""The topology that is killed: ids through two bolts with states, in real time, at a chosen step of a checkpoint."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reliable_spark as rs
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.settings import TopologySettings
from reliable_spark.state.layers import LayeredState
from reliable_spark.state.providers import provider_of
from reliable_spark.state.serializers import JsonSerializer

ACKED = "acked"
IN_THE_ACK = "the first ack"


@dataclass
class Death:
    """Where the process is to end, and whether it is time.

    Attributes:
        at: the step before which it ends: "count-0 prepare", "store committing", IN_THE_ACK; None: nowhere.
        is_due: steps count from here on.
        is_fed: everything is emitted; the next checkpoint is the one.
    """

    at: str | None = None
    is_due: bool = False
    is_fed: bool = False

    def before(self, step: str) -> None:
        """End this process here and now, if it is the place and the time."""
        if self.is_due and step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """A provider, or a store of one of its states, before whose writes the process may end."""

    def __init__(self, inner: Any, death: Death, namespace: str = "") -> None:
        self._inner, self._death, self._namespace = inner, death, namespace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Deadly:
        return self

    def state(self, namespace: str) -> LayeredState[Any, Any]:
        state: LayeredState[Any, Any] = self._inner.state(namespace)
        state._store = Deadly(state._store, self._death, namespace)
        return state

    def prepare(self, txid: int, changes: Mapping[bytes, bytes | None]) -> None:
        if self._namespace.startswith(CHECKPOINT_SPOUT):
            phases = {key: JsonSerializer().deserialize(value) for key, value in changes.items() if value}
            [phase] = [value[1] for key, value in phases.items() if b"__state" in key] or [""]
            self._death.is_due = self._death.is_due or (self._death.is_fed and phase == "preparing")
            self._death.before(f"store {phase}")
        self._death.before(f"{self._namespace} prepare")
        self._inner.prepare(txid, changes)

    def commit(self, txid: int) -> None:
        self._death.before(f"{self._namespace} commit")
        self._inner.commit(txid)

    def rollback(self) -> None:
        self._death.before(f"{self._namespace} rollback")
        self._inner.rollback()


class Ids(rs.Spout):
    """Emits the ids that no process before has been told are acked, and again what fails."""

    def __init__(self, directory: Path, count: int, death: Death) -> None:
        self._place, self._count, self._death = directory / ACKED, count, death

    def __deepcopy__(self, memo: dict[int, Any]) -> Ids:
        return self

    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["id"])

    def open(self, configuration: Any, context: Any, collector: rs.SpoutOutputCollector) -> None:
        done = set(self._place.read_text().split()) if self._place.exists() else set()
        self._waiting = deque(number for number in range(self._count) if str(number) not in done)
        self._collector = collector

    def next_tuple(self) -> None:
        if self._waiting:
            number = self._waiting.popleft()
            self._collector.emit([number], message_id=number)
        self._death.is_fed = not self._waiting

    def ack(self, message_id: int) -> None:
        self._death.before(IN_THE_ACK)
        with self._place.open("a") as file:
            file.write(f"{message_id}\n")

    def fail(self, message_id: int) -> None:
        self._waiting.append(message_id)


class Count(rs.StatefulBolt[Any]):
    """Counts each id, and passes it on."""

    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["id"])

    def prepare(self, configuration: Any, context: Any, collector: rs.OutputCollector) -> None:
        self.collector = collector

    def init_state(self, state: Any) -> None:
        self.known = state

    def execute(self, input: rs.Tuple) -> None:
        self.known.put(input["id"], self.known.get(input["id"], 0) + 1)
        self.collector.emit([input["id"]], anchors=input)
        self.collector.ack(input)


class Once(Count):
    """Adds each id up once: a state that knows what is in it counts exactly once, whatever comes again."""

    def execute(self, input: rs.Tuple) -> None:
        if input["id"] not in self.known:
            self.known.put(input["id"], True)
            self.known.put("sum", self.known.get("sum", 0) + input["id"])
        self.collector.ack(input)


def run(directory: Path, provider: tuple[str, Mapping[str, Any]], ids: int, at: str | None, is_recovery: bool) -> None:
    """Count ids until all are acked, or until death comes.

    Args:
        directory: where what is acked is written down.
        provider: the kind of state provider, and its configuration.
        ids: how many there are.
        at: where to die.
        is_recovery: from the beginning, not in a checkpoint of what is emitted.
    """
    death = Death(at, is_recovery)
    builder = rs.TopologyBuilder()
    builder.set_spout("ids", Ids(directory, ids, death))
    builder.set_bolt("count", Count(), 2).fields_grouping("ids", ["id"])
    builder.set_bolt("once", Once()).global_grouping("count")
    own = TopologySettings(state_provider=Deadly(provider_of(*provider), death))
    settings = rs.Settings(checkpoint_interval_s=0.1, message_timeout_s=5, topology=own)
    with rs.submit_topology("killed", builder, settings) as running:
        assert running.await_idle(60)
