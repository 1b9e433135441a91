"""Does the acker fold its messages as fast as DuckDB and Polars group and XOR them?

python -m benchmarks.acker            10,000,000 messages about 1,000,000 trees, 5 rounds
python -m benchmarks.acker --quick    200,000 about 20,000, 1 round

Each peer has the ids in memory in its own form, uses all cores, and only XORs; the acker's fold also finds the spout
task of each tree, what failed, and gives the trees in order. Then the memory of the trees that are pending.
"""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

from benchmarks.measure import Line, Options, faster, in_turns, line_of, run, timed
from reliable_spark.core.acker import Folded, Kind, Messages, Trees, fold, merge

BYTES_PER_TREE_MAX = 32
MESSAGES_PER_TREE = 10
Peer = Callable[[], pa.Table]


def make_messages(trees: int) -> Messages:
    """For each tree one init and several acks, in any order; no tree comes to zero, so each result can be compared."""
    random = np.random.default_rng(7)
    count = trees * MESSAGES_PER_TREE
    order = random.permutation(count)
    kind = np.where(order < trees, Kind.INIT, Kind.ACK).astype(np.int8)
    anchors = random.integers(-(2**63), 2**63 - 1, trees)
    value = random.integers(-(2**63), 2**63 - 1, count)
    return Messages(anchors[order % trees], kind, value, np.zeros(count, dtype=np.int32))


def with_duckdb(messages: Messages) -> Peer:
    """Group and XOR a table in DuckDB's memory."""
    connection = duckdb.connect()
    connection.register("given", pa.table({"anchor": messages.anchor, "value": messages.value}))
    connection.execute("create table messages as select * from given")
    query = "select anchor, bit_xor(value) as ack_val from messages group by anchor"
    return lambda: connection.sql(query).to_arrow_table()


def with_polars(messages: Messages) -> Peer:
    """Group and XOR a Polars frame; its streaming engine is the faster one here."""
    frame = pl.DataFrame({"anchor": messages.anchor, "value": messages.value}).lazy()
    grouped = frame.group_by("anchor").agg(pl.col("value").bitwise_xor().alias("ack_val"))
    return lambda: grouped.collect(engine="streaming").to_arrow()


PEERS = {"DuckDB": with_duckdb, "Polars": with_polars}


def check_equal(folded: Folded, result: pa.Table) -> None:
    """Refuse to compare the times of different results."""
    ordered = result.sort_by("anchor")
    for name in ("anchor", "ack_val"):
        if not np.array_equal(ordered[name].to_numpy(), getattr(folded, name)):
            raise AssertionError(f"the results differ in {name}")


def bytes_per_tree(folded: Folded) -> float:
    """What a pending tree keeps allocated, without its payload."""
    tracemalloc.start()
    trees, _ = merge(Trees.empty(), folded, 0)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return kept / len(trees)


def measure(options: Options) -> list[Line]:
    """Compare the fold with each peer, and weigh the trees."""
    trees = 20_000 if options.quick else 1_000_000
    messages = make_messages(trees)
    work = f"acker, {len(messages):,} messages, {trees:,} trees"
    lines = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ours = partial(fold, messages, pool.map)
        for name, peer in PEERS.items():
            query = peer(messages)
            check_equal(ours(), query())
            pairs = in_turns(timed(ours), timed(query), options)
            lines.append(line_of(pairs, faster, work=work, against=name, unit="s", bar=1.0, direction="at least"))
        weight = bytes_per_tree(ours())
    work = f"acker, {trees:,} pending trees"
    amount = Line(work, "", weight, None, "bytes", ratio=weight, bar=BYTES_PER_TREE_MAX, measure="bytes per tree")
    return [*lines, amount]


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    run(__doc__, measure, argv)


if __name__ == "__main__":
    main()
