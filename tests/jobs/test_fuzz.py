"""Hostile rows through the demo's own bolts: each of them is answered, acked or dead, and none is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import reliable_spark as rs
from jobs.flights import ENRICHED, MESSAGE_ID, PARSED, RAW, enrich_from, parse
from reliable_spark.ledger.audit import audit
from tests.spark.running import Rows

ROWS = 10_000
JSON_ROWS = 800
SEED = 20_131_231

GOOD: dict[str, Any] = {
    "year": 2013, "month": 1, "day": 1, "dep_time": 517, "sched_dep_time": 515, "dep_delay": 2, "arr_time": 830,
    "sched_arr_time": 819, "arr_delay": 11, "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR",
    "dest": "IAH", "air_time": 227, "distance": 1400, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip

TEXTS = [
    "", " ", "\x00", "\x00UA\x1b[31m", "\u202e\u200bUA", "\ufffd", "\U0001f6eb" * 50, "é" * 300, "x" * 100_000, "NaN",
    "null", "None", "-0", "1e309", "'; DROP TABLE batches; --", "<script>alert(1)</script>", "a\nb\r\nc\td", '"', "\\",
    "2013-13-45T99:99:99Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "2013-01-01T10:00:00+14:00", "🙂\ud7ff",
    "[" * 2_000 + "]" * 2_000, '{"a":' * 500 + "1" + "}" * 500, "_anchor", "`tick`",
]  # fmt: skip
NUMBERS = [0, -1, 2**31 - 1, -(2**31), 99_999]


def hostile(number: int, dice: random.Random) -> dict[str, Any]:
    """A flight in which a few values are replaced by what no airline would send; its id stays its own."""
    row = {**GOOD, "flight": number}
    for name in dice.sample([name for name in row if name != "flight"], dice.randint(0, 3)):
        choices: list[Any] = [None, *(TEXTS if isinstance(GOOD[name], str) else NUMBERS)]
        row[name] = dice.choice(choices)
    return row


def test_every_hostile_row_is_answered(spark: SparkSession, tmp_path: Path) -> None:
    """10,000 rows with nulls, huge and strange texts, wrong dates and numbers: the ledger balances to the row."""
    dice = random.Random(SEED)
    rows = [hostile(number, dice) for number in range(ROWS)]
    source = spark.createDataFrame(rows, RAW)
    bolts = rs.anchored(source, list(MESSAGE_ID)).bolt(parse, PARSED).bolt(enrich_from({"UA": "United"}), ENRICHED)
    bolts = bolts.select("flight")  # PySpark itself cannot collect a timestamp of the year 1 west of Greenwich
    kept, ledger = Rows(), str(tmp_path / "ledger")
    outcome = bolts.run(kept, ledger=ledger, settings=rs.Settings(max_bad_ratio=1), clock=rs.ManualClock())
    assert audit(ledger).balanced
    assert (outcome.anchored, outcome.pending, outcome.lost) == (ROWS, 0, 0)
    written = [row["flight"] for row in kept.all]
    died = [row["payload"]["flight"] for row in outcome.dead_letters().select("payload").collect()]
    assert sorted(written + died) == list(range(ROWS))
    with_a_null = [row["flight"] for row in rows if any(value is None for value in row.values())]
    assert set(with_a_null) <= set(died)
    assert len(written) > ROWS // 10


def test_hostile_json_stops_no_job_and_loses_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """Deep, cut, duplicate, mistyped and unpaired JSON through FAILFAST parsing, ANSI casts and divisions."""
    dice = random.Random(SEED)
    shapes: list[Callable[[int], str]] = [
        lambda n: json.dumps({"n": n, "d": 1, "t": str(n)}),
        lambda n: json.dumps({"n": n, "d": 0, "t": str(n)}),
        lambda n: json.dumps({"n": n, "d": 1, "t": "seven"}),
        lambda n: json.dumps({"n": n, "d": 1, "t": None}),
        lambda n: f'{{"n": {n}, "d": 1, "t": "{n}"',
        lambda n: json.dumps({"n": "x", "d": [], "t": {}}),
        lambda n: f'{{"n": {n}, "n": 2, "d": 1, "t": "\\ud800"}}',
        lambda n: "[" * 3_000 + "]" * 3_000,
        lambda n: "\x00",
        lambda n: "",
        lambda n: '{"n": NaN, "d": 1e400, "t": "1"}',
    ]
    weights = [100, *[1] * (len(shapes) - 1)]
    rows = [(number, dice.choices(shapes, weights)[0](number)) for number in range(JSON_ROWS)]
    frame = (
        rs.anchored(spark.createDataFrame(rows, "id long, body string"), "id")
        .withColumn("body", F.from_json("body", "n long, d long, t string", {"mode": "FAILFAST"}))
        .select("id", F.expr("cast(body.t as int)").alias("t"), F.expr("body.n div body.d").alias("n"))
    )
    kept, ledger = Rows(), str(tmp_path / "ledger")
    outcome = frame.run(kept, ledger=ledger, settings=rs.Settings(max_attempts=1), clock=rs.ManualClock())
    died = {row["payload"]["id"]: row["error_class"] for row in outcome.dead_letters().collect()}
    assert sorted([row["id"] for row in kept.all] + list(died)) == list(range(JSON_ROWS))
    classes = set(died.values())
    assert {"DIVIDE_BY_ZERO", "CAST_INVALID_INPUT"} <= classes
    assert any(name.startswith("MALFORMED_RECORD") for name in classes)
    assert audit(ledger).balanced
