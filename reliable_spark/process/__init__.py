"""Runs a topology inside one process, without a JVM."""

from reliable_spark.process.engine import ProcessEngine

__all__ = ["ProcessEngine"]
