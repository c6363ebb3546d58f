"""The environment fails under a mutation: a typed error each, and nothing in between."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import omnigraph
from graphs import make_graph, reopen, rows_of, run, state_of, unchanged
from omnigraph.core.errors import InternalError, OmnigraphError, StorageNotFound
from omnigraph.core.events import DurableOperation, listen
from omnigraph.core.settings import Settings
from omnigraph.storage.handles import OPERATION_ID, TABLE_KEY

CHILD = Path(__file__).with_name("fault_child.py")


def mutate_in_child(uri: str, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(CHILD), uri, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.crash
@pytest.mark.parametrize("bytes_max", [0, 100, 400, 650, 1000, 2000, 3000, 5000])
def test_full_disk_is_all_or_nothing(tmp_path: Path, bytes_max: int) -> None:
    with make_graph(tmp_path / "g") as graph:
        run(graph, 'insert Person { name: "old" }')
        before = graph.export()
    outcome = mutate_in_child(str(tmp_path / "g"), "file_size", str(bytes_max))
    with omnigraph.open(tmp_path / "g") as graph:
        there = "new" in rows_of(graph, "Person")
        assert (len(rows_of(graph, "Note")) == 1) == there
        if outcome["kind"] == "ok":
            assert there
        else:
            assert outcome["kind"] in {"io", "recovery_required"}, outcome
            if outcome["kind"] == "io":
                assert graph.export() == before
        run(graph, 'insert Person { name: "next" }')
        assert graph.verify().ok
    if bytes_max == 0:
        assert outcome["kind"] == "io"


@pytest.mark.crash
def test_read_only_directory(tmp_path: Path) -> None:
    # Below a directory that an unprivileged user may enter: pytest's own is closed to others.
    home = Path(tempfile.mkdtemp(prefix="omnigraph-readonly-"))
    try:
        with make_graph(home / "g") as graph:
            run(graph, 'insert Person { name: "old" }')
            before = graph.export()
        home.chmod(0o755)
        for path in [home / "g", *(home / "g").rglob("*")]:
            path.chmod(0o555 if path.is_dir() else 0o444)
        outcome = mutate_in_child(str(home / "g"), "unprivileged")
        assert outcome["kind"] in {"io", "storage_configuration"}, outcome
        for path in [home / "g", *(home / "g").rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        with omnigraph.open(home / "g") as graph:
            assert graph.export() == before
            assert graph.verify().ok
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_deleted_data_file(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g") as graph:
        run(graph, 'insert Person { name: "a", age: 1 }')
        entry = graph.session.manifest.current(None).entries["node:Person"]
        (data,) = (Path(graph.uri) / entry.location / "data").glob("*.lance")
        data.unlink()
        heads = graph.session.storage.head_version(entry.location, None)
    with omnigraph.open(tmp_path / "g") as graph:
        with pytest.raises(StorageNotFound):
            run(graph, 'update Person set { age: 2 } where name = "a"')
        assert graph.session.storage.head_version(entry.location, None) == heads
        assert graph.session.sidecars.list() == ()
        run(graph, 'insert Note { text: "others work" }')


def test_corrupt_manifest_row(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g") as graph:
        run(graph, 'insert Person { name: "a" }')
        manifest = graph.session.manifest
        head = manifest.head(None)
        rows = manifest.dataset.read(head.handle)
        at = rows.column("object_type").to_pylist().index("table_version")
        damaged = rows.to_pylist()
        damaged[at]["metadata"] = "{"
        import pyarrow as pa

        written = manifest.dataset.write_rows(
            head.handle, None, pa.Table.from_pylist(damaged, schema=rows.schema), replacing=True
        )
        manifest.dataset.commit_overwrite(head.handle, None, rows.schema, written)
        with pytest.raises(InternalError, match="damaged"):
            run(graph, 'insert Person { name: "b" }')
        assert graph.session.sidecars.list() == ()
    with pytest.raises(InternalError, match="damaged"):
        omnigraph.open(tmp_path / "g")


@pytest.mark.slow
def test_everything_new_is_synced_before_success(tmp_path: Path) -> None:
    """The probe's claim against the directory: every file and directory that appeared was synced in time."""
    root = tmp_path / "g"
    make_graph(root, settings=Settings()).close()
    with omnigraph.open(root) as graph:
        run(graph, 'insert Person { name: "warm" }')
        graph.branches.create("dev")
        for branch in ("main", "dev"):
            for statements in (
                'insert Person { name: "a", age: 1 } insert Knows { from: "a", to: "a" }',
                'update Person set { age: 2 } where name = "a"',
                'delete Person where name = "a"',
            ):
                before = set(root.rglob("*"))
                synced: set[str] = set()

                def note(event, synced=synced) -> None:
                    if isinstance(event, DurableOperation) and event.moment == "after":
                        synced.add(event.path)

                with listen(note, everywhere=True):
                    run(graph, statements, branch=branch)
                new = {path for path in root.rglob("*") if path.exists()} - before
                unneeded = (".txn", "latest_version_hint.json")
                files = {p for p in new if p.is_file() and not p.name.endswith(unneeded)}
                assert files
                assert {str(p) for p in files} <= synced
                holders = {str(p.parent) for p in files} | {str(p.parent) for p in new if p.is_dir()}
                missing = {h for h in holders if not h.endswith("_transactions")} - synced
                # A directory that only holds transaction files or new directories of them needs no sync itself.
                assert not {h for h in missing if any(str(f.parent) == h for f in files)}, missing


