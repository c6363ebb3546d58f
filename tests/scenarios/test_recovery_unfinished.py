"""Sidecars whose writer died while it wrote them: begun, durable, and without a name."""

import os
import time
from pathlib import Path

import pytest

import omnigraph
from crash.harness import CUT, popen_child, run_child
from crash.people import INSERT, SCHEMA, Model, seed
from graphs import make_graph
from omnigraph.core.failpoints import Callback, Window, activate
from omnigraph.core.limits import LEASE_WAIT_S_MAX
from recovery_graph import FAST

pytestmark = pytest.mark.crash
LONG_AGO = 10 * LEASE_WAIT_S_MAX


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with make_graph(tmp_path / "graph", SCHEMA) as graph:
        seed(graph)
    return tmp_path / "graph"


def notes(path: Path) -> list[Path]:
    """Everything in the directory of the sidecars, also what listings hide."""
    return sorted((path / "__recovery").iterdir())


def kill(path: Path, window: Window) -> Path:
    """A child is killed in the window of a write; returns the one note it left."""
    command = {"command": "write", "path": str(path), "writer": INSERT.name, "tag": "1", "branch": "main"}
    status, errors = run_child(command, failpoints=f"{window}=kill")
    assert status == CUT, errors
    (left,) = notes(path)
    return left


def age(note: Path, seconds: float = LONG_AGO) -> None:
    then = time.time() - seconds
    os.utime(note, (then, then))


def test_an_open_removes_what_a_killed_writer_began(path: Path) -> None:
    with omnigraph.open_read_only(path, settings=FAST) as graph:
        before = Model.read(graph.export())
    begun = kill(path, Window.RECOVERY_SIDECAR_WRITE)
    assert ".json#" in begun.name
    omnigraph.open(path, settings=FAST).close()
    assert notes(path) == [begun], "its writer may still wait for the lease"
    age(begun)
    omnigraph.open_read_only(path, settings=FAST).close()
    assert notes(path) == [begun], "opening for reading changes nothing"
    with omnigraph.open(path, settings=FAST) as graph:
        assert notes(path) == []
        assert Model.read(graph.export()) == before
        assert graph.recoveries() == ()
        assert graph.verify().ok


def test_nothing_is_removed_while_another_process_writes(path: Path) -> None:
    begun = kill(path, Window.RECOVERY_SIDECAR_WRITE)
    age(begun)
    holder = popen_child({"command": "hold_lease", "path": str(path)})
    try:
        assert holder.stdout.readline() == "held\n"
        omnigraph.open(path, settings=FAST).close()
        assert notes(path) == [begun]
    finally:
        holder.communicate("\n", timeout=30)
    omnigraph.open(path, settings=FAST).close()
    assert notes(path) == []


def test_a_finished_sidecar_is_settled_and_never_dropped(path: Path) -> None:
    finished = kill(path, Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER)
    assert finished.suffix == ".json"
    age(finished)
    with omnigraph.open(path, settings=FAST) as graph:
        assert [each.operation_id for each in graph.recoveries()] == [finished.stem]
        assert graph.verify().ok
    assert notes(path) == []


def test_a_writer_whose_note_was_taken_for_a_dead_one_writes_it_again(path: Path) -> None:
    """The worst a wrong judgement could do: the sidecar is there all the same before any table moves."""
    taken: list[Path] = []
    covered: list[str] = []

    def take(_window: Window) -> None:
        (begun,) = notes(path)
        taken.append(begun)
        begun.unlink()

    with (
        omnigraph.open(path, settings=FAST) as graph,
        activate(Window.RECOVERY_SIDECAR_WRITE, Callback(take)),
        activate(
            Window.MUTATION_POST_SIDECAR_PRE_COMMIT,
            Callback(lambda _: covered.extend(each.name for each in notes(path))),
        ),
    ):
        graph.mutate('query q() { insert Person { name: "late" } }')
        assert covered == [taken[0].name.partition("#")[0]]
        assert notes(path) == []
        assert graph.verify().ok
