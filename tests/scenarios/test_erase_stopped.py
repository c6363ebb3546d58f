"""An erasure that dies in any window loses nothing else, and the next one forgets the subject."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import omnigraph
from crash.harness import CUT, run_script
from forgetting import SUBJECT, add_subject, found
from graphs import FAST, run
from omnigraph.core.errors import EntityNotFound
from omnigraph.core.failpoints import Window
from stores import Store
from travelling import SCHEMA, opened

pytestmark = pytest.mark.crash

DYING = f"""
import sys, omnigraph
from omnigraph.core.settings import Settings
from omnigraph.maintenance import cleanup_sweep
cleanup_sweep.CLEANUP_BATCH_FILES = 4
with omnigraph.open(sys.argv[1], settings=Settings(durability="os")) as graph:
    graph.erase("Person", "{SUBJECT}", tags=True)
"""
LATER = "pass,kill"
DEATHS = {
    "deletion, half of it": (Window.MUTATION_POST_TABLE_COMMIT, "kill"),
    "deletion, unpublished": (Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER, "kill"),
    "deletion on main": (Window.ERASE_POST_DELETE, "kill"),
    "deletion on a branch": (Window.ERASE_POST_DELETE, LATER),
    "one table rewritten": (Window.OPTIMIZE_POST_COMPACT_PRE_REINDEX, "kill"),
    "tables rewritten": (Window.OPTIMIZE_POST_PHASE_B_PRE_MANIFEST_COMMIT, "kill"),
    "rewrite published": (Window.GRAPH_PUBLISH_AFTER_MANIFEST_COMMIT, LATER),
    "main rewritten": (Window.ERASE_POST_REWRITE, "kill"),
    "all rewritten but one": (Window.ERASE_POST_REWRITE, "pass,pass,kill"),
    "stand-in of a common state": (Window.BRANCH_CREATE_AFTER_MANIFEST_BRANCH_CREATE, "kill"),
    "merge of it": (Window.BRANCH_MERGE_POST_CLASSIFY_PRE_QUEUE, LATER),
    "before anything goes": (Window.ERASE_PRE_RECLAIM, "kill"),
    "note": (Window.CLEANUP_POST_NOTE_PRE_STATES, "kill"),
    "some states": (Window.CLEANUP_STATES_GC, LATER),
    "some versions": (Window.CLEANUP_TABLE_GC, LATER),
    "versions": (Window.CLEANUP_POST_VERSIONS_PRE_FILES, "kill"),
    "files": (Window.CLEANUP_POST_FILES_PRE_END, "kill"),
    "everything but caches": (Window.ERASE_POST_RECLAIM, "kill"),
}


def rows(graph: omnigraph.Graph) -> dict[str, set[str]]:
    """Every branch that is not a stand-in, without the subject."""
    return {
        branch: {line for line in graph.export(branch=branch).splitlines() if SUBJECT not in line}
        for branch in graph.branches.list()
        if not branch.startswith("erased-")
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, set[str]]]:
    """The subject on main, on a branch that inherits it and on one with rows of its own; it is copied."""
    store = Store(str(tmp_path_factory.mktemp("made") / "g"))
    with omnigraph.init(store.uri, schema=SCHEMA, settings=FAST) as graph:
        run(graph, 'insert Person { handle: "p2", bio: "maps" } insert Person { handle: "p4" }')
        run(graph, 'insert City { name: "c1" }')
        add_subject(graph)
        graph.branches.create("inherits")
        graph.branches.create("own")
        run(graph, 'insert Person { handle: "o" } insert Knows { from: "o", to: "p2" }', branch="own")
        graph.tags.create("v1")
        run(graph, 'insert Person { handle: "m" }')
        return store, rows(graph)


@pytest.mark.parametrize("death", DEATHS)
def test_a_killed_erasure_loses_nothing_else_and_is_finished(
    made: tuple[Store, dict[str, set[str]]], tmp_path: Path, death: str
) -> None:
    origin, expected = made
    store = Store(str(tmp_path / "g"))
    shutil.copytree(origin.uri, store.uri)
    window, action = DEATHS[death]
    status, errors = run_script(DYING, store.uri, failpoints=f"{window.value}={action}")
    assert status == CUT, (status, errors)
    with opened(store, read_only=True) as graph:
        assert rows(graph) == expected
    with opened(store) as graph:
        assert rows(graph) == expected
        assert graph.verify(deep=True).violations == ()
        with suppress(EntityNotFound):  # dead so near the end that only leftovers were there
            assert graph.erase("Person", SUBJECT, tags=True).complete
        assert rows(graph) == expected
        assert graph.verify(deep=True).violations == ()
        for branch in ("inherits", "own"):
            run(graph, f'insert City {{ name: "{branch}" }}', branch=branch)
            graph.branches.merge(branch)
        assert graph.verify(deep=True).violations == ()
    assert found(Path(store.uri)) == {}
