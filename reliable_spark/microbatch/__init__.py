"""Runs a topology on Spark, in micro-batches: one row of a frame is one task with all that arrived for it."""

from reliable_spark.microbatch.cluster import Here, SparkCluster
from reliable_spark.microbatch.engine import MicroBatchEngine
from reliable_spark.microbatch.states import with_states_below

__all__ = ["Here", "MicroBatchEngine", "SparkCluster", "with_states_below"]
