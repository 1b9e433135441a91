"""Try dead letters again: they become pending trees, and go the ordinary way of a replay from there.

Taking them back is one batch of the ledger, of the kind "redrive": `pending` gets the rows, `dead_letters` loses them,
and the row of `batches` makes both true at once. The invariant holds before, between and after.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column

from reliable_spark.engine.batch import check_spouts
from reliable_spark.engine.definition import analysed
from reliable_spark.engine.loop import Loop
from reliable_spark.engine.settlement import taken_back
from reliable_spark.errors import OperatingError, UsageError
from reliable_spark.ledger.ledger import BatchRecord, effects
from reliable_spark.ledger.schema import REDRIVE

_KEY = ("batch_id", "anchor")


def redrive(loop: Loop, where: Column | str | None) -> int:
    """Take dead letters back, to be replayed next.

    Args:
        loop: it replays them when it is asked for what is due.
        where: which ones, over the columns of `dead_letters`; None means all.

    Returns:
        How many. Cost: the dead letters are read and rewritten on the driver.

    Raises:
        ColumnError, UsageError: the condition is wrong, more match than may be pending, or these have no source rows.
        LedgerError: some are of a spout that this query does not have.
        OperatingError: a batch that was interrupted comes first.
    """
    if not loop.takes_back:
        raise UsageError("redrive(): the rows of a stage come from its source: redrive there")
    with loop.lock:
        _finish_replay(loop)
        dead = loop.ledger.dead_letters()
        is_chosen = _chosen(loop, dead, where)
        chosen = dead.filter(is_chosen)
        count: int = chosen.num_rows
        if not count:
            return 0
        _refuse_too_many(loop, count)
        check_spouts(loop.batches.source, chosen, loop.ledger.path)
        batch_id, now = loop.ledger.last_batch_id + 1, loop.clock.now()
        pending = pa.concat_tables([loop.ledger.pending, taken_back(chosen, batch_id, now)])
        record = BatchRecord(
            batch_id=batch_id,
            kind=REDRIVE,
            begun_at=now,
            settled_at=now,
            dead=-count,
            sink_version=loop.sink.version,
        )
        with loop.in_hand():
            effects.debug("settle redrive")
            loop.ledger.settle(record, pending, dead.filter(pc.invert(is_chosen)))
            loop.upkeep(batch_id)
        loop.on_settled(record)
        return count


def _finish_replay(loop: Loop) -> None:
    """A batch that a crash has interrupted keeps its id, so it comes first."""
    if loop.ledger.begun is not None:
        loop.run_due()
    if loop.ledger.begun is not None:
        raise OperatingError("redrive(): a micro-batch was interrupted and is run again first: call it after that")


def _chosen(loop: Loop, dead: pa.Table, where: Column | str | None) -> pa.Array:
    """A mask of the dead letters for which the condition is true."""
    if where is None:
        return pa.repeat(pa.scalar(True), dead.num_rows)
    reader = loop.batches.source.spark.read.format("delta")
    table = reader.option("versionAsOf", loop.ledger.version_of("dead_letters"))
    letters = table.load(loop.ledger.uri_of("dead_letters"))
    matching = analysed("redrive", letters.columns, lambda: letters.where(where)).select(*_KEY).distinct().toArrow()
    numbered = dead.select(_KEY).append_column("number", pa.array(np.arange(dead.num_rows)))
    found = numbered.join(matching.cast(numbered.select(_KEY).schema), list(_KEY), join_type="left semi")["number"]
    return pc.is_in(numbered["number"], found.combine_chunks()).combine_chunks()


def _refuse_too_many(loop: Loop, count: int) -> None:
    room = loop.settings.max_pending - loop.ledger.pending.num_rows
    if count > room:
        raise UsageError(
            f"redrive(): {count:,} dead letters match, but max_pending leaves room for {room:,}: name fewer with "
            "where=, or raise max_pending"
        )
