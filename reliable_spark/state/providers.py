"""A state provider by its name, by Storm's name or by its class. Source: Storm's `state/StateFactory`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reliable_spark.errors import SettingsError, nearest
from reliable_spark.state.base import StateProvider
from reliable_spark.state.serializers import named

_NAMES = {
    "memory": "reliable_spark.state.memory:MemoryStateProvider",
    "delta": "reliable_spark.state.delta:DeltaStateProvider",
    "redis": "reliable_spark.state.redis:RedisStateProvider.from_configuration",
}
_STORM_NAMES = {
    "org.apache.storm.state.InMemoryKeyValueStateProvider": "memory",
    "org.apache.storm.redis.state.RedisKeyValueStateProvider": "redis",
}


def provider_of(provider: Any, configuration: Mapping[str, Any]) -> StateProvider:
    """Make the provider that a topology asks for.

    Args:
        provider: "memory", "delta", "redis", Storm's class of one of them, "module:Class", or the object itself.
        configuration: the arguments it is made with.

    Raises:
        SettingsError: there is no such provider, it does not take these arguments, or what it needs is missing.
    """
    made = _made(provider, configuration) if isinstance(provider, str) else provider
    if not callable(getattr(made, "state", None)):
        raise SettingsError(f"{provider!r} is no state provider: it has no method state(namespace)")
    return made  # type: ignore[no-any-return] # a protocol is met by shape


def _made(name: str, configuration: Mapping[str, Any]) -> Any:
    path = _NAMES.get(_STORM_NAMES.get(name, name), name)
    if ":" not in path:
        raise SettingsError(f"there is no state provider {name!r}{nearest(name, _NAMES)}; or give 'module:Class'")
    try:
        return named(path)(**configuration)
    except TypeError as error:
        raise SettingsError(f"state provider {name!r} cannot be made: {error}") from error
