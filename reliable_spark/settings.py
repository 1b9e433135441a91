"""Settings: one frozen object, checked once, units in the names, Storm's key beside each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from reliable_spark.errors import SettingsError, nearest

SPARK_PREFIX = "spark.reliable."


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
        high_water: the acker's high-water mark: held trees beyond twice this many fail at once, into the
            ordinary retries; None means `max_pending`.
        max_bad_ratio: a source batch of at least 100 rows of which a larger share fails stops the run
            before anything of it is written.
        delivery: `"at_least_once"`; `"at_most_once"`: nothing is tried again; `"exactly_once"`: a tree's rows
            are in the sink all of them and once, or none. See docs/guarantees.md for what each mode needs.
        checkpoint_interval_s: how often stateful bolts are checkpointed
            (Storm: `topology.state.checkpoint.interval.ms`).

    Raises:
        SettingsError: a name is unknown (the nearest known one is named), a value is out of range, or two do not
            go together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    message_timeout_s: float = Field(default=30.0, gt=0)
    ackers: int | None = Field(default=None, ge=0)
    max_attempts: int = Field(default=3, ge=1)
    backoff_initial_s: float = Field(default=1.0, ge=0)
    backoff_max_s: float = Field(default=60.0, ge=0)
    max_pending: int = Field(default=1_000_000, ge=1)
    high_water: int | None = Field(default=None, ge=1)
    max_bad_ratio: float = Field(default=0.5, ge=0, le=1)
    delivery: Literal["at_most_once", "at_least_once", "exactly_once"] = "at_least_once"
    checkpoint_interval_s: float = Field(default=1.0, ge=0.1)

    def __init__(self, **values: Any) -> None:
        unknown = [name for name in values if name not in type(self).model_fields]
        if unknown:
            raise SettingsError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], type(self).model_fields)}")
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
        """Read the settings from Storm's own keys.

        Args:
            configuration: Storm's `topology.*` keys and values.

        Raises:
            SettingsError: a key is not known here; the nearest known one is named.
        """
        values: dict[str, Any] = {}
        for key, value in configuration.items():
            if key not in STORM_KEYS:
                raise SettingsError(f"unknown Storm key {key!r}{nearest(key, STORM_KEYS)}")
            name, units_per_storm_unit = STORM_KEYS[key]
            if value is not None:
                values[name] = value * units_per_storm_unit if units_per_storm_unit != 1 else value
        return cls(**values)

    @classmethod
    def from_spark(cls, spark: Any) -> Settings:
        """Read the settings from a session's `spark.reliable.*` configuration.

        Args:
            spark: a SparkSession, classic or Connect.

        Raises:
            SettingsError: a `spark.reliable.*` key is unknown or its value out of range.
        """
        values: dict[str, Any] = {}
        for key, value in spark.conf.getAll.items():
            if key.startswith(SPARK_PREFIX):
                values[key.removeprefix(SPARK_PREFIX)] = value
        return cls(**values)


STORM_KEYS: dict[str, tuple[str, float]] = {
    "topology.message.timeout.secs": ("message_timeout_s", 1),
    "topology.acker.executors": ("ackers", 1),
    "topology.max.spout.pending": ("max_pending", 1),
    "topology.state.checkpoint.interval.ms": ("checkpoint_interval_s", 0.001),
}
"""Storm's key -> our setting, and what one of Storm's units is in ours."""
