"""The process that Spark forks its Python workers from, with what a bolt needs loaded before the first of them.

Guarantee: the workers are Spark's own; only their start is shorter, by the second that it takes to import pandas,
pyarrow and this package. That matters after a crash, when a new worker has to take over. And after each task Spark lets
a worker collect its garbage: what is loaded here is left out, where looking through it took 0.07 s or more.

Spark starts it when `spark.python.daemon.module` names it; `session` and `configure` do that for local masters.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401 - loaded for the workers
import pyarrow.compute  # noqa: F401
from pyspark.daemon import manager

import reliable_spark.engine.bolt_run
import reliable_spark.engine.stateful_task
import reliable_spark.microbatch.work  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
