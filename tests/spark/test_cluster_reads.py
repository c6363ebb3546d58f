"""The data source and exports on a standalone cluster: executors that share nothing but the file system."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph
from spark.test_cluster import cluster

pytestmark = [pytest.mark.torture, pytest.mark.timeout(600)]

SCHEMA = "node P { k: String @key  age: I32? }"
COUNT = 20_000
READER = """
import json, sys, omnigraph
place, out = sys.argv[1:3]
with omnigraph.open_read_only(place) as graph:
    spark = omnigraph.register_spark()
    frame = spark.read.format("omnigraph").options(graph=place, type="P", where="age < 50").load()
    report = graph.export_to(out, format="parquet", engine="spark")
    print(json.dumps([
        spark.conf.get("spark.master").split(":")[0],
        frame.where("age >= 25").count(),
        graph.frames("P", columns=["age"]).agg({"age": "sum"}).collect()[0][0],
        report.rows,
    ]))
"""


def test_reads_and_exports(tmp_path: Path) -> None:
    source = tmp_path / "people.jsonl"
    with source.open("w") as out:
        for n in range(COUNT):
            out.write(json.dumps({"type": "P", "data": {"k": f"p{n}", "age": n % 100}}) + "\n")
    with omnigraph.init(tmp_path / "g", schema=SCHEMA) as graph:
        graph.load(source, mode="append", engine="local")
        whole = graph.export()
    with cluster(tmp_path) as (master, _):
        done = subprocess.run(
            [sys.executable, "-c", READER, tmp_path / "g", tmp_path / "out"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=os.environ
            | {"OMNIGRAPH_SPARK_MASTER": master, "OMNIGRAPH_SPARK_CONF_executor_memory": "512m"},
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr == ""
    assert json.loads(done.stdout) == ["spark", COUNT // 4, COUNT // 100 * 4950, COUNT]
    with omnigraph.init(tmp_path / "copy", schema=SCHEMA) as copy:
        copy.load(tmp_path / "out", mode="append", engine="local")
        assert copy.export() == whole
