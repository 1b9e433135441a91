"""Real processes with stateful topologies, killed with SIGKILL at every phase of a checkpoint, on Delta and on Redis.

Before "committing" is stored a checkpoint goes back: the state is that of a clean run. After that it goes forward, and
what was not acked by then comes again: the state is at least that. A bolt that knows what it has counted is exact.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reliable_spark.state.providers import provider_of
from tests.crash.topology_job import ACKED, IN_THE_ACK, run

GOES_BACK = [
    "store preparing",
    "count-0 prepare",
    "count-1 prepare",
    "once-0 prepare",
    "store committing",
]
IN_A_RECOVERY = {
    "once-0 prepare": ["count-0 rollback", "once-0 rollback", "store committed"],
    "once-0 commit": ["count-0 commit", "once-0 commit", "store committed"],
}
"""Where the next processes die, that find a checkpoint in this phase."""
GOES_ON = ["count-0 commit", "count-1 commit", "once-0 commit", "store committed", IN_THE_ACK]
NEW_IDS = 4
TIMEOUT_S = 60

Provider = tuple[str, Mapping[str, Any]]


@pytest.fixture(params=[pytest.param("delta", marks=pytest.mark.soak), "redis"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    """An empty place for states, and how to reach it."""
    if request.param == "delta":
        return "delta", {"path": str(tmp_path / "state")}
    client = request.getfixturevalue("redis_client")
    client.flushdb()
    return "redis", {"jedisPoolConfig": {"host": "127.0.0.1", "port": client.get_connection_kwargs()["port"]}}


class Chain:
    """One place for states over many processes."""

    def __init__(self, directory: Path, provider: Provider) -> None:
        self.directory, self.provider, self.ids = directory, provider, 0
        self._processes = multiprocessing.get_context("forkserver")
        self._processes.set_forkserver_preload(["tests.crash.topology_job"])

    def run(self, at: str | None = None, *, is_recovery: bool = False) -> None:
        """Start a process with new ids, and see how it ends."""
        self.ids += NEW_IDS
        arguments = (self.directory, self.provider, self.ids, at, is_recovery)
        process = self._processes.Process(target=run, args=arguments)
        process.start()
        process.join(TIMEOUT_S)
        assert process.exitcode == (0 if at is None else -9), f"{at}: ended with {process.exitcode}"
        missing = self.acked() - self.committed().keys()
        assert not missing, f"{at}: acked, but not committed: {missing}"

    def acked(self) -> set[int]:
        """The ids that the spout was told are done."""
        place = self.directory / ACKED
        return {int(number) for number in place.read_text().split()} if place.exists() else set()

    def committed(self) -> Counter[int]:
        """How often each id is counted in the committed state."""
        stores: list[Any] = [provider_of(*self.provider).state(f"count-{task}") for task in range(2)]
        pairs = [pair for state in stores for pair in state._store.scan()]
        return Counter({json.loads(key): json.loads(value) for key, value in pairs})

    def check(self, *, is_exact: bool) -> None:
        """Everything is acked; the counts are those of a clean run, or at least those."""
        assert self.acked() == set(range(self.ids))
        clean, counted = Counter(range(self.ids)), self.committed()
        assert counted == clean if is_exact else counted >= clean
        once: Any = provider_of(*self.provider).state("once-0")
        assert once.get("sum") == sum(range(self.ids))


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_a_topology_killed_in_every_phase_of_a_checkpoint_counts_every_id(provider: Provider, tmp_path: Path) -> None:
    """First only where it goes back, and then exactly once; then everywhere, and in recoveries too."""
    chain = Chain(tmp_path, provider)
    for at in GOES_BACK:
        chain.run(at)
        for then in IN_A_RECOVERY.get(at, ()):
            chain.run(then, is_recovery=True)
            chain.run(at)
    chain.run()
    chain.check(is_exact=True)
    for at in GOES_ON:
        chain.run(at)
        for then in IN_A_RECOVERY.get(at, ()):
            chain.run(then, is_recovery=True)
    chain.run()
    chain.check(is_exact=False)
    assert chain.committed() != Counter(range(chain.ids))  # some came again, else nothing was killed in time
