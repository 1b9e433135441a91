"""Where each kind of state provider keeps its states during the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from reliable_spark.state import MemoryStateProvider, StateProvider

Reopen = Callable[[], StateProvider]
"""Opens the place again, as a process that starts after a crash does."""


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
