"""The notebooks run from top to bottom, use public names only and are stored without outputs."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import reliable_spark as rs

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
CELL_TIMEOUT_S = 240

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.name for path in NOTEBOOKS]),
]


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call] # nbformat has no types


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


@pytest.mark.spark
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs in order in a fresh kernel, with a Spark session of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(read(path), timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=resources).execute()


def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    """What a run printed is not kept, so that a difference between two versions is a difference in the text."""
    assert [cell.source for cell in code_cells(path) if cell.outputs or cell.execution_count is not None] == []


def test_a_notebook_uses_public_names_only(path: Path) -> None:
    """Of the library it imports the package itself, and of that only what `__all__` names, and the kit for tests."""
    trees = [ast.parse(cell.source) for cell in code_cells(path)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    imported = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    imported += [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    assert {name for name in imported if name.startswith("reliable_spark.")} <= {"reliable_spark.testing"}
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "rs"
    }
    assert used <= set(rs.__all__)
