"""What a session is given: decided from what the user chose, without a JVM."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from reliable_spark.session import local_cores, sql_settings, start_settings

module = import_module("reliable_spark.session")  # the package gives this name to the function
DELTA = "io.delta.sql.DeltaSparkSessionExtension"


@pytest.fixture(autouse=True)
def two_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delta's jars are taken to be on disk; the machine's own choices are kept out."""
    monkeypatch.setattr(module, "delta_jars", lambda ivy: ["/a.jar", "/b.jar"])
    for name in ("MASTER", "SPARK_CONF_DIR", "SPARK_DRIVER_MEMORY", "SPARK_LOCAL_IP", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)


def test_other_extensions_are_kept_in_front() -> None:
    """Delta's extension is appended to the user's, once."""
    key = "spark.sql.extensions"
    assert sql_settings({})[key] == DELTA
    assert sql_settings({key: "mine.Extension"})[key] == f"mine.Extension,{DELTA}"
    assert key not in sql_settings({key: f"{DELTA},mine.Extension"})


def test_chosen_settings_are_never_changed() -> None:
    """Whatever is chosen is absent from what is added."""
    everything = sql_settings({}) | start_settings({})
    appended = {"spark.jars", "spark.driver.extraJavaOptions"}
    chosen = dict.fromkeys(everything, "chosen") | {"spark.sql.extensions": DELTA}
    assert set(sql_settings(chosen) | start_settings(chosen)) <= appended


def test_the_session_time_zone_is_left_alone() -> None:
    """The user's clock is the user's."""
    assert "spark.sql.session.timeZone" not in sql_settings({}) | start_settings({})


def test_jars_and_java_options_are_appended() -> None:
    """The user's jars and options stay in front of ours."""
    given = {"spark.jars": "/mine.jar", "spark.driver.extraJavaOptions": "-Dmine=1"}
    added = start_settings(given)
    assert added["spark.jars"] == "/mine.jar,/a.jar,/b.jar"
    assert added["spark.driver.extraJavaOptions"].startswith("-Dmine=1 -Dlog4j2.configurationFile=file:///")


def test_delta_by_package_needs_no_jars() -> None:
    """Who names Delta's package has it resolved by Spark."""
    assert "spark.jars" not in start_settings({"spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0"})


def test_a_chosen_log_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level, a log4j option or a log4j2.properties of the user's own keeps ours away."""
    key = "spark.driver.extraJavaOptions"
    assert key not in start_settings({"spark.log.level": "INFO"})
    assert key not in start_settings({key: "-Dlog4j2.configurationFile=mine"})
    (tmp_path / "log4j2.properties").write_text("")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert key not in start_settings({})


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[4,2]", 4), ("spark://host:7077", None), ("yarn", None)],
)
def test_cores_of_a_master(master: str, cores: int | None) -> None:
    """A local master says how many cores it has; another one does not."""
    assert local_cores(master) == cores


def test_a_cluster_keeps_its_own_sizes() -> None:
    """Partitions, memory and addresses are set for local masters only."""
    chosen = {"spark.master": "spark://host:7077"}
    added = sql_settings(chosen) | start_settings(chosen)
    local_only = {"spark.sql.shuffle.partitions", "spark.driver.memory", "spark.driver.host"}
    assert local_only <= set(sql_settings({}) | start_settings({}))
    assert not local_only & set(added)


def test_an_address_of_the_users_own_is_not_mixed_with_ours() -> None:
    """A chosen host, or SPARK_LOCAL_IP, decides where the driver listens."""
    assert "spark.driver.bindAddress" not in start_settings({"spark.driver.host": "192.0.2.1"})


def test_driver_memory_is_half_the_machines_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small machines give half, large ones four gibibytes."""
    monkeypatch.setattr(module, "_machine_memory", lambda: 2 * 1024**3)
    assert start_settings({})["spark.driver.memory"] == "1024m"
    monkeypatch.setattr(module, "_machine_memory", lambda: 64 * 1024**3)
    assert start_settings({})["spark.driver.memory"] == "4096m"


def test_choices_outside_the_builder_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults file, the environment and PYSPARK_SUBMIT_ARGS are all choices; the last one wins."""
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled true\nspark.master yarn\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SPARK_DRIVER_MEMORY", "7g")
    arguments = "--master local[3] --conf spark.a=1 --conf=spark.b=x=y --jars=/mine.jar pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert module._chosen_before_start() == {
        "spark.ui.enabled": "true",
        "spark.master": "local[3]",
        "spark.driver.memory": "7g",
        "spark.a": "1",
        "spark.b": "x=y",
        "spark.jars": "/mine.jar",
    }
