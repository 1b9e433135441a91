"""reliable_spark: every row of a Spark DataFrame is answered, acked or dead.

Importing the package gives every DataFrame the method `anchored`.
"""

from reliable_spark.anchoring import anchored, register
from reliable_spark.bolts import HOLD, BatchContext, Fail, TupleRow, arrow, pandas
from reliable_spark.clock import Clock, ManualClock, SystemClock
from reliable_spark.engine.outcome import Outcome
from reliable_spark.engine.query import Query
from reliable_spark.errors import (
    ColumnError,
    LedgerError,
    OperatingError,
    ReliableSparkError,
    SchemaError,
    SettingsError,
    SinkError,
    StateError,
    TooManyFailures,
    TopologyError,
    UsageError,
)
from reliable_spark.frame import AnchoredFrame, from_stage
from reliable_spark.frame_bolt import FrameBolt
from reliable_spark.grouped import GroupedFrame
from reliable_spark.session import configure, session
from reliable_spark.settings import Settings
from reliable_spark.sinks.base import Delivery
from reliable_spark.stages.starting import ChainQuery
from reliable_spark.state import KeyValueState, MemoryStateProvider, State, StateProvider
from reliable_spark.submission import RunningTopology, submit_topology
from reliable_spark.topology import (
    Backoff,
    BasicBolt,
    BasicOutputCollector,
    Count,
    CustomStreamGrouping,
    DataFrameSpout,
    Duration,
    JoinBolt,
    JoinSide,
    Log,
    LogSpout,
    LogSpoutSettings,
    OutputCollector,
    OutputFieldsDeclarer,
    Record,
    ReportedFail,
    RichBolt,
    Spout,
    SpoutOutputCollector,
    StatefulBolt,
    StatefulWindowedBolt,
    Topology,
    TopologyBuilder,
    TopologyContext,
    Tuple,
    TupleWindow,
    WindowedBolt,
    WindowedCollector,
)

__version__ = "0.1.0"

__all__ = [
    "HOLD",
    "AnchoredFrame",
    "Backoff",
    "BasicBolt",
    "BasicOutputCollector",
    "BatchContext",
    "ChainQuery",
    "Clock",
    "ColumnError",
    "Count",
    "CustomStreamGrouping",
    "DataFrameSpout",
    "Delivery",
    "Duration",
    "Fail",
    "FrameBolt",
    "GroupedFrame",
    "JoinBolt",
    "JoinSide",
    "KeyValueState",
    "LedgerError",
    "Log",
    "LogSpout",
    "LogSpoutSettings",
    "ManualClock",
    "MemoryStateProvider",
    "OperatingError",
    "Outcome",
    "OutputCollector",
    "OutputFieldsDeclarer",
    "Query",
    "Record",
    "ReliableSparkError",
    "ReportedFail",
    "RichBolt",
    "RunningTopology",
    "SchemaError",
    "Settings",
    "SettingsError",
    "SinkError",
    "Spout",
    "SpoutOutputCollector",
    "State",
    "StateError",
    "StateProvider",
    "StatefulBolt",
    "StatefulWindowedBolt",
    "SystemClock",
    "TooManyFailures",
    "Topology",
    "TopologyBuilder",
    "TopologyContext",
    "TopologyError",
    "Tuple",
    "TupleRow",
    "TupleWindow",
    "UsageError",
    "WindowedBolt",
    "WindowedCollector",
    "anchored",
    "arrow",
    "configure",
    "from_stage",
    "pandas",
    "session",
    "submit_topology",
]

register()
