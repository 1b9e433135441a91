"""One task of the system's component `__acker`: messages in by the queue, answers out by the queue."""

from __future__ import annotations

from reliable_spark.core.acker import Kind, Verdict
from reliable_spark.core.acker_task import AckerTask, Message
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
        self._task = context.task
        self._outbound = Outbound(world, context)

    @property
    def state(self) -> int:
        """How many trees it holds, strays included."""
        return len(self.acker)

    def deliver(self, input: Tuple) -> None:
        """Take one message or tick, at the time that was read last."""
        world, stream = self._world, input.source_stream
        world.counts[self._task].fresh[input.source_component, stream].executed += 1
        if stream not in _KINDS:
            self.acker.rotate()  # a tick
            return
        answer = self.acker.take(Message(_KINDS[stream], *input.values), world.read_at_s)
        if answer is not None:
            self._outbound.tell(answer.task, _ANSWERS[answer.verdict], [answer.anchor, answer.age_s * 1000])

    def close(self) -> None:
        """Nothing is kept."""