def test_durability_os_syncs_nothing(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g", settings=Settings(durability="os")) as graph:
        heard: list[str] = []
        with listen(lambda e: heard.append(getattr(e, "kind", "")), everywhere=True):
            run(graph, 'insert Person { name: "a" }')
        assert not [kind for kind in heard if kind.startswith("sync_")]


def test_lost_permission_on_one_table(tmp_path: Path) -> None:
    with make_graph(tmp_path / "g") as graph:
        run(graph, 'insert Person { name: "a" }')
        entry = graph.session.manifest.current(None).entries["node:Note"]
        place = Path(graph.uri) / entry.location
        if os.geteuid() == 0:
            # Nothing stops root but a file where a directory must be.
            shutil.rmtree(place / "data", ignore_errors=True)
            (place / "data").write_text("in the way")
        else:
            place.chmod(0o555)
        with unchanged(graph), pytest.raises(OmnigraphError) as caught:
            run(graph, 'insert Person { name: "b" } insert Note { text: "x" }')
        assert caught.value.kind in {"io", "storage_configuration", "storage_permanent", "storage_unknown"}
        place.chmod(0o755)
        (place / "data").unlink(missing_ok=True) if (place / "data").is_file() else None
        run(graph, 'insert Note { text: "x" }')
        assert state_of(reopen(graph)).sidecars == ()


def test_nothing_needs_the_files_that_are_not_synced(tmp_path: Path) -> None:
    """The substrate keeps each transaction inside the version it made, too: after a power cut that is enough."""
    root = tmp_path / "g"
    with make_graph(root) as graph:
        for name in "abc":
            run(graph, f'insert Person {{ name: "{name}" }}')
        before = list(graph.export())
    lost = [*root.rglob("*.txn"), *root.rglob("latest_version_hint.json")]
    assert len(lost) > 6
    for path in lost:
        path.unlink()
    with omnigraph.open(root) as graph:
        assert list(graph.export()) == before
        entry = graph.snapshot().entries["node:Person"]
        stamped = graph.session.storage.transaction_of(entry.location, None, entry.version)
        assert stamped is not None
        assert (stamped.uuid, stamped.properties[TABLE_KEY]) == (entry.transaction_uuid, "node:Person")
        assert stamped.properties[OPERATION_ID]
        run(graph, 'update Person set { age: 1 } where name = "a"')
        assert graph.verify().ok
