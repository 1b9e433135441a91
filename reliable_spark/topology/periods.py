"""Which times and limits can be given: said where they are written, before a timer rings for ever or never."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, Final

from reliable_spark.errors import SettingsError, UsageError
from reliable_spark.settings import SHORTEST_S
from reliable_spark.topology.context import TICK_KEY

TIMEOUT_KEY: Final = "topology.message.timeout.secs"
PENDING_KEY: Final = "topology.max.spout.pending"

_PERIOD: Final = "a number of seconds, 0.000001 or more"


def check_period(name: str, value: Any) -> None:
    """Raise UsageError for what is no time that passes."""
    if not _is_seconds(value, SHORTEST_S):
        raise UsageError(f"{name} is {_PERIOD}, not {value!r}")


def check_lag(name: str, value: Any) -> None:
    """Raise UsageError for what is no time, or one that goes back."""
    if not _is_seconds(value, 0):
        raise UsageError(f"{name} is a number of seconds, 0 or more, not {value!r}")


def check_configuration(component: str, configuration: Mapping[str, Any]) -> None:
    """Raise SettingsError for a value that a component cannot have of its own; what has no effect there is let be."""
    for key, value in configuration.items():
        if key == TICK_KEY:
            is_allowed, allowed = value is None or _is_seconds(value, SHORTEST_S), f"{_PERIOD}, or None"
        elif key == TIMEOUT_KEY:
            is_allowed, allowed = _is_seconds(value, SHORTEST_S), _PERIOD
        elif key == PENDING_KEY:
            is_allowed = value is None or (_is_number(value, Integral) and value >= 0)
            allowed = "a whole number, 1 or more, or 0 or None for the topology's"
        else:
            continue
        if not is_allowed:
            raise SettingsError(f"{key} of {component!r} is {allowed}, not {value!r}")


def _is_seconds(value: Any, least: float) -> bool:
    return _is_number(value, Real) and least <= value < float("inf")


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
