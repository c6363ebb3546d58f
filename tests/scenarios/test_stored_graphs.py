"""Graphs that earlier programs wrote: every state of them is read, then they are written and go on.

They are made by `scripts/stored_graphs.py` and never changed afterwards. Each has branches that inherit, that forked
and that grew out of a fork, a tag, merges, an older schema on a branch, half a load and a write nobody sees yet.
"""

import json
import os
import tarfile
from pathlib import Path

import pytest

import graphs
import omnigraph
from omnigraph.core.errors import FormatTooNew
from omnigraph.core.ids import BranchName
from omnigraph.manifest.migrations import migrate
from omnigraph.manifest.state import STAMP, manifest_schema
from omnigraph.manifest.store import ManifestStore
from omnigraph.pipeline.load import journal
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import open_adapter

PLACE = Path(__file__).parent.parent / "graphs"
ARCHIVES = sorted(PLACE.glob("*.tar.xz"))
NEWEST = next(path for path in ARCHIVES if path.name.endswith(f"-{STAMP}.tar.xz"))


def unpack(archive, where):
    """The graph as it was packed, with the times that its files had."""
    with tarfile.open(archive) as packed:
        packed.extractall(where, filter="data")
    root = where / "graph"
    for name, modified in json.loads((where / "times.json").read_text()).items():
        os.utime(root / name, ns=(modified, modified))
    return root


def expected(archive):
    name, _, _ = archive.name.rpartition("-")
    return json.loads((PLACE / f"{name}.json").read_text())


def store_of(root):
    place = GraphRoot(os.fspath(root))
    return ManifestStore(place, graphs.FAST, open_adapter(place.uri))


def stamps(root):
    store = store_of(root)
    return {branch: store.head(branch).stamp for branch in (None, *store.branches())}


def files_of(root):
    return {path: path.stat().st_mtime_ns for path in root.rglob("*") if path.is_file()}


def check_states(graph, states, *, but=()):
    for name, text in states["branches"].items():
        assert name in but or graph.export(branch=name) == text, name
    for name, text in (states["tags"] | states["commits"]).items():
        assert graph.export(at=name) == text, name


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def stored(request, tmp_path):
    return unpack(request.param, tmp_path), expected(request.param)


def test_graphs_of_every_stamp_are_stored():
    assert {int(path.name.removesuffix(".tar.xz").rpartition("-")[2]) for path in ARCHIVES} == set(
        range(1, STAMP + 1)
    )


@pytest.mark.slow
def test_a_stored_graph_shows_every_state_to_a_reader_who_changes_nothing(stored):
    root, states = stored
    before, stamped = files_of(root), stamps(root)
    with omnigraph.open_read_only(root, settings=graphs.FAST) as graph:
        assert set(graph.branches.list()) == set(states["branches"])
        assert list(graph.tags.list()) == list(states["tags"])
        check_states(graph, states)
        assert len(graph.pending()) == 1
    assert stamps(root) == stamped
    assert files_of(root) == before


def test_a_stored_graph_is_migrated_by_one_swap(stored):
    root, _ = stored
    store = store_of(root)
    before = store.head(None)
    migrated = migrate(store, before)
    assert migrated.stamp == STAMP
    assert migrated.version == before.version + (before.stamp != STAMP)
    assert store_of(root).head(None).version == migrated.version


@pytest.mark.slow
def test_a_stored_graph_goes_on(stored, monkeypatch):
    root, states = stored
    stamped = stamps(root)
    with omnigraph.open(root, settings=graphs.FAST) as graph:
        assert graph.pending() == ()
        (recovered,) = graph.recoveries()
        assert recovered.recovery_for_actor == "pat"
        assert "pending" in graphs.rows_of(graph, "Person")
        check_states(graph, states, but={"main"})
        # Only what was written has the present stamp.
        assert stamps(root) == stamped | {None: STAMP}
        finish_load(graph, root, monkeypatch)
        check_states(graph, states, but={"main"})
        for branch in states["branches"]:
            graphs.run(graph, f'insert Person {{ name: "on-{branch}" }}', branch=branch)
            assert f"on-{branch}" in graphs.rows_of(graph, "Person", branch=branch)
        graph.branches.merge("grandchild", into="forked")
        graph.branches.merge("forked")
        assert {"on-forked", "on-grandchild", "on-main"} <= set(graphs.rows_of(graph, "Person"))
        assert "cyd" not in graphs.rows_of(graph, "Person")
        check_states(graph, states, but=states["branches"])
        graph.optimize()
        check_states(graph, states, but=states["branches"])
    assert set(stamps(root).values()) == {STAMP}
    with omnigraph.open_read_only(root, settings=graphs.FAST) as graph:
        assert graph.verify(deep=True).violations == ()


def finish_load(graph, root, monkeypatch):
    (load,) = graph.resumable_loads()
    record = json.loads((root / "__loads" / f"{load.id}.json").read_text())
    # The machine that began it has not been restarted.
    monkeypatch.setattr(journal, "boot_id", lambda: record["boot"])
    report = graph.load(resume=load.id, engine="local")
    assert report.splits_reused == report.splits == 1
    assert {f"loaded{n}" for n in range(20)} <= set(graphs.rows_of(graph, "Person"))
    assert graph.resumable_loads() == []


@pytest.mark.slow
def test_a_graph_of_a_newer_stamp_can_be_read_and_not_written(tmp_path):
    root, states = unpack(NEWEST, tmp_path), expected(NEWEST)
    store = store_of(root)
    for branch in (None, BranchName("forked")):
        head = store.head(branch)
        newer = manifest_schema(STAMP + 1)
        written = store.dataset.write_rows(
            head.handle, branch, store.dataset.read(head.handle).cast(newer), replacing=True
        )
        assert store.dataset.commit_overwrite(head.handle, branch, newer, written) is not None
    before = files_of(root)
    with omnigraph.open_read_only(root, settings=graphs.FAST) as graph:
        check_states(graph, states)
    with pytest.raises(FormatTooNew) as refused:
        omnigraph.open(root, settings=graphs.FAST)
    assert (refused.value.found, refused.value.supported) == (STAMP + 1, STAMP)
    assert files_of(root) == before
