"""Spark Connect: a real server from the pip install; loads, frames, the data source and exports through sc://."""

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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCHEMA = """
node P { k: String @key  age: I32?  w: U64? }
edge Knows: P -> P { since: Date? }
"""
PEOPLE = 5_000
CLIENT = """
import json, sys, omnigraph
from pyspark.sql import functions as F
place, source = sys.argv[1:3]
with omnigraph.open(place) as graph:
    report = graph.load(source, mode="append")
    frame = graph.frames("P", where="age >= 50", columns=["k", "age"])
    spark = omnigraph.register_spark()
    read = spark.read.format("omnigraph").options(graph=place, type="Knows").load()
    people = spark.createDataFrame([("new", 7)], "k string, age int")
    second = graph.load_frames({"P": people}, mode="merge")
    written = graph.export_to(sys.argv[3], format="parquet", engine="spark")
    print(json.dumps({
        "remote": type(spark).__module__,
        "engine": report.engine,
        "read": report.records_read,
        "old": frame.count(),
        "ages": frame.agg(F.min("age"), F.max("age")).collect()[0].asDict(),
        "edges": read.where("since is null").count(),
        "join": read.join(frame, read.src == frame.k).count(),
        "second": second.total_entities,
        "exported": {one.name: one.rows for one in written.types},
    }))
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@contextmanager
def connect_server(home: Path) -> Iterator[str]:
    """The server of the pip install in a session of its own, ended with everything it started."""
    java, spark, port = find_java(), spark_home(), free_port()
    environment = os.environ | {
        "SPARK_HOME": str(spark),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    settings = {
        "spark.master": "local[2,3]",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.local.dir": str(home / "scratch"),
    }
    command = [str(java.executable), "-cp", f"{spark}/conf:{spark}/jars/*", "-Xmx1g", *java_options(java)]
    command += ["-XX:TieredStopAtLevel=1", "org.apache.spark.deploy.SparkSubmit"]
    command += [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    log = home / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=home, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not listens(port):
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the server did not come up"
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_through_a_connect_server(tmp_path: Path) -> None:
    """Exact rows, one commit per load, nothing on stderr; the driver process never starts a JVM."""
    source = tmp_path / "people.jsonl"
    with source.open("w") as out:
        for n in range(PEOPLE):
            out.write(
                json.dumps({"type": "P", "data": {"k": f"p{n}", "age": n % 100, "w": 2**64 - 1 - n}}) + "\n"
            )
        for n in range(PEOPLE):
            record = {"edge": "Knows", "from": f"p{n}", "to": f"p{(n * 7) % PEOPLE}"}
            out.write(json.dumps(record) + "\n")
    place = tmp_path / "g"
    omnigraph.init(place, schema=SCHEMA).close()
    with connect_server(tmp_path) as address:
        client = subprocess.run(
            [sys.executable, "-c", CLIENT, place, source, tmp_path / "out"],
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
            env=os.environ | {"OMNIGRAPH_SPARK_MASTER": address, "JAVA_HOME": "/nowhere"},
        )  # fmt: skip
    assert client.returncode == 0, client.stderr[-4000:]
    assert client.stderr == ""
    assert json.loads(client.stdout) == {
        "remote": "pyspark.sql.connect.session",
        "engine": "spark",
        "read": 2 * PEOPLE,
        "old": PEOPLE // 2,
        "ages": {"min(age)": 50, "max(age)": 99},
        "edges": PEOPLE,
        "join": PEOPLE // 2,
        "second": 1,
        "exported": {"P": PEOPLE + 1, "Knows": PEOPLE},
    }
    with omnigraph.open(place) as graph:
        ages = {
            record["data"]["k"]: record["data"]["age"]
            for record in map(json.loads, graph.export(types=["P"]).splitlines())
        }
        assert ages == {f"p{n}": n % 100 for n in range(PEOPLE)} | {"new": 7}
        assert [commit.operation for commit in graph.commits.list()].count("load") == 2
        assert graph.verify().violations == ()
        with omnigraph.init(tmp_path / "copy", schema=SCHEMA) as copy:
            copy.load(tmp_path / "out", mode="append", engine="local")
            assert copy.export() == graph.export()
    assert not any((place / "__loads").glob("*"))
