"""Windows that survive a restart. Source: Storm's `topology/IStatefulWindowedBolt`, `base/BaseStatefulWindowedBolt`."""

from __future__ import annotations

from typing import Generic

from reliable_spark.topology.stateful import S_contra
from reliable_spark.topology.windowed import WindowedBolt


class StatefulWindowedBolt(WindowedBolt, Generic[S_contra]):
    """A windowed bolt with a state, whose windows are a part of the checkpoint too.

    Guarantee: at least once. A tuple is acked at the commit of the checkpoint that holds it, and not when it leaves
    the windows, which so may be longer than the message timeout. When a task dies, every bolt goes back to the last
    commit: windows hold what they held then, those that fired since fire again, and what came since comes again from
    its spout and enters once. A tuple enters twice when it comes again after its commit: its task died between a commit
    and its acks, or its tree failed elsewhere. A late tuple is acked at the commit too and is in no window.

    What `execute` emits is anchored to those tuples of the window whose acks are still held back, and to nothing where
    there are none: then nobody hears when a later bolt fails it. It is not lost with a task, since the window fires
    again. A tuple that was acked can be read like any other; as an anchor it is none.

    Time by arrival goes on while the topology is stopped, as far as the clock does, and never back. The number of
    tasks cannot change. The order of calls is `prepare`, `init_state`, then `execute`: tuples that come earlier wait.
    """

    def init_state(self, state: S_contra) -> None:
        """Called once per task with the bolt's own state as it was committed last; keep it."""
        raise NotImplementedError

    def pre_prepare(self, txid: int) -> None:
        """Called before windows and state are prepared; what it raises fails the checkpoint."""

    def pre_commit(self, txid: int) -> None:
        """Called before windows and state are committed; what it raises fails the commit, which comes again."""

    def pre_rollback(self) -> None:
        """Called before windows and state go back to the last commit."""
