"""Tell whose fault an error is that ended a job: a row's, a process's that a row may have killed, the program's.

Guarantee: whatever exception comes in, an answer comes out, even when the JVM that it came from is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from py4j.java_gateway import is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from reliable_spark.errors import ReliableSparkError

TEXT_CHARACTERS_MAX: Final = 2_000
_CAUSES_MAX: Final = 20


class Blame(Enum):
    """Whose fault an error is.

    ROWS: a row could not be computed; without it the job would have ended well.
    CRASH: a process died while it worked on rows, perhaps because of one of them.
    DEFINITION: the program is wrong, or one of this library's own errors, which say themselves what is wrong.
    WORLD: all else, such as disks, memory, files that are gone and sinks that refuse.
    """

    ROWS = "rows"
    CRASH = "crash"
    DEFINITION = "definition"
    WORLD = "world"


_ROW_CLASSES: Final = ("22", "23")
"""Data exceptions, and constraints that a row violates: the key of a map that is there twice, a check of a table."""

_ROW_STATES: Final = ("38000", "P0001", "54000")
"""A Python function raised; `raise_error` or `assert_true` did; a collection became too large."""

_ROW_CONDITIONS: Final = ("FAILED_EXECUTE_UDF",)
"""A function of the JVM raised."""

_SETTING_STATE: Final = "22022"
_PROGRAM_CLASSES: Final = ("42", "0A")
_FILE_IS_GONE_STATE: Final = "42K03"
_READING: Final = "FAILED_READ_FILE"

_ROW_EXCEPTIONS: Final = frozenset(
    {
        "java.lang.ArithmeticException",
        "java.lang.NumberFormatException",
        "java.lang.IndexOutOfBoundsException",
        "java.time.DateTimeException",
    }
)
_PROGRAM_EXCEPTIONS: Final = frozenset(
    {
        "org.apache.spark.sql.AnalysisException",
        *(
            f"pyspark.errors.exceptions.base.{name}"  # what PySpark refuses without asking Java
            for name in (
                "AnalysisException",
                "PySparkValueError",
                "PySparkTypeError",
                "PySparkAttributeError",
                "PySparkIndexError",
                "PySparkKeyError",
                "PySparkNotImplementedError",
                "PySparkPicklingError",
            )
        ),
        "_pickle.PicklingError",
    }
)
_CRASHES: Final = (
    ("Python worker exited unexpectedly", "WorkerCrash"),
    ("exited caused by one of the running tasks", "ExecutorLost"),
)
_CRASHING_ERROR: Final = "java.lang.StackOverflowError"
"""Such as from a regular expression over a long text; Spark ends the executor after it."""

_ROW_CODE: Final = (
    "org.apache.spark.sql.catalyst.expressions.",
    "org.apache.spark.sql.catalyst.util.",
    "org.apache.spark.sql.catalyst.json.",
    "org.apache.spark.sql.catalyst.csv.",
    "org.apache.spark.sql.catalyst.xml.",
    "org.apache.spark.unsafe.types.",
)
_MAKES_ERRORS: Final = "org.apache.spark.sql.errors."
_IN_TASK: Final = "org.apache.spark.scheduler.Task.run"
_JOB_FAILED: Final = "Job aborted due to stage failure"
_FRAME: Final = re.compile(r"^\s+at (?:[\w.@-]*/)*([\w.$]+)", re.MULTILINE)
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w{5}(?= \(line|\s*$)")
_APPENDED: Final = re.compile(r"\s*SQLSTATE: \w{5};|\n\s*\n|\n\s*== |\n\s+at |\n(?:Driver|JVM) stacktrace:")
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_RAISED_IN_PYTHON: Final = re.compile(r"^(?P<name>[^\W\d][\w.]*)(?:: (?P<text>.*))?$", re.MULTILINE | re.DOTALL)


def blame(error: BaseException) -> Blame:
    """Tell whose fault an error is; an error that nothing is known of is the world's.

    Args:
        error: what Spark, this library or a call straight into the JVM raised.
    """
    return _judged(error)[0]


def explain(error: BaseException) -> tuple[str, str]:
    """Say what went wrong, from the part of the error that tells it.

    Args:
        error: what `blame` takes.

    Returns:
        The error class, which is Spark's condition if it has one, such as "DIVIDE_BY_ZERO", or else the name of
        the exception; and its message without any stack, at most TEXT_CHARACTERS_MAX characters.
    """
    _, error_class, text = _judged(error)
    return error_class, text[:TEXT_CHARACTERS_MAX]


def _judged(error: BaseException) -> tuple[Blame, str, str]:
    if isinstance(error, ReliableSparkError):
        return Blame.DEFINITION, type(error).__name__, str(error)
    try:
        links = _links(error)
    except (Py4JError, OSError):  # the JVM is gone, and with it what the error would say
        links = [_Link(_python_kinds(error), "")]
    for judge, judged in ((_program, links), (_crash, links[::-1]), (_reading, links), (_row, links)):
        for link in judged:
            whose = judge(link)
            if whose is not None:
                return whose, link.error_class, _with_reason(link, links) if judge is _reading else link.text
    telling = next((link for link in links if link.condition), links[-1])
    return Blame.WORLD, telling.error_class, telling.text


@dataclass(frozen=True)
class _Link:
    """One exception of a chain of causes.

    Attributes:
        kinds: its class and those above, the nearest first, by their full names.
        message: what it says, with whatever it appends to that.
        condition: Spark's name for it, if it has one.
        state: its SQLSTATE, if it has one.
        in_task: True when a task threw it, not the driver.
        places: the methods of its stack, the innermost first.
    """

    kinds: tuple[str, ...]
    message: str
    condition: str = ""
    state: str = ""
    in_task: bool = False
    places: tuple[str, ...] = ()

    @property
    def error_class(self) -> str:
        return self.crash or self._raised_in_python()[0] or self.condition or self.kinds[0].rpartition(".")[2]

    @property
    def text(self) -> str:
        return self._raised_in_python()[1] or _without_stack(self.message) or self.error_class

    @property
    def crash(self) -> str:
        return next((name for text, name in _CRASHES if text in self.message), "")

    def _raised_in_python(self) -> tuple[str, str]:
        """The class and the text of the exception that a Python worker hands over with its whole traceback."""
        _, header, trace = self.message.rpartition(_TRACEBACK)
        raised = _RAISED_IN_PYTHON.search(trace) if header else None
        return (raised["name"].rpartition(".")[2], _without_state(raised["text"] or "")) if raised else ("", "")


def _links(error: BaseException) -> list[_Link]:
    """The chain of causes, the outermost first: Java's own where there is one, or else Python's."""
    links: list[_Link] = []
    cause: BaseException | None = error
    while cause is not None and len(links) < _CAUSES_MAX:
        throwable = _throwable(cause)
        if throwable is not None:
            return [*links, *_of_java(throwable)]
        links.append(_of_python(cause))
        cause = getattr(cause, "_cause", None) or cause.__cause__
    return links


def _throwable(error: BaseException) -> Any:
    """Java's own exception: PySpark converts those of some classes only, and leaves the others to py4j."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _of_python(error: BaseException) -> _Link:
    if not isinstance(error, PySparkException):
        return _Link(_python_kinds(error), str(error))
    return _Link(_python_kinds(error), str(error), error.getCondition() or "", error.getSqlState() or "")


