"""The names of the columns that travel beside the user's; free of Spark, so that workers can share them."""

from __future__ import annotations

from typing import Final

ANCHOR: Final = "_anchor"
TUPLE_ID: Final = "_tuple_id"
ATTEMPT: Final = "_attempt"
MESSAGE_ID: Final = "_message_id"
LINEAGE: Final = (ANCHOR, TUPLE_ID, ATTEMPT, MESSAGE_ID)
"""Root id, share, attempt number, and the message id as text."""

CHILD_INDEX: Final = "_child_index"
CHILD_COUNT: Final = "_child_count"
FAILURE: Final = "_failure"
CHANGE: Final = "_change"
"""What a row says that belongs to no tree: which file a bolt has written about its state."""
PARENT: Final = "_parent"
SPOUT: Final = "_spout"
FIRST_SEEN_AT: Final = "_first_seen_at"
RESERVED: Final = (*LINEAGE, CHILD_INDEX, CHILD_COUNT, FAILURE, CHANGE, PARENT, SPOUT, FIRST_SEEN_AT)

WORKING_PREFIX: Final = "__rs_"
"""What the names of columns begin with that live inside one operator only."""

HELD: Final = "held"
"""The error class of a tuple that was neither acked nor failed."""

OVERFLOW: Final = "overflow"
"""The error class of a failure whose details did not fit into what one task may send back."""

NULL_MESSAGE_ID: Final = "null_message_id"
"""The error class of a row without a message id."""

RAISED: Final = "raised"
"""The error class of a row for which Spark raised in a guarded expression, until it is known what."""
