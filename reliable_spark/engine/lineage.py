"""The lineage columns, as SQL that Catalyst compiles: nothing here runs Python per row or shuffles.

Expressions are text, since each call of a function of `pyspark.sql.functions` asks the JVM several times: building
the plan of a batch from such calls took ten times as long.

Every tracked row carries the id of its root and a share of that id. A row that becomes k rows splits its
share into k shares whose XOR is its own, so the XOR of all leaves of a tree is the root's id again, and any
part that is missing shows. The same arithmetic in numpy is `reliable_spark.core.ids`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from reliable_spark.engine.columns import ANCHOR, ATTEMPT, LINEAGE, RESERVED, TUPLE_ID, WORKING_PREFIX
from reliable_spark.errors import ColumnError, UsageError, nearest

FAILURE_TYPE: Final = T.StructType(
    [
        T.StructField("bolt", T.StringType()),
        T.StructField("error_class", T.StringType()),
        T.StructField("error", T.StringType()),
        T.StructField("traceback", T.StringType()),
        T.StructField("retry", T.BooleanType()),
    ]
)
"""What is known of a failed tuple. `error_class` "held" means: not failed, but not answered either."""


def quoted(name: str) -> str:
    """A column name as Spark's parser wants it when it may hold dots or backticks."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str) -> Column:
    """The column of exactly this name."""
    return F.col(quoted(name))


def user_columns(frame: DataFrame) -> list[str]:
    """The columns of a frame that are the user's."""
    return [name for name in frame.columns if name not in LINEAGE]


def repeated(names: Sequence[str]) -> str | None:
    """The first name that is there twice, in any case; in lower case."""
    lower = [name.lower() for name in names]
    return next((name for name in lower if lower.count(name) > 1), None)


def check_reserved(names: Sequence[str]) -> None:
    """Refuse user columns that bear the name of a lineage column, in any case.

    Raises:
        ColumnError: one does; the name is in the message.
    """
    taken = {name.lower() for name in RESERVED}
    for name in names:
        if name.lower() in taken or name.lower().startswith(WORKING_PREFIX):
            raise ColumnError(f"column {name!r} is reserved by reliable_spark: rename yours before anchored()")


def check_message_id(schema: T.StructType, message_id: Sequence[str]) -> tuple[str, ...]:
    """Resolve the message id columns against the source's schema.

    Returns:
        The columns' names as the schema spells them.

    Raises:
        ColumnError: one is missing, named twice by the schema, or of a nested type.
        UsageError: none is given.
    """
    if not message_id:
        raise UsageError("anchored() needs at least one message id column")
    return plain_columns(schema, message_id, "anchored", "a message id is made")


def plain_columns(schema: T.StructType, names: Sequence[str], doing: str, made: str) -> tuple[str, ...]:
    """Resolve columns that have a text.

    Args:
        schema: the columns there are.
        names: the columns wanted, in any case.
        doing: the method that wants them, for messages.
        made: what is made of them, for messages.

    Returns:
        Their names as the schema spells them.

    Raises:
        ColumnError: one is missing, named twice by the schema, or of a nested type.
    """
    found = []
    for name in names:
        fields = [field for field in schema.fields if field.name.lower() == name.lower()]
        if not fields:
            raise ColumnError(f"{doing}(): there is no column {name!r}{nearest(name, schema.fieldNames())}")
        if len(fields) > 1:
            raise ColumnError(f"{doing}(): column {name!r} is ambiguous: the frame has it {len(fields)} times")
        if isinstance(fields[0].dataType, T.StructType | T.ArrayType | T.MapType):
            kind = fields[0].dataType.simpleString()
            raise ColumnError(f"{doing}(): column {name!r} is a {kind}; {made} of plain columns")
        found.append(fields[0].name)
    return tuple(found)


def literal(text: str) -> str:
    """A text as SQL, whatever is in it and however the session reads string literals."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _text(name: str, schema: T.StructType) -> str:
    if isinstance(schema[name].dataType, T.BinaryType):
        return f"hex({quoted(name)})"
    return f"CAST({quoted(name)} AS STRING)"


def message_id_text(message_id: Sequence[str], schema: T.StructType) -> str:
    """The message id as the ledger shows it: the text of one column, a JSON array of several.

    Null when every column is null: such a row cannot be told from others and is dead at once.
    """
    return _joined([_text(name, schema) for name in message_id])


def key_text(key: Sequence[str], schema: T.StructType) -> str:
    """The key of a state as text: like a message id, but with one zero for both, as `groupBy` has it."""
    return _joined([_key_part(name, schema) for name in key])


def _key_part(name: str, schema: T.StructType) -> str:
    kind, column_ = schema[name].dataType, quoted(name)
    if isinstance(kind, T.FloatType | T.DoubleType):
        return f"CAST(if({column_} = 0, CAST(0 AS {kind.simpleString()}), {column_}) AS STRING)"
    return _text(name, schema)


def _joined(texts: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    listed = ", ".join(texts)
    return f"CASE WHEN coalesce({listed}) IS NOT NULL THEN to_json(array({listed})) END"


def is_null(message_id: Sequence[str]) -> str:
    """Whether a source row has no message id, asked of its own columns: the text may not have been made then."""
    return " AND ".join(f"{quoted(name)} IS NULL" for name in message_id)


def root_id(spout: str, message_id: Sequence[str], schema: T.StructType) -> str:
    """The anchor of a row's first attempt: a hash of where the row comes from, so equal in every evaluation.

    Each column is hashed as text with nulls kept apart, since xxhash64 skips nulls.
    """
    parts = [literal(spout)]
    for name in message_id:
        text = _text(name, schema)
        parts += [f"{text} IS NULL", f"coalesce({text}, '')"]
    return f"xxhash64({', '.join(parts)}, 1L)"


def replay_id() -> str:
    """The anchor of a later attempt: a hash of the anchor before it, so no late answer touches the new tree."""
    return f"xxhash64('replay', {ANCHOR}, CAST({ATTEMPT} AS LONG))"


def share(parent: str, index: str, count: str) -> str:
    """The share of child `index` of `count`: h(p, i) ^ h(p, i + 1), with h(p, 0) = p and h(p, count) = 0.

    The terms cancel pairwise over all children, so their XOR is the parent's id; one child keeps it, and so does
    a row without children, which leaves as it is.
    """
    place, following = f"CAST({index} AS LONG)", f"(CAST({index} AS LONG) + 1L)"
    left = f"CASE WHEN {index} = 0 THEN {parent} ELSE xxhash64({parent}, {place}) END"
    right = f"CASE WHEN {following} = {count} THEN 0L ELSE xxhash64({parent}, {following}) END"
    return f"CASE WHEN {count} <= 1 THEN {parent} ELSE ({left}) ^ ({right}) END"


def with_share(frame: DataFrame, index: str, count: str) -> DataFrame:
    """Replace the tuple id of each row by its share as child `index` of `count`."""
    return frame.withColumn(TUPLE_ID, F.expr(share(TUPLE_ID, index, count)))


def failure(bolt: str, error_class: str, reason: str, retry: bool) -> str:
    """A failure that Catalyst can state itself; all but the reason are given as they are, the reason as SQL."""
    fields = {
        "bolt": literal(bolt),
        "error_class": literal(error_class),
        "error": f"CAST({reason} AS STRING)",
        "traceback": "CAST(NULL AS STRING)",
        "retry": str(retry),
    }
    listed = ", ".join(f"'{name}', {value}" for name, value in fields.items())
    return f"named_struct({listed})"
