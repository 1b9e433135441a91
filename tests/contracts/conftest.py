"""Where each kind of state provider keeps its states during the tests."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_spark.state import MemoryStateProvider, StateProvider

Reopen = Callable[[], StateProvider]
"""Opens the place again, as a process that starts after a crash does."""


@pytest.fixture(scope="session")
def redis_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Redis server of our own, reached by a socket file."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("needs redis-server, of the Debian package of that name")
    redis = pytest.importorskip("redis")
    directory = tmp_path_factory.mktemp("redis")
    port = _free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)],
        stdout=subprocess.DEVNULL,
    )
    client = redis.Redis(port=port, retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 200))
    try:
        assert client.ping()
        yield client
    finally:
        client.close()
        process.terminate()
        process.wait()


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
