"""Files where Spark sees them: through Hadoop, so that any storage that Spark can write to can be looked at."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def located(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """A path and the file system that it lies in, as Hadoop's `FileSystem` and `Path`."""
    java: Any = spark._jvm
    path = java.org.apache.hadoop.fs.Path(place)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path
