"""Bolts that remember. Source: Storm's `topology/IStatefulBolt`, `topology/base/BaseStatefulBolt`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from copy import copy
from typing import Any, Generic, TypeVar

from reliable_spark.core.graph import Component
from reliable_spark.core.groupings import GroupingKind, fields_target
from reliable_spark.state.base import State
from reliable_spark.topology.bolts import RichBolt

S_contra = TypeVar("S_contra", bound=State, contravariant=True)


class StatefulBolt(RichBolt, Generic[S_contra]):
    """A rich bolt whose state is checkpointed. Anchor what is emitted, and ack what is done.

    Guarantee: at least once for the state. A tuple's ack goes out only when the changes made before it are committed;
    when a task dies before that, every bolt goes back to the last commit and the tuples come again. One that dies
    between a commit and its acks sees the tuples of that commit twice.

    The order of calls is `prepare`, `init_state`, then `execute`: tuples that come earlier wait.
    """

    _is_grouped_by_one = False

    def init_state(self, state: S_contra) -> None:
        """Called once per task with the state as it was committed last; keep it."""
        raise NotImplementedError

    def pre_prepare(self, txid: int) -> None:
        """Called before the state is prepared; what it raises fails the checkpoint."""

    def pre_commit(self, txid: int) -> None:
        """Called before the state is committed; what it raises fails the checkpoint, and the commit comes again."""

    def pre_rollback(self) -> None:
        """Called before the state goes back to the last commit."""

    def shard_of(self, key: Hashable, tasks: int) -> int:
        """The task, from 0, that a key of the state belongs to when there are so many.

        As it is, the key is the value of a fields grouping by one field, or the tuple of the values of several.
        Override it when the state's keys are others: it is asked when the number of tasks changes.
        """
        is_several = isinstance(key, tuple) and not self._is_grouped_by_one
        return fields_target(key if is_several else [key], tasks)  # type: ignore[arg-type] # a tuple is a sequence


def shard_rule(bolt: StatefulBolt[Any], component: Component) -> Callable[[Hashable, int], int]:
    """The bolt's `shard_of`, told by how many fields the component is grouped: a tuple may be the value of one."""
    counts = {len(each.grouping.fields) for each in component.inputs if each.grouping.kind is GroupingKind.FIELDS}
    told = copy(bolt)  # one object may stand for two components
    told._is_grouped_by_one = counts == {1}
    return told.shard_of
