"""The statistics of a topology as a JSON file, for a page that needs no JVM."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reliable_spark.core.statistics import ComponentStatistics
from reliable_spark.process.view import TopologyView


def write_page(page: Path, name: str, topology: TopologyView) -> None:
    """Write the statistics of all components; a reader sees the old page or the new one.

    Raises:
        OSError: it cannot be written.
    """
    components = {each: _as_json(topology.statistics(each)) for each in topology.components()}
    content = {"name": name, "now_s": topology.now_s(), "components": components}
    written = page.with_name(f".{page.name}.new")
    written.write_text(json.dumps(content, indent=1), encoding="utf-8")
    written.replace(page)


def _as_json(statistics: ComponentStatistics) -> dict[str, Any]:
    """The figures with inputs named "component:stream"."""
    inputs = {":".join(key): asdict(figures) for key, figures in statistics.inputs.items()}
    return {**asdict(statistics), "inputs": inputs}
