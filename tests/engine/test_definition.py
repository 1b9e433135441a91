"""What is read from arguments without a session."""

from __future__ import annotations

from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark.engine.definition import trigger_options


@pytest.mark.parametrize(
    ("trigger", "options"),
    [
        (None, {}),
        ("availableNow", {"availableNow": True}),
        ("available_now", {"availableNow": True}),
        ({"availableNow": True}, {"availableNow": True}),
        ("5 seconds", {"processingTime": "5 seconds"}),
        ({"processingTime": "1 minute 30 seconds"}, {"processingTime": "1 minute 30 seconds"}),
        ({"processingTime": "interval 100 milliseconds"}, {"processingTime": "interval 100 milliseconds"}),
        ({"processingTime": "1 day", "availableNow": None}, {"processingTime": "1 day"}),
    ],
)
def test_a_trigger_is_read_as_pyspark_reads_it(trigger: Any, options: dict[str, Any]) -> None:
    """A dict of PySpark's arguments, a processing time, or the name alone."""
    assert trigger_options(trigger) == options


@pytest.mark.parametrize(
    ("trigger", "said"),
    [
        ("now", "the trigger .*'now'.* is neither a processing time such as '5 seconds'"),
        ("1 secnd", "1 secnd"),
        ({"availablenow": True}, "there is no trigger 'availablenow'; did you mean 'availableNow'"),
        ({"continuous": "1 second"}, "there is no trigger 'continuous'"),
        ({"availableNow": False}, "availableNow"),
        ({"availableNow": True, "processingTime": "1 second"}, "is neither"),
        (5, "not int"),
    ],
)
def test_a_wrong_trigger_is_refused_before_anything_is_made(trigger: Any, said: str) -> None:
    """One line says what is wrong with it."""
    with pytest.raises(rs.UsageError, match=said):
        trigger_options(trigger)
