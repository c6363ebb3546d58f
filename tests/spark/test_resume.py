"""A load on Spark whose driver is killed: nothing is visible, no process stays, another run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from graphs import make_graph, state_of
from omnigraph.core.failpoints import Window
from omnigraph.pipeline.spark.session import SparkRuntime
from omnigraph.storage.layout import LOADS
from spark.test_interrupt import processes

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(240)]

SCHEMA = "node P { k: String @key  n: I32 }\nedge E: P -> P"
FILES = 6
PER_FILE = 2_000
COMMAND = Path(sys.executable).with_name("omnigraph")


def write_input(directory: Path) -> None:
    directory.mkdir()
    for file in range(FILES):
        with (directory / f"{file}.jsonl").open("w") as out:
            for n in range(file * PER_FILE, (file + 1) * PER_FILE):
                out.write(json.dumps({"type": "P", "data": {"k": f"p{n}", "n": n}}) + "\n")
                out.write(json.dumps({"edge": "E", "from": f"p{n}", "to": "p0"}) + "\n")


def start(tmp_path: Path, failpoints: str = "") -> subprocess.Popen:
    (tmp_path / "scratch").mkdir()
    environment = os.environ | {
        "TMPDIR": str(tmp_path / "scratch"),
        "OMNIGRAPH_FAILPOINTS": failpoints,
        "OMNIGRAPH_DURABILITY": "os",
        "OMNIGRAPH_SPARK_MASTER": "local[1,3]",
    }
    arguments = ["--data", tmp_path / "input", "--mode", "append", "--store", tmp_path / "g"]
    return subprocess.Popen(
        [COMMAND, "load", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def wait_for(condition, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("moment", ["stage", "verify"])
def test_a_killed_driver_on_spark_is_resumed(tmp_path: Path, moment: str, runtime: SparkRuntime) -> None:
    write_input(tmp_path / "input")
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        before = state_of(graph)
        if moment == "stage":
            driver = start(tmp_path)
            wait_for(lambda: any((tmp_path / "g" / LOADS).rglob("split-*.json")))
            driver.kill()
        else:
            driver = start(tmp_path, f"{Window.LOAD_POST_VERIFY.value}=kill")
        output, _ = driver.communicate(timeout=120)
        assert (driver.returncode, output) == (-signal.SIGKILL, "")
        wait_for(lambda: processes(tmp_path / "scratch") == set(), seconds=30)
        assert state_of(graph) == before
        assert graph.verify().violations == ()
        (waiting,) = graph.resumable_loads()
        assert waiting.splits == FILES
        assert waiting.splits_staged >= 1
        if moment == "verify":
            assert waiting.splits_staged == FILES
        report = graph.load(resume=waiting.id)
        assert (report.engine, report.splits_reused) == ("spark", waiting.splits_staged)
        assert report.total_entities == 2 * FILES * PER_FILE
        rows = graph.query(
            "query q() { match { $p: P } return { count($p) as c, sum($p.n) as s } }"
        ).to_arrow()
        total = FILES * PER_FILE
        assert rows.to_pylist() == [{"c": total, "s": total * (total - 1) // 2}]
        assert [commit.operation for commit in graph.commits.list()].count("load") == 1
        assert graph.verify().violations == ()
        assert not any((tmp_path / "g" / LOADS).iterdir())
