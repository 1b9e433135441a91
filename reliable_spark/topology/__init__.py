"""Topologies as Storm has them: spouts and bolts, joined by groupings."""

from reliable_spark.core.retry_schedule import Backoff
from reliable_spark.topology.bolts import BasicBolt, BasicOutputCollector, OutputCollector, ReportedFail, RichBolt
from reliable_spark.topology.builder import BoltDeclarer, CustomStreamGrouping, SpoutDeclarer, Topology, TopologyBuilder
from reliable_spark.topology.context import TopologyContext
from reliable_spark.topology.declarer import OutputFieldsDeclarer
from reliable_spark.topology.frame_spout import DataFrameSpout
from reliable_spark.topology.join import JoinBolt, JoinSide
from reliable_spark.topology.log_spout import Log, LogSpout, LogSpoutSettings, Record
from reliable_spark.topology.spouts import Spout, SpoutOutputCollector
from reliable_spark.topology.stateful import StatefulBolt
from reliable_spark.topology.stateful_windowed import StatefulWindowedBolt
from reliable_spark.topology.tuples import Tuple
from reliable_spark.topology.windowed import Count, Duration, TupleWindow, WindowedBolt, WindowedCollector

__all__ = [
    "Backoff",
    "BasicBolt",
    "BasicOutputCollector",
    "BoltDeclarer",
    "Count",
    "CustomStreamGrouping",
    "DataFrameSpout",
    "Duration",
    "JoinBolt",
    "JoinSide",
    "Log",
    "LogSpout",
    "LogSpoutSettings",
    "OutputCollector",
    "OutputFieldsDeclarer",
    "Record",
    "ReportedFail",
    "RichBolt",
    "Spout",
    "SpoutDeclarer",
    "SpoutOutputCollector",
    "StatefulBolt",
    "StatefulWindowedBolt",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "Tuple",
    "TupleWindow",
    "WindowedBolt",
    "WindowedCollector",
]
