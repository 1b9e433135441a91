"""Storm's configuration keys: what is read, what has no meaning, what is refused."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest

import reliable_spark as rs
from reliable_spark.settings import STORM_KEYS, TOPOLOGY_KEYS
from reliable_spark.storm_keys import WITHOUT_MEANING
from tests.topology.pieces import AckOnly, FeedSpout, TopologyBuilder, feed, line, started


def test_every_storm_key_is_accepted_and_what_has_no_meaning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """One line for each key without meaning, none for the others."""
    with caplog.at_level(logging.INFO):
        rs.Settings.from_storm(dict.fromkeys([*STORM_KEYS, *TOPOLOGY_KEYS]))
        assert caplog.messages == []
        rs.Settings.from_storm(dict.fromkeys(WITHOUT_MEANING, 1))
    assert len(caplog.messages) == len(WITHOUT_MEANING)
    assert all("has no meaning here" in message for message in caplog.messages)


@pytest.mark.parametrize(
    "key",
    [
        "topology.debug",
        "topology.max.task.parallelism",
        "topology.worker.childopts",
        "topology.kryo.register",
        "topology.metrics.consumer.register",
        "topology.component.resources.onheap.memory.mb",
        "topology.acker.cpu.pcore.percent",
        "topology.scheduler.strategy",
        "topology.subprocess.timeout.secs",
        "topology.name",
    ],
)
def test_what_most_of_storms_topologies_set_is_accepted(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """`Config.setDebug`, `setMaxTaskParallelism` and their kin, of a topology and of a component."""
    assert rs.Settings.from_storm({key: 1}) == rs.Settings()
    assert caplog.messages == [f"{key} has no meaning here: {WITHOUT_MEANING[key]}"]
    TopologyBuilder().set_bolt("b", AckOnly()).add_configuration(key, 1)


def test_the_topologys_own_settings_are_read() -> None:
    """They are a frozen part of the settings; a limit of 0 is none."""
    settings = rs.Settings.from_storm(
        {
            "topology.enable.message.timeouts": False,
            "topology.tick.tuple.freq.secs": 5,
            "topology.workers": 3,
            "topology.tasks": 2,
            "topology.max.spout.pending": 0,
        }
    )
    own = settings.topology
    assert (own.message_timeouts, own.tick_s, own.workers, own.tasks) == (False, 5, 3, 2)
    assert settings.max_pending == rs.Settings().max_pending
    with pytest.raises(rs.SettingsError, match=r"topology\.tick_s"):
        rs.Settings.from_storm({"topology.tick.tuple.freq.secs": -1})


@pytest.mark.parametrize(
    "declare",
    [
        lambda: rs.Settings.from_storm({"topology.tick.tuple.freq.sec": 5}),
        lambda: TopologyBuilder().set_bolt("b", AckOnly()).add_configuration("topology.tick.tuple.freq.sec", 5),
    ],
)
def test_an_unknown_key_names_the_nearest(declare: Callable[[], Any]) -> None:
    """Of the topology and of a component alike."""
    with pytest.raises(rs.SettingsError, match=r"did you mean 'topology\.tick\.tuple\.freq\.secs'"):
        declare()


def test_topology_tasks_is_the_number_of_tasks_of_components_that_do_not_say() -> None:
    """A component with `set_num_tasks` keeps its own."""
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"]), 1)
    builder.set_bolt("b", AckOnly(), 1).all_grouping("s")
    builder.set_bolt("c", AckOnly(), 1).set_num_tasks(2).all_grouping("s")
    topology = started(builder, tasks=4)
    feed(topology, 1)
    assert (topology.executed("b"), topology.executed("c"), topology.acks("s")) == (4, 2, [1])


class Configured(AckOnly):
    """Has a configuration of its own."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self.configuration = configuration

    def component_configuration(self) -> dict[str, Any]:
        return self.configuration


@pytest.mark.parametrize(
    ("key", "values", "allowed"),
    [
        (
            "topology.tick.tuple.freq.secs",
            [-1, 0, 1e-9, float("nan"), float("inf"), "x", True],
            "a number of seconds, 0.000001 or more, or None",
        ),
        (
            "topology.message.timeout.secs",
            [-1, 0, float("nan"), "x", None],
            "a number of seconds, 0.000001 or more",
        ),
        (
            "topology.max.spout.pending",
            [-1, 1.5, "x", True],
            "a whole number, 1 or more, or 0 or None for the topology's",
        ),
    ],
)
def test_a_component_cannot_have_such_a_value(key: str, values: list[Any], allowed: str) -> None:
    """Refused where it is written; what a component has by itself, when the topology is built."""
    for value in values:
        said = re.escape(f"{key} of 'b1' is {allowed}, not {value!r}")
        with pytest.raises(rs.SettingsError, match=said):
            TopologyBuilder().set_bolt("b1", AckOnly()).add_configuration(key, value)
        with pytest.raises(rs.SettingsError, match=said):
            line(Configured({key: value})).build()


def test_a_spout_cannot_wait_for_less_than_nothing() -> None:
    """It would never emit; 0 and None are the topology's limit."""
    with pytest.raises(rs.SettingsError, match=r"topology\.max\.spout\.pending of 's' is .* not -1"):
        TopologyBuilder().set_spout("s", FeedSpout(["value"])).set_max_spout_pending(-1)
    builder = TopologyBuilder()
    builder.set_spout("s", FeedSpout(["value"])).set_max_spout_pending(0)
    builder.set_bolt("b", AckOnly()).add_configuration("topology.tick.tuple.freq.secs", None).shuffle_grouping("s")
    topology = started(builder)
    feed(topology, 1)
    assert topology.acks("s") == [1]


@pytest.mark.parametrize("storm", [{"tick_tuple_freq_secs": 1e-9}, {"timeout": 1e-9}], ids=str)
def test_a_period_of_less_than_a_microsecond_is_refused(storm: dict[str, Any]) -> None:
    """As a setting, before there is a timer, which would ring for ever."""
    with pytest.raises(rs.SettingsError, match=r"= 1e-09: .* 0\.000001"):
        started(line(AckOnly()), **storm)


def test_a_components_tick_period_is_its_own() -> None:
    """It wins over the topology's."""
    builder = line(AckOnly(), AckOnly())
    builder.set_bolt("fast", AckOnly(), 1).add_configuration("topology.tick.tuple.freq.secs", 1).shuffle_grouping("s")
    topology = started(builder, tick_tuple_freq_secs=5)
    topology.advance(10)
    assert (topology.executed("fast"), topology.executed("b1")) == (10, 2)
