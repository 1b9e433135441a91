"""What every job says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import flights, medallion, sessionize, stateful_word_count, storm_word_count, word_count


@pytest.mark.parametrize("job", [flights, medallion, sessionize, stateful_word_count, storm_word_count, word_count])
def test_the_example_can_be_copied(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is not wrapped, however narrow the terminal is."""
    monkeypatch.setenv("COLUMNS", "60")
    made = job.parser()
    assert made.epilog.startswith("example")
    assert made.epilog in made.format_help()
