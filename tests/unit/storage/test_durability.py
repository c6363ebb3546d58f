"""Everything a commit made is on the device before success is reported."""

import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from omnigraph.core.errors import StorageNotFound
from omnigraph.core.events import DurableOperation, Event, listen
from omnigraph.core.settings import Settings
from omnigraph.storage import parallel
from omnigraph.storage.durability import DurabilityMode, make_durable, sync_directories, sync_files
from omnigraph.storage.handles import SnapshotHandle
from omnigraph.storage.indexes import IndexKind, IndexPlan
from omnigraph.storage.objects import open_adapter
from omnigraph.storage.tables import TableStorage
from stores import PERSON, PLACE, SCHEMA, STAMP, Store, content, local_store, rows, s3_store

# The substrate keeps the transaction inside the manifest too, and heals a stale hint: neither is needed.
NEEDLESS = {".txn", ".json"}


class Watch:
    """What appeared below a directory while it watched, and what was synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before = set(root.rglob("*"))
        self.synced: list[str] = []

    def hear(self, event: Event) -> None:
        if isinstance(event, DurableOperation) and event.moment == "after" and event.kind.startswith("sync_"):
            self.synced.append(event.path)

    def unsynced(self) -> set[str]:
        """New files, and directories with new entries, that were not synced."""
        new = {path for path in self.root.rglob("*") if path not in self.before}
        files = {
            path
            for path in new
            if path.is_file() and (path.suffix not in NEEDLESS or path.parent.name == "branches")
        }
        held = {path.parent for path in files}
        # A new directory is found again after a power cut only if its parent was synced as well.
        directories = held | {d.parent for path in held for d in (path, *path.parents) if d in new}
        return {str(path) for path in files | directories} - set(self.synced)


@contextmanager
def watching(store: Store) -> Iterator[Watch]:
    watch = Watch(Path(store.uri))
    with listen(watch.hear):
        yield watch


def one_of_each(tables: TableStorage) -> Iterator[tuple[str, SnapshotHandle]]:
    """Every way a table gets new files, one commit each, synced as the engine does."""
    handle = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    yield "create", handle

    def reopened() -> SnapshotHandle:
        return tables.open_head(PERSON, PLACE, None)

    handle = reopened()
    yield "append", tables.commit_staged(handle, tables.stage_append(handle, rows(["a", "b", "c"]), STAMP))
    handle = reopened()
    yield "merge", tables.commit_staged(handle, tables.stage_merge_insert(handle, rows(["a"], 1), STAMP))
    handle = reopened()
    staged = tables.stage_delete(handle, STAMP, predicate="id = 'b'")
    assert staged is not None
    yield "delete", tables.commit_staged(handle, staged)
    handle = reopened()
    staged = tables.stage_indexes(handle, [IndexPlan(IndexKind.BTREE, "id")], STAMP)
    assert staged is not None
    yield "index", tables.commit_staged(handle, staged)
    handle = reopened()
    made = tables.create_branch(PERSON, PLACE, "review/one", None, handle.version)
    yield (
        "fork and merge",
        tables.commit_staged(made, tables.stage_merge_insert(made, rows(["c", "x"], 2), STAMP)),
    )
    handle = reopened()
    yield "overwrite", tables.commit_staged(handle, tables.stage_overwrite(handle, rows(["o"]), STAMP))
    handle = reopened()
    yield "restore", tables.restore(handle, 2, operation_id="01J")


@pytest.mark.parametrize("mode", ["full", "syncfs"])
def test_every_new_file_and_directory_is_synced(tmp_path: Path, mode: str) -> None:
    store = local_store(tmp_path)
    tables = store.tables(Settings(durability=mode))
    steps = one_of_each(tables)
    done: list[str] = []
    while True:
        with watching(store) as watch:
            step = next(steps, None)
            if step is None:
                break
            name, handle = step
            tables.make_durable([handle])
        assert watch.unsynced() == set(), name
        done.append(name)
    assert len(done) == 8


def new_files(root: Path, names: Iterable[str]) -> list[str]:
    files = [root / name / part for name in names for part in ("a", "b", "c")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x")
    return [str(file) for file in files]


def test_a_round_for_a_slow_device_is_synced_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "_waiting", parallel._Waiting())
    monkeypatch.setattr(parallel, "SHORT_WAIT_S", 0.0)  # every wait is long
    root = tmp_path / "root"
    for name in ("first", "second"):
        make_durable(new_files(root, [name]), DurabilityMode.FULL, root=str(root))
    files = new_files(root, ["one", "two"])
    wanted = {*files, *(str(Path(file).parent) for file in files), str(root)}
    # Nobody passes before everybody has come: a round that waits for one sync before the next never ends.
    everybody = threading.Barrier(len(wanted), timeout=60)
    ended: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, DurableOperation) and event.moment == "before":
            everybody.wait()
        elif isinstance(event, DurableOperation):
            ended.append(event.path)

    with listen(hear):
        make_durable(files, DurabilityMode.FULL, root=str(root))
    assert sorted(ended) == sorted(wanted), "every one has ended when the round returns, each once"


def test_a_round_for_a_fast_device_is_synced_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_waiting", parallel._Waiting())
    monkeypatch.setattr(parallel, "SHORT_WAIT_S", 3600.0)  # every wait is short
    files = new_files(tmp_path, ["one", "two"])
    heard: list[tuple[str, str, bool]] = []
    here = threading.get_ident()

    def hear(event: Event) -> None:
        if isinstance(event, DurableOperation):
            heard.append((event.path, event.moment, threading.get_ident() == here))

    with listen(hear):
        make_durable(files, DurabilityMode.FULL, root=str(tmp_path))
    paths = [*files, str(tmp_path / "one"), str(tmp_path / "two"), str(tmp_path)]
    assert heard == [(path, moment, True) for path in paths for moment in ("before", "after")]


def test_one_long_wait_shares_the_rest_of_its_round_and_a_second_one_the_rounds_to_come() -> None:
    waiting = parallel._Waiting()
    long = threading.Event()

    def work(item: str) -> None:
        if item == "slow":
            long.wait(parallel.SHORT_WAIT_S * 2)

    assert waiting.in_turn(work, ["slow", "b", "c"]) == ["b", "c"]
    assert waiting.in_turn(work, ["slow", "b"]) == ["b"]
    for _ in range(parallel.ROUNDS_ON_THREADS):
        assert waiting.in_turn(work, ["a", "b"]) == ["a", "b"]
    assert waiting.in_turn(work, ["slow"]) == [], "the device is tried again"


def test_long_waits_now_and_then_send_a_fast_device_to_no_threads() -> None:
    waiting = parallel._Waiting()
    long = threading.Event()

    def work(item: str) -> None:
        if item == "slow":
            long.wait(parallel.SHORT_WAIT_S * 2)

    for _ in range(parallel.WAITS_KNOWN):
        waiting._were_long.append(False)
    for _ in range(parallel.WAITS_KNOWN // 2):
        assert waiting.in_turn(work, ["slow"]) == ()
    assert waiting.in_turn(work, ["slow", "b"]) == ["b"], "most of the last waits were long"


def test_a_round_in_which_one_sync_fails_ends_with_nothing_under_way(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(12)]
    for file in files[:-1]:
        file.write_text("x")
    begun: list[str] = []
    ended: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, DurableOperation):
            (begun if event.moment == "before" else ended).append(event.path)

    with listen(hear), pytest.raises(StorageNotFound):
        sync_files([str(file) for file in files])
    assert set(begun) - set(ended) == {str(files[-1])}


def test_a_forked_child_syncs_with_threads_of_its_own(tmp_path: Path) -> None:
    program = """
