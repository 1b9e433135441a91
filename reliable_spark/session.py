"""A Spark session that reads and writes Delta tables, quiet and quick on small machines.

What is added depends on who starts the JVM. When Python starts it, everything can be given: Delta's jars
from disk, memory, a quiet log. When it runs already (`spark-submit`), only SQL settings can still be added.
What the user chose, in the builder, on the command line, in the environment or in `spark-defaults.conf`,
stays.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.sql import SparkSession

from reliable_spark.errors import UsageError
from reliable_spark.jars import PACKAGE, delta_jars, spark_defaults, spark_home

_EXTENSIONS = "spark.sql.extensions"
_CATALOG = "spark.sql.catalog.spark_catalog"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_GIB = 1024**3
_MASTER = "local[*, 2]"
"""A task that failed runs once more, as it does on a cluster: a bolt whose worker died is isolated within its job."""

_DRIVER_MEMORY_MAX = 4 * _GIB

_SUBMIT_OPTIONS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": _JAVA_OPTIONS,
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
}
_ENVIRONMENT = {"MASTER": "spark.master", "SPARK_DRIVER_MEMORY": "spark.driver.memory"}


def session(name: str = "reliable_spark") -> SparkSession:
    """Give a Delta-enabled session: the active one, or a new one, local unless a master is chosen elsewhere.

    Args:
        name: the application's name, for a new session.

    Returns:
        The session. Its jars come from disk; the first start on a machine fetches them.

    Raises:
        UsageError: a session is active, or a JVM is running, that cannot work with Delta tables.
        OperatingError: Delta's jars are not on this machine and cannot be fetched.
    """
    active = _active_with_delta()
    if active is not None:
        return active
    spark = configure(SparkSession.builder.appName(name)).getOrCreate()
    if not _remote({}):
        _require_classes()
    return spark


def configure(builder: SparkSession.Builder) -> SparkSession.Builder:
    """Add to a user's own builder what is missing for Delta and for small machines.

    Nothing that the user chose is changed; session extensions, jars and Java options are appended to. Workers
    use this interpreter (`PYSPARK_PYTHON`, `PYSPARK_DRIVER_PYTHON`) unless another one is chosen. A builder
    for Spark Connect is given back as it is: there the server decides.

    Args:
        builder: any classic builder; options set on it later still win.

    Returns:
        The same builder.

    Raises:
        UsageError: a session is active, or a JVM is running, that cannot work with Delta tables.
        OperatingError: Delta's jars are not on this machine and cannot be fetched.
    """
    options = {key: str(value) for key, value in builder._options.items()}
    if _remote(options) or _active_with_delta() is not None:
        return builder
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        chosen = _chosen_before_start() | options
        missing = sql_settings(chosen) | start_settings(chosen)
    else:
        SparkContext._ensure_initialized()
        _require_classes()
        chosen = dict(SparkConf().getAll()) | options
        missing = sql_settings(chosen)
    if "spark.pyspark.python" not in chosen:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return builder.config(map=dict(missing))


def sql_settings(chosen: Mapping[str, str]) -> dict[str, str]:
    """Give the SQL settings that are missing from what was chosen; they can be added while a JVM runs.

    Args:
        chosen: the user's settings, by Spark's keys.

    Returns:
        Only keys that are not chosen, and the extensions when Delta's is not among them.
    """
    wanted = {
        _CATALOG: _DELTA_CATALOG,
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A plain F.udf over a vectorised scan hangs for ever when it is run through Arrow (SPARK-58241).
        "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    }
    cores = local_cores(chosen.get("spark.master", _MASTER))
    if cores is not None:
        wanted["spark.sql.shuffle.partitions"] = str(cores)
        # VACUUM lists directories in as many tasks as this says: 10,000 by default, 70 s for an empty one.
        wanted["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = str(4 * cores)
        wanted["spark.databricks.delta.snapshotPartitions"] = "2"
    missing = {key: value for key, value in wanted.items() if key not in chosen}
    extensions = [part.strip() for part in chosen.get(_EXTENSIONS, "").split(",") if part.strip()]
    if _DELTA_EXTENSION not in extensions:
        missing[_EXTENSIONS] = ",".join([*extensions, _DELTA_EXTENSION])
    return missing


def start_settings(chosen: Mapping[str, str]) -> dict[str, str]:
    """Give the settings missing from what was chosen that only a JVM about to start can take.

    Args:
        chosen: the user's settings, by Spark's keys.

    Returns:
        Only keys that are not chosen; jars and Java options with the user's own in front.

    Raises:
        OperatingError: Delta's jars are not on this machine and cannot be fetched.
    """
    master = chosen.get("spark.master", _MASTER)
    wanted = {"spark.master": master, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if local_cores(master) is not None:
        wanted["spark.driver.memory"] = f"{min(_DRIVER_MEMORY_MAX, _machine_memory() // 2) // 1024**2}m"
        addresses = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if "SPARK_LOCAL_IP" not in os.environ and not addresses.keys() & chosen.keys():
            wanted |= addresses
        python = chosen.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON", sys.executable)
        if python == sys.executable:
            wanted["spark.python.daemon.module"] = "reliable_spark.worker_daemon"
    missing = {key: value for key, value in wanted.items() if key not in chosen}
    if "io.delta:delta-spark" not in chosen.get("spark.jars.packages", ""):
        given = chosen.get("spark.jars", "")
        missing["spark.jars"] = ",".join([*filter(None, [given]), *delta_jars(chosen.get("spark.jars.ivy"))])
    return missing | _quiet(chosen)


def local_cores(master: str) -> int | None:
    """Give the number of cores that a local master uses, or None when the master is not a local one."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*(?:\*|\d+))?\])?", master.strip())
    if match is None:
        return None
    if match[1] == "*":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(match[1] or 1)


