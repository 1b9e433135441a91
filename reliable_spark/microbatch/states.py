"""Where the states of a topology on Spark are: where every worker reaches them, and the next run finds them."""

from __future__ import annotations

from pathlib import Path

from reliable_spark.errors import SettingsError
from reliable_spark.ledger.tables import table_uri
from reliable_spark.settings import Settings
from reliable_spark.state import MemoryStateProvider, provider_of


def with_states_below(settings: Settings, directory: str | Path) -> Settings:
    """The settings with Delta tables in `state` of a directory, unless they say where states are kept."""
    chosen = settings.topology
    if chosen.state_provider is not None:
        return settings
    where = chosen.state_provider_config or {"path": table_uri(str(directory), "state")}
    kept = chosen.model_copy(update={"state_provider": "delta", "state_provider_config": where})
    return settings.model_copy(update={"topology": kept})


def check_shared(settings: Settings) -> None:
    """Refuse states in memory.

    Raises:
        SettingsError: a task would find its state only in the worker where it happened to run last.
    """
    chosen = settings.topology
    provider = provider_of(chosen.state_provider or "memory", chosen.state_provider_config)
    if isinstance(provider, MemoryStateProvider):
        raise SettingsError(
            "stateful bolts on Spark need states that all workers reach: pass ledger= to submit_topology, or "
            "state_provider='delta' with a path, or 'redis'"
        )
