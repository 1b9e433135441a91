"""Storm's word count: a queue spout, a bolt that splits and one that counts, on either engine.

The queue is like Kestrel: what is taken is reserved until it is confirmed, and goes back to the front when it is
aborted, so a line whose tree fails or times out is counted again: at least once. Lines are counted in memory; the
result is printed.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import reliable_spark as rs


class LineQueue:
    """A queue that hands out items for confirmation; the spout tasks share it as they would share a server."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._waiting = deque(enumerate(lines))
        self._reserved: dict[int, str] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> LineQueue:
        return self

    def take(self) -> tuple[int, str] | None:
        """Reserve the first item."""
        if not self._waiting:
            return None
        number, line = self._waiting.popleft()
        self._reserved[number] = line
        return number, line

    def confirm(self, number: int) -> None:
        """The item is done."""
        del self._reserved[number]

    def abort(self, number: int) -> None:
        """The item goes back to the front."""
        self._waiting.appendleft((number, self._reserved.pop(number)))


class QueueSpout(rs.Spout):
    """Emits the items of a queue."""

    def __init__(self, queue: LineQueue) -> None:
        self._queue = queue

    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["line"])

    def open(
        self, configuration: Mapping[str, Any], context: rs.TopologyContext, collector: rs.SpoutOutputCollector
    ) -> None:
        self._collector = collector

    def next_tuple(self) -> None:
        taken = self._queue.take()
        if taken is not None:
            number, line = taken
            self._collector.emit([line], message_id=number)

    def ack(self, message_id: int) -> None:
        self._queue.confirm(message_id)

    def fail(self, message_id: int) -> None:
        self._queue.abort(message_id)


class Split(rs.BasicBolt):
    """One tuple per word."""

    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["word"])

    def execute(self, input: rs.Tuple, collector: rs.BasicOutputCollector) -> None:
        for word in re.findall(r"\w+", input["line"].lower()):
            collector.emit([word])


class Count(rs.BasicBolt):
    """How often each word came."""

    def __init__(self) -> None:
        self.state: Counter[str] = Counter()

    def execute(self, input: rs.Tuple, collector: rs.BasicOutputCollector) -> None:
        self.state[input["word"]] += 1


def topology(lines: Iterable[str], tasks: int) -> rs.TopologyBuilder:
    """The word count over some lines."""
    builder = rs.TopologyBuilder()
    builder.set_spout("lines", QueueSpout(LineQueue(lines)), 1)
    builder.set_bolt("split", Split(), tasks).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), tasks).fields_grouping("split", ["word"])
    return builder


def count_words(lines: Sequence[str], engine: Any, tasks: int) -> tuple[Counter[str], rs.RunningTopology]:
    """Run the topology until every line is answered."""
    settings = rs.Settings.from_storm({"topology.acker.executors": tasks, "topology.max.spout.pending": 10_000})
    with rs.submit_topology("word count", topology(lines, tasks), settings, engine) as running:
        running.await_idle()
        counts: Counter[str] = sum((running.state("count", task) for task in range(tasks)), Counter())
    return counts, running


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job; 0 when no line failed."""
    arguments = parser().parse_args(argv)
    if not arguments.input.is_dir():
        parser().error(f"{arguments.input} is not a directory")
    files = sorted(path for path in arguments.input.rglob("*") if path.is_file())
    lines = [line for path in files for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    if arguments.engine == "spark":
        rs.session("storm_word_count")  # so that starting Spark is not counted as counting
    began_s = time.perf_counter()
    counts, running = count_words(lines, arguments.engine, arguments.tasks)
    took_s = time.perf_counter() - began_s
    for word, count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[: arguments.top]:
        print(f"{count:10,}  {word}")
    spout = running.statistics("lines")
    print(f"\n{spout.acked:,} lines acked, {spout.failed:,} failed; {len(lines) / took_s:,.0f} lines/s")
    return 0 if spout.acked == len(lines) and not spout.failed else 1


def parser() -> argparse.ArgumentParser:
    """The arguments."""
    made = argparse.ArgumentParser(
        prog="storm_word_count.py",
        description="Count the words of text files as a Storm topology.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python jobs/storm_word_count.py --input docs --engine spark",
    )
    made.add_argument("--input", type=Path, required=True, help="a directory of text files")
    made.add_argument("--engine", choices=["process", "spark"], default="process", help="(default %(default)s)")
    made.add_argument("--tasks", type=positive, default=2, help="of each bolt, and ackers (default %(default)s)")
    made.add_argument("--top", type=positive, default=10, help="how many words to print (default %(default)s)")
    return made


def positive(text: str) -> int:
    """A number of things, 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
