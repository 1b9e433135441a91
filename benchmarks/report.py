"""Where were the benchmarks measured, with what, and what came out? The page `docs/benchmarks.md`."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.measure import HEADINGS, Line

PACKAGES = {
    "Spark": "pyspark",
    "Delta": "delta-spark",
    "delta-rs": "deltalake",
    "Arrow": "pyarrow",
    "numpy": "numpy",
    "DuckDB": "duckdb",
    "Polars": "polars",
}
INTRODUCTION = """\
# Benchmarks

What `python -m benchmarks` measured; each benchmark says in its first line what it asks. Both sides of a line ran in
turns in one process tree on the same machine; figures are medians of five rounds after some that are not counted, and
the ratio is the median of the rounds' ratios.
"""


def keep(name: str, lines: list[Line], data: Path) -> None:
    """Store the result of a benchmark until it is measured again."""
    place = data / "results" / f"{name}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps([asdict(line) for line in lines], indent=1), encoding="utf-8")


def kept(name: str, data: Path) -> list[Line]:
    """The last result of a benchmark; nothing where there is none."""
    place = data / "results" / f"{name}.json"
    return [Line(**line) for line in json.loads(place.read_text(encoding="utf-8"))] if place.exists() else []


def written(lines: list[Line]) -> str:
    """Make the page."""
    machine = [f"- {name}: {what}" for name, what in {**machine_facts(), **versions()}.items()]
    parts = [INTRODUCTION, markdown(lines), "## Where\n", "\n".join(machine), ""]
    return "\n".join(parts)


def markdown(lines: list[Line]) -> str:
    """The lines as a table."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def machine_facts() -> dict[str, str]:
    """When, and on what machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": date.today().isoformat(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / 1024**3:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
    }


def processor() -> str:
    """The name of the processor, where the system says it."""
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [fact.partition(":")[2].strip() for fact in facts if fact.startswith("model name")]
    return names[0] if names else platform.processor()


def versions() -> dict[str, str]:
    """With what; a package that is not installed is left out."""
    found = {"Python": platform.python_version(), "Java": java_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def java_version() -> str:
    """The version of the Java that Spark would start."""
    home = os.environ.get("JAVA_HOME")
    command = [str(Path(home) / "bin" / "java") if home else "java", "-version"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    return said.split('"')[1] if '"' in said else "unknown"
