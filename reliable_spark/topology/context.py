"""What a task may know about itself and about the topology around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reliable_spark.clock import Clock
from reliable_spark.core.graph import Graph
from reliable_spark.errors import TopologyError, nearest

TICK_KEY: Final = "topology.tick.tuple.freq.secs"
"""The configuration of a component that makes it receive tick tuples, in seconds."""


@dataclass(frozen=True)
class TopologyContext:
    """Given to `prepare`, to `open` and to a custom grouping. Source: Storm's `task/TopologyContext`.

    Attributes:
        component: id of the own component.
        task: the own task id; ids count from 1 through all components.
        task_index: the own place among the component's tasks, from 0.
        clock: tells the time and waits. On the in-process engine waiting moves the simulated clock.
        graph: the topology as data.
        tasks: component id -> its task ids, ascending.
    """

    component: str
    task: int
    task_index: int
    clock: Clock
    graph: Graph
    tasks: Mapping[str, Sequence[int]]

    def component_tasks(self, component: str) -> list[int]:
        """The task ids of a component, ascending, for `emit_direct`.

        Raises:
            TopologyError: there is no such component.
        """
        if component not in self.tasks:
            raise TopologyError(f"there is no component {component!r}{nearest(component, self.tasks)}")
        return list(self.tasks[component])