def _quiet(chosen: Mapping[str, str]) -> dict[str, str]:
    """Log errors only, unless the user chose a level or configures the log."""
    java_options = chosen.get(_JAVA_OPTIONS, "")
    own = [Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf") / "log4j2.properties"]
    if "spark.log.level" in chosen or "log4j" in java_options or any(path.exists() for path in own):
        return {}
    option = f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}"
    return {_JAVA_OPTIONS: f"{java_options} {option}".strip()}


def _chosen_before_start() -> dict[str, str]:
    """Collect what was chosen outside the builder: in the defaults file and in the environment."""
    chosen = spark_defaults()
    chosen |= {key: os.environ[name] for name, key in _ENVIRONMENT.items() if name in os.environ}
    words = iter(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")))
    for word in words:
        option, _, value = word.partition("=")
        if option in ("--conf", "-c"):
            key, _, value = (value or next(words, "")).partition("=")
            chosen[key] = value
        elif option in _SUBMIT_OPTIONS:
            chosen[_SUBMIT_OPTIONS[option]] = value or next(words, "")
    return chosen


def _machine_memory() -> int:
    """Give the bytes of memory that this process may use: the machine's, or its control group's if less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return machine
    return min(machine, int(limit)) if limit.isdigit() else machine


def _remote(options: Mapping[str, str]) -> bool:
    """Tell whether sessions go to a Spark Connect server."""
    named = {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"} & os.environ.keys()
    return "spark.remote" in options or bool(named)


def _active_with_delta() -> SparkSession | None:
    """Give the running session, or None; refuse one that cannot work with Delta tables."""
    if _remote({}) or SparkContext._active_spark_context is None:
        return None
    spark = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    given = spark.sparkContext.getConf()
    missing = []
    if _DELTA_EXTENSION not in (given.get(_EXTENSIONS) or ""):
        missing.append(f"{_EXTENSIONS}={_DELTA_EXTENSION}")
    if spark.conf.get(_CATALOG, None) is None:
        missing.append(f"{_CATALOG}={_DELTA_CATALOG}")
    if missing:
        raise UsageError(
            f"a Spark session is active that lacks {' and '.join(missing)}, to be set before it starts:"
            " build it with reliable_spark.configure(builder), or stop it first"
        )
    _require_classes()
    return spark


def _require_classes() -> None:
    """Refuse a running JVM that cannot load Delta's classes."""
    jvm = SparkContext._jvm
    assert jvm is not None, "called only after the JVM was started"
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_DELTA_EXTENSION):
        raise UsageError(
            "Delta is not on the classpath of the running Spark, which cannot be changed: start it with\n"
            f"    spark-submit --packages {PACKAGE}\n"
            'or, without a download, with\n    spark-submit --jars "$(reliable-spark jars)"'
        )
