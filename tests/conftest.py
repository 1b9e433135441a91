"""Fixtures and marks that all tests share."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pyspark.sql import SparkSession

TESTS = Path(__file__).parent

os.environ["SPARK_CONF_DIR"] = str(TESTS / "conf")  # for this process and those that tests start

# A property holds or does not; how long an example takes on a busy machine says nothing about it. The same examples at
# each run, so that a red run is its change's doing; `--hypothesis-profile searching` looks for new ones.
settings.register_profile("searching", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("searching"), derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a JVM by where it is, so that `-m "not spark"` starts none."""
    for item in items:
        if TESTS / "spark" in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One small Delta-enabled session for the whole run, started by the first test that asks for it."""
    from reliable_spark.session import configure

    warehouse = tmp_path_factory.mktemp("warehouse")
    builder = (
        SparkSession.builder.appName("tests").master("local[2, 2]").config("spark.sql.warehouse.dir", str(warehouse))
    )
    session = configure(builder).getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def redis_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Redis server of our own, on a port of its own."""
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
