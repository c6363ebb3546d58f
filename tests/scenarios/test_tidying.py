"""Once an operation has landed, a failure to clear away after it is a warning and not its failure."""

import errno
import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

import omnigraph
from crash.people import SCHEMA, seed
from omnigraph.core.errors import BranchNotFound, RecoveryRequired, StorageTransient, TagNotFound
from omnigraph.core.events import DurableOperation, Published, Warned, listen
from omnigraph.core.settings import Settings
from omnigraph.storage.adapter import StorageAdapter
from omnigraph.storage.objects import LocalAdapter, ObjectAdapter
from stores import s3_store

FULL = Settings(durability="full")
INSERT = "query q($n: String) { insert Person { name: $n } }"


@pytest.fixture
def graph(tmp_path):
    with omnigraph.init(tmp_path / "graph", schema=SCHEMA, settings=FULL) as made:
        seed(made)
        yield made


@contextmanager
def warnings_of():
    heard: list[Warned] = []
    with listen(lambda event: heard.append(event) if isinstance(event, Warned) else None, everywhere=True):
        yield heard


@contextmanager
def failing_sync(part: str):
    """The device refuses to sync paths that end so."""

    def refuse(event):
        is_sync = isinstance(event, DurableOperation) and event.kind.startswith("sync")
        if is_sync and event.moment == "before" and event.path.endswith(part):
            raise OSError(errno.EIO, os.strerror(errno.EIO), event.path)

    with listen(refuse, everywhere=True):
        yield


@pytest.fixture
def published():
    """The publishes heard so far."""
    heard: list[Published] = []
    with listen(lambda event: heard.append(event) if isinstance(event, Published) else None, everywhere=True):
        yield heard


def refuse_deletions(
    monkeypatch, kind: type[StorageAdapter], below: str, published=("already",)
) -> list[str]:
    """Every deletion of such names fails once something was published, as on a store that is gone since."""
    refused: list[str] = []

    def refusing(method):
        def call(self, name, **named):
            if below in name and published:
                refused.append(name)
                raise StorageTransient(f"{name}: no")
            return method(self, name, **named)

        return call

    for name in ("delete", "delete_prefix"):
        monkeypatch.setattr(kind, name, refusing(getattr(kind, name)))
    return refused


def load(graph, tmp_path, name):
    file = tmp_path / f"{name}.jsonl"
    file.write_text(json.dumps({"type": "Person", "data": {"name": name, "age": 1}}) + "\n")
    return graph.load(file, mode="append", engine="local")


def names(graph, branch="main"):
    lines = [json.loads(line) for line in graph.export(branch=branch).splitlines()]
    return {each["data"]["name"] for each in lines if each.get("type") == "Person"}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["local", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_load_that_landed_reports_success_whatever_becomes_of_its_files(
    place, tmp_path, monkeypatch, published
):
    store = s3_store() if place == "s3" else None
    kind = LocalAdapter if store is None else ObjectAdapter
    uri, options = (tmp_path / "graph", None) if store is None else (store.uri, store.storage_options)
    with omnigraph.init(uri, schema=SCHEMA, storage_options=options) as graph:
        seed(graph)
        published.clear()
        with monkeypatch.context() as patch, warnings_of() as warned:
            refused = refuse_deletions(patch, kind, "__loads/", published)
            report = load(graph, tmp_path, "landed")
        assert refused
        assert any("remain" in each.message for each in warned)
        assert report.commit is not None
        assert "landed" in names(graph)
        # What stayed is not taken for a load to go on with, and the next one is not disturbed.
        with pytest.raises(omnigraph.errors.LoadNotResumable, match=str(report.commit.id)):
            graph.load(resume=report.load_id, engine="local")
        load(graph, tmp_path, "next")
        assert {"landed", "next"} <= names(graph)
        assert graph.verify().ok


def test_a_tag_that_cannot_be_made_durable_is_not_made(graph):
    with failing_sync("_refs/tags/t.json"), pytest.raises(omnigraph.OmnigraphError):
        graph.tags.create("t")
    assert graph.tags.list() == {}
    graph.tags.create("t")
    assert list(graph.tags.list()) == ["t"]


def test_a_deleted_tag_is_gone_also_when_the_device_does_not_confirm_it(graph):
    graph.tags.create("t")
    with failing_sync("_refs/tags"), warnings_of() as warned:
        graph.tags.delete("t")
    assert ["may come back" in each.message for each in warned] == [True]
    with pytest.raises(TagNotFound):
        graph.tags.delete("t")


@pytest.mark.slow
def test_a_deleted_branch_is_gone_also_when_its_states_cannot_be_removed(graph, monkeypatch):
    graph.branches.create("b")
    graph.mutate(INSERT, {"n": "on b"}, branch="b")
    with monkeypatch.context() as patch, warnings_of() as warned:
        refuse_deletions(patch, LocalAdapter, "__manifest/tree/")
        graph.branches.delete("b")
    assert any("states of the deleted branch 'b' remain" in each.message for each in warned)
    assert graph.branches.list() == ["main"]
    graph.branches.create("b")
    graph.mutate(INSERT, {"n": "anew"}, branch="b")
    assert names(graph, "b") == {"ada", "bob", "anew"}
    assert graph.verify().ok


@pytest.mark.slow
def test_a_deleted_branch_that_may_come_back_keeps_what_it_needs(graph):
    """The device does not confirm the deletion: after a power cut the reference may be there again."""
    graph.branches.create("b")
    graph.mutate(INSERT, {"n": "on b"}, branch="b")
    reference = Path(graph.session.root.local_path("__manifest/_refs/branches/b.json"))
    kept = reference.read_bytes()
    with failing_sync("__manifest/_refs/branches"), warnings_of() as warned:
        deletion = graph.branches.delete("b")
    assert any("may come back" in each.message for each in warned)
    assert deletion.unreclaimed == ("node:Person",)
    with pytest.raises(BranchNotFound):
        graph.export(branch="b")
    reference.write_bytes(kept)
    assert "on b" in names(graph, "b")
    assert graph.verify().ok


@pytest.mark.slow
def test_a_merge_that_shows_other_versions_says_when_it_is_visible_but_perhaps_not_durable(graph):
    """It has no sidecar: a plain failure would look as if nothing had happened."""
    graph.branches.create("b")
    graph.mutate(INSERT, {"n": "on main"})
    version = graph.session.manifest.head("b").version + 1
    published = graph.session.manifest.dataset.version_file("b", version)
    with failing_sync(published), pytest.raises(RecoveryRequired, match="visible"):
        graph.branches.merge("main", into="b")
    assert "on main" in names(graph, "b")
    assert graph.branches.merge("main", into="b").outcome == "already_up_to_date"
    assert graph.verify().ok
