"""The command line: Delta's jars, and what is done to a ledger by hand. No command starts a JVM."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from reliable_spark.errors import ReliableSparkError

if TYPE_CHECKING:
    from reliable_spark.ledger.counts import Counts

BALANCED, UNBALANCED, FAILED = 0, 1, 2

_INVARIANT = ("anchored", "acked", "dead", "pending")
_HISTORY = ("failed_attempts", "replayed", "lost", "emitted")

app = typer.Typer(
    name="reliable-spark",
    help="Guaranteed message processing for Spark DataFrames.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.callback()
def main() -> None:
    """Guaranteed message processing for Spark DataFrames: `anchored == acked + dead + pending`."""


@app.command()
def jars() -> None:
    """Print the paths of Delta's jars, separated by commas, for `spark-submit --jars`.

    The first call on a machine fetches them, every later one only looks at the disk.

    **Example**

        spark-submit --jars "$(reliable-spark jars)" jobs/flights.py --output demo
    """
    from reliable_spark.jars import delta_jars

    try:
        typer.echo(",".join(delta_jars()))
    except ReliableSparkError as error:
        raise _failed(error) from error


@app.command()
def audit(
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The ledger's directory or URI.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Check a ledger: exit 0 when it balances, 1 when it does not, 2 when it cannot be read.

    A ledger balances when every row that was taken in is acked, dead or pending. It may be audited while a
    job writes it.

    **Examples**

        reliable-spark audit demo/ledger

        reliable-spark audit demo/ledger --json
    """
    from reliable_spark.ledger.audit import audit as count

    try:
        counts = count(ledger)
    except ReliableSparkError as error:
        raise _failed(error, ledger) from error
    if as_json:
        shown = {name: getattr(counts, name) for name in _INVARIANT}
        typer.echo(json.dumps(shown | {"balanced": counts.balanced}))
    else:
        _show(ledger, counts)
    raise typer.Exit(BALANCED if counts.balanced else UNBALANCED)


@app.command()
def dead_letters(
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The ledger's directory or URI.")],
    limit: Annotated[int, typer.Option(min=0, help="How many at most; 0 shows all.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line, with all columns.")] = False,
) -> None:
    """Show what is dead and why, the newest first: exit 0, or 2 when the ledger cannot be read.

    To try dead letters again, call `redrive` on the frame or on the running query.

    **Examples**

        reliable-spark dead-letters demo/ledger

        reliable-spark dead-letters demo/ledger --limit 0 --json
    """
    from reliable_spark.ledger.audit import dead_letters as read

    try:
        letters = read(ledger, limit)
    except ReliableSparkError as error:
        raise _failed(error, ledger) from error
    if not as_json:
        _show_letters(letters)
        return
    for letter in letters:
        typer.echo(json.dumps(letter, default=_as_text))


@app.command()
def accept_restore(
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The ledger's directory or URI.")],
) -> None:
    """Let a query go on although its Delta sink was RESTOREd: what the sink lost by that stays counted as acked.

    Without it the next start refuses to run, since rows that the ledger counts as acked may be gone.

    **Example**

        reliable-spark accept-restore demo/ledger
    """
    from reliable_spark.clock import SystemClock
    from reliable_spark.ledger.acceptance import accept_restore as accept

    try:
        version = accept(ledger, SystemClock().now())
    except ReliableSparkError as error:
        raise _failed(error, ledger) from error
    typer.echo(f"accepted: the sink as it is in version {version}")


def _show(ledger: str, counts: Counts) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=ledger, title_justify="left", box=None, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in _INVARIANT:
        table.add_row(name, f"{getattr(counts, name):,}", style="bold")
    for name in _HISTORY:
        table.add_row(name.replace("_", " "), f"{getattr(counts, name):,}", style="dim")
    console = Console()
    console.print(table)
    if counts.balanced:
        console.print("balanced: anchored = acked + dead + pending", style="green")
    else:
        console.print("DOES NOT BALANCE: anchored is not acked + dead + pending", style="bold red")


def _show_letters(letters: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    shown = ("message_id", "attempts", "bolt", "error_class", "error", "died_at")
    for name in shown:
        table.add_column(name.replace("_", " "))
    for letter in letters:
        # a text of a row is shown as it is, not read as markup
        table.add_row(*(Text(_in_one_line(letter[name])) for name in shown))
    Console().print(table)


def _in_one_line(value: object) -> str:
    if value is None:
        return ""
    text = value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else str(value)
    return "".join(each if each.isprintable() else " " for each in text)


def _as_text(value: object) -> str:
    """What JSON has no type for: bytes in hex, times as ISO 8601, all else as Python writes it."""
    if isinstance(value, bytes):
        return value.hex()
    return value.isoformat() if isinstance(value, date | time) else str(value)


def _failed(error: ReliableSparkError, uri: str = "") -> typer.Exit:
    """Say what went wrong in one line on standard error, and give the exit that says it could not be done."""
    # object stores answer in several lines with colours
    line = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    typer.echo(f"reliable-spark: {_without_secrets(line, uri)}", err=True)
    return typer.Exit(FAILED)


def _without_secrets(line: str, uri: str) -> str:
    """A line without what a URI may give away: its query, where signatures stand, and its password."""
    parts = urlsplit(uri)
    secrets = [parts.query, *parts.query.split("&"), parts.password] if parts.scheme else []
    for secret in filter(None, secrets):
        line = line.replace(secret, "...")
    return line
