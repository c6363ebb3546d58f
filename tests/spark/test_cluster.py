"""A real cluster from the pip install: a standalone master and two workers on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import omnigraph
from omnigraph.pipeline.spark.java import find_java, java_options
from omnigraph.pipeline.spark.launch import spark_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCHEMA = "node P { k: String @key  filler: String? }"
PEOPLE = 200_000
LOADER = """
import json, sys, omnigraph
with omnigraph.open(sys.argv[1]) as graph:
    report = graph.load(sys.argv[2], mode="append")
    print(json.dumps([report.engine, report.records_read, report.total_entities]))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(condition, what: str, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.1)


@contextmanager
def daemon(log: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    """A Spark daemon in a session of its own, ended with everything it started."""
    java, home = find_java(), spark_home()
    command = [str(java.executable), "-cp", f"{home}/conf:{home}/jars/*", "-Xmx512m", *java_options(java)]
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
    }
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *arguments], stdout=output, stderr=output, env=environment, start_new_session=True
        )
    try:
        yield process
    finally:
        end_group(process)


def end_group(process: subprocess.Popen) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def cluster(home: Path) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    place = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(free_port())]
    with daemon(home / "master.log", f"{package}.master.Master", *place):
        wait_until(lambda: listens(port), "the master")
        workers = [
            daemon(
                home / f"worker{n}.log",
                f"{package}.worker.Worker",
                *["--cores", "1", "--memory", "1g", "--host", "127.0.0.1", "--webui-port", str(free_port())],
                *["--work-dir", str(home / f"work{n}"), master],
            )
            for n in range(2)
        ]
        with workers[0] as first, workers[1] as second:
            yield master, [first, second]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_load_survives_the_loss_of_a_worker(tmp_path: Path) -> None:
    """A worker and its executor are killed once fragments exist: every row once, one commit, nothing else."""
    source = tmp_path / "people.jsonl"
    filler = "x" * 150
    with source.open("w") as out:
        for n in range(PEOPLE):
            out.write(json.dumps({"type": "P", "data": {"k": f"p{n}", "filler": filler}}) + "\n")
    omnigraph.init(tmp_path / "g", schema=SCHEMA).close()
    data = tmp_path / "g" / "nodes"
    with cluster(tmp_path) as (master, workers):
        environment = os.environ | {
            "OMNIGRAPH_SPARK_MASTER": master,
            "OMNIGRAPH_SPARK_CONF_executor_memory": "512m",
        }
        loader = subprocess.Popen(
            [sys.executable, "-c", LOADER, str(tmp_path / "g"), str(source)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            wait_until(
                lambda: loader.poll() is not None or any(data.rglob("data/*.lance")), "the first fragment"
            )
            assert loader.poll() is None, loader.communicate()
            end_group(workers[0])
            output, errors = loader.communicate(timeout=400)
        finally:
            loader.kill()
            loader.wait()
    assert (loader.returncode, errors) == (0, "")
    assert json.loads(output) == ["spark", PEOPLE, PEOPLE]
    with omnigraph.open(tmp_path / "g") as graph:
        names = [json.loads(line)["data"]["k"] for line in graph.export().splitlines()]
        assert sorted(names) == sorted(f"p{n}" for n in range(PEOPLE))
        assert [commit.operation for commit in graph.commits.list()].count("load") == 1
        assert graph.verify().violations == ()
    assert not any((tmp_path / "g" / "__loads").glob("*"))
