"""Running a topology until it is stopped, on real time. Source: Storm's `StormSubmitter` and `LocalCluster`."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from reliable_spark.clock import Clock, SystemClock
from reliable_spark.core.graph import CHECKPOINT_SPOUT
from reliable_spark.core.messages import Messages
from reliable_spark.core.statistics import ComponentStatistics
from reliable_spark.errors import OperatingError, UsageError, nearest
from reliable_spark.process.base import TopologyEngine
from reliable_spark.process.closing import first_error
from reliable_spark.process.engine import ProcessEngine
from reliable_spark.process.page import write_page
from reliable_spark.process.stored import TopologyLedger
from reliable_spark.process.view import check_task
from reliable_spark.process.world import Watch
from reliable_spark.settings import Settings, given_settings
from reliable_spark.topology.builder import Topology, TopologyBuilder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from typing_extensions import Self, Unpack

_LOG = logging.getLogger("reliable_spark.topology")

IDLE_S = 0.01
"""How long a topology waits that found nothing to do."""
PAGE_PERIOD_S = 10.0
"""How often the statistics are written, and the ledger."""


class Surroundings(TypedDict, total=False):
    """What `submit_topology` takes besides, by name; it says what each means."""

    ledger: str | Path
    clock: Clock
    spark: SparkSession


def submit_topology(
    name: str,
    builder: TopologyBuilder,
    settings: Settings | None = None,
    engine: Literal["process", "spark"] = "process",
    **surroundings: Unpack[Surroundings],
) -> RunningTopology:
    """Start a topology in a thread of its own; it runs until it is stopped.

    Guarantee: as for `TestTopology`. Tuples are not stored: what is pending when the program ends is lost with it, so
    a source must redeliver what was not acked, as in Storm. With a ledger every message's answer is counted there, so
    that anchored == acked + dead + pending. A message that failed is pending until its spout emits it again under the
    same id; what still waits for that when the topology is stopped is dead. After a crash the ledger is as of the last
    10 seconds, and messages that were pending then are again.

    Args:
        name: what the thread and the statistics are called.
        builder: the topology; it is built here.
        settings: how it is run.
        engine: "process": in this process; "spark": bolts and ackers on Spark's workers, in micro-batches, on the
            active session or a new one; spouts stay in this process.
        surroundings: `ledger`, a directory or URI for answers and statistics, readable without a JVM; `clock`, the
            machine's by default; `spark`, the session of engine "spark".

    Raises:
        TopologyError: the topology is wrong.
        UsageError: there is no such engine, a bolt cannot be copied for its tasks, or the ledger is no path.
        LedgerError: the ledger cannot be written, is in use, or is not a topology's.
    """
    unknown = set(surroundings) - set(Surroundings.__annotations__)
    if unknown:
        raise UsageError(f"there is no argument {min(unknown)!r}{nearest(min(unknown), Surroundings.__annotations__)}")
    return RunningTopology(name, builder.build(), given_settings(settings), engine, surroundings)


class RunningTopology:
    """A topology that runs. All methods may be called from any thread, between two rounds of the topology.

    Leaving a `with` block stops it.
    """

    def __init__(
        self, name: str, topology: Topology, settings: Settings, engine: str, surroundings: Surroundings
    ) -> None:
        self.name = name
        self._settings = settings
        self._clock = surroundings.get("clock") or SystemClock()
        start = _engine_of(engine, surroundings)
        self._ledger, watch = _ledger_of(name, surroundings.get("ledger"), self._clock)
        try:
            self._engine = start(topology, settings, self._clock, watch)
        except BaseException:
            self._close_ledger()
            raise
        components = topology.graph.components.items()
        self._spouts = [name for name, each in components if each.kind == "spout" and name != CHECKPOINT_SPOUT]
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._ended, self._idle = threading.Event(), threading.Event()
        self._deadline_s: float | None = None
        self._error: BaseException | None = None
        self._is_stopped = False
        self._page: Path | None = None
        self._page_due_s = 0.0
        self._thread = threading.Thread(target=self._run, name=f"topology {name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """The topology."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it; after an error without waiting for what is pending."""
        self.stop(wait_s=None if error is None else 0.0)

    def activate(self) -> None:
        """Let the spouts emit again."""
        self._between_rounds(self._engine.activate)

    def deactivate(self) -> None:
        """Let the spouts emit nothing more; what is on its way still arrives."""
        self._between_rounds(self._engine.deactivate)

    def statistics(self, component: str) -> ComponentStatistics:
        """What Storm's UI shows of a component."""
        check_task(self._engine.components(), component)
        found: ComponentStatistics = self._between_rounds(partial(self._engine.statistics, component))
        return found

    def state(self, component: str, task: int = 0) -> Any:
        """The `state` of the user's object in a task, which is named by its place from 0; on Spark a copy.

        Raises:
            UsageError: there is no such component or task, or the task has died and not started again yet.
        """
        check_task(self._engine.components(), component, task)
        return self._between_rounds(partial(self._engine.instance, component, task)).state

    def write_statistics(self, page: str | Path) -> None:
        """Write the statistics of all components to a JSON file, now and every 10 s, for a page that needs no JVM.

        Raises:
            OperatingError: it cannot be written now; later the log says so, and the topology goes on.
        """
        self._page = Path(page)
        try:
            self._between_rounds(self._write_page)
        except OSError as error:
            self._page = None
            raise OperatingError(f"the statistics cannot be written: {error}") from error

    def await_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until no tree is pending and the spouts have nothing to emit; says whether that came.

        Raises:
            Exception: what ended the topology, if something did.
        """
        if not self._ended.is_set():
            self._between_rounds(self._idle.clear)
        is_idle = self._idle.wait(timeout_s) or self._ended.is_set()
        self._raise_error()
        return is_idle

    def stop(self, wait_s: float | None = None) -> None:
        """Deactivate, wait for the trees that are pending, then end. Source: Storm's `kill -w`.

        Args:
            wait_s: how long to wait at most; the message timeout by default.

        Raises:
            Exception: what ended the topology before, if something did.
        """
        self._between_rounds(
            partial(self._begin_to_stop, self._settings.message_timeout_s if wait_s is None else wait_s)
        )
        self._thread.join()
        self._raise_error()

    # ------------------------------------------------------------------------------------------- its own thread

    def _run(self) -> None:
        """All rounds, then the end of them, which comes whatever they raise: whoever waits for the topology hears."""
        ending = (self._engine.close, self._renew_page, self._write_last_ledger, self._close_ledger)
        self._error = first_error((self._run_rounds, *ending))
        self._ended.set()
        self._idle.set()
        self._answer_calls()

    def _run_rounds(self) -> None:
        while self._round():
            pass
        self._is_stopped = True

    def _round(self) -> bool:
        """Answer who asks, then one round of the engine; says whether there is to be another."""
        self._answer_calls()
        is_busy = self._engine.run_once()
        is_done = not is_busy or self._engine.is_checkpointing_alone()
        is_settled = is_done and not any(self._engine.pending(spout) for spout in self._spouts)
        now_s = self._engine.now_s()
        if now_s >= self._page_due_s:
            self._page_due_s = now_s + PAGE_PERIOD_S
            self._renew_page()
            self._write_ledger()
        if is_settled and not self._engine.is_short_of_tasks():
            self._idle.set()
        if self._deadline_s is not None and (is_settled or now_s >= self._deadline_s):
            return False
        if not is_busy:
            self._clock.wait(IDLE_S, self._ended)
        return True

    def _begin_to_stop(self, wait_s: float) -> None:
        if not self._ended.is_set():
            self._engine.deactivate()
            self._deadline_s = self._engine.now_s() + wait_s

    def _between_rounds(self, call: Callable[[], Any]) -> Any:
        """Let the topology's thread make a call; when it has ended, this one does."""
        answer: Future[Any] = Future()
        self._calls.put((call, answer))
        if self._ended.is_set():
            self._answer_calls()
        return answer.result()

    def _answer_calls(self) -> None:
        while True:
            try:
                call, answer = self._calls.get_nowait()
            except queue.Empty:
                return
            try:
                answer.set_result(call())
            except Exception as error:
                answer.set_exception(error)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _renew_page(self) -> None:
        """A page that cannot be written is no reason to end the topology."""
        try:
            self._write_page()
        except OSError as error:
            _LOG.warning("%s: the statistics cannot be written: %s", self.name, error)

    def _write_page(self) -> None:
        if self._page is not None:
            write_page(self._page, self.name, self._engine)

    def _write_ledger(self, is_end: bool = False) -> None:
        if self._ledger is not None:
            self._ledger.write({each: self._engine.statistics(each) for each in self._engine.components()}, is_end)

    def _write_last_ledger(self) -> None:
        """What an error ended goes on with the next run, as after a crash: what failed is not dead by that."""
        self._write_ledger(is_end=self._is_stopped)

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()


def _engine_of(name: str, surroundings: Surroundings) -> Callable[[Topology, Settings, Clock, Watch], TopologyEngine]:
    if name == "process":
        return ProcessEngine
    if name == "spark":
        from reliable_spark.microbatch import MicroBatchEngine, SparkCluster, with_states_below

        cluster, ledger = SparkCluster(surroundings.get("spark")), surroundings.get("ledger")

        def start(topology: Topology, settings: Settings, clock: Clock, watch: Watch) -> TopologyEngine:
            settled = settings if ledger is None else with_states_below(settings, ledger)
            return MicroBatchEngine(topology, settled, cluster, clock, watch)

        return start
    raise UsageError(f"there is no engine {name!r}{nearest(name, ['process', 'spark'])}")


def _ledger_of(name: str, path: Any, clock: Clock) -> tuple[TopologyLedger | None, Watch]:
    """The ledger, if one is kept, and what the engine needs for it."""
    if path is None:
        return None, Watch(is_test=False)
    if not isinstance(path, str | Path) or not str(path):
        raise UsageError(f"a ledger is a directory or a URI, not {path!r}")
    messages = Messages()
    return TopologyLedger(str(path), name, messages, clock), Watch(is_test=False, messages=messages)
