"""Checks of what a method is given, before Spark is asked: an error of Python's says nothing about the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reliable_spark.errors import ColumnError, UsageError, nearest


def check_name(doing: str, *names: object) -> None:
    """Refuse what is no text where a name is needed.

    Raises:
        UsageError: one is none; the method is named.
    """
    for name in names:
        check_kind(doing, name, str, "a name as text")


def check_kind(doing: str, value: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse an argument of another type.

    Raises:
        UsageError: it is; what is wanted is in the message.
    """
    if not isinstance(value, kind):
        raise UsageError(f"{doing} takes {wanted}, not {type(value).__name__}")


def check_same_columns(doing: str, own: Sequence[str], other: Sequence[str]) -> None:
    """Refuse two frames of which one lacks a column of the other.

    Raises:
        ColumnError: one does; the nearest that it has is in the message.
    """
    for wanted, there, which in ((own, other, "the other frame"), (other, own, "this frame")):
        missing = [name for name in wanted if name.lower() not in {held.lower() for held in there}]
        if missing:
            raise ColumnError(f"{doing}(): {which} has no column {missing[0]!r}{nearest(missing[0], there)}")


def at_positions(doing: str, cols: Sequence[Any], columns: Sequence[str]) -> list[Any]:
    """Replace positions, which Spark counts from 1, by names: the lineage columns have no position for the user.

    Raises:
        ColumnError: there is no such position.
    """
    for each in cols:
        if type(each) is int and not 1 <= each <= len(columns):
            raise ColumnError(f"{doing}(): there is no column {each}: positions are 1 to {len(columns)}")
    return [columns[each - 1] if type(each) is int else each for each in cols]
