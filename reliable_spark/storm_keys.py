"""Storm's configuration keys that mean nothing here: all others of Storm 2's `Config` are settings."""

from __future__ import annotations

_PRESSURE = "a full receive queue always makes its senders wait, as in Storm 2"
_BATCHING = "tuples are not sent in batches of a size of one's own"
_WAITING = "an idle task costs nothing here"
_LOCALITY = "tasks are dealt tuples in turn, wherever they run"
_WINDOWS = "a WindowedBolt has it from with_window() and with_timestamp()"
_SCHEDULING = "there is no scheduler: tasks run where the engine puts them"
_PICKLING = "tuples travel as Python's pickles, and states have a serializer of their own"
_METRICS = "statistics are read by statistics(component), from a ledger or a page"
_PROCESSES = "there is no worker process to set up: the program, or Spark's session, has these settings"
_CLUSTER = "there is no cluster of Storm's whose users, logs and files it could be about"
_SHELL = "bolts and spouts are Python already"
_TRIDENT = "there are no transactional spouts; a FrameBolt has the batches of Trident"

WITHOUT_MEANING: dict[str, str] = {
    "topology.ras.acker.executors.per.worker": "there is no resource-aware scheduler; set topology.acker.executors",
    "topology.stats.sample.rate": "statistics are exact",
    "num.stat.buckets": "statistics have 20 buckets per window",
    "topology.builtin.metrics.bucket.size.secs": "statistics have the windows of Storm's UI",
    "topology.backpressure.enable": _PRESSURE,
    "backpressure.disruptor.high.watermark": _PRESSURE,
    "backpressure.disruptor.low.watermark": _PRESSURE,
    "topology.transfer.buffer.size": _BATCHING,
    "topology.transfer.batch.size": _BATCHING,
    "topology.producer.batch.size": _BATCHING,
    "topology.producer.batch.dynamic": _BATCHING,
    "topology.batch.flush.interval.millis": _BATCHING,
    **{f"topology.{kind}.wait.strategy": _WAITING for kind in ("bolt", "spout")},
    **{
        f"topology.{kind}.wait.progressive.{level}": _WAITING
        for kind in ("bolt", "spout")
        for level in ("level1.count", "level2.count", "level3.sleep.millis")
    },
    **{f"topology.{kind}.wait.park.microsec": _WAITING for kind in ("bolt", "spout")},
    "topology.spout.recvq.skips": _WAITING,
    "topology.disable.loadaware.messaging": _LOCALITY,
    "topology.localityaware.higher.bound": _LOCALITY,
    "topology.localityaware.lower.bound": _LOCALITY,
    "topology.bolts.window.length.count": _WINDOWS,
    "topology.bolts.window.length.duration.ms": _WINDOWS,
    "topology.bolts.window.sliding.interval.count": _WINDOWS,
    "topology.bolts.window.sliding.interval.duration.ms": _WINDOWS,
    "topology.bolts.tuple.timestamp.max.lag.ms": _WINDOWS,
    "topology.bolts.watermark.event.interval.ms": _WINDOWS,
    "topology.bolts.late.tuple.stream": _WINDOWS,
    "topology.bolts.message.id.field.name": "a StatefulWindowedBolt has its tuples in the checkpoint",
    "topology.error.throttle.interval.secs": "every reported error is kept",
    "topology.max.error.report.per.interval": "every reported error is kept",
    "topology.debug": "see what is emitted with TestTopology.emitted()",
    "topology.max.task.parallelism": "give each component the parallelism that it should have",
    "topology.sleep.spout.wait.strategy.time.ms": _WAITING,
    "topology.state.synchronization.timeout.secs": "there are no sources of state to wait for",
    **dict.fromkeys(
        (
            *(f"topology.component.{name}" for name in ("resources.map", "cpu.pcore.percent")),
            *(f"topology.{kind}.cpu.pcore.percent" for kind in ("acker", "metrics.consumer")),
            *(
                f"topology.{kind}.resources.{heap}.memory.mb"
                for kind in ("component", "acker", "metrics.consumer")
                for heap in ("onheap", "offheap")
            ),
            "topology.isolate.machines",
            "topology.priority",
            "topology.ras.constraint.max.state.search",
            "topology.ras.constraint.max.time.secs",
            "topology.ras.constraints",
            "topology.ras.one.component.per.worker",
            "topology.ras.one.executor.per.worker",
            "topology.ras.order.executors.by.proximity.needs",
            "topology.scheduler.favored.nodes",
            "topology.scheduler.strategy",
            "topology.scheduler.unfavored.nodes",
            "topology.spread.components",
        ),
        _SCHEDULING,
    ),
    **dict.fromkeys(
        (
            "topology.fall.back.on.java.serialization",
            "topology.kryo.decorators",
            "topology.kryo.factory",
            "topology.kryo.register",
            "topology.skip.missing.kryo.registrations",
            "topology.state.kryo.register",
            "topology.testing.always.try.serialize",
            "topology.tuple.serializer",
        ),
        _PICKLING,
    ),
    **dict.fromkeys(
        (
            "topology.auto.task.hooks",
            "topology.enable.v2.metrics.tick",
            "topology.event.logger.register",
            "topology.eventlogger.executors",
            "topology.metrics.consumer.register",
            "topology.serialized.message.size.metrics",
            "topology.worker.metrics",
        ),
        _METRICS,
    ),
    **dict.fromkeys(
        (
            "topology.classpath",
            "topology.classpath.beginning",
            "topology.environment",
            "topology.worker.childopts",
            "topology.worker.gc.childopts",
            "topology.worker.logwriter.childopts",
            "topology.worker.max.heap.size.mb",
            "topology.worker.shared.thread.pool.size",
            "topology.worker.timeout.secs",
        ),
        _PROCESSES,
    ),
    **dict.fromkeys(
        (
            "topology.auto-credentials",
            "topology.blobstore.map",
            "topology.groups",
            "topology.logging.config",
            "topology.logging.sensitivity",
            "topology.max.replication.wait.time.sec",
            "topology.min.replication.count",
            "topology.name",
            "topology.readonly.groups",
            "topology.readonly.users",
            "topology.submitter.principal",
            "topology.submitter.user",
            "topology.users",
            "topology.version",
        ),
        _CLUSTER,
    ),
    **dict.fromkeys(
        (
            "topology.multilang.log.handler",
            "topology.multilang.serializer",
            "topology.shellbolt.max.pending",
            "topology.subprocess.timeout.secs",
        ),
        _SHELL,
    ),
    **dict.fromkeys(
        (
            "topology.transactional.id",
            "topology.trident.batch.emit.interval.millis",
            "topology.trident.windowing.cache.tuple.limit",
        ),
        _TRIDENT,
    ),
}
"""Storm's keys that are accepted and do nothing, and why."""
