"""What the cluster tests start and watch: a standalone cluster, a submitted job, and what Spark says about it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reliable_spark.jars import delta_jars, spark_home
from tests.submission import QUICK_JAVA, QUIET_JAVA

ROOT = Path(__file__).parents[2]
WORKERS = 2
STARTED_WITHIN_S = 60.0
ENDED_WITHIN_S = 300.0
POLL_S = 0.1
LOG_CHARACTERS_SHOWN = 4_000
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"

JOB_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": f"{QUIET_JAVA} {QUICK_JAVA}",
    "spark.executor.memory": "640m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
    "spark.ui.enabled": "false",
    # no task before both executors are there, so that each of them gets its part
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    # all executors share this host, but what a lost one has written is to be as gone as with a machine of its own
    "spark.shuffle.readHostLocalDisk": "false",
    "spark.sql.files.minPartitionNum": "8",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "2",
}
"""What answers failed tasks and stages is not among them: that is left to Spark's defaults."""

Found = TypeVar("Found")
Event = dict[str, Any]


def look_until(what: str, look: Callable[[], Found | None], within_s: float, log: Path) -> Found:
    """Look again and again until there is something; that it takes too long is an error which shows the log."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(POLL_S)
    raise TimeoutError(f"{what}: not within {within_s:.0f} s; {log} ends with\n{end_of(log)}")


def end_of(log: Path) -> str:
    return log.read_text()[-LOG_CHARACTERS_SHOWN:]


class Process:
    """A process with a session of its own, by which all its descendants are found, also orphaned ones."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self._leader = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=log.parent,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until its log says something."""
        return self.wait_for(pattern, lambda: re.search(pattern, self.log.read_text()), STARTED_WITHIN_S)

    def wait_for(self, what: str, look: Callable[[], Found | None], within_s: float = ENDED_WITHIN_S) -> Found:
        """Wait until there is something that the running process does."""

        def look_while_it_runs() -> Found | None:
            has_ended = self._leader.poll() is not None
            found = look()
            assert found or not has_ended, f"{what}: the process has ended; {self.log} ends with\n{end_of(self.log)}"
            return found

        return look_until(what, look_while_it_runs, within_s, self.log)

    def exit_code(self) -> int:
        """Wait for its end."""
        return self._leader.wait(ENDED_WITHIN_S)

    def kill(self) -> None:
        """End every process of the session, and see that none is left."""
        look_until("the end of all processes", self._killed, STARTED_WITHIN_S, self.log)

    def _killed(self) -> bool:
        alive = session_members(self._leader.pid)
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._leader.poll() is not None and not alive


def stat_of(pid: int) -> list[str]:
    """What /proc says from the third field on: state, parent, process group, session, ...; nothing of nobody."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and not only the exit code that nobody has asked for yet."""
    return stat_of(pid)[:1] not in ([], ["Z"])


def session_members(session: int) -> list[int]:
    """The living processes of a session."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if stat_of(pid)[3:4] == [str(session)] and is_alive(pid)]


@dataclass(frozen=True)
class Executor:
    """An executor's JVM, and what Spark calls it."""

    pid: int
    executor_id: str

    @classmethod
    def above(cls, pid: int) -> Executor:
        """The executor that a Python worker belongs to: its nearest ancestor that is one."""
        while pid > 1:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if EXECUTOR in words:
                return cls(pid, words[words.index("--executor-id") + 1])
            pid = int(stat_of(pid)[1])
        raise AssertionError("none of its ancestors is an executor")


class Cluster:
    """A master and two workers of one core each, every one a process of its own.

    Args:
        directory: for everything that they write.
        processes: ends them when it is closed.
    """

    def __init__(self, directory: Path, processes: ExitStack) -> None:
        self._processes = processes
        self._environment = {
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false",
        }
        address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = self._daemon("master.Master", address, directory / "master.log")
        self._url = master.says(r"Starting Spark master at (spark://\S+)")[1]
        resources = ["--cores", "1", "--memory", "1g", self._url]
        workers = []
        for number in range(WORKERS):
            own = ["--work-dir", str(directory / f"worker-{number}")]
            workers.append(
                self._daemon("worker.Worker", [*address, *own, *resources], directory / f"worker-{number}.log")
            )
        for worker in workers:
            worker.says("Successfully registered with master")

    def submit(self, directory: Path, arguments: list[str]) -> Submitted:
        """Submit the job.

        Args:
            directory: for its log and its events.
            arguments: its own.
        """
        events = directory / "events"
        events.mkdir()
        settings = {**JOB_SETTINGS, "spark.eventLog.dir": events.as_uri()}
        command = [str(spark_home() / "bin" / "spark-submit"), "--master", self._url, "--jars", ",".join(delta_jars())]
        command += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        command += [str(Path(__file__).with_name("job.py")), *arguments]
        return Submitted(Process(command, self._environment, directory / "driver.log"), events)

    def _daemon(self, name: str, arguments: list[str], log: Path) -> Process:
        command = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        return self._processes.enter_context(Process(command, self._environment, log))


@dataclass(frozen=True)
class Submitted:
    """A submitted job: its driver, which is killed on leaving, and the directory of its event log."""

    driver: Process
    event_log: Path

    def __enter__(self) -> Submitted:
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.kill()

    def events(self, kind: str) -> list[Event]:
        """What Spark has logged of this kind, in order; while the job runs, the last line may be half written."""
        found = []
        for log in self.event_log.iterdir():
            for line in log.read_text().splitlines():
                with suppress(json.JSONDecodeError):
                    event = json.loads(line)
                    if event["Event"] == f"SparkListener{kind}":
                        found.append(event)
        return found

    def tasks(self, reason: str) -> list[Event]:
        """The tasks that ended for this reason."""
        return [event for event in self.events("TaskEnd") if event["Task End Reason"]["Reason"] == reason]
