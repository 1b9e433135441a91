"""A state provider by its name, by Storm's name or by its class. Source: Storm's `state/StateFactory`."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from reliable_spark.errors import SettingsError, nearest
from reliable_spark.state.base import StateProvider
from reliable_spark.state.serializers import named

_NAMES = {
    "memory": "reliable_spark.state.memory:MemoryStateProvider",
    "delta": "reliable_spark.state.delta:DeltaStateProvider",
    "redis": "reliable_spark.state.redis:RedisStateProvider.from_configuration",
}
_ANY_NAME = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
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
    factory = named(path)
    try:
        return factory(**configuration)
    except TypeError as error:
        wrong = _misfit(factory, configuration) or str(error)
        raise SettingsError(f"state provider {name!r} cannot be made: {wrong}") from error


def _misfit(factory: Any, configuration: Mapping[str, Any]) -> str:
    """Which option is not known or not there, in the words of who sets it; empty when the options fit."""
    try:
        parameters = signature(factory).parameters
    except (TypeError, ValueError):  # not to be called, or written in C
        return ""
    options = {name: each for name, each in parameters.items() if each.kind not in _ANY_NAME}
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    for name in configuration:
        if name not in options and not takes_all:
            return f"it has no option {name!r}{nearest(name, options)}"
    missing = [name for name, each in options.items() if each.default is each.empty and name not in configuration]
    return f"the option {missing[0]!r} is missing: set it in state_provider_config" if missing else ""