import os, pathlib, sys
from omnigraph.storage import parallel
from omnigraph.storage.durability import DurabilityMode, make_durable
root = pathlib.Path(sys.argv[1])
def sync(name):
    files = [root / name / str(number) for number in range(4)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
    make_durable([str(file) for file in files], DurabilityMode.FULL, root=str(root))
sync("parent")
child = os.fork()
if child == 0:
    sync("child")
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "7\n"


def test_a_new_table_is_named_durably_up_to_the_root(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    with watching(store) as watch:
        base = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
        after = tables.commit_staged(base, tables.stage_append(base, rows(["a"]), STAMP))
        tables.make_durable([after])
    assert [Path(path).is_dir() for path in watch.synced].count(False) == 3
    assert str(store.uri) in watch.synced, "the graph root names the new directories below it"


def test_a_known_directory_is_not_climbed_again(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    base = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    after = tables.commit_staged(base, tables.stage_append(base, rows(["a"]), STAMP))
    tables.make_durable([after])
    base = tables.open_head(PERSON, PLACE, None)
    with watching(store) as watch:
        tables.make_durable([tables.commit_staged(base, tables.stage_append(base, rows(["b"]), STAMP))])
    assert sorted(Path(path).name for path in watch.synced if Path(path).is_dir()) == ["_versions", "data"]
    assert watch.unsynced() == set()


def test_a_directory_made_again_counts_as_new(tmp_path: Path) -> None:
    file = tmp_path / "root" / "dir" / "file"
    for _ in range(2):
        file.parent.mkdir(parents=True)
        file.write_text("x")
        heard: list[Event] = []
        with listen(heard.append):
            make_durable([str(file)], DurabilityMode.FULL, root=str(tmp_path / "root"))
        synced = {event.path for event in heard if isinstance(event, DurableOperation)}
        assert synced == {str(file), str(file.parent), str(tmp_path / "root")}
        file.unlink()
        file.parent.rename(tmp_path / "aside")
        file.parent.parent.rmdir()
        (tmp_path / "aside").rename(tmp_path / f"old-{file.parent.name}")


def test_the_os_mode_syncs_nothing(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables(Settings(durability="os"))
    with watching(store) as watch:
        base = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
        after = tables.commit_staged(base, tables.stage_append(base, rows(["a"]), STAMP))
        tables.make_durable([after])
        open_adapter(store.uri, durability=DurabilityMode.OS).write_text("deep/x", "1")
    assert watch.synced == []
    assert content(tables, after) == {"a": 0}


@pytest.mark.s3
def test_an_object_store_has_nothing_to_sync() -> None:
    store = s3_store()
    tables = store.tables()
    heard: list[Event] = []
    with listen(heard.append):
        base = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
        after = tables.commit_staged(base, tables.stage_append(base, rows(["a"]), STAMP))
        tables.make_durable([after])
    assert (base.new_files, after.new_files) == ((), ())
    assert not [e for e in heard if isinstance(e, DurableOperation) and e.kind.startswith("sync_")]


def test_text_objects_are_durable_on_return(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    adapter = store.adapter()
    steps = [
        lambda: adapter.write_text("a/b/x", "1"),
        lambda: adapter.write_text_if_absent("a/b/y", "1"),
        lambda: adapter.rename_text("a/b/y", "c/z"),
        lambda: adapter.write_text_if_match("a/b/x", "2", adapter.read_text_versioned("a/b/x").token),
    ]
    for step in steps:
        heard: list[Event] = []
        with watching(store) as watch, listen(heard.append):
            step()
        # The content is synced under its temporary name; what the watch can see is the directory.
        missing = {path for path in watch.unsynced() if Path(path).is_dir()}
        assert missing == set()
        synced = [
            e.path
            for e in heard
            if isinstance(e, DurableOperation) and (e.kind, e.moment) == ("sync_file", "after")
        ]
        assert all("#" in path for path in synced)
        assert len(synced) == (0 if step is steps[2] else 1)


def test_a_deleted_branch_loses_its_reference_for_good_before_its_files(tmp_path: Path) -> None:
    store = local_store(tmp_path)
    tables = store.tables()
    base = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
    tables.create_branch(PERSON, PLACE, "review", None, base.version)
    tree = Path(store.uri) / PLACE / "tree" / "review"
    references = str(Path(store.uri) / PLACE / "_refs" / "branches")
    there: list[bool] = []

    def hear(event: Event) -> None:
        if isinstance(event, DurableOperation) and (event.path, event.moment) == (references, "after"):
            there.append(tree.exists())

    with listen(hear):
        tables.delete_branch(PLACE, "review")
    assert there == [True]
    assert not tree.exists()


@pytest.mark.slow
def test_each_durable_step_can_be_the_last(tmp_path: Path) -> None:
    """Stop at the k-th durable step, for every k: the table shows a whole version, old or new."""

    class Stopped(BaseException):
        pass

    def run(store: Store, stop_at: int | None) -> int:
        count = 0

        def hear(event: Event) -> None:
            nonlocal count
            if isinstance(event, DurableOperation):
                count += 1
                if count == stop_at:
                    raise Stopped

        tables = store.tables()
        base = tables.open_head(PERSON, PLACE, None)
        with listen(hear):
            after = tables.commit_staged(base, tables.stage_merge_insert(base, rows(["a", "x"], 1), STAMP))
            tables.make_durable([after])
        return count

    def prepared(place: Path) -> Store:
        place.mkdir()
        store = local_store(place)
        tables = store.tables()
        base = tables.create_table(PERSON, PLACE, SCHEMA, STAMP)
        tables.commit_staged(base, tables.stage_append(base, rows(["a", "b"]), STAMP))
        return store

    total = run(prepared(tmp_path / "all"), None)
    assert total >= 12
    for step in range(1, total + 1):
        store = prepared(tmp_path / str(step))
        with pytest.raises(Stopped):
            run(store, step)
        tables = store.tables()
        seen = content(tables, tables.open_head(PERSON, PLACE, None))
        assert seen in ({"a": 0, "b": 0}, {"a": 1, "b": 0, "x": 1})


def test_syncing_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageNotFound, match="gone"):
        sync_files([str(tmp_path / "gone")])
    with pytest.raises(StorageNotFound, match="gone"):
        sync_directories([str(tmp_path / "gone")])
    sync_files([])
