"""What stateful bolts remember: key-value states in two layers, and where they are kept; no JVM."""

from reliable_spark.state.base import KeyValueState, State, StateProvider
from reliable_spark.state.memory import MemoryStateProvider
from reliable_spark.state.providers import provider_of
from reliable_spark.state.serializers import JsonSerializer, PickleSerializer, Serializer

__all__ = [
    "JsonSerializer",
    "KeyValueState",
    "MemoryStateProvider",
    "PickleSerializer",
    "Serializer",
    "State",
    "StateProvider",
    "provider_of",
]
