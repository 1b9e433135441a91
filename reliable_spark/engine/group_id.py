"""The id under which a group is known: equal where Spark says that the keys are equal, and nowhere else.

`xxhash64` alone is not that: it skips nulls, inside of arrays and structs too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import types as T

from reliable_spark.engine.lineage import quoted
from reliable_spark.errors import UsageError

_BINARY_COLLATION: Final = "UTF8_BINARY"


def group_id(keys: Sequence[T.StructField]) -> str:
    """The hash of a group's keys, as SQL.

    Args:
        keys: the columns that hold them, by name and type.

    Raises:
        UsageError: a key is compared by a collation, or holds a map: Spark's SQL has nothing that is equal for both.
    """
    parts = [part for key in keys for part in _parts(quoted(key.name), key.dataType)]
    listed = ", ".join(["'group'", *parts])
    return f"xxhash64({listed})"


def _parts(value: str, kind: T.DataType, depth: int = 0) -> list[str]:
    """What of a value is hashed: first whether it is null, then what tells it from all others of its type."""
    is_null, each = f"{value} IS NULL", f"each_{depth}"
    if isinstance(kind, T.StringType) and kind.collation != _BINARY_COLLATION:
        raise UsageError(
            f"groupBy(): key {value} has the collation {kind.collation}, and no group can be led back by it: "
            f"group by lower({value}), or by {value} COLLATE {_BINARY_COLLATION}"
        )
    if isinstance(kind, T.StructType):
        fields = ((f"{value}.{quoted(field.name)}", field.dataType) for field in kind.fields)
        return [is_null, *(part for field, own in fields for part in _parts(field, own, depth))]
    if isinstance(kind, T.ArrayType):
        inner = _parts(each, kind.elementType, depth + 1)
        return [is_null, f"size({value})", f"transform({value}, {each} -> struct({', '.join(inner)}))"]
    if isinstance(kind, T.MapType):
        raise UsageError(f"groupBy(): {value} holds a map, of which Spark has no hash: group by to_json of it")
    return [is_null, value]
