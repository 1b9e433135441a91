"""The three medallion jobs as real processes on one ledger, which can be killed and started again one by one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from reliable_spark.errors import LedgerError
from reliable_spark.ledger.audit import audit
from reliable_spark.ledger.counts import Counts
from reliable_spark.stages.places import stage_ledger
from tests.jobs.test_medallion import gold
from tests.submission import submit_command, submit_environment

ROOT = Path(__file__).parents[2]
LAYERS = ("bronze", "silver", "gold")
PATIENCE_S = 900
POLL_S = 0.1


@dataclass
class Layers:
    """A directory with days, queues, tables and the ledger, and the processes that work there.

    Args:
        days: the flights of each day, given to bronze one after the other.
        arguments: of bronze.
    """

    directory: Path
    days: list[Any]
    arguments: list[str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    given: int = 0
    started: int = 0

    def give(self, days: int) -> None:
        """Let a few more days appear, each complete at once."""
        source = self.directory / "days"
        source.mkdir(exist_ok=True)
        for flights in self.days[self.given : self.given + days]:
            part = self.directory / "day.part"
            flights.to_csv(part, index=False)
            self.given += 1
            part.rename(source / f"{self.given:03}.csv")

    def start(self, layer: str) -> None:
        """Submit one of the jobs, in a process group of its own."""
        own = ["--input", str(self.directory / "days"), *self.arguments] if layer == "bronze" else []
        self.started += 1
        with (self.directory / f"{self.started}_{layer}.log").open("wb") as log:
            self.running[layer] = subprocess.Popen(
                submit_command(str(ROOT / "jobs" / "medallion.py"), layer, "--output", str(self.output), *own),
                env=submit_environment(),
                cwd=self.directory,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, layer: str) -> None:
        """End a job's processes, JVM and all, wherever they are."""
        process = self.running.pop(layer)
        assert process.poll() is None, f"{layer} has ended by itself: {self._logs()}"
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL

    def kill_all(self) -> None:
        """Leave nothing running."""
        for layer in list(self.running):
            process = self.running.pop(layer)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)

    def wait_until(self, what: str, is_so: Callable[[], bool]) -> None:
        """Wait for something that the jobs bring about; nobody may end meanwhile."""
        end = time.monotonic() + PATIENCE_S
        while not is_so():
            ended = [layer for layer, process in self.running.items() if process.poll() is not None]
            assert not ended, f"{ended} ended by itself: {self._logs()}"
            assert time.monotonic() < end, f"{what}: {self.counts()}, {self._logs()}"
            time.sleep(POLL_S)

    @property
    def output(self) -> Path:
        return self.directory / "lake"

    def counts(self) -> Counts:
        """The balance, now."""
        try:
            return audit(str(self.output / "ledger"))
        except LedgerError:
            return Counts()

    def batches(self, layer: str) -> int:
        """How many batches a layer has settled."""
        ledger = str(self.output / "ledger")
        place = f"{ledger if layer == 'bronze' else stage_ledger(ledger, LAYERS[LAYERS.index(layer) - 1])}/batches"
        return int(DeltaTable(place).to_pyarrow_table(columns=["batch_id"]).num_rows) if _is_there(place) else 0

    def gold(self) -> dict[tuple[Any, str], int]:
        """What is in the last table: flights by day and carrier."""
        return gold(self.output) if _is_there(str(self.output / "gold")) else {}

    def _logs(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()[-2_000:]}" for log in sorted(self.directory.glob("*.log")))


def _is_there(place: str) -> bool:
    return DeltaTable.is_deltatable(place)
