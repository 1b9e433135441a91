"""Where acked rows go: a Delta table, a function, or nowhere."""

from reliable_spark.sinks.base import Prepared, Sink, resolve_sink

__all__ = ["Prepared", "Sink", "resolve_sink"]
