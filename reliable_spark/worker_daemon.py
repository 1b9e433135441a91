"""The process that Spark forks its Python workers from, with what a bolt needs loaded before the first of them.

Guarantee: the workers are Spark's own; only their start is shorter, by the second that it takes to import pandas,
pyarrow and this package. That matters after a crash, when a new worker has to take over.

Spark starts it when `spark.python.daemon.module` names it; `session` and `configure` do that for local masters.
"""

from __future__ import annotations

import pandas  # noqa: F401 - loaded for the workers
import pyarrow.compute  # noqa: F401
from pyspark.daemon import manager

import reliable_spark.engine.forked  # noqa: F401

if __name__ == "__main__":
    manager()
