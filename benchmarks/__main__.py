"""How do the benchmarks come out, all of them or some?

python -m benchmarks                       all; takes about an hour
python -m benchmarks word_count acker      some
python -m benchmarks --quick               all, small and once: to see that they work

What was measured is kept beside the inputs, and docs/benchmarks.md is written from the last result of each benchmark.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks.measure import HEADINGS, Line, Options, SkippedError, options_of, parser_of
from benchmarks.report import keep, kept, written

NAMES = (
    "acker",
    "settle",
    "word_count",
    "clean_path",
    "delta_write",
    "python_bolts",
    "flights",
    "micro_batch",
    "latency",
    "stages",
    "storm",
    "multilang",
    "poison",
    "scaling",
    "stateful",
)
PIPE_WIDTH = 240
REPORT = Path("docs/benchmarks.md")


def measured(names: list[str], options: Options) -> tuple[dict[str, list[Line]], list[str]]:
    """Run benchmarks one after the other.

    Returns:
        The lines of each, and why some were skipped.
    """
    lines: dict[str, list[Line]] = {}
    skipped: list[str] = []
    with tqdm(names, file=sys.stderr, unit=" benchmarks", disable=None) as progress:
        for name in progress:
            progress.set_postfix_str(name)
            try:
                lines[name] = lines_of(name, options)
            except SkippedError as reason:
                skipped.append(f"{name} was skipped: {reason}")
    return lines, skipped


def lines_of(name: str, options: Options) -> list[Line]:
    """Run one benchmark.

    Raises:
        SkippedError: it cannot be run here.
    """
    if name == "acker" and not (find_spec("duckdb") and find_spec("polars")):
        raise SkippedError("DuckDB and Polars are needed: pip install reliable-spark[bench]")
    lines: list[Line] = importlib.import_module(f"benchmarks.{name}").measure(options)
    return lines


def print_table(lines: list[Line]) -> None:
    """Print all lines as one table, as wide as it has to be."""
    table = Table(*HEADINGS)
    for line in lines:
        table.add_row(*line.cells())
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def main(argv: list[str] | None = None) -> None:
    """Measure, print, keep the results, and write the report from all that there are."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}")
    parsed = parser.parse_args(argv)
    if unknown := set(parsed.names) - set(NAMES):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    options = options_of(parsed)
    lines, skipped = measured(parsed.names or list(NAMES), options)
    print_table([line for each in lines.values() for line in each])
    for reason in skipped:
        print(reason)
    if lines and not options.quick:
        for name, results in lines.items():
            keep(name, results, options.data)
        REPORT.write_text(written([line for name in NAMES for line in kept(name, options.data)]), encoding="utf-8")


if __name__ == "__main__":
    main()
