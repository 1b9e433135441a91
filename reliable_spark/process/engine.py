"""The in-process engine: a topology in one thread, the same from run to run when time is simulated.

On a simulated clock the tasks work side by side: what a task waits passes for that task alone, which takes and sends
nothing until then. On a real clock they take turns, so one that waits lets all others wait.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from reliable_spark.clock import Clock, ManualClock
from reliable_spark.core.pressure import ReceiveQueue
from reliable_spark.errors import OperatingError
from reliable_spark.process import base
from reliable_spark.process.crew import Crew
from reliable_spark.process.post import Post
from reliable_spark.process.starting import with_ackers
from reliable_spark.process.world import Watch, World
from reliable_spark.settings import Settings
from reliable_spark.topology.builder import Topology


class ProcessEngine(base.TopologyEngine):
    """Runs one topology; what is sent first arrives first, unless back-pressure or a busy task delays it.

    Args:
        topology: what is run.
        settings: how.
        clock: the time; a simulated one by default.
        watch: who looks; a test by default.
    """

    def __init__(
        self, topology: Topology, settings: Settings, clock: Clock | None = None, watch: Watch | None = None
    ) -> None:
        graph, tasks = with_ackers(topology.graph, settings)
        world = World(graph, tasks, settings, clock or ManualClock(), watch=watch or Watch())
        self._post = Post(world)
        super().__init__(world, Crew(world, topology))

    def queue(self, component: str, task: int) -> ReceiveQueue[Any]:
        """The receive queue of a task."""
        return self._post.queues[self._world.tasks[component][task]]

    def _drain(self, until_s: float) -> bool:
        world, post, delivered = self._world, self._post, 0
        queue = world.queue
        post.wake()
        now_s = world.read_time()
        while now_s <= until_s and (following := queue.popleft() if queue else post.take_next()) is not None:
            if delivered > base.STEPS_MAX:
                raise OperatingError(f"still not settled after {base.STEPS_MAX} tuples: a spout emits for every answer")
            task, arrived = following
            sent_before = len(queue)
            self._deliver(task, arrived)
            self._after(task, now_s, sent_before)
            delivered += 1
            now_s = world.read_at_s
            if self._ticks.next_due_s <= now_s:
                self._ring()
        return delivered > 0

    def _ring(self) -> None:
        super()._ring()
        self._after(None, self._world.read_at_s, len(self._world.queue))

    def _guarded(self, task: int, call: Callable[[], object]) -> object:
        """Run a task's code in a time of its own: what it waits makes nobody else wait."""
        began_s, sent_before = self._world.read_time(), len(self._world.queue)
        try:
            return super()._guarded(task, call)
        finally:
            self._world.read_time()
            self._after(task, began_s, sent_before)

    def _after(self, task: int | None, began_s: float, sent_before: int) -> None:
        """Hand what was sent to the queues of the tasks, unless first in first out would do the same.

        It does as long as no task is busy or held back, and less is on its way than one queue takes.
        """
        world, ended_s = self._world, self._world.read_at_s
        if ended_s > began_s and isinstance(world.clock, ManualClock):
            # what the task waited has passed for it alone, which is busy until then
            world.clock.advance(began_s - ended_s)
            world.read_time()
            self._post.collect(task, ended_s, sent_before)
        elif not self._post.is_idle or len(world.queue) > self._post.capacity:
            self._post.collect(task)

    def _may_emit(self, task: int) -> bool:
        return self._post.may_emit(task)

    def _pass_time(self, until_s: float) -> bool:
        """Go on to when the next busy task is done; says whether there is one by then."""
        next_s = self._post.next_event_s
        if not isinstance(self._world.clock, ManualClock) or next_s > until_s or next_s == math.inf:
            return False
        self._world.clock.advance(min(next_s, self._ticks.next_due_s) - self._world.now_s)
        return True

    def _drop_queued(self, task: int) -> None:
        queued = self._world.take_queued()
        self._world.queue.extendleft(each for each in reversed(queued) if each[0] != task or each[1].is_tick)
        self._post.forget(task)
