"""Every state provider against a model, under any order of calls, with crashes at every point of every step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from reliable_spark.errors import StateError
from reliable_spark.state import StateProvider
from tests.contracts.conftest import FailingStore, Reopen

_KEYS = st.sampled_from(["a", "b", 1, (1, "x")])
_VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.booleans(), max_size=2))


class StateModel(RuleBasedStateMachine):
    """Three dicts and two txids, beside the state. A crash takes what was changed and leaves the rest."""

    provider: StateProvider

    @initialize()
    def begin(self) -> None:
        """An empty state of its own."""
        self.namespace = f"b-{next(_numbers)}"
        self.committed: dict[Any, Any] = {}
        self.prepared: dict[Any, Any] | None = None
        self.changed: dict[Any, Any] = {}
        self.last = -1
        self.open()

    def open(self) -> None:
        """Start the task again."""
        state: Any = self.provider.state(self.namespace)
        self.state = state
        self.store = self.state._store = FailingStore(self.state._store)

    def crashed(self) -> None:
        """Start the task again; what was not prepared is gone."""
        self.open()
        self.changed = dict(self.committed if self.prepared is None else self.prepared)

    @rule(key=_KEYS, value=_VALUES)
    def put(self, key: Any, value: Any) -> None:
        """Set a value."""
        self.state.put(key, value)
        self.changed[key] = value

    @rule(key=_KEYS)
    def delete(self, key: Any) -> None:
        """Remove a key; the old value comes back."""
        assert self.state.delete(key) == self.changed.pop(key, None)

    @rule(fails=st.sampled_from([None, None, "before", "after"]), again=st.booleans())
    def prepare(self, fails: str | None, again: bool) -> None:
        """Prepare the next transaction; after a failure again by the same task, or by one that started again."""
        self.store.when = fails
        if fails is None:
            self.state.prepare_commit(self.last + 1)
        else:
            with pytest.raises(StateError, match="dies here"):
                self.state.prepare_commit(self.last + 1)
            if not again:
                self.prepared = dict(self.changed) if fails == "after" else self.prepared
                return self.crashed()
            self.state.prepare_commit(self.last + 1)
        self.prepared = dict(self.changed)
        return None

    @rule(fails=st.sampled_from([None, None, "before", "after"]), again=st.booleans())
    def commit(self, fails: str | None, again: bool) -> None:
        """Commit what is prepared; a commit that failed may have happened, and is repeated either way."""
        if self.prepared is None:
            self.state.commit(self.last)
            return
        self.store.when = fails
        if fails is not None:
            with pytest.raises(StateError, match="dies here"):
                self.state.commit(self.last + 1)
            if not again:
                self.crashed()
        self.state.commit(self.last + 1)
        self.last += 1
        self.committed, self.prepared = self.prepared, None

    @rule(fails=st.sampled_from([None, None, "before", "after"]))
    def roll_back(self, fails: str | None) -> None:
        """Go back to what is committed; one that failed is repeated by a task that started again."""
        self.store.when = fails
        if fails is not None:
            with pytest.raises(StateError, match="dies here"):
                self.state.rollback()
            self.open()
        self.state.rollback()
        self.prepared, self.changed = None, dict(self.committed)

    @rule()
    def crash(self) -> None:
        """Start the task again."""
        self.crashed()

    @invariant()
    def looks_like_the_model(self) -> None:
        """Every pair once, with its newest value."""
        if hasattr(self, "state"):
            pairs = list(self.state)
            assert dict(pairs) == self.changed
            assert len(pairs) == len(self.changed)


def _counting() -> Any:
    from itertools import count

    return count()


_numbers = _counting()


@pytest.mark.crash
def test_a_state_is_its_model(reopen: Reopen, request: pytest.FixtureRequest) -> None:
    """Whatever is called in whatever order, and wherever the process dies."""

    class Model(StateModel):
        provider = reopen()

    is_slow = "delta" in request.node.name
    run_state_machine_as_test(
        Model,
        settings=settings(
            max_examples=12 if is_slow else 60,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
