"""A chain of processes on one ledger, each killed at another effect, and what must hold after each."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from deltalake import DeltaTable
from rich.table import Table

from reliable_spark.ledger.audit import audit
from tests.crash.job import CHILDREN, IN_THE_SINK
from tests.submission import submit_command, submit_environment

ROOT = Path(__file__).parents[2]
ROWS = 12
TRIES = 4

BEGUN = ["begin source"]
EVERY_MODE = ["evaluate source", IN_THE_SINK, "write batches", "settled source", "committed", "upkeep: forget"]
REPLAYED = ["begin replay", "settle replay"]
"""Around begin, in the sink's write, in and after the settlement, after the commit, in a replay, in upkeep."""


@dataclass
class Chain:
    """One ledger and one sink over many processes.

    Attributes:
        JOB: what is run.
        rows: how many source rows were given so far.
        ran: how each effect's process ended.
    """

    JOB: ClassVar[str] = "tests/crash/job.py"

    directory: Path
    sink: str
    delivery: str
    is_random: bool
    rows: int = 0
    files: int = 0
    ran: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.sink} {self.delivery} {'random' if self.is_random else 'deterministic'}"

    def effects(self) -> list[str]:
        """What a process of this chain can be killed at."""
        begun = BEGUN if self.sink == "function" else []
        return begun + EVERY_MODE + ([] if self.delivery == "at_most_once" else REPLAYED)

    def kill_at(self, effect: str) -> None:
        """Start a process that has new rows to take in, and let it die at the effect."""
        for _ in range(TRIES):
            first = self.give_rows()
            process = self.submit("--kill-at", effect, "--row", str(first))
            if process.returncode != 0:
                break
        assert process.returncode == -9, f"{self.name}, {effect}: not killed, but {_end_of(process)}"
        self.check_while_unfinished(effect)
        self.ran[effect] = "ok"

    def finish(self) -> None:
        """Start a process that nobody kills, and check that everything has its answer."""
        self.give_rows()
        process = self.submit()
        assert process.returncode == 0, f"{self.name}: {_end_of(process)}"
        self.check_finished()

    def give_rows(self) -> int:
        """Put a new file into the source; the id of its first row."""
        source = self.directory / "in"
        source.mkdir(parents=True, exist_ok=True)
        first = self.rows
        lines = [json.dumps({"id": number}) for number in range(first, first + ROWS)]
        part = self.directory / "rows.part"
        part.write_text("\n".join(lines))
        part.rename(source / f"{self.files:04d}.json")
        self.rows, self.files = self.rows + ROWS, self.files + 1
        return first

    def submit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the job by spark-submit in a process group of its own."""
        options = ["--conf", f"spark.local.dir={self.directory / 'local'}"]  # a killed JVM leaves it behind
        job = [str(ROOT / self.JOB), "--directory", str(self.directory)]
        job += ["--sink", self.sink, "--delivery", self.delivery, *(["--random"] if self.is_random else [])]
        start = "import os,sys; os.environ['KILLED_GROUP']=str(os.getpid()); os.execv(sys.argv[1], sys.argv[1:])"
        return subprocess.run(
            [sys.executable, "-c", start, *submit_command(*options, *job, *arguments)],
            env=submit_environment(),
            start_new_session=True,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def written(self) -> Counter[tuple[int, int]]:
        """How often each child of each row is in the sink."""
        return Counter((row["id"], row["child"]) for row in self.rows_written())

    def rows_written(self) -> list[dict[str, Any]]:
        """What is in the sink."""
        out = self.directory / "out"
        if self.sink == "function":
            return [row for file in out.glob("*.json") for row in json.loads(file.read_text())]
        if not DeltaTable.is_deltatable(str(out / "table")):
            return []
        rows: list[dict[str, Any]] = DeltaTable(str(out / "table")).to_pyarrow_table().to_pylist()
        return rows

    def check_while_unfinished(self, effect: str) -> None:
        """What holds at any moment: the ledger balances, and nothing is in the sink more often than promised."""
        if DeltaTable.is_deltatable(str(self.directory / "ledger" / "batches")):
            assert audit(str(self.directory / "ledger")).balanced, f"{self.name}, {effect}: does not balance"
        if self.delivery != "at_least_once":
            twice = [row for row, count in self.written().items() if count > 1]
            assert not twice, f"{self.name}, {effect}: twice in the sink: {twice}"

    def check_finished(self) -> None:
        """What holds in the end: all is answered, and what is acked is in the sink as the mode promises."""
        counts = audit(str(self.directory / "ledger"))
        assert counts.balanced
        assert (counts.anchored, counts.pending) == (self.rows, 0), self.name
        letters = DeltaTable(str(self.directory / "ledger" / "dead_letters")).to_pyarrow_table()
        dead = [int(each) for each in letters["message_id"].to_pylist()]
        assert len(dead) == len(set(dead)) == counts.dead
        acked = {(row, child) for row in set(range(self.rows)) - set(dead) for child in range(CHILDREN)}
        written = self.written()
        if self.delivery == "exactly_once":
            assert written == Counter(acked), self.name
        elif self.delivery == "at_least_once":
            assert acked <= set(written), f"{self.name}: lost {acked - set(written)}"
        else:
            assert max(written.values()) == 1, self.name
            assert set(written) <= acked, self.name


def matrix(chains: Sequence[Chain]) -> Table:
    """What was killed where."""
    effects = sorted({effect for chain in chains for effect in chain.ran}, key=lambda each: (each.split()[-1], each))
    table = Table("killed at", *(chain.name for chain in chains))
    for effect in effects:
        table.add_row(effect, *(chain.ran.get(effect, "–") for chain in chains))
    return table


def _end_of(process: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {process.returncode}\n{process.stdout[-1_000:]}\n{process.stderr[-4_000:]}"
