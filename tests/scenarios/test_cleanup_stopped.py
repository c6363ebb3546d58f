"""A cleanup that dies at any step leaves files that nothing points at, and the next one finishes it."""

import shutil
from pathlib import Path

import pytest

from crash.harness import CUT, run_script
from graphs import run
from omnigraph.core.failpoints import Raise, Window, activate
from omnigraph.storage.layout import CHECKSUMS, CLEANUP
from stores import Store
from travelling import goes_on, make, opened

DYING = """
import sys, omnigraph
from omnigraph.core.settings import Settings
from omnigraph.maintenance import cleanup_sweep
cleanup_sweep.CLEANUP_BATCH_FILES = 2
with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    graph.cleanup(keep=2)
"""
LATER = ",".join(["pass"] * 3 + ["kill"])
DEATHS = {
    "branches": (Window.CLEANUP_RESOLVE_BRANCH_SNAPSHOT, LATER),
    "note": (Window.CLEANUP_POST_NOTE_PRE_STATES, "kill"),
    "first states": (Window.CLEANUP_STATES_GC, "kill"),
    "some states": (Window.CLEANUP_STATES_GC, LATER),
    "fork": (Window.CLEANUP_RECONCILE_FORK, "kill"),
    "reference of the fork": (Window.CLASSIFY_FRESH_READ, "kill"),
    "first versions": (Window.CLEANUP_TABLE_GC, "kill"),
    "some versions": (Window.CLEANUP_TABLE_GC, LATER),
    "versions": (Window.CLEANUP_POST_VERSIONS_PRE_FILES, "kill"),
    "files": (Window.CLEANUP_POST_FILES_PRE_END, "kill"),
}


def on_disk(store: Store) -> set[str]:
    top = Path(store.uri)
    names = {str(each.relative_to(top)) for each in top.rglob("*") if each.is_file()}
    return {name for name in names if not name.startswith((CLEANUP, CHECKSUMS))}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph with something of everything and a fork that nothing shows; it is copied for each death."""
    place = tmp_path_factory.mktemp("made")
    store = Store(str(place / "g"))
    make(store, place)
    with opened(store) as graph:
        graph.branches.create("gone")
        run(graph, 'insert City { name: "gone" }', branch="gone")
        with activate(Window.BRANCH_DELETE_BEFORE_TABLE_CLEANUP, Raise()):
            graph.branches.delete("gone")
        graph.commits.list()
    with opened(store) as graph:
        planned = graph.cleanup(keep=2, dry_run=True)
        return store, shown(graph), planned


def shown(graph) -> dict[str, str]:
    """What a cleanup has to keep, branches, tags and the newest two states of each, with the history."""
    found = {f"tag {name}": graph.export(at=name) for name in graph.tags.list()}
    for branch in graph.branches.list():
        history = graph.commits.list(branch=branch)
        found[f"history of {branch}"] = repr([(each.id, each.parents) for each in history])
        own = [each for each in history if each.branch == branch]
        found |= {each.id: graph.export(at=each.id) for each in own[:2]}
        found[branch] = graph.export(branch=branch)
    return found


@pytest.mark.crash
@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_cleanup_loses_nothing_and_is_finished(made, tmp_path: Path, death: str) -> None:
    origin, expected, planned = made
    store = Store(str(tmp_path / "g"))
    shutil.copytree(origin.uri, store.uri)
    window, action = DEATHS[death]
    status, errors = run_script(DYING, store.uri, failpoints=f"{window.value}={action}")
    assert status == CUT, (status, errors)
    kept = {each.name for each in planned.fates if not each.goes and not each.name.startswith(CLEANUP)}
    assert kept <= on_disk(store)
    with opened(store, read_only=True) as graph:
        assert shown(graph) == expected
        assert graph.verify(deep=True).violations == ()
    with opened(store) as graph:
        graph.cleanup(keep=2)
        assert shown(graph) == expected
        assert on_disk(store) == kept
        assert graph.verify(deep=True).violations == ()
        goes_on(graph)
