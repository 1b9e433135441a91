"""What is particular to states in Redis: storm-redis' layout and its options."""

from __future__ import annotations

from typing import Any

import pytest

from reliable_spark import Settings, SettingsError, StateError
from reliable_spark.state import MemoryStateProvider, PickleSerializer, provider_of


def test_the_layout_is_storms(redis_client: Any) -> None:
    """A hash per layer and one for the txids."""
    redis_client.flushdb()
    state: Any = made(redis_client).state("count-0")
    state.put("a", 1)
    state.prepare_commit(1)
    assert set(redis_client.keys()) == {b"count-0$prepare", b"count-0$txid"}
    assert redis_client.hgetall("count-0$txid") == {b"prepare": b"1"}
    state.commit(1)
    assert redis_client.hgetall("count-0") == {b'"a"': b"1"}
    assert redis_client.hgetall("count-0$txid") == {b"commit": b"1"}
    assert not redis_client.exists("count-0$prepare")


def test_storms_options(redis_client: Any) -> None:
    """Types are checked, serializers found, and the server is reached."""
    redis_client.flushdb()
    pickled = f"{PickleSerializer.__module__}:PickleSerializer"
    state: Any = made(redis_client, keyClass="str", valueSerializerClass=pickled, valueClass="complex").state("b-0")
    state.put("a", 1j)
    assert state.get("a") == 1j
    with pytest.raises(StateError, match="type str, not int"):
        state.put(1, 1j)
    with pytest.raises(StateError, match="type complex, not str"):
        state.put("a", "b")


def test_storms_keys_choose_the_provider(redis_client: Any) -> None:
    """As Storm's configuration has them, the options as a JSON text."""
    port = redis_client.get_connection_kwargs()["port"]
    settings = Settings.from_storm(
        {
            "topology.state.provider": "org.apache.storm.redis.state.RedisKeyValueStateProvider",
            "topology.state.provider.config": f'{{"jedisPoolConfig": {{"host": "127.0.0.1", "port": {port}}}}}',
        }
    )
    own = settings.topology
    state: Any = provider_of(own.state_provider, own.state_provider_config).state("b-0")
    assert state.get("nothing") is None


@pytest.mark.parametrize(
    ("provider", "configuration", "message"),
    [
        ("redys", {}, "did you mean 'redis'"),
        ("redis", {"keyClas": "str"}, "did you mean 'keyClass'"),
        ("redis", {"keyClass": "no.such:Type"}, "cannot be found"),
        ("delta", {}, "path"),
        ("memory", {"path": "/"}, "cannot be made: it has no option 'path'; there are: serializer"),
        ("delta", {}, "cannot be made: the option 'path' is missing: set it in state_provider_config$"),
        ("delta", {"paht": "/"}, "cannot be made: it has no option 'paht'; did you mean 'path'"),
        ("delta", {"path": 1, "serializer": 2, "other": 3}, "cannot be made: it has no option 'other'"),
        ("builtins:int", {"base": 2}, "cannot be made: int()"),
        ("reliable_spark.state:NoProvider", {}, "cannot be found"),
        (object(), {}, "has no method state"),
        ("builtins:dict", {}, "has no method state"),
    ],
)
def test_a_wrong_provider_is_refused(provider: Any, configuration: dict[str, Any], message: str) -> None:
    """With what would have been right."""
    pytest.importorskip("redis")
    with pytest.raises(SettingsError, match=message):
        provider_of(provider, configuration)


def test_an_object_is_taken_as_it_is() -> None:
    """So that two topologies can share what is in memory."""
    provider = MemoryStateProvider()
    assert provider_of(provider, {}) is provider
    assert isinstance(provider_of("org.apache.storm.state.InMemoryKeyValueStateProvider", {}), MemoryStateProvider)


def test_a_server_that_is_gone_is_a_state_error() -> None:
    """Which names the state; nothing that was changed is lost by it."""
    pytest.importorskip("redis")
    provider = provider_of("redis", {"jedisPoolConfig": {"host": "127.0.0.1", "port": 1}})
    with pytest.raises(StateError, match="cannot read state 'b-0' in Redis"):
        provider.state("b-0")


def made(redis_client: Any, **options: Any) -> Any:
    port = redis_client.get_connection_kwargs()["port"]
    return provider_of("redis", {"jedisPoolConfig": {"host": "127.0.0.1", "port": port}, **options})
