"""Ctrl-C of the whole command: status 130, at once, and nothing stays behind: no process, no row, no file."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from graphs import make_graph, state_of
from omnigraph.storage.layout import LOADS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCHEMA = "node P { k: String @key  filler: String? }"
PEOPLE = 600_000
COMMAND = Path(sys.executable).with_name("omnigraph")
ENDS_SECONDS_MAX = 2.0
"""What a user is promised, on a machine that does nothing else."""
LOADED_MACHINE_FACTOR = float(os.environ.get("OMNIGRAPH_TEST_TIME_FACTOR", "5"))
"""The suite runs beside other work; a load that is not interrupted at all takes longer than this too."""

NOTHING = (
    "interrupted: the load was interrupted before its first effect: nothing was changed",
    "interrupted: the command had not begun: nothing was changed",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("input") / "people.jsonl"
    filler = "x" * 200
    with path.open("w") as out:
        for n in range(PEOPLE):
            out.write(f'{{"type":"P","data":{{"k":"p{n}","filler":"{filler}"}}}}\n')
    return path


def processes(home: Path) -> set[int]:
    """Every process whose environment names the temporary directory of this test."""
    mark = f"TMPDIR={home}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def interrupt(
    tmp_path: Path, source: Path, engine: str, ready: Callable[[Path], bool]
) -> tuple[subprocess.Popen, float, str, str]:
    """Run the command until `ready`, press Ctrl-C, and wait for its end."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "OMNIGRAPH_DURABILITY": "os"}
    arguments = ["load", "--data", source, "--mode", "append", "--engine", engine, "--store", tmp_path / "g"]
    command = subprocess.Popen(
        [COMMAND, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 150
    try:
        while not ready(scratch):
            assert command.poll() is None, command.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        os.killpg(command.pid, signal.SIGINT)  # the terminal sends it to every process of the foreground
        output, errors = command.communicate(timeout=60)
        return command, time.monotonic() - began, output, errors
    finally:
        command.kill()
        command.wait()


def left_behind(home: Path) -> set[int]:
    """What stays; a JVM that was not even running yet ends by itself once it sees that its driver is gone."""
    deadline = time.monotonic() + ENDS_SECONDS_MAX * LOADED_MACHINE_FACTOR
    while (found := processes(home)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def jvms(home: Path) -> bool:
    return any(Path(f"/proc/{pid}/comm").read_text().strip() == "java" for pid in processes(home))


@pytest.mark.parametrize("moment", ["jvm", "stage"])
@pytest.mark.parametrize("engine", ["spark", "local"])
def test_ctrl_c_ends_the_command_and_leaves_nothing(
    tmp_path: Path, source: Path, engine: str, moment: str
) -> None:
    graph = make_graph(tmp_path / "g", SCHEMA)
    before = state_of(graph)
    files = set((tmp_path / "g" / "nodes").rglob("*"))
    staged = tmp_path / "g" / LOADS

    def ready(scratch: Path) -> bool:
        if moment == "jvm":
            return jvms(scratch) if engine == "spark" else staged.exists()
        return any((tmp_path / "g" / "nodes").rglob("data/*.lance")) or any(staged.rglob("facts/*"))

    command, seconds, output, errors = interrupt(tmp_path, source, engine, ready)
    print(f"{engine}, {moment}: ended {seconds:.2f} s after the interrupt")
    assert (command.returncode, output) == (130, "")
    said = errors.splitlines()
    assert said[0] == f"load -> {tmp_path / 'g'} (direct, local store; engine {engine})"
    # The JVM comes up while the graph is opened: the command may not have begun.
    assert len(said) == 2, said
    assert said[1] in (NOTHING if moment == "jvm" else NOTHING[:1])
    assert seconds < ENDS_SECONDS_MAX * LOADED_MACHINE_FACTOR
    assert left_behind(tmp_path / "scratch") == set()
    assert state_of(graph) == before
    assert graph.resumable_loads() == []
    assert not staged.exists() or list(staged.iterdir()) == []
    if engine == "local":
        assert set((tmp_path / "g" / "nodes").rglob("*")) - files <= {
            path for path in (tmp_path / "g" / "nodes").rglob("*") if path.is_dir()
        }
    assert graph.verify().violations == ()
    graph.close()
    assert [path for path in (tmp_path / "scratch").iterdir() if path.name.startswith("omnigraph-")] == []
