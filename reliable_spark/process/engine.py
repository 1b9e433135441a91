"""The in-process engine: a topology in one thread, the same from run to run when time is simulated."""

from __future__ import annotations

from reliable_spark.clock import Clock, ManualClock
from reliable_spark.errors import OperatingError
from reliable_spark.process import base
from reliable_spark.process.crew import Crew
from reliable_spark.process.starting import with_ackers
from reliable_spark.process.world import World
from reliable_spark.settings import Settings
from reliable_spark.topology.builder import Topology


class ProcessEngine(base.TopologyEngine):
    """Runs one topology; what is sent first arrives first.

    Args:
        topology: what is run.
        settings: how.
        clock: the time; a simulated one by default.
        is_watched: whether what is emitted and answered is kept for a test.
    """

    def __init__(
        self, topology: Topology, settings: Settings, clock: Clock | None = None, is_watched: bool = True
    ) -> None:
        graph, tasks = with_ackers(topology.graph, settings)
        world = World(graph, tasks, settings, clock or ManualClock(), is_watched)
        super().__init__(world, Crew(world, topology))

    def _drain(self, until_s: float) -> bool:
        world, delivered = self._world, 0
        while world.queue and world.now_s <= until_s:
            if delivered > base.STEPS_MAX:
                raise OperatingError(f"still not settled after {base.STEPS_MAX} tuples: a spout emits for every answer")
            self._deliver(*world.queue.popleft())
            delivered += 1
            self._ring()
        return delivered > 0

    def _drop_queued(self, task: int) -> None:
        queue = self._world.queue
        waiting = [each for each in queue if each.task != task or each.tuple.is_tick]
        queue.clear()
        queue.extend(waiting)
