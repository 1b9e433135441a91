"""What runs a topology for a test. Another engine is another class with these methods and a line in `ENGINES`."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from reliable_spark.core.pressure import ReceiveQueue
from reliable_spark.core.statistics import ComponentStatistics
from reliable_spark.errors import UsageError, nearest
from reliable_spark.process import ProcessEngine
from reliable_spark.settings import Settings
from reliable_spark.topology.builder import Topology


class Engine(Protocol):
    """The methods of `TestTopology`, given names and task indices that exist."""

    def settle(self) -> None:
        """Run until nothing is queued anywhere."""
        ...

    def advance(self, seconds: float) -> None:
        """Let simulated time pass, ticks included."""
        ...

    def activate(self) -> None:
        """Let the spouts emit."""
        ...

    def deactivate(self) -> None:
        """Let the spouts emit nothing more."""
        ...

    def kill_task(self, component: str, task: int) -> None:
        """Let a task die and start again."""
        ...

    def close(self) -> None:
        """End the topology."""
        ...

    def components(self) -> dict[str, int]:
        """Every component with its number of tasks, the ackers included."""
        ...

    def now_s(self) -> float:
        """Seconds since the topology began."""
        ...

    def acks(self, spout: str) -> list[Any]:
        """Message ids acked since the previous call."""
        ...

    def fails(self, spout: str) -> list[Any]:
        """Message ids failed since the previous call."""
        ...

    def emitted(self, component: str, stream: str) -> list[list[Any]]:
        """Value lists emitted since the previous call."""
        ...

    def errors(self, component: str) -> list[BaseException]:
        """Errors reported since the previous call."""
        ...

    def pending(self, spout: str) -> int:
        """Trees of a spout that have no answer."""
        ...

    def instance(self, component: str, task: int) -> Any:
        """The user's object that runs in a task."""
        ...

    def executed(self, component: str, task: int | None) -> int:
        """Tuples that one or all tasks executed."""
        ...

    def queue(self, component: str, task: int) -> ReceiveQueue[Any]:
        """The receive queue of one task."""
        ...

    def statistics(self, component: str) -> ComponentStatistics:
        """The component's page of Storm's UI."""
        ...


def _on_spark(topology: Topology, settings: Settings) -> Engine:
    from reliable_spark.microbatch import MicroBatchEngine, SparkCluster, with_states_below

    home = tempfile.mkdtemp(prefix="reliable_spark_test_")
    engine = MicroBatchEngine(topology, with_states_below(settings, home), SparkCluster())
    weakref.finalize(engine, shutil.rmtree, home, ignore_errors=True)
    return engine


ENGINES: dict[str, Callable[[Topology, Settings], Engine]] = {"process": ProcessEngine, "spark": _on_spark}
"""Engine name -> what makes one."""


def engine_of(name: str, topology: Topology, settings: Settings) -> Engine:
    """Start a topology on the engine of that name.

    Raises:
        UsageError: there is no such engine.
    """
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}{nearest(name, ENGINES)}")
    return ENGINES[name](topology, settings)
