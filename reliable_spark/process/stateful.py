"""What the tasks of a topology with stateful bolts need: where their states are, and that these fit the tasks."""

from __future__ import annotations

from typing import Any

from reliable_spark.core.graph import CHECKPOINT_SPOUT, WINDOWS
from reliable_spark.errors import SettingsError
from reliable_spark.process.world import World
from reliable_spark.state import provider_of
from reliable_spark.topology.builder import Topology
from reliable_spark.topology.checkpoint_spout import INTERVAL_KEY, PROVIDER_KEY
from reliable_spark.topology.checkpointed import StatefulBoltExecutor
from reliable_spark.topology.resharding import Sharding, reshard
from reliable_spark.topology.stateful import shard_rule
from reliable_spark.topology.stateful_windowed_executor import StatefulWindowedBoltExecutor

_UNDIVIDED = (
    "bolt {!r} has another number of tasks than its windows, which cannot be divided: a task's counts and its "
    "watermark are not those of its keys; run it with as many tasks as before, or under another id, to begin anew"
)


def state_keys(world: World) -> dict[str, Any]:
    """Storm's keys that stateful bolts and their coordinator read; none in a topology without them.

    Raises:
        SettingsError: no checkpoint could ever end, or there is no such state provider.
    """
    settings = world.settings
    if CHECKPOINT_SPOUT not in world.graph.components:
        return {}
    if not world.is_tracking:
        raise SettingsError(
            "checkpoints of stateful bolts need ackers: without them nobody knows that all bolts answered"
        )
    if settings.topology.message_timeouts and settings.checkpoint_interval_s >= settings.message_timeout_s:
        raise SettingsError(
            f"checkpoint_interval_s={settings.checkpoint_interval_s} must be less than "
            f"message_timeout_s={settings.message_timeout_s}: tuples are acked at a checkpoint and would time out first"
        )
    provider = provider_of(settings.topology.state_provider or "memory", settings.topology.state_provider_config)
    return {PROVIDER_KEY: provider, INTERVAL_KEY: settings.checkpoint_interval_s * 1000}


def fit_states(world: World, topology: Topology, keys: dict[str, Any]) -> None:
    """Move the keys of every bolt whose number of tasks has changed.

    Raises:
        TopologyError: one of them has windows.
    """
    bolts: dict[str, Sharding] = {}
    for name, each in topology.components.items():
        if isinstance(each, StatefulBoltExecutor):
            rule = shard_rule(each.bolt, topology.graph.components[name])
            bolts[name] = sharding = Sharding(len(world.tasks[name]), rule)
            if isinstance(each.bolt, StatefulWindowedBoltExecutor):
                bolts[WINDOWS + name] = sharding._replace(refusal=_UNDIVIDED.format(name))
    if bolts:
        reshard(keys[PROVIDER_KEY], bolts)
