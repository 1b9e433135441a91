"""A forked child of Spark's Python worker that answers for parts of a batch, through a pipe."""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa

from reliable_spark.engine.worker import BoltTask

HEADER: Final = struct.Struct("<cqq")
"""What comes before an answer: which kind it is, the failure bytes so far, and how long the answer is."""

BATCH, ERROR = b"B", b"E"

LOOK_AGAIN_MS: Final = 100
"""How long a child may be silent before it is looked at whether it lives."""

PR_SET_PDEATHSIG: Final = 1
_PRCTL: Final = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class WorkerCrash(Exception):
    """A child ended without an answer; the text says how. Its name is the error class that the ledger shows."""


@dataclass
class Child:
    """A forked process and the pipe that it answers through.

    Attributes:
        pid: of the child, and of the process group that it leads.
        pipe: the end to read from.
        ended: whether it is known to be dead, so that its pid is no longer ours.
        status: how it ended, as from waitpid; None while it lives, or when someone else reaped it.
    """

    pid: int
    pipe: int
    ended: bool = False
    status: int | None = None

    def answer(self) -> tuple[bytes, int, pa.Buffer]:
        """Wait for the answer: its kind, the failure bytes so far, the answer itself.

        Raises:
            WorkerCrash: the child died before it had answered in full.
        """
        kind, failure_bytes, size = HEADER.unpack(self._receive(HEADER.size))
        return kind, failure_bytes, self._receive(size)

    def end(self) -> None:
        """Leave nothing behind: no process of the child's, no zombie, no open pipe."""
        os.close(self.pipe)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self.ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)  # it may not lead its group yet
            self._reap(0)

    def _receive(self, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        left = memoryview(buffer).cast("B")
        while left:
            count = os.readv(self.pipe, [left]) if self._has_more() else 0
            if not count:
                self._reap(0)
                raise WorkerCrash(_how(self.status))
            left = left[count:]
        return buffer

    def _has_more(self) -> bool:
        """Wait until there is something to read; False when there never will be.

        A process that the bolt started holds the pipe open for as long as it likes, so the end of the pipe cannot
        be trusted to tell that the child is dead.
        """
        poll = select.poll()
        poll.register(self.pipe, select.POLLIN)
        while not poll.poll(0 if self.ended else LOOK_AGAIN_MS):
            if self.ended:
                return False
            self._reap(os.WNOHANG)
        return True

    def _reap(self, options: int) -> None:
        if self.ended:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:  # reaped already: a library in the worker ignores SIGCHLD or waits for anyone
            self.ended = True
            return
        if pid:
            self.ended, self.status = True, status


def start(task: BoltTask, parts: Iterable[pa.RecordBatch]) -> Child:
    """Fork a child that answers for the parts one after another.

    Raises:
        OSError: no child could be started.
    """
    _flush()  # or else both processes write what is waiting there
    worker = os.getpid()
    ends: tuple[int, ...] = ()
    try:
        ends = reading, writing = os.pipe()
        pid = _fork()
    except OSError as error:
        for end in ends:
            os.close(end)
        text = f"cannot start a process to isolate the bolt {task.bolt.name!r} in: {error.strerror}"
        raise OSError(error.errno, f"{text}; run fewer tasks at once, or raise the limit") from error
    if pid == 0:
        os.close(reading)
        _serve(task, parts, writing, worker)
    os.close(writing)
    with suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)  # the child does the same: whoever comes first
    return Child(pid, reading)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of threads that may hold locks. The worker's are Arrow's and numpy's, which start anew in a
        # child; what the bolt starts, it starts in children only.
        warnings.filterwarnings("ignore", ".*use of fork\\(\\)", DeprecationWarning)
        return os.fork()


def _how(status: int | None) -> str:
    if status is None:
        return "the Python worker ended without an answer"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"the Python worker ended itself with exit code {code}"
    name = {member.value: member.name for member in signal.Signals}.get(-code, "a signal without a name")
    perhaps = ", perhaps out of memory" if -code == signal.SIGKILL else ""
    return f"the Python worker was killed by {name} (signal {-code}){perhaps}"


def _serve(task: BoltTask, parts: Iterable[pa.RecordBatch], writing: int, worker: int) -> NoReturn:
    """Answer and leave, by the one way out that runs nothing of the worker's: no atexit, no flush of its sockets."""
    code = 1
    try:
        _prepare(worker)
        with os.fdopen(writing, "wb") as pipe:
            for part in parts:
                kind, body = _answer(task, part)
                _flush()  # before the answer: after the last one the child may be killed
                pipe.write(HEADER.pack(kind, task.failure_bytes, len(body)))
                pipe.write(body)
                pipe.flush()
        code = 0
    finally:
        os._exit(code)


def _prepare(worker: int) -> None:
    gc.freeze()  # the worker's garbage is not ours to collect: a file in it would be flushed twice
    with suppress(OSError):
        os.setpgid(0, 0)  # so that the worker can end what the bolt starts
    if _PRCTL is not None:
        _PRCTL(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != worker:  # it was gone before we asked to follow it
            os._exit(1)
    with suppress(OSError):
        # When memory is short, the child is the one to go: neither the worker nor the JVM, which hold other rows.
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)


def _answer(task: BoltTask, part: pa.RecordBatch) -> tuple[bytes, Any]:
    try:
        made = task.process(part)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, made.schema) as stream:
            stream.write_batch(made)
        return BATCH, sink.getvalue()
    except BaseException:  # whatever it is, it is raised where a `BoltTask` would have raised it
        return ERROR, traceback.format_exc().encode("utf-8", "backslashreplace")


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there may be none, or it may be closed
            stream.flush()
