"""States kept in Redis, in storm-redis' layout: three hashes per namespace, each step one transaction of the server.

    <namespace>          the committed pairs
    <namespace>$prepare  the prepared ones, each value behind a byte that tells it from a deletion
    <namespace>$txid     the fields `prepare` and `commit`

Source: storm-redis' `state/RedisKeyValueState`, `state/RedisKeyValueStateProvider`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from redis import Redis, RedisError
from redis.client import Pipeline

from reliable_spark.errors import SettingsError, StateError, nearest
from reliable_spark.state.layers import Changes, LayeredState, Stored
from reliable_spark.state.serializers import JsonSerializer, Serializer, TypedSerializer, named

CHUNK = 100
"""How many pairs are asked for at once by an iteration."""

_VALUE, _DELETED = b"+", b"-"
_OPTIONS = ("jedisPoolConfig", "keyClass", "valueClass", "keySerializerClass", "valueSerializerClass")


@contextmanager
def redis_errors(doing: str, namespace: str) -> Iterator[None]:
    """Turn what the client raises into a StateError that names the state."""
    try:
        yield
    except RedisError as error:
        raise StateError(f"cannot {doing} state {namespace!r} in Redis: {error}") from error


class RedisStore:
    """One namespace. A step that was interrupted did nothing at all, or all of it.

    Args:
        client: connected to the server.
        namespace: the name of its hashes.
    """

    def __init__(self, client: Redis, namespace: str) -> None:
        self._client: Any = client  # the client's types cannot tell bytes from text, nor a value from an awaitable
        self._namespace = namespace
        self._pairs = namespace
        self._prepared = f"{namespace}$prepare"
        self._txid = f"{namespace}$txid"

    def load(self) -> Stored:
        """What is prepared, and both txids."""
        with redis_errors("read", self._namespace):
            txids = self._client.hgetall(self._txid)
            changes = self._client.hgetall(self._prepared)
        committed, prepared = (int(txids[name]) if name in txids else None for name in (b"commit", b"prepare"))
        return Stored(committed, prepared, {key: _content(value) for key, value in changes.items()})

    def get(self, key: bytes) -> bytes | None:
        """A committed value."""
        with redis_errors("read", self._namespace):
            content: bytes | None = self._client.hget(self._pairs, key)
        return content

    def scan(self) -> Iterable[tuple[bytes, bytes]]:
        """The committed pairs, in chunks."""
        with redis_errors("read", self._namespace):
            yield from self._client.hscan_iter(self._pairs, count=CHUNK)

    def prepare(self, txid: int, changes: Changes) -> None:
        """Replace whatever was prepared."""
        with self._transaction("prepare") as pipe:
            pipe.delete(self._prepared)
            if changes:
                marked = {key: _DELETED if value is None else _VALUE + value for key, value in changes.items()}
                pipe.hset(self._prepared, mapping=marked)
            pipe.hset(self._txid, "prepare", str(txid))

    def commit(self, txid: int) -> None:
        """Fold what is prepared."""
        changes = self.load().changes
        put = {key: value for key, value in changes.items() if value is not None}
        deleted = [key for key, value in changes.items() if value is None]
        with self._transaction("commit") as pipe:
            if put:
                pipe.hset(self._pairs, mapping=put)
            if deleted:
                pipe.hdel(self._pairs, *deleted)
            pipe.hset(self._txid, "commit", str(txid))
            pipe.hdel(self._txid, "prepare")
            pipe.delete(self._prepared)

    def rollback(self) -> None:
        """Drop what is prepared."""
        with self._transaction("roll back") as pipe:
            pipe.hdel(self._txid, "prepare")
            pipe.delete(self._prepared)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Any]:
        with redis_errors(doing, self._namespace):
            pipe: Pipeline = self._client.pipeline(transaction=True)
            yield pipe
            pipe.execute()


class RedisStateProvider:
    """Keeps states in a Redis server. They outlive the topology as far as the server's persistence does.

    Args:
        client: how to reach it; one that leaves answers as bytes, its default.
        keys: how keys become bytes.
        values: how values become bytes.
        prefix: set before every namespace, so that several topologies can share a server.
    """

    def __init__(
        self, client: Redis, keys: Serializer | None = None, values: Serializer | None = None, prefix: str = ""
    ) -> None:
        self._client = client
        self._keys = keys or JsonSerializer()
        self._values = values or JsonSerializer()
        self._prefix = prefix

    @classmethod
    def from_configuration(cls, **options: Any) -> RedisStateProvider:
        """Make one of the options of storm-redis.

        Args:
            options: `jedisPoolConfig` with host, port, timeout (ms), database and password; `keyClass` and
                `valueClass`, the only type that is taken, such as "str"; `keySerializerClass` and
                `valueSerializerClass`, such as "package.module:Class".

        Raises:
            SettingsError: an option is unknown.
        """
        for name in options:
            if name not in _OPTIONS:
                raise SettingsError(f"unknown option {name!r} of the Redis state provider{nearest(name, _OPTIONS)}")
        client = _client(**options.get("jedisPoolConfig", {}))
        return cls(client, _serializer(options, "key"), _serializer(options, "value"))

    def __deepcopy__(self, memo: dict[int, Any]) -> RedisStateProvider:
        """Itself: a connection is shared."""
        return self

    def state(self, namespace: str) -> LayeredState[Any, Any]:
        """The state of a namespace as it was prepared and committed last."""
        store = RedisStore(self._client, self._prefix + namespace)
        return LayeredState(namespace, store, self._keys, self._values)


def _content(marked: bytes) -> bytes | None:
    return None if marked == _DELETED else marked[len(_VALUE) :]


@lru_cache
def _client(
    host: str = "localhost", port: int = 6379, timeout: float = 2000, database: int = 0, password: str | None = None
) -> Redis:
    return _Client(host, port, timeout, database, password)


class _Client(Redis):
    """A client that can be sent to another process, where it connects anew, once for all states."""

    def __init__(self, host: str, port: int, timeout: float, database: int, password: str | None) -> None:
        timeout_s = timeout / 1000
        super().__init__(host, port, database, password, socket_timeout=timeout_s, socket_connect_timeout=timeout_s)
        self._made_with = (host, port, timeout, database, password)

    def __reduce__(self) -> tuple[Any, ...]:
        return _client, self._made_with


def _serializer(options: Mapping[str, Any], what: str) -> Serializer:
    name, kind = options.get(f"{what}SerializerClass"), options.get(f"{what}Class")
    serializer = named(name)() if name else JsonSerializer()
    return TypedSerializer(serializer, named(kind)) if kind else serializer
