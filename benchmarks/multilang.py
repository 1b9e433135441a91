"""How fast is a topology whose bolts are Python, beside Storm with a Python split bolt by its multilang protocol?

python -m benchmarks.multilang --storm DIRECTORY            20,000 lines of 8 to 12 words, 5 rounds
python -m benchmarks.multilang --storm DIRECTORY --quick    200 lines, 1 round

The directory (or STORM_PEER) is the one of `benchmarks.storm`. Both count the same words with every line tracked. Storm
runs spout, counting and acker in Java and only the split bolt in Python, with its own `storm.py`; ours are Python all.
Storm's time is its own, from the first emit to the last ack; ours is all of `submit_topology` until nothing is pending.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import reliable_spark as rs
from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, seconds
from benchmarks.storm import FAILING_SHARE, TIMEOUT_S, Peer, parsed
from jobs.storm_word_count import Count

BAR = 5.0
SOURCES = Path(__file__).parent / "shell"
UNPACK = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:unpack"
JAVA = ("-Xmx2g", "-XX:+UseParallelGC", *(f"--add-opens=java.base/java.{each}=ALL-UNNAMED" for each in ("lang", "nio")))
TASKS = {"process": 1, "spark": 2}


class Lines(rs.Spout):
    """Emits each line with its number as message id; a line that failed comes again."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self._due = deque(range(len(lines)))

    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["line"])

    def open(
        self, configuration: Mapping[str, Any], context: rs.TopologyContext, collector: rs.SpoutOutputCollector
    ) -> None:
        self._collector = collector

    def next_tuple(self) -> None:
        if self._due:
            number = self._due.popleft()
            self._collector.emit([self._lines[number]], message_id=number)

    def fail(self, message_id: int) -> None:
        self._due.append(message_id)


class Split(rs.BasicBolt):
    def declare_output_fields(self, declarer: rs.OutputFieldsDeclarer) -> None:
        declarer.declare(["word"])

    def execute(self, input: rs.Tuple, collector: rs.BasicOutputCollector) -> None:
        for word in input["line"].split(" "):
            collector.emit([word])


def count_words(lines: Sequence[str], engine: Literal["process", "spark"]) -> None:
    """Count in a topology of ours, and check counts and answers.

    Raises:
        AssertionError: they are not those of a plain loop.
    """
    tasks = TASKS[engine]
    builder = rs.TopologyBuilder()
    builder.set_spout("lines", Lines(lines))
    builder.set_bolt("split", Split(), tasks).shuffle_grouping("lines")
    builder.set_bolt("count", Count(), tasks).fields_grouping("split", ["word"])
    settings = rs.Settings(ackers=1, max_pending=5_000)
    with rs.submit_topology("word count", builder, settings, engine) as running:
        running.await_idle()
        counts: Counter[str] = sum((running.state("count", task) for task in range(tasks)), Counter())
        spout = running.statistics("lines")
    known = Counter(word for line in lines for word in line.split(" "))
    if counts != known or (spout.acked, spout.failed) != (len(lines), 0):
        raise AssertionError(f"our counts or answers are wrong: {spout}")


@dataclass(frozen=True)
class Shell:
    """Storm's side: a Java class beside those of the peer, and Storm's Python module.

    Attributes:
        peer: the word count on Storm.
        build: where the class and the module are.
    """

    peer: Peer
    build: Path

    @classmethod
    def of(cls, options: Options) -> Shell:
        """Compile the one and fetch the other, once.

        Raises:
            SkippedError: nobody said where the peer is.
        """
        peer = Peer.of(options)
        shell = cls(peer, peer.build / "shell")
        if not (shell.build / "resources" / "storm.py").exists():
            module = f"-Dartifact=org.apache.storm:multilang-python:{shell.version}:jar"
            shell.build.mkdir(parents=True, exist_ok=True)
            unpack = ["mvn", "-q", "-B", UNPACK, module, f"-DoutputDirectory={shell.build}"]
            subprocess.run(unpack, cwd=shell.build, check=True)
        source = SOURCES / "ShellWordCount.java"
        subprocess.run(["javac", "-d", shell.build, "-cp", shell.classpath, source], check=True)
        return shell

    @property
    def classpath(self) -> str:
        """Storm, the peer and our class."""
        storm = (self.peer.build / "classpath.txt").read_text(encoding="utf-8").strip()
        return os.pathsep.join([storm, str(self.peer.build / "target" / "classes"), str(self.build)])

    @property
    def version(self) -> str:
        """The version of Storm."""
        jars = [Path(each).stem for each in self.classpath.split(os.pathsep)]
        return next(each.removeprefix("storm-client-") for each in jars if each.startswith("storm-client-"))

    def run(self, lines: Path) -> dict[str, Any]:
        """Count once; the counts have to be exact."""
        with tempfile.TemporaryDirectory(dir=self.build) as scratch:
            properties = [f"-Djava.io.tmpdir={scratch}", f"-Dpeer.log={self.build / 'storm.log'}"]
            program = ["-cp", self.classpath, "peer.ShellWordCount", str(lines), str(SOURCES / "split.py")]
            command = ["java", *JAVA, *properties, *program, str(self.build / "resources"), sys.executable, "1"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        result = parsed(done.stdout)
        if not result["counts_exact"]:
            raise AssertionError(f"Storm's counts are wrong: {result}")
        return result


def compare(shell: Shell, options: Options, engine: Literal["process", "spark"]) -> Line:
    """Count with Storm and with us, in turns."""
    text = shell.peer.lines(200 if options.quick else 20_000, FAILING_SHARE)
    lines = text.read_text(encoding="utf-8").splitlines()
    count = partial(seconds, partial(count_words, lines, engine))
    pairs = in_turns(count, lambda: float(shell.run(text)["seconds"]), options, is_peer_fresh=True)
    ours, theirs = (len(lines) / min(times) for times in zip(*pairs, strict=True))
    about = {
        "work": f"word count in a topology, engine {engine!r}, {len(lines):,} lines",
        "against": f"Storm {shell.version}, split bolt by multilang",
        "note": f"at best {ours:,.0f} lines/s, Storm {theirs:,.0f}",
    }
    bar = BAR if engine == "process" else None
    return line_of(pairs, faster, unit="s", bar=bar, direction="at least", **about)


def measure(options: Options) -> list[Line]:
    """Compare both engines with Storm."""
    shell = Shell.of(options)
    rs.session("word count in a topology")  # so that starting Spark is not counted as counting
    return [compare(shell, options, "process"), compare(shell, options, "spark")]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
