"""Delta's jars: found on disk, fetched once, and clear words when they cannot be had. No JVM is started."""

from __future__ import annotations

import subprocess
import threading
from importlib.metadata import version
from pathlib import Path
from zipfile import ZipFile

import pytest

from reliable_spark import jars
from reliable_spark.errors import OperatingError

NAMES = ("io.delta_delta-spark_4.2_2.13-4.4.0.jar", "io.delta_delta-storage-4.4.0.jar")


def put_jars(ivy: Path) -> None:
    (ivy / "jars").mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        with ZipFile(ivy / "jars" / name, "w") as jar:
            jar.writestr("nothing", "")


class FakeSpark:
    """Stands in for the process that fetches: counts its starts and does what it is told."""

    def __init__(self, ivy: Path, returncode: int = 0) -> None:
        self.ivy, self.returncode = ivy, returncode
        self.starts = 0

    def __call__(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        self.starts += 1
        if self.returncode == 0:
            put_jars(self.ivy)
        return subprocess.CompletedProcess(command, self.returncode, "", "one\nunresolved dependency\n")


def test_versions_are_those_that_are_installed() -> None:
    """The package's name agrees with the installed Spark line and Delta release."""
    spark_line = ".".join(version("pyspark").split(".")[:2])
    delta = version("delta-spark")
    assert f"io.delta:delta-spark_{spark_line}_2.13:{delta}" == jars.PACKAGE


def test_jars_on_disk_start_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole jars are given by absolute path, in a fixed order, without a fetch."""
    put_jars(tmp_path)
    monkeypatch.setattr(jars, "_run", pytest.fail)
    assert jars.delta_jars(tmp_path) == [str(tmp_path / "jars" / name) for name in NAMES]


def test_a_cut_off_jar_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download that was killed leaves no jar that Spark would choke on."""
    put_jars(tmp_path)
    broken = tmp_path / "jars" / NAMES[0]
    broken.write_bytes(broken.read_bytes()[:20])
    fake = FakeSpark(tmp_path)
    monkeypatch.setattr(jars, "_run", fake)
    assert len(jars.delta_jars(tmp_path)) == 2
    assert fake.starts == 1


def test_many_at_once_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several callers one fetches; the others wait and find the jars."""
    fake = FakeSpark(tmp_path)
    monkeypatch.setattr(jars, "_run", fake)
    threads = [threading.Thread(target=jars.delta_jars, args=(tmp_path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.starts == 1


def test_a_failed_fetch_says_what_to_do_and_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the files, the place for them, and the last lines of the process."""
    monkeypatch.setattr(jars, "_run", FakeSpark(tmp_path, returncode=1))
    with pytest.raises(OperatingError) as caught:
        jars.delta_jars(tmp_path)
    assert all(part in str(caught.value) for part in (*NAMES, str(tmp_path), "unresolved dependency"))


def test_a_directory_that_cannot_be_made_is_an_operating_error(tmp_path: Path) -> None:
    """A file where Ivy's directory should be is told, not traced."""
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatingError, match="cannot be written"):
        jars.delta_jars(tmp_path / "file" / "ivy")


def test_the_environment_chooses_ivys_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`RELIABLE_SPARK_IVY` is used when nothing is passed."""
    put_jars(tmp_path)
    monkeypatch.setenv("RELIABLE_SPARK_IVY", str(tmp_path))
    assert jars.delta_jars()[0] == str(tmp_path / "jars" / NAMES[0])


def test_defaults_file_is_read_as_spark_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys end at a blank, an equals sign or a colon; comments and blank lines are nothing."""
    lines = ["# spark.x 1", "", "spark.a  one two ", "spark.b=2", " spark.c: 3", "spark.jars.ivy /ivy"]
    (tmp_path / "spark-defaults.conf").write_text("\n".join(lines))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert jars.spark_defaults() == {
        "spark.a": "one two",
        "spark.b": "2",
        "spark.c": "3",
        "spark.jars.ivy": "/ivy",
    }
