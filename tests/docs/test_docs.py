"""What the README and docs/*.md say is run: their Python blocks, what these print, their links and the picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
RECORD_LINES_MAX = 60
README_BLOCK_LINES_MAX = 15
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and the line on which the text begins."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [Block(each[1], each[2], text.count("\n", 0, each.start(2)) + 1) for each in _BLOCK.finditer(text)]


def has_python(page: Path) -> bool:
    return any(block.language == "python" for block in blocks(page))


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of its own for relative paths, of Python and of the JVM, and no waiting between attempts."""
    java: Any = spark._jvm
    files = java.org.apache.hadoop.fs.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    monkeypatch.chdir(tmp_path)
    files.setWorkingDirectory(java.org.apache.hadoop.fs.Path(str(tmp_path)))
    spark.conf.set("spark.reliable.backoff_initial_s", "0")
    yield tmp_path
    spark.conf.unset("spark.reliable.backoff_initial_s")
    files.setWorkingDirectory(before)


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if has_python(page)], ids=named)
def test_the_python_of_a_page_runs_and_prints_what_the_page_shows(
    page: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each page's blocks run in order in one namespace; a text block right after one is what it prints."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    found = blocks(page)
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block.language != "python":
            continue
        code = "\n" * (block.line - 1) + block.text  # so that a traceback names the page's own line
        exec(compile(code, str(page), "exec"), namespace)
        printed = capsys.readouterr().out
        if following is not None and following.language == "text":
            assert lines(printed) == lines(following.text)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_example_of_the_readme_is_short() -> None:
    """What a newcomer copies first fits on a screen."""
    [example] = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
    assert len(example.text.splitlines()) <= README_BLOCK_LINES_MAX


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    """A link inside the project names a file that is there."""
    targets = [link.partition("#")[0] for link in _LINK.findall(page.read_text(encoding="utf-8"))]
    inside = [target for target in targets if target and "://" not in target]
    assert [target for target in inside if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", RECORDS, ids=named)
def test_a_decision_is_recorded_on_one_page(page: Path) -> None:
    """A record has the parts that CONTRIBUTING.md asks for, its own number, and at most sixty lines."""
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= RECORD_LINES_MAX
    assert text.startswith(f"# {page.name[:4]}. ")
    assert [part for part in ("## Why", "## Decision", "## Instead", "## So") if part not in text] == []


def test_the_picture_is_an_image_with_a_title() -> None:
    """The hand-written picture parses, and says in words what it shows."""
    picture = ElementTree.parse(ROOT / "docs" / "picture.svg").getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert picture.findtext("{http://www.w3.org/2000/svg}title")
