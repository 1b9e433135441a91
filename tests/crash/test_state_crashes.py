"""A real spark-submit process with states over a frame, killed with SIGKILL at every effect of a state.

What is counted is of the very evaluations whose trees were acked: the states are those of a clean run in every mode,
also where the sink has rows of an evaluation that was killed, as at least once allows.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
from deltalake import DeltaTable
from rich.console import Console

from reliable_spark.ledger.audit import audit
from reliable_spark.state.change_files import ChangeFiles, newest
from reliable_spark.state.change_table import ChangeTable
from reliable_spark.state.serializers import JsonSerializer
from tests.crash.chain import ROWS, Chain, matrix
from tests.crash.job import CHILDREN, IN_THE_SINK
from tests.crash.state_job import BEHIND_A_FILE, IN_A_FILE, IN_THE_BOLT, KEYS

IN_A_BATCH = ["commit states", "commit state mark", "committed states"]
"""Before either state has the batch, when the first has it and the second has not, and when both have it."""

EFFECTS = {
    "exactly_once": [
        *([each] for each in (IN_THE_BOLT, IN_A_FILE, BEHIND_A_FILE, "write batches")),
        ["settled source", *IN_A_BATCH, "commit"],
        *([each] for each in (*IN_A_BATCH, "settle replay", "settled replay")),
        *([each] for each in ("upkeep: compact state mark", "upkeep: forget files of state mark")),
        ["divide state mark"],
    ],
    "at_least_once": [
        *([each] for each in (IN_THE_SINK, IN_A_FILE, "committed", "write batches")),
        ["settled source", *IN_A_BATCH],
        *([each] for each in (*IN_A_BATCH, "settled replay")),
    ],
}
"""Each in a batch, or the first in a batch and the next ones while the start after it mends what the first has left."""

SINKS = {"exactly_once": "delta", "at_least_once": "function"}

_ended: list[Chain] = []


class StateChain(Chain):
    """One ledger with two states over many processes."""

    JOB: ClassVar[str] = "tests/crash/state_job.py"

    def kill_in_turn(self, effects: list[str]) -> None:
        """Let a process die in a batch, and those after it before they come to one of their own."""
        self.kill_at(effects[0])
        settled = self.settled()
        for effect in effects[1:]:
            self.kill_at(effect)
            assert self.settled() == settled, f"{effect}: not in the recovery"
            self.ran[f"{effect}, in the recovery"] = self.ran.pop(effect)

    def give_rows(self) -> int:
        """None while a file waits: who dies in a recovery reads none, and the last process would find them all."""
        if self.files > self.settled("source"):
            return self.rows - ROWS
        return super().give_rows()

    def settled(self, *kinds: str) -> int:
        """How many batches the ledger has, of some kinds or all."""
        place = str(self.directory / "ledger" / "batches")
        if not DeltaTable.is_deltatable(place):
            return 0
        return sum(not kinds or kind in kinds for kind in DeltaTable(place).to_pyarrow_table()["kind"].to_pylist())

    def check_while_unfinished(self, effect: str) -> None:
        """What holds at any moment: the states have whole trees, each once, and none that is pending or dead."""
        super().check_while_unfinished(effect)
        marked = self.committed("mark")
        ids = {row for row, _ in marked}
        assert {leaf: times for leaf, (times, _) in marked.items()} == dict.fromkeys(_leaves(ids), 1), effect
        assert not ids & (self.message_ids("pending") | self.message_ids("dead_letters")), effect

    def check_finished(self) -> None:
        """What holds in the end: the states are those of a clean run over the rows that were acked."""
        super().check_finished()
        dead = self.message_ids("dead_letters")
        assert dead
        acked = _leaves(set(range(self.rows)) - dead)
        totals = Counter((row + child) % KEYS for row, child in acked)
        states = json.loads((self.directory / "states.json").read_text())
        assert sorted((row, child, times) for row, child, (times, _) in states["mark"]) == [
            (row, child, 1) for row, child in acked
        ]
        assert sorted(states["count"]) == sorted([key, "n", total] for key, total in totals.items())
        written = self.rows_written()
        values = {(row["id"], row["child"], row["value"]) for row in written}
        assert values >= {(row, child, value) for row, child, (_, value) in states["mark"]}, "of another evaluation"
        numbers = Counter((row["k"], row["n"]) for row in written)
        counted = Counter((key, n + 1) for key, total in totals.items() for n in range(total))
        assert numbers == counted if self.delivery == "exactly_once" else numbers >= counted

    def committed(self, name: str) -> dict[tuple[int, Any], Any]:
        """The values of a state by key and name, as its table has them now."""
        uri = str(self.directory / "ledger" / "state" / name)
        if not DeltaTable.is_deltatable(uri):
            return {}
        files = [file for each in ChangeTable(uri, "").snapshot.files.values() for file in each]
        files.sort(key=lambda file: file.stem)
        rows = newest(ChangeFiles(uri).read([file.path for file in files]), drop_deleted=True).to_pylist()
        deserialize = JsonSerializer().deserialize
        return {(int(row["key"]), deserialize(row["name"])): deserialize(row["value"]) for row in rows}

    def message_ids(self, table: str) -> set[int]:
        """The rows that one of the ledger's tables names."""
        place = str(self.directory / "ledger" / table)
        if not DeltaTable.is_deltatable(place):
            return set()
        return {int(each) for each in DeltaTable(place).to_pyarrow_table()["message_id"].to_pylist()}


def _leaves(rows: set[int]) -> list[tuple[int, int]]:
    return [(row, child) for row in sorted(rows) for child in range(CHILDREN)]


@pytest.mark.crash
@pytest.mark.soak
@pytest.mark.timeout(3_000)
@pytest.mark.parametrize("delivery", EFFECTS)
def test_states_of_a_process_killed_at_every_effect_are_those_of_a_clean_run(delivery: str, tmp_path: Path) -> None:
    """One ledger, one process after the other, each killed at another effect; then one that nobody kills."""
    chain = StateChain(tmp_path, SINKS[delivery], delivery, is_random=True)
    for effects in EFFECTS[delivery]:
        chain.kill_in_turn(effects)
    chain.finish()
    assert audit(str(tmp_path / "ledger")).replayed
    _ended.append(chain)


@pytest.mark.crash
@pytest.mark.soak
def test_the_matrix_of_states_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Print what was killed where."""
    with capsys.disabled():
        Console(width=200).print(matrix(_ended))
    assert len(_ended) == len(EFFECTS)
