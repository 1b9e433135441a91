"""What topologies are tested with: the same topology, in one process, on a simulated clock."""

from reliable_spark.testing.engine import Engine
from reliable_spark.testing.kit import AckEveryOther, AckOnly, Aggregate, Branch, DupAnchor, FeedSpout, Identity
from reliable_spark.testing.topology import TestTopology

__all__ = [
    "AckEveryOther",
    "AckOnly",
    "Aggregate",
    "Branch",
    "DupAnchor",
    "Engine",
    "FeedSpout",
    "Identity",
    "TestTopology",
]
