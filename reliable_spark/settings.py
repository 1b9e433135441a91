"""Settings: one frozen object, checked once, units in the names, Storm's key beside each."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Json, ValidationError, field_validator, model_validator

from reliable_spark.errors import SettingsError, nearest
from reliable_spark.storm_keys import WITHOUT_MEANING

SPARK_PREFIX = "spark.reliable."
SHORTEST_S = 1e-6
LONGEST_S = 100 * 365 * 86_400.0
"""No wait is shorter than a clock can tell, or longer than a hundred years, after which there is still a date."""

_SEPARATOR = "\x1f"

_LOG = logging.getLogger(__name__)


class TopologySettings(BaseModel):
    """What only a topology has. Frozen.

    Args:
        message_timeouts: whether trees time out at all (Storm: `topology.enable.message.timeouts`).
        receive_buffer_size: how many tuples fit into the queue of a task, rounded up to a power of two; a sender that
            meets a full one waits and takes nothing new (Storm: `topology.executor.receive.buffer.size`).
        overflow_limit: how many tuples of other workers may wait beside a full queue before more are dropped, to come
            back by timeout; 0 means no limit (Storm: `topology.executor.overflow.limit`).
        backpressure_check_s: how often it is looked whether such an overflow is drained
            (Storm: `topology.backpressure.check.millis`).
        wait_strategy: how a sender waits that has met a full queue, "progressive" or "park": on a simulated clock it
            goes on at its first try after there is room. None means as soon as there is room, and so does any of them
            on a real clock, where tasks take turns and no try is in vain. With one of the `wait_level` settings it is
            "progressive" (Storm: `topology.backpressure.wait.strategy`, the class or these names).
        wait_level1_count, wait_level2_count, wait_level3_sleep_s: tries without a wait and with the shortest one, then
            the wait between all others (Storm: `topology.backpressure.wait.progressive.*`).
        wait_park_s: the wait between two tries when it parks (Storm: `topology.backpressure.wait.park.microsec`).
        tick_s: the period of the bolts' tick tuples, seconds; None means none
            (Storm: `topology.tick.tuple.freq.secs`).
        workers: over how many workers the executors are spread, and how many ackers there are when `ackers` is None
            (Storm: `topology.workers`).
        tasks: how many tasks a component has that does not say so; None means one per executor
            (Storm: `topology.tasks`).
        state_provider: where stateful bolts keep their state: "memory", "delta", "redis", "module:Class", or an
            object with a method `state(namespace)`; None means memory, and on Spark Delta tables below the ledger
            (Storm: `topology.state.provider`).
        state_provider_config: what the provider is made with: delta's `path`, redis' `url` and others
            (Storm: `topology.state.provider.config`, a JSON text or a mapping).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    message_timeouts: bool = True
    receive_buffer_size: int = Field(default=32_768, ge=1)
    overflow_limit: int = Field(default=0, ge=0)
    backpressure_check_s: float = Field(default=0.05, gt=0)
    wait_strategy: Literal["progressive", "park"] | None = None
    wait_level1_count: int = Field(default=1, ge=0)
    wait_level2_count: int = Field(default=1000, ge=0)
    wait_level3_sleep_s: float = Field(default=0.001, gt=0)
    wait_park_s: float = Field(default=0.0001, gt=0)
    tick_s: float | None = Field(default=None, ge=SHORTEST_S)
    workers: int = Field(default=1, ge=1)
    tasks: int | None = Field(default=None, ge=1)
    state_provider: Any = None
    state_provider_config: Json[dict[str, Any]] | dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _with_strategy(cls, given: Any) -> Any:
        """Who says how long to wait progressively means that strategy, which is Storm's default."""
        if isinstance(given, dict) and any(name.startswith("wait_level") for name in given):
            return {"wait_strategy": "progressive", **given}
        return given

    @field_validator("wait_strategy", mode="before")
    @classmethod
    def _of_class(cls, name: Any) -> Any:
        """Take Storm's class names, too."""
        return None if name is None else str(name).rpartition(".")[2].removeprefix("WaitStrategy").lower()


