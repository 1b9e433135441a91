"""Every promise names a test, and that test is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_is_there(file: str, name: str) -> None:
    """The file exists, and defines the test or the state machine."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not name or name in defined


def test_every_line_of_a_table_of_promises_names_a_test() -> None:
    """A promise without a test is an advertisement."""
    promises = shown = 0
    is_shown_by = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("|") and "shown by" in line:
            is_shown_by = True
        elif not line.startswith("|"):
            is_shown_by = False
        elif is_shown_by and "---" not in line:
            promises += 1
            shown += "tests/" in line
    assert promises == shown > 20
