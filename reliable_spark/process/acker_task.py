"""One task of the system's component `__acker`: messages in by the queue, answers out by the queue."""

from __future__ import annotations

from reliable_spark.core.acker import NO_TASK, Kind, Verdict
from reliable_spark.core.acker_task import AckerTask, Message
from reliable_spark.core.statistics import Metric
from reliable_spark.process.outbound import Outbound
from reliable_spark.process.world import World
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.tuples import Tuple

_KINDS = {
    "__ack_init": Kind.INIT,
    "__ack_ack": Kind.ACK,
    "__ack_fail": Kind.FAIL,
    "__ack_reset_timeout": Kind.RESET,
}
_ANSWERS = {
    Verdict.ACKED: "__ack_ack",
    Verdict.FAILED: "__ack_fail",
    Verdict.RESET: "__ack_reset_timeout",
}


class AckerRunner:
    """Runs `core.acker_task.AckerTask`; a tree that expires is dropped without a word, its spout knows by itself.

    Args:
        world: what the tasks share.
        context: which task it is.
    """

    def __init__(self, world: World, context: TopologyContext) -> None:
        self.acker = AckerTask(world.settings.high_water)
        self._world = world
        self._context = context
        self._outbound = Outbound(world, context)

    @property
    def state(self) -> int:
        """How many trees it holds, strays included."""
        return len(self.acker)

    def deliver(self, input: Tuple) -> None:
        """Take one message or tick."""
        self._world.count(self._context.task, Metric.EXECUTED, (input.source_component, input.source_stream))
        if input.is_tick:
            self.acker.rotate()
            return
        root, value, task = (*input.values, 0, NO_TASK)[:3]
        answer = self.acker.take(Message(_KINDS[input.source_stream], root, value, task), self._world.now_s)
        if answer is not None:
            self._outbound.tell(answer.task, _ANSWERS[answer.verdict], [answer.anchor, answer.age_s * 1000])

    def close(self) -> None:
        """Nothing is kept."""
