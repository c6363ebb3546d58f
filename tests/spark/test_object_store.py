"""A graph in an object store, loaded by tasks that share no directory with the driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph
from graphs import FAST
from stores import s3_store

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(240)]

SCHEMA = "node P { k: String @key  nick: String? @unique }\nedge E: P -> P @card(0..2)"
PEOPLE = 500
FILES = 3
LOADER = """
import json, sys, omnigraph
from omnigraph.core.settings import Settings
uri, options, source, bad = sys.argv[1:]
settings = Settings(durability="os", spark_master="local-cluster[1,2,1024]", spark_conf={"spark.executor.memory": "512m"})
with omnigraph.open(uri, settings=settings, storage_options=json.loads(options)) as graph:
    try:
        graph.load(bad, mode="append")
    except omnigraph.OmnigraphError as error:
        print(error.kind)
    report = graph.load(source, mode="append")
    print(json.dumps([report.engine, report.total_entities, report.splits]))
    try:
        graph.load(open(bad, "rb"), mode="append")
    except omnigraph.OmnigraphError as error:
        print(error.kind)
"""


def test_a_cluster_loads_into_an_object_store(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for file in range(FILES):
        with (tmp_path / "in" / f"{file}.jsonl").open("w") as out:
            for n in range(file, PEOPLE, FILES):
                out.write(json.dumps({"type": "P", "data": {"k": f"p{n}", "nick": f"n{n}"}}) + "\n")
                out.write(json.dumps({"edge": "E", "from": f"p{n}", "to": f"p{(n + 1) % PEOPLE}"}) + "\n")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"type":"P","data":{"k":"x"}}\n{"edge":"E","from":"x","to":"nobody"}\n')
    store = s3_store()
    secret = "a-secret-nobody-may-read"
    options = store.storage_options | {"aws_secret_access_key": secret}
    omnigraph.init(store.uri, schema=SCHEMA, settings=FAST, storage_options=options).close()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", LOADER, store.uri, json.dumps(options), str(tmp_path / "in"), str(bad)],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | {"TMPDIR": str(scratch), "SPARK_WORKER_DIR": str(scratch / "work")},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    refused, loaded, streamed = done.stdout.splitlines()
    assert (refused, streamed) == ("constraint_violation", "bad_request")
    assert json.loads(loaded) == ["spark", 2 * PEOPLE, FILES]
    for log in scratch.rglob("*"):
        assert not log.is_file() or secret.encode() not in log.read_bytes()
    with omnigraph.open(store.uri, settings=FAST, storage_options=options) as graph:
        lines = [json.loads(line) for line in graph.export().splitlines()]
        assert sorted(line["data"]["k"] for line in lines if "type" in line) == sorted(
            f"p{n}" for n in range(PEOPLE)
        )
        assert sum("edge" in line for line in lines) == PEOPLE
        assert graph.verify().violations == ()
        assert graph.session.adapter.list_dir("__loads") == []