def _python_kinds(error: BaseException) -> tuple[str, ...]:
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)


def _of_java(throwable: Any) -> list[_Link]:
    java: Any = SparkContext._jvm
    links: list[_Link] = []
    while throwable is not None and len(links) < _CAUSES_MAX:
        message = throwable.getMessage() or ""
        whole = java.org.apache.spark.util.Utils.exceptionString(throwable)
        # the message goes first: that of an aborted job holds the stack of its task
        stack = whole.replace(message, "", 1).partition("\nCaused by: ")[0]
        places = tuple(_FRAME.findall(stack))
        in_task = _IN_TASK in places or any(link.message.startswith(_JOB_FAILED) for link in links)
        has_condition = is_instance_of(SparkContext._gateway, throwable, "org.apache.spark.SparkThrowable")
        condition = (throwable.getCondition() or "") if has_condition else ""
        state = (throwable.getSqlState() or "") if has_condition else ""
        links.append(_Link(tuple(_kinds(throwable)), message, condition, state, in_task, places))
        throwable = throwable.getCause()
    return links


def _kinds(throwable: Any) -> Iterator[str]:
    kind = throwable.getClass()
    while kind is not None:
        yield kind.getName()
        kind = kind.getSuperclass()


def _program(link: _Link) -> Blame | None:
    """What the driver refuses is refused again whatever the rows are."""
    if link.in_task:
        return None
    if link.state == _FILE_IS_GONE_STATE:
        return Blame.WORLD
    if set(link.kinds) & _PROGRAM_EXCEPTIONS or link.state == _SETTING_STATE:
        return Blame.DEFINITION
    refused = link.state[:2] in _PROGRAM_CLASSES and "java.io.IOException" not in link.kinds
    return Blame.DEFINITION if refused else None


def _crash(link: _Link) -> Blame | None:
    overflown = link.in_task and _CRASHING_ERROR in link.kinds
    return Blame.CRASH if overflown or link.crash else None


def _reading(link: _Link) -> Blame | None:
    """A file that cannot be read has no rows yet, not even bad ones."""
    return Blame.WORLD if link.condition.startswith(_READING) else None


def _with_reason(link: _Link, links: list[_Link]) -> str:
    """What could not be read, and why: only the last cause says that."""
    last = links[-1]
    return link.text if last is link else f"{link.text} {last.error_class}: {last.text}"


def _row(link: _Link) -> Blame | None:
    if link.state[:2] in _ROW_CLASSES or link.state in _ROW_STATES or link.condition in _ROW_CONDITIONS:
        return Blame.ROWS
    return Blame.ROWS if link.in_task and (set(link.kinds) & _ROW_EXCEPTIONS or _is_of_a_row(link)) else None


def _is_of_a_row(link: _Link) -> bool:
    """Tell whether an exception that nothing else is known of was thrown while a row was computed.

    Whoever is suspected is looked for, by evaluating the batch many more times. That finds nothing, and hides
    what is wrong for long, when it was a reader, a writer or a shuffle that failed. So an unknown exception is the
    world's, unless it is unchecked and the first code of Spark's up its stack is that which computes expressions.
    """
    own = [place for place in link.places if place.startswith("org.apache.spark.")]
    thrower = next((place for place in own if not place.startswith(_MAKES_ERRORS)), "")
    return "java.lang.RuntimeException" in link.kinds and thrower.startswith(_ROW_CODE)


def _without_stack(message: str) -> str:
    """What a message says before it quotes SQL, plans or stacks."""
    said = _CONDITION.sub("", message.strip())
    return _without_state(_APPENDED.split(said, maxsplit=1)[0])


def _without_state(text: str) -> str:
    return _STATE.sub("", text).strip()
