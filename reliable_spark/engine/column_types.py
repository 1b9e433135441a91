"""What the types of columns say: whether the ledger can store them, and how they come back."""

from __future__ import annotations

from typing import Final

from pyspark.sql import types as T

from reliable_spark.errors import SchemaError

_STORABLE: Final = (T.NumericType, T.StringType, T.BinaryType, T.BooleanType, T.DateType, T.TimestampType)


def refuse_unstorable(kind: T.DataType, where: str) -> None:
    """Refuse a type that the ledger could not store with a dead letter, by Spark's name for it.

    Raises:
        SchemaError: it, or a part of it, is an interval, a variant, or another type that Delta has no form for.
    """
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            refuse_unstorable(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, T.ArrayType):
        refuse_unstorable(kind.elementType, f"{where}[]")
    elif isinstance(kind, T.MapType):
        refuse_unstorable(kind.keyType, f"{where}.key")
        refuse_unstorable(kind.valueType, f"{where}.value")
    elif not isinstance(kind, (*_STORABLE, T.TimestampNTZType)):
        raise SchemaError(
            f"column {where!r} has type {kind.simpleString()}, which the ledger cannot store with a dead letter: "
            "cast it before anchored(), for example to string"
        )


def nullable(kind: T.DataType) -> T.DataType:
    """The same type with every part of it nullable, as it comes back from the ledger."""
    if isinstance(kind, T.StructType):
        return T.StructType([T.StructField(field.name, nullable(field.dataType)) for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(nullable(kind.elementType))
    if isinstance(kind, T.MapType):
        return T.MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind
