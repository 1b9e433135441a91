"""Settings are checked once, whoever gives them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import reliable_spark as rs


def test_the_defaults_are_storms_where_storm_has_them() -> None:
    """A tree times out after 30 seconds; nothing else needs to be set."""
    settings = rs.Settings()
    assert (settings.message_timeout_s, settings.max_attempts, settings.ackers) == (30.0, 3, None)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"message_timeout": 3}, "did you mean 'message_timeout_s'"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_bad_ratio": 1.5}, "max_bad_ratio"),
        ({"backoff_initial_s": float("nan")}, "backoff_initial_s"),
        ({"ackers": -1}, "ackers"),
        ({"delivery": "sometimes"}, "delivery"),
        ({"message_timeout_s": 1e300}, "message_timeout_s"),
        ({"topology": {"worker": 1}}, "unknown setting 'topology.worker'; did you mean 'workers'"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, Any], said: str) -> None:
    """An unknown name brings the nearest known one, a wrong value its name."""
    with pytest.raises(rs.SettingsError, match=said):
        rs.Settings(**values)


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        (
            {"topology.state.checkpoint.interval.ms": "soon"},
            "topology.state.checkpoint.interval.ms = 'soon': not a number",
        ),
        ({1: 1}, "unknown Storm key 1"),
    ],
)
def test_a_wrong_storm_value_is_named(configuration: dict[Any, Any], said: str) -> None:
    """One line says which key, whatever its value is."""
    with pytest.raises(rs.SettingsError, match=said):
        rs.Settings.from_storm(configuration)


def test_storms_values_may_be_text() -> None:
    """As they are in a properties file."""
    given = {"topology.state.checkpoint.interval.ms": "2000", "topology.max.spout.pending": "0"}
    assert rs.Settings.from_storm(given) == rs.Settings(checkpoint_interval_s=2)


def test_settings_cannot_be_changed() -> None:
    """The object is frozen."""
    with pytest.raises(Exception, match="frozen"):
        rs.Settings().max_attempts = 5


def test_storms_keys_are_read_in_storms_units() -> None:
    """Seconds and milliseconds become seconds; null means the default."""
    settings = rs.Settings.from_storm(
        {
            "topology.message.timeout.secs": 10,
            "topology.state.checkpoint.interval.ms": 2500,
            "topology.acker.executors": 0,
            "topology.max.spout.pending": None,
        }
    )
    assert (settings.message_timeout_s, settings.checkpoint_interval_s, settings.ackers) == (10, 2.5, 0)
    assert settings.max_pending == rs.Settings().max_pending


def test_an_unknown_storm_key_is_an_error() -> None:
    """The nearest known key is named."""
    with pytest.raises(rs.SettingsError, match=r"did you mean 'topology\.message\.timeout\.secs'"):
        rs.Settings.from_storm({"topology.message.timeout.sec": 10})


def test_spark_conf_is_read_as_text() -> None:
    """`spark.reliable.*` values are texts; a misspelt one is an error."""

    def session(**conf: str) -> Any:
        return SimpleNamespace(
            conf=SimpleNamespace(getAll={f"spark.reliable.{key}": value for key, value in conf.items()})
        )

    assert rs.Settings.from_spark(session(max_attempts="5", message_timeout_s="1.5")).max_attempts == 5
    with pytest.raises(rs.SettingsError, match="max_attempts"):
        rs.Settings.from_spark(session(max_atempts="5"))


def test_exactly_once_without_ackers_is_refused() -> None:
    """Two settings that do not go together are said so at once."""
    with pytest.raises(rs.SettingsError, match="needs ackers"):
        rs.Settings(ackers=0, delivery="exactly_once")
