"""The ledger's tables: their columns, in one place for both writers and all readers."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from reliable_spark.errors import SchemaError

LEDGER_VERSION: Final = 3
"""Raised whenever a ledger written by this version could be misread by an older one."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

REDRIVE: Final = "redrive"
"""The kind of a batch that takes dead letters back: its `dead` is how many, below 0."""

BATCHES: Final = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("kind", pa.string()),
        ("query_id", pa.string()),
        ("source_batch_id", pa.int64()),
        ("source_offsets", pa.string()),
        ("begun_at", TIMESTAMP),
        ("settled_at", TIMESTAMP),
        ("anchored", pa.int64()),
        ("replayed", pa.int64()),
        ("acked", pa.int64()),
        ("failed", pa.int64()),
        ("lost", pa.int64()),
        ("held", pa.int64()),
        ("timed_out", pa.int64()),
        ("dead", pa.int64()),
        ("emitted", pa.int64()),
        ("in_flight", pa.int64()),
        ("duplicates", pa.int64()),
        ("checksum_ok", pa.bool_()),
        ("pending_version", pa.int64()),
        ("dead_letters_version", pa.int64()),
        ("sink_actions", pa.list_(pa.string())),
        ("sink_version", pa.int64()),
        ("state_changes", pa.list_(pa.string())),
        ("stages", pa.string()),
    ]
)
"""One row per settled batch, written last: it is the commit point of the ledger.

The two versions say which state of the other tables belongs to it, so a crash between two tables leaves
nothing that a reader would see. `sink_actions` is what this batch may still have to commit to its sink, and
`state_changes` to the states of its bolts; upkeep clears both in all rows but the last. `sink_version` is the
sink's version as it was before this batch. `in_flight` is by how many trees the batch changed the number of those that
wait in later stages, `stages` what is known of them as JSON. `source_offsets` is a hash of what the streaming source's
offsets were.
"""

JOURNAL: Final = pa.schema(
    [
        ("number", pa.int64()),
        ("batch_id", pa.int64()),
        ("state", pa.string()),
        ("at", TIMESTAMP),
        ("kind", pa.string()),
        ("query_id", pa.string()),
        ("source_batch_id", pa.int64()),
        ("due_before", TIMESTAMP),
        ("detail", pa.string()),
    ]
)
"""What the writer is about to do, in the order of `number`, so that a restart does the same under the same id."""

_SMALL: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

_TREE = [
    ("batch_id", pa.int64()),
    ("anchor", pa.int64()),
    ("spout", pa.string()),
    ("message_id", pa.string()),
]
_FAILURE = [
    ("bolt", pa.string()),
    ("error_class", pa.string()),
    ("error", pa.string()),
    ("traceback", pa.string()),
]


def pending_schema(payload: pa.DataType) -> pa.Schema:
    """Columns of `pending`: the trees that wait for their next attempt or for their timeout.

    Args:
        payload: the struct type of the source row.

    Returns:
        `attempt` counts the attempts made so far; `due_at` is when the next thing happens to the tree:
        its replay, or its timeout where `status` is "held".
    """
    return pa.schema(
        [
            *_TREE,
            ("ack_val", pa.int64()),
            ("attempt", pa.int32()),
            ("status", pa.string()),
            *_FAILURE,
            ("first_seen_at", TIMESTAMP),
            ("emitted_at", TIMESTAMP),
            ("due_at", TIMESTAMP),
            ("payload", payload),
        ]
    )


def dead_letters_schema(payload: pa.DataType) -> pa.Schema:
    """Columns of `dead_letters`: the trees that will not be tried again, with their source row.

    Args:
        payload: the struct type of the source row.
    """
    return pa.schema(
        [
            *_TREE,
            ("attempts", pa.int32()),
            *_FAILURE,
            ("first_seen_at", TIMESTAMP),
            ("died_at", TIMESTAMP),
            ("payload", payload),
        ]
    )


def storable(kind: pa.DataType, where: str) -> pa.DataType:
    """Turn an Arrow type into the one under which the ledger stores it.

    Args:
        kind: the type as Spark gives it.
        where: the column, for the error.

    Raises:
        SchemaError: Delta's Rust writer has no such type.
    """
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, storable(f.type, f"{where}.{f.name}")) for f in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(storable(kind.value_type, f"{where}[]"))
    if pa.types.is_map(kind):
        key = storable(kind.key_type, f"{where}.key")
        return pa.map_(key, storable(kind.item_type, f"{where}.value"))
    if pa.types.is_duration(kind) or pa.types.is_interval(kind) or pa.types.is_null(kind):
        raise SchemaError(
            f"column {where!r} has type {kind}, which the ledger cannot store with a dead letter: "
            "cast it before anchored(), for example to string"
        )
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else pa.timestamp("us")
    return _SMALL.get(kind, kind)
