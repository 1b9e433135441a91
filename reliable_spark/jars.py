"""Delta's jars on this machine: found on disk within milliseconds, fetched there once.

Of the 33 jars that Delta's package resolves to, Spark brings most itself, and two are enough to read, write
and stream Delta tables and to use the `DeltaTable` API: `delta-spark` and `delta-storage`. The rest serves
Unity Catalog and Delta's reader on the kernel, which stay off unless asked for: whoever wants them names the
package.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from zipfile import is_zipfile

from reliable_spark.errors import OperatingError

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"

_FILES = ("delta-spark_4.2_2.13-4.4.0.jar", "delta-storage-4.4.0.jar")
_NOT_NEEDED = (
    "com.*:*",
    "commons-*:*",
    "io.airlift:*",
    "io.delta:delta-kernel-*",
    "io.unitycatalog:*",
    "javax.*:*",
    "org.*:*",
)
_FETCH_TIMEOUT_S = 600
_LINES_SHOWN = 12


def delta_jars(ivy: str | Path | None = None) -> list[str]:
    """Give the absolute paths of the jars that Spark needs for Delta tables, fetching them at most once.

    Every path is a whole jar when this returns. Of processes that call it at the same time one fetches and
    the others wait. When the jars are there, no process is started and nothing but the disk is read.

    Args:
        ivy: Ivy's directory; by default `RELIABLE_SPARK_IVY`, else `spark.jars.ivy` of `spark-defaults.conf`,
            else `~/.ivy2.5.2`, where Spark itself keeps it.

    Returns:
        The paths, in a fixed order; those of Spark's own `jars` directory when Delta is installed there.

    Raises:
        OperatingError: the jars are not there and cannot be fetched.
    """
    directory = _ivy_directory(ivy)
    found = _on_disk(directory)
    if found:
        return found
    with _one_at_a_time(directory):
        found = _on_disk(directory)
        if not found:
            _fetch(directory)
            found = _on_disk(directory)
    if not found:
        raise OperatingError(f"{PACKAGE} was resolved, yet its jars are not in {directory / 'jars'}")
    return found


def spark_home() -> Path:
    """Give the directory of the Spark that PySpark would start, without importing PySpark.

    Raises:
        OperatingError: `SPARK_HOME` is not set and PySpark is not installed.
    """
    if "SPARK_HOME" in os.environ:
        return Path(os.environ["SPARK_HOME"])
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise OperatingError("there is no Spark: install pyspark, or set SPARK_HOME")
    return Path(spec.origin).parent


def spark_defaults() -> dict[str, str]:
    """Give what the user's `spark-defaults.conf` sets; empty when there is none."""
    directory = Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")
    try:
        text = (directory / "spark-defaults.conf").read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    pairs = re.findall(r"^[ \t]*([^\s#=:][^\s=:]*)[ \t]*[=: \t][ \t]*(.*?)[ \t]*$", text, flags=re.MULTILINE)
    return dict(pairs)


def _ivy_directory(ivy: str | Path | None) -> Path:
    chosen = ivy or os.environ.get("RELIABLE_SPARK_IVY") or spark_defaults().get("spark.jars.ivy")
    return Path(chosen or "~/.ivy2.5.2").expanduser().absolute()


def _on_disk(ivy: Path) -> list[str]:
    """Find all jars in Ivy's directory or in Spark's own; a partial set or a cut-off file counts as none."""
    with_ivy = [ivy / "jars" / f"io.delta_{name}" for name in _FILES]
    with_spark = [spark_home().absolute() / "jars" / name for name in _FILES]
    for paths in (with_ivy, with_spark):
        if all(is_zipfile(path) for path in paths):
            return [str(path) for path in paths]
    return []


@contextmanager
def _one_at_a_time(ivy: Path) -> Iterator[None]:
    """Hold the lock that lets one process at a time fetch into this directory."""
    try:
        ivy.mkdir(parents=True, exist_ok=True)
        handle = (ivy / ".reliable_spark.lock").open("w", encoding="utf-8")
    except OSError as error:
        raise OperatingError(_advice(ivy, f"the directory cannot be written: {error}")) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch(ivy: Path) -> None:
    for name in _FILES:  # a cut-off file would not be replaced
        (ivy / "jars" / f"io.delta_{name}").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        nothing = Path(scratch) / "nothing.py"
        nothing.write_text("", encoding="utf-8")
        options = {
            "--master": "local[1]",
            "--packages": PACKAGE,
            "--exclude-packages": ",".join(_NOT_NEEDED),
            "--conf": f"spark.jars.ivy={ivy}",
        }
        command = [str(spark_home() / "bin" / "spark-submit"), *chain(*options.items()), str(nothing)]
        try:
            done = _run(command)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OperatingError(_advice(ivy, str(error))) from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        lines = [line for line in said if not line.startswith("\tat ")]
        raise OperatingError(_advice(ivy, "\n    ".join(["spark-submit said:", *lines[-_LINES_SHOWN:]])))


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env=_environment(), capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False
    )


def _environment() -> dict[str, str]:
    """Give this process's environment without what ties it to a running or a special Spark."""
    ties = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "MASTER")
    kept = {name: value for name, value in os.environ.items() if name not in ties}
    return kept | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def _advice(ivy: Path, cause: str) -> str:
    names = " and ".join(f"io.delta_{name}" for name in _FILES)
    return (
        f"Delta's jars are not on this machine and cannot be fetched. They are needed once: connect to a\n"
        f"Maven repository (spark.jars.ivySettings in spark-defaults.conf names another one), or copy\n"
        f"{names}\ninto {ivy / 'jars'}.\n{cause}"
    )
