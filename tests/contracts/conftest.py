"""Where each kind of state provider keeps its states during the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reliable_spark.errors import StateError
from reliable_spark.state import MemoryStateProvider, StateProvider

Reopen = Callable[[], StateProvider]
"""Opens the place again, as a process that starts after a crash does."""


class FailingStore:
    """A store of which one write fails, before it did anything or after it did it all.

    Args:
        store: what it stands before.
        step: the write that fails; any when None.
        when: "before" or "after"; None: nothing fails.
    """

    def __init__(self, store: Any, step: str | None = None, when: str | None = None) -> None:
        self._store = store
        self._step = step
        self.when = when

    def __getattr__(self, name: str) -> Any:
        step = getattr(self._store, name)
        if self.when is None or name not in ("prepare", "commit", "rollback") or self._step not in (None, name):
            return step
        when, self.when = self.when, None

        def failing(*arguments: Any) -> None:
            if when == "after":
                step(*arguments)
            raise StateError("the process dies here")

        return failing


@pytest.fixture(params=["memory", "delta", "redis"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    """An empty place, of each kind."""
    if request.param == "memory":
        memory = MemoryStateProvider()
        return lambda: memory
    if request.param == "delta":
        from reliable_spark.state.delta import DeltaStateProvider

        return lambda: DeltaStateProvider(str(tmp_path / "state"))
    client = request.getfixturevalue("redis_client")
    from reliable_spark.state.redis import RedisStateProvider

    client.flushdb()
    return lambda: RedisStateProvider(client)