class Settings(BaseModel):
    """How a topology is run. Frozen; every value is checked when the object is made.

    Args:
        message_timeout_s: a tree that has no answer for this long is failed between once and twice this
            time after it was emitted (Storm: `topology.message.timeout.secs`).
        ackers: how many groups fold the trees (Storm: `topology.acker.executors`); None means one per core,
            0 means no tracking at all: every row counts as acked at once.
        max_attempts: how often a tree is tried before it is a dead letter; 1 means no retry.
        backoff_initial_s: the wait before the second attempt; it doubles with each further one.
        backoff_max_s: the longest wait between two attempts.
        max_pending: how many incomplete trees may wait for an answer before the source has to
            (Storm: `topology.max.spout.pending`).
        target_batch_s: how long a micro-batch of a stream should last: it takes less than its source's own limit
            (`maxFilesPerTrigger`, `maxOffsetsPerTrigger`) while batches are slower, or while the queue behind it or
            `max_pending` leaves less room; None means that limit alone. See docs/stages.md.
        high_water: the acker's high-water mark: held trees beyond twice this many fail at once, into the
            ordinary retries; None means `max_pending`.
        max_bad_ratio: a source batch of at least 100 rows of which a larger share fails stops the run
            before anything of it is written.
        delivery: `"at_least_once"`; `"at_most_once"`: nothing is tried again; `"exactly_once"`: a tree's rows
            are in the sink all of them and once, or none. See docs/guarantees.md for what each mode needs.
        checkpoint_interval_s: how often stateful bolts are checkpointed
            (Storm: `topology.state.checkpoint.interval.ms`).
        topology: what only a topology has.

    In a topology `ackers=None` means one per worker and `high_water=None` means no high-water mark, as in Storm.

    Raises:
        SettingsError: a name is unknown (the nearest known one is named), a value is out of range, or two do not
            go together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    message_timeout_s: float = Field(default=30.0, ge=SHORTEST_S, le=LONGEST_S)
    ackers: int | None = Field(default=None, ge=0)
    max_attempts: int = Field(default=3, ge=1)
    backoff_initial_s: float = Field(default=1.0, ge=0, le=LONGEST_S)
    backoff_max_s: float = Field(default=60.0, ge=0, le=LONGEST_S)
    max_pending: int = Field(default=1_000_000, ge=1)
    target_batch_s: float | None = Field(default=None, gt=0)
    high_water: int | None = Field(default=None, ge=1)
    max_bad_ratio: float = Field(default=0.5, ge=0, le=1)
    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] = "at_least_once"
    checkpoint_interval_s: float = Field(default=1.0, ge=0.1)
    topology: TopologySettings = TopologySettings()

    def __init__(self, **values: Any) -> None:
        _refuse_unknown(values, type(self).model_fields, "")
        if isinstance(values.get("topology"), Mapping):
            _refuse_unknown(values["topology"], TopologySettings.model_fields, "topology.")
        try:
            super().__init__(**values)
        except ValidationError as error:
            problem = error.errors()[0]
            name = ".".join(str(part) for part in problem["loc"])
            raise SettingsError(f"setting {name!r} = {problem['input']!r}: {problem['msg']}") from None
        if self.ackers == 0 and self.delivery == "exactly_once":
            raise SettingsError("delivery='exactly_once' needs ackers: without them no tree is known to be whole")

    @classmethod
    def from_storm(cls, configuration: Mapping[str, Any]) -> Settings:
        """Read the settings from Storm's own keys; a key without meaning here is said so in one line of the log.

        Args:
            configuration: Storm's `topology.*` keys and values; null means Storm's default.

        Raises:
            SettingsError: a key is not known here; the nearest known one is named.
        """
        check_storm_keys(configuration)
        values: dict[str, Any] = {}
        topology: dict[str, Any] = {}
        for key, value in configuration.items():
            if key in WITHOUT_MEANING:
                _LOG.warning("%s has no meaning here: %s", key, WITHOUT_MEANING[key])
            elif value is None or (key == "topology.max.spout.pending" and str(value) == "0"):
                continue  # null is Storm's default; so is a limit of no tuples
            else:
                name, units_per_storm_unit = {**TOPOLOGY_KEYS, **STORM_KEYS}[key]
                given = topology if key in TOPOLOGY_KEYS else values
                given[name] = value if units_per_storm_unit == 1 else _number(key, value) * units_per_storm_unit
        return cls(**values, topology=topology)

    @classmethod
    def from_spark(cls, spark: Any) -> Settings:
        """Read the settings from a session's `spark.reliable.*` configuration.

        Args:
            spark: a SparkSession, classic or Connect.

        Raises:
            SettingsError: a `spark.reliable.*` key is unknown or its value out of range.
        """
        given = spark.conf.getAll.items() if not hasattr(spark, "_jsparkSession") else _configuration(spark)
        return cls(**{key.removeprefix(SPARK_PREFIX): value for key, value in given if key.startswith(SPARK_PREFIX)})


def given_settings(given: object) -> Settings:
    """The settings that were given, or the defaults for None.

    Raises:
        SettingsError: they are something else, such as a dict; what they should be is in the message.
    """
    if given is None:
        return Settings()
    if not isinstance(given, Settings):
        raise SettingsError(f"settings are given as rs.Settings(...), not as a {type(given).__name__}")
    return given


def _refuse_unknown(values: Mapping[str, Any], fields: Iterable[str], within: str) -> None:
    for name in values:
        if name not in fields:
            raise SettingsError(f"unknown setting {within + name!r}{nearest(name, fields)}")


def _number(key: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise SettingsError(f"{key} = {value!r}: not a number") from None


def _configuration(spark: Any) -> Iterator[tuple[str, str]]:
    """A classic session's configuration, in one call: `getAll` takes one for each key of hundreds."""
    for pair in spark._jsparkSession.conf().getAll().mkString(_SEPARATOR).split(_SEPARATOR):
        key, _, value = pair.partition(" -> ")
        yield key, value


