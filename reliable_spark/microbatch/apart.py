"""A task's part of a step in a child of Spark's Python worker, so that what kills the process kills the task alone."""

from __future__ import annotations

import pickle
import struct
from dataclasses import replace
from mmap import mmap
from types import SimpleNamespace
from typing import cast

import pyarrow as pa

from reliable_spark.engine import child as children
from reliable_spark.engine.worker import BoltTask
from reliable_spark.errors import OperatingError
from reliable_spark.microbatch.orders import Step, Work
from reliable_spark.microbatch.work import STARTING, run_work

_PLACE = struct.Struct("q")


def run_work_apart(recipe: bytes, step: Step, work: bytes) -> bytes:
    """As `run_work`, whatever ends the process: the task dies of the tuple it had in hand.

    Who died cannot say what it did before, so its part runs again, up to that tuple.

    Raises:
        OperatingError: it dies of the same tuple also when it is not given that one.
        OSError: no child could be started.
    """
    place = SharedPlace()
    known: Work = pickle.loads(work)
    while True:
        place.put(STARTING)
        try:
            return _answer(_Apart(recipe, step, known, place))
        except children.WorkerCrash as crash:
            if place.get() in known.crashes:
                raise OperatingError(f"task {known.task} cannot be run: {crash}") from None
            known = replace(known, crashes={**known.crashes, place.get(): str(crash)})


class SharedPlace:
    """The place of the tuple in hand, where a child writes it and who forked it reads it."""

    def __init__(self) -> None:
        self._memory = mmap(-1, _PLACE.size)

    def put(self, place: int) -> None:
        """Write it."""
        _PLACE.pack_into(self._memory, 0, place)

    def get(self) -> int:
        """Read it."""
        place: int = _PLACE.unpack_from(self._memory, 0)[0]
        return place


class _Apart:
    """What a child runs; it has what `children.start` needs of a frame's bolt."""

    failure_bytes = 0

    def __init__(self, recipe: bytes, step: Step, work: Work, place: SharedPlace) -> None:
        self.bolt = SimpleNamespace(name=f"task {work.task}")
        self._recipe, self._step, self._work, self._place = recipe, step, work, place

    def process(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """The result as the one row of a batch."""
        done = run_work(self._recipe, self._step, pickle.dumps(self._work), self._place.put)
        return pa.RecordBatch.from_pydict({"done": pa.array([done], pa.binary())})


def _answer(work: _Apart) -> bytes:
    child = children.start(cast("BoltTask", work), [pa.RecordBatch.from_pydict({})])
    try:
        kind, _, body = child.answer()
    finally:
        child.end()
    if kind == children.ERROR:
        raise OperatingError(body.to_pybytes().decode())
    with pa.ipc.open_stream(body) as stream:
        done: bytes = stream.read_next_batch().column(0)[0].as_py()
    return done
