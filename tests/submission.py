"""How a test starts a job by spark-submit: by which command, in which environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from reliable_spark.jars import delta_jars, spark_home

ROOT = Path(__file__).parents[1]
QUIET_JAVA = f"-Dlog4j2.configurationFile={ROOT / 'reliable_spark' / 'log4j2.properties'}"
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""As tests/conf has it, and says why; options on a command line take that file's place."""


def submit_command(*arguments: str) -> list[str]:
    """Spark-submit on two cores, with Delta and our quiet log, and what follows: options, the job, what is its own."""
    java = ["--driver-java-options", f"{QUIET_JAVA} {QUICK_JAVA}"]
    jars = ["--jars", ",".join(delta_jars())]
    return [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]", *jars, *java, *arguments]


def submit_environment() -> dict[str, str]:
    """This process's environment, in which the job finds this library and this interpreter."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
