"""The cluster that the tests of this directory share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.running import Cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster; nothing that it or a job on it has started is left afterwards."""
    with ExitStack() as processes:
        yield Cluster(tmp_path_factory.mktemp("cluster"), processes)
