"""Laws of the graph's arithmetic."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.graph import executors_of, task_ids


@given(st.dictionaries(st.text(min_size=1), st.integers(1, 5)))
def test_task_ids_count_through_all_components(tasks: dict[str, int]) -> None:
    """From 1, each once, in alphabetical order of the components."""
    ids = task_ids(tasks)
    assert [task for name in sorted(tasks) for task in ids[name]] == list(range(1, sum(tasks.values()) + 1))
    assert {name: len(each) for name, each in ids.items()} == tasks


@given(st.integers(1, 40), st.data())
def test_tasks_are_spread_evenly_over_executors(tasks: int, data: st.DataObject) -> None:
    """Each task in one executor, none without a task, sizes differ by one at most."""
    executors = data.draw(st.integers(1, tasks))
    spread = executors_of(list(range(tasks)), executors)
    assert [task for each in spread for task in each] == list(range(tasks))
    assert len(spread) == executors
    assert max(map(len, spread)) - min(map(len, spread)) <= 1
    assert all(spread)
