"""Evaluations of a batch that are repeated until nothing in them fails in part."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from reliable_spark.engine.columns import ANCHOR, FAILURE
from reliable_spark.engine.failures import Known
from reliable_spark.engine.protocol import Batch
from reliable_spark.engine.rounds import once_without_partial

BATCH = Batch(7, "source", None, datetime(2026, 1, 1, tzinfo=timezone.utc))


class Evaluations:
    """An evaluator whose evaluations find the given failures, one set after the other."""

    def __init__(self, *failing: set[int]) -> None:
        self.known: dict[int, Known] = {}
        self.seen: list[set[int]] = []
        self.sink = SimpleNamespace(discard=lambda prepared: None)
        self._failing: Iterator[set[int]] = iter(failing)

    def once(self, batch: Batch, failures_max: int) -> Any:
        self.seen.append(set(self.known))
        trees = [{ANCHOR: anchor, FAILURE: {"error": "away"}} for anchor in next(self._failing) | set(self.known)]
        return SimpleNamespace(prepared=None, trees=trees)

    def is_partial(self, tree: dict[str, Any]) -> bool:
        return True


@pytest.mark.parametrize(
    ("failing", "said"),
    [
        ([{1, 2}, set()], []),
        ([{1}, {2}, {3}, {4}, set()], ["4th"]),
        ([{n} for n in range(8)] + [set()], ["4th", "8th"]),
    ],
)
def test_who_fails_by_chance_behind_a_state_is_told_what_that_costs(
    caplog: pytest.LogCaptureFixture, failing: list[set[int]], said: list[str]
) -> None:
    """Every tree that has failed is kept out of the next evaluation; failures that rows cause need no third one."""
    evaluator: Any = Evaluations(*failing)
    with caplog.at_level(logging.WARNING):
        assert once_without_partial(evaluator, BATCH, 100) is not None
    assert evaluator.seen == [set().union(*failing[:number]) for number in range(len(failing))]
    assert [record.getMessage().split("for the ")[1].split(" ")[0] for record in caplog.records] == said
    assert evaluator.known == {}, "as it was before the batch"
