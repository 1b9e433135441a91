"""Is a word count whose every line is tracked faster than the same one on Storm?

python -m benchmarks.storm --storm DIRECTORY            1,000,000 lines, 5 rounds
python -m benchmarks.storm --storm DIRECTORY --quick    1,000 lines, 1 round

The directory (or STORM_PEER) holds a word count for Storm's LocalCluster with one acker: `run.sh`, `gen_lines.py`.
Both count the same lines; then both fail the same 1 % of them once, replays included. Storm's time is its own, from
the first emit to the last ack, lines in memory; ours is all of `run`, from a Parquet file to the settled ledger.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from benchmarks.measure import Line, Options, SkippedError, faster, in_turns, line_of, run, timed

FAILING_SHARE = 0.01
BARS = {0.0: 8.0, FAILING_SHARE: 4.0}
PARTS = 2
TIMEOUT_S = 1_800


@dataclass(frozen=True)
class Peer:
    """The word count on Storm.

    Attributes:
        directory: where its sources are.
        build: where it is built and keeps what it makes.
    """

    directory: Path
    build: Path

    @classmethod
    def of(cls, options: Options) -> Peer:
        """Find it, and build it once.

        Raises:
            SkippedError: nobody said where it is.
        """
        if options.storm is None:
            raise SkippedError("Storm's word count is needed: --storm DIRECTORY or STORM_PEER")
        peer = cls(options.storm, options.data / "storm")
        if not (peer.build / "classpath.txt").exists():
            peer.call("build")
        return peer

    def lines(self, count: int, share: float) -> Path:
        """Make the peer's lines, once, as text for it and as a Parquet file for us.

        Returns:
            The text; beside it lies the Parquet file, whose column `fails` says which lines the peer fails.
        """
        text = self.build / f"lines-{count}.txt"
        if not text.with_suffix(".parquet").exists():
            made = subprocess.run(
                [sys.executable, str(self.directory / "gen_lines.py"), str(count)], check=True, stdout=subprocess.PIPE
            )
            text.write_bytes(made.stdout)
            lines, ids = made.stdout.decode().splitlines(), np.arange(count)
            table = pa.table({"id": ids, "line": lines, "fails": drawn(ids) < share})
            pq.write_table(table, text.with_suffix(".parquet"), row_group_size=-(-count // PARTS))
        return text

    def run(self, lines: Path, share: float) -> dict[str, Any]:
        """Count once; the counts have to be exact, as a plain loop over the lines has them."""
        arguments = ["one", "--input", str(lines), "--ackers", "1", "--fail", str(share), "--label", "word count"]
        result = parsed(self.call(*arguments))
        if not result["counts_exact"]:
            raise AssertionError(f"Storm's counts are wrong: {result}")
        return result

    def call(self, *arguments: str) -> str:
        """Run one of the peer's commands."""
        self.build.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"BUILD": str(self.build), "OUT": str(self.build), "DATA": str(self.build)}
        command = [str(self.directory / "run.sh"), *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2_000:]}")
        return done.stdout


def parsed(output: str) -> dict[str, Any]:
    """The peer's figures: the last line of JSON that it printed.

    Raises:
        RuntimeError: it did not finish.
    """
    result: dict[str, Any] = json.loads([line for line in output.splitlines() if line.startswith("{")][-1])
    if "error" in result:
        raise RuntimeError(f"Storm: {result['error']}")
    return result


def drawn(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The number from 0 to 1 by which the peer chooses the lines to fail: splitmix64 of the line's number."""
    mixed = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)) * 2.0**-53


def count_words(lines: DataFrame, share: float, sink: object, ledger: Path) -> rs.Outcome:
    """Count with every line tracked; those that are to fail do so before they are split, as in the peer."""
    shutil.rmtree(ledger, ignore_errors=True)
    frame = rs.anchored(lines, "id")
    if share:
        frame = frame.fail("fails and _attempt = 1", "asked for")
    words = frame.explode(F.split("line", " "), "word").groupBy("word").agg(F.count("*").alias("count"))
    return words.run(sink, ledger=ledger, settings=rs.Settings(backoff_initial_s=0))


def check_counts(lines: DataFrame, share: float, ledger: Path) -> None:
    """Refuse to compare the times of different counts: ours have to be those of a plain loop, as Storm's are."""
    ours: Counter[str] = Counter()

    def add(frame: DataFrame, batch_id: int) -> None:
        for row in frame.collect():
            ours[row["word"]] += row["count"]

    outcome = count_words(lines, share, add, ledger)
    known = Counter(word for row in lines.select("line").toLocalIterator() for word in row["line"].split())
    failing = lines.where("fails").count() if share else 0
    answered = (outcome.acked, outcome.failed_attempts, outcome.replayed, outcome.pending)
    if ours != known or answered != (lines.count(), failing, failing, 0):
        raise AssertionError(f"our counts or answers are wrong: {outcome}")


def compare(spark: SparkSession, peer: Peer, options: Options, share: float) -> Line:
    """Count with Storm and with us, in turns."""
    text = peer.lines(1_000 if options.quick else 1_000_000, FAILING_SHARE)
    lines = spark.read.parquet(str(text.with_suffix(".parquet")))
    with tempfile.TemporaryDirectory() as directory:
        check_counts(lines, share, Path(directory))
        ours = timed(count_words, lines, share, None, Path(directory))
        pairs = in_turns(ours, partial(peer.run, text, share), options, is_peer_fresh=True)
    failing = lines.where("fails").count() if share else 0
    if any(result["lines_failed_on_purpose"] != failing for _, result in pairs):
        raise AssertionError("Storm has failed other lines than we have")
    return line_of_storm(pairs, share)


def line_of_storm(rounds: Sequence[tuple[float, dict[str, Any]]], share: float) -> Line:
    """Sum up: the ratio of the times, and for comparison what it is against Storm's warm second half."""
    pairs = [(ours_s, storm["seconds"]) for ours_s, storm in rounds]
    warm = statistics.median(
        faster(ours_s, storm["lines"] / storm["lines_per_s_second_half"]) for ours_s, storm in rounds
    )
    lines, version = rounds[0][1]["lines"], rounds[0][1]["storm"]
    work = f"word count, acked, {lines:,} lines" + (f", {share:.0%} failed once" if share else "")
    note = f"{warm:.2f} x against Storm's second half, warm"
    about = {"work": work, "against": f"Storm {version}, LocalCluster", "unit": "s", "note": note}
    return line_of(pairs, faster, bar=BARS[share], direction="at least", **about)


def measure(options: Options) -> list[Line]:
    """Compare without failures and with some."""
    peer, spark = Peer.of(options), rs.session("word count against Storm")
    return [compare(spark, peer, options, share) for share in BARS]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
