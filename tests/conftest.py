"""Fixtures and marks that all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

TESTS = Path(__file__).parent

os.environ["SPARK_CONF_DIR"] = str(TESTS / "conf")  # for this process and those that tests start

# A property holds or does not; how long an example takes on a busy machine says nothing about it.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


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
    builder = SparkSession.builder.appName("tests").master("local[2]").config("spark.sql.warehouse.dir", str(warehouse))
    session = configure(builder).getOrCreate()
    yield session
    session.stop()
