"""Failed tuples, as the observations of one evaluation report them, put together by tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from reliable_spark.engine.columns import ANCHOR, ATTEMPT, FAILURE, HELD, OVERFLOW
from reliable_spark.engine.observed import Failed
from reliable_spark.engine.worker import FAILURE_ARROW

INCOMPLETE: Final = pa.schema(
    [
        (ANCHOR, pa.int64()),
        ("ack_val", pa.int64()),
        ("status", pa.string()),
        ("attempts", pa.int32()),
        (FAILURE, FAILURE_ARROW),
    ]
)
"""What a batch is told of its trees that are not done."""

KNOWN: Final = pa.schema([(ANCHOR, pa.int64()), (ATTEMPT, pa.int32()), (FAILURE, FAILURE_ARROW)])

Tree = dict[str, Any]
"""A row of INCOMPLETE."""


@dataclass(frozen=True)
class Known:
    """What is known of a row before the batch is evaluated.

    Attributes:
        attempt: which attempt this evaluation is for it; None when it is the row's own.
        failure: why it fails as it comes in; None when it goes in.
    """

    attempt: int | None = None
    failure: dict[str, Any] | None = None


def known_table(known: dict[int, Known]) -> pa.Table:
    """What is known, by anchor, as a table in KNOWN."""
    rows = [{ANCHOR: anchor, ATTEMPT: row.attempt, FAILURE: row.failure} for anchor, row in known.items()]
    return pa.Table.from_pylist(rows, schema=KNOWN)


def are_usable(failures: list[Failed]) -> bool:
    """Tell whether the trees can be told from the failures alone.

    Failures below an aggregate belong to groups, and overflowing ones have no details: both need tracing.
    """
    return not any(failed.level or failed.failure["error_class"] == OVERFLOW for failed in failures)


def has_siblings(tree: Tree) -> bool:
    """Tell whether a failed tree may have leaves: it has none when its failed shares XOR to the whole root."""
    return bool(tree["ack_val"] != tree[ANCHOR])


def one_per_tree(failures: list[Failed], known: dict[int, Known]) -> list[Tree]:
    """One row per tree: its first failure, or its hold when nothing failed. The ack val is what is outstanding."""
    trees: dict[int, Tree] = {}
    for failed in failures:
        if failed.anchor is None:
            continue
        tree = trees.get(failed.anchor)
        if tree is None:
            attempts = known[failed.anchor].attempt if failed.anchor in known else None
            trees[failed.anchor] = {
                ANCHOR: failed.anchor,
                "ack_val": failed.tuple_id,
                "attempts": attempts,
                **_answer(failed),
            }
            continue
        tree["ack_val"] ^= failed.tuple_id
        if tree["status"] == HELD:
            tree |= _answer(failed)
    return list(trees.values())


def _answer(failed: Failed) -> Tree:
    status = HELD if failed.failure["error_class"] == HELD else "failed"
    return {"status": status, FAILURE: {field.name: failed.failure.get(field.name) for field in FAILURE_ARROW}}
