"""What a test looks at after a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import reliable_spark as rs


@dataclass
class Rows:
    """A sink function that keeps what it is given."""

    batches: dict[int, list[Any]] = field(default_factory=dict)
    schema: Any = None

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.schema = frame.schema
        self.batches[batch_id] = frame.collect()

    @property
    def all(self) -> list[Any]:
        return [row for batch in self.batches.values() for row in batch]

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.all, self.schema)


@dataclass
class Ran:
    """A finished run."""

    outcome: rs.Outcome
    rows: Rows
    ledger: str

    @property
    def dead(self) -> dict[str | None, str]:
        letters = self.outcome.dead_letters().select("message_id", "error").collect()
        return {row["message_id"]: row["error"] for row in letters}

    def counts(self, *names: str) -> tuple[int, ...]:
        return tuple(getattr(self.outcome, name) for name in names)


Runner = Callable[..., Ran]


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[Any]:
    """Let a method remember each of its calls, and do what it did before."""
    calls: list[Any] = []
    method = getattr(owner, name)

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls
