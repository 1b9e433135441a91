"""The graph behind a frame, as data, and its translation into one DataFrame.

A node is a spout or an operator over other nodes. `compile_plan` walks the graph from its end: a node that two
others read is materialised and hands each of them its own share, as Storm delivers a tuple to two bolts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from reliable_spark.engine.lineage import with_share
from reliable_spark.engine.operators import (
    Aggregate,
    Context,
    Explode,
    FailWhen,
    JoinStatic,
    Operator,
    RunBolt,
    Transform,
)
from reliable_spark.engine.stateful import Stateful
from reliable_spark.errors import UsageError


@dataclass(frozen=True, eq=False)
class Spout:
    """Where rows come from.

    Attributes:
        name: how the ledger calls it.
        frame: the user's DataFrame, static or streaming.
        message_id: the columns that identify a row.
    """

    name: str
    frame: DataFrame
    message_id: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Node:
    """One step of the graph: a spout without inputs, or an operator with them."""

    step: Spout | Operator
    inputs: tuple[Node, ...] = ()

    @property
    def barriers(self) -> tuple[Node, ...]:
        """The aggregates on the way from the spouts to this node, itself included, in order."""
        own = (self,) if isinstance(self.step, Aggregate) else ()
        return (self.inputs[0].barriers if self.inputs else ()) + own

    @property
    def level(self) -> int:
        """How many aggregates the rows have passed when they leave this node."""
        return len(self.barriers)


def walk(node: Node) -> Iterator[Node]:
    """All nodes of the graph, each once, inputs first."""
    seen: set[int] = set()

    def visit(current: Node) -> Iterator[Node]:
        if id(current) not in seen:
            seen.add(id(current))
            for parent in current.inputs:
                yield from visit(parent)
            yield current

    yield from visit(node)


def spouts(node: Node) -> list[Node]:
    """The spouts of the graph, in a fixed order."""
    return [each for each in walk(node) if isinstance(each.step, Spout)]


def check_union(left: Node, right: Node) -> None:
    """Refuse a union of frames that have passed different aggregates.

    Raises:
        UsageError: a group could then not be led back to its rows.
    """
    if [id(node) for node in left.barriers] != [id(node) for node in right.barriers]:
        raise UsageError(
            "unionByName(): the two frames have passed different aggregates: union them before "
            "groupBy(), or run them separately"
        )


def needs_tracing(node: Node) -> bool:
    """Tell whether every batch has to be folded per tree: rows may be lost, copied or branch."""
    if any(isinstance(each.step, Transform) for each in walk(node)):
        return True
    return _branches(node)


def may_fail(node: Node, level: int) -> bool:
    """Tell whether a step at this level of aggregation can fail a tuple on purpose or by exception."""
    steps = [each for each in walk(node) if isinstance(each.step, RunBolt | FailWhen)]
    return any(each.level == level for each in steps)


def may_split(node: Node) -> bool:
    """Tell whether a row may become several, so that a part of its tree can fail while another is a leaf."""
    splitting = RunBolt | Stateful | Explode | JoinStatic | Aggregate | Transform
    return any(isinstance(each.step, splitting) for each in walk(node)) or _branches(node)


def stateful_steps(node: Node) -> list[Stateful]:
    """The bolts of the graph that have a state."""
    return [each.step for each in walk(node) if isinstance(each.step, Stateful)]


def may_fail_after_state(node: Node) -> bool:
    """Tell whether a step can fail a tuple after a state has changed because of its tree."""
    failing = (RunBolt, FailWhen, Stateful)
    return any(
        isinstance(each.step, failing) and any(stateful_steps(parent) for parent in each.inputs) for each in walk(node)
    )


def goes_into_bolt(node: Node) -> bool:
    """Tell whether a graph has one spout, whose rows go straight into a bolt: then each task of theirs runs it."""
    first = [each.step for each in walk(node) if any(isinstance(parent.step, Spout) for parent in each.inputs)]
    return len(spouts(node)) == 1 and all(isinstance(step, RunBolt) for step in first)


def _branches(node: Node) -> bool:
    """Tell whether a node is read by more than one other."""
    return max(_readers(walk(node)).values(), default=0) > 1


def _readers(nodes: Iterable[Node]) -> Counter[int]:
    return Counter(id(parent) for each in nodes for parent in each.inputs)


def compile_plan(
    node: Node, given: Mapping[int, DataFrame], context: Context, branch: Callable[[DataFrame], DataFrame]
) -> DataFrame:
    """Translate the graph into a DataFrame.

    Args:
        node: the end of the graph.
        given: frames with lineage columns for the nodes where the translation starts, by `id(node)`.
        context: the evaluation that the operators take part in.
        branch: materialises a frame that more than one node reads.

    Returns:
        The frame that the node stands for, with lineage columns.
    """
    inside = _inside(node, given)
    readers = _readers(inside)
    made: dict[int, DataFrame] = {}
    served: Counter[int] = Counter()

    def read(parent: Node) -> DataFrame:
        count = readers[id(parent)]
        if count == 1:
            return made[id(parent)]
        index = served[id(parent)]
        served[id(parent)] += 1
        return with_share(made[id(parent)], str(index), str(count))

    for each in inside:
        if id(each) in given:
            frame = given[id(each)]
        else:
            assert not isinstance(each.step, Spout)
            inputs = [read(parent) for parent in each.inputs]
            level = max(parent.level for parent in each.inputs)
            frame = each.step.apply(inputs, context, level)
        made[id(each)] = branch(frame) if readers[id(each)] > 1 else frame
    return made[id(node)]


def _inside(node: Node, given: Mapping[int, DataFrame]) -> list[Node]:
    """The nodes between the given ones and the end, inputs first."""
    order: list[Node] = []
    seen: set[int] = set()

    def visit(current: Node) -> None:
        if id(current) in seen:
            return
        seen.add(id(current))
        if id(current) not in given:
            for parent in current.inputs:
                visit(parent)
        order.append(current)

    visit(node)
    return order