STORM_KEYS: dict[str, tuple[str, float]] = {
    "topology.message.timeout.secs": ("message_timeout_s", 1),
    "topology.acker.executors": ("ackers", 1),
    "topology.max.spout.pending": ("max_pending", 1),
    "topology.state.checkpoint.interval.ms": ("checkpoint_interval_s", 0.001),
}
"""Storm's key -> our setting, and what one of Storm's units is in ours."""

TOPOLOGY_KEYS: dict[str, tuple[str, float]] = {
    "topology.enable.message.timeouts": ("message_timeouts", 1),
    "topology.executor.receive.buffer.size": ("receive_buffer_size", 1),
    "topology.executor.overflow.limit": ("overflow_limit", 1),
    "topology.backpressure.check.millis": ("backpressure_check_s", 0.001),
    "topology.backpressure.wait.strategy": ("wait_strategy", 1),
    "topology.backpressure.wait.progressive.level1.count": ("wait_level1_count", 1),
    "topology.backpressure.wait.progressive.level2.count": ("wait_level2_count", 1),
    "topology.backpressure.wait.progressive.level3.sleep.millis": ("wait_level3_sleep_s", 0.001),
    "topology.backpressure.wait.park.microsec": ("wait_park_s", 1e-6),
    "topology.tick.tuple.freq.secs": ("tick_s", 1),
    "topology.workers": ("workers", 1),
    "topology.tasks": ("tasks", 1),
    "topology.state.provider": ("state_provider", 1),
    "topology.state.provider.config": ("state_provider_config", 1),
}
"""Storm's key -> our setting of a topology, and what one of Storm's units is in ours."""


def check_storm_keys(keys: Iterable[str]) -> None:
    """Raise SettingsError for the first key that Storm does not have, naming the nearest one that it has."""
    known = [*STORM_KEYS, *TOPOLOGY_KEYS, *WITHOUT_MEANING]
    for key in keys:
        if key not in known:
            raise SettingsError(f"unknown Storm key {key!r}{nearest(str(key), known)}")
