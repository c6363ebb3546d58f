"""What every store promises about text objects. One suite, run on each."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from omnigraph.core.errors import StorageNotFound, StoragePermanent, StorageTransient
from omnigraph.core.events import DurableOperation, Event, StorageCall, listen
from omnigraph.storage.adapter import CHUNK_BYTES
from omnigraph.storage.objects import open_adapter
from stores import Store, local_store, s3_store

RACERS = 16


def test_a_written_text_reads_back(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("a/b.json", "Grüße\r\nzwei\n")
    assert adapter.read_text("a/b.json") == "Grüße\r\nzwei\n"
    assert store.adapter().read_text_if_exists("a/b.json") == "Grüße\r\nzwei\n"


def test_a_missing_object_is_none_or_not_found(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("a", "a file, not a directory")
    assert adapter.read_text_if_exists("nothing") is None
    assert adapter.read_text_if_exists("a/below") is None
    assert adapter.read_text_versioned("nothing") is None
    with pytest.raises(StorageNotFound, match="nothing"):
        adapter.read_text("nothing")


def test_writing_again_replaces_the_whole_text(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("x", "long " * 100)
    adapter.write_text("x", "short")
    assert adapter.read_text("x") == "short"


def test_a_reader_sees_old_or_new_never_a_mixture(store: Store) -> None:
    adapter = store.adapter()
    texts = [digit * 50_000 for digit in "0123456789"]
    adapter.write_text("x", texts[0])
    with ThreadPoolExecutor(1) as pool:
        writes = pool.submit(lambda: [adapter.write_text("x", text) for text in texts])
        seen = {adapter.read_text("x")}
        while not writes.done():
            seen.add(adapter.read_text("x"))
        writes.result()
    assert seen <= set(texts)
    assert adapter.read_text("x") == texts[-1]


def test_of_many_creators_one_wins(store: Store) -> None:
    adapters = [store.adapter() for _ in range(RACERS)]
    barrier = Barrier(RACERS)

    def create(number: int) -> bool:
        barrier.wait()
        return adapters[number].write_text_if_absent("dir/lock", str(number))

    with ThreadPoolExecutor(RACERS) as pool:
        wins = list(pool.map(create, range(RACERS)))
    assert wins.count(True) == 1
    assert adapters[0].read_text("dir/lock") == str(wins.index(True))
    assert adapters[0].list_dir("dir") == ["lock"]


def test_creating_never_changes_what_exists(store: Store) -> None:
    adapter = store.adapter()
    assert adapter.write_text_if_absent("x", "first")
    assert not adapter.write_text_if_absent("x", "second")
    assert adapter.read_text("x") == "first"


def test_exists_means_an_object_or_something_below(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("a/b/c", "1")
    assert adapter.exists("a/b/c")
    assert adapter.exists("a/b")
    assert adapter.exists("a")
    assert not adapter.exists("a/b/c/d")
    assert not adapter.exists("a/bb")
    adapter.delete("a/b/c")
    assert not adapter.exists("a")


def test_rename_moves_and_replaces(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("new.staging", "new")
    adapter.write_text("final", "old")
    adapter.rename_text("new.staging", "final")
    assert adapter.read_text("final") == "new"
    assert not adapter.exists("new.staging")
    adapter.rename_text("final", "deeper/place")
    assert adapter.read_text("deeper/place") == "new"


def test_rename_of_nothing_is_not_found(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("other", "kept")
    with pytest.raises(StorageNotFound):
        adapter.rename_text("nothing", "other")
    assert adapter.read_text("other") == "kept"


def test_delete_removes_and_forgives(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("x", "1")
    adapter.delete("x")
    adapter.delete("x")
    adapter.delete("never/was")
    assert adapter.read_text_if_exists("x") is None


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_bytes_are_written_and_read_piece_by_piece(store: Store, pieces: int) -> None:
    adapter = store.adapter()
    content = bytes(range(256)) * (CHUNK_BYTES // 256 * pieces) + b"rest" * bool(pieces)
    parts = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    adapter.write_chunks("a/b.bin", [b"old"])
    assert adapter.write_chunks("a/b.bin", iter(parts)) == len(content)
    read = list(adapter.read_chunks("a/b.bin"))
    assert b"".join(read) == content == adapter.read_bytes("a/b.bin")
    if "memory" not in store.uri:  # what is in memory already comes as it is
        assert max(map(len, read), default=0) <= 2 * CHUNK_BYTES
    with pytest.raises(StorageNotFound, match="nothing"):
        list(adapter.read_chunks("nothing"))
    with pytest.raises(StorageNotFound, match="nothing"):
        adapter.read_bytes("nothing")


@pytest.mark.parametrize("size", [3, CHUNK_BYTES])
def test_bytes_that_stop_half_way_leave_nothing(store: Store, size: int) -> None:
    adapter = store.adapter()
    adapter.write_chunks("kept", [b"old"])

    def broken() -> Iterator[bytes]:
        yield b"x" * size
        yield b"y" * size
        raise StorageTransient("the source is away")

    for name in ("kept", "new/one"):
        with pytest.raises(StorageTransient, match="the source is away"):
            adapter.write_chunks(name, broken())
    assert adapter.read_bytes("kept") == b"old"
    assert adapter.sizes() == {"kept": 3}
    if store.root.is_local:
        assert [path.name for path in Path(store.uri).rglob("*") if path.is_file()] == ["kept"]


def test_sizes_are_of_every_object_below(store: Store) -> None:
    adapter = store.adapter()
    assert adapter.sizes() == adapter.sizes("a") == {}
    sizes = {"a/b": 1, "a/c/d%2Fe": 2, "ab": 3, "empty": 0}
    for name, size in sizes.items():
        adapter.write_chunks(name, [b"x" * size])
    assert adapter.sizes() == sizes
    assert adapter.sizes("a") == {"a/b": 1, "a/c/d%2Fe": 2}
    assert adapter.sizes("nothing") == {}


def test_an_object_that_vanishes_while_sizes_are_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = local_store(tmp_path).adapter()
    for name in ("a/b", "a/gone", "a/z", "other"):
        adapter.write_text(name, "text")
    size_of = os.path.getsize

    def removed_first(path: str) -> int:
        if path.endswith("/gone"):
            Path(path).unlink()
        return size_of(path)

    monkeypatch.setattr(os.path, "getsize", removed_first)
    assert adapter.sizes() == {"a/b": 4, "a/z": 4, "other": 4}


def test_list_dir_gives_direct_objects_only(store: Store) -> None:
    adapter = store.adapter()
    assert adapter.list_dir("dir") == []
    for name in ("dir/a.json", "dir/b.json", "dir/sub/c.json", "dirt/d.json", "top.json"):
        adapter.write_text(name, "1")
    assert sorted(adapter.list_dir("dir")) == ["a.json", "b.json"]
    assert adapter.list_dir("") == ["top.json"]
    assert adapter.list_dir("dir/a.json") == []


@pytest.mark.parametrize("name", ["", "/", "a//b", "../a", "a/./b", "x#1", "dir#22/x", "x\0"])
def test_reserved_and_broken_names_are_refused(store: Store, name: str) -> None:
    adapter = store.adapter()
    for call in (adapter.read_text_if_exists, adapter.exists, adapter.delete, adapter.delete_prefix):
        with pytest.raises(StoragePermanent):
            call(name)
    with pytest.raises(StoragePermanent):
        adapter.write_text(name, "1")
    adapter.write_text("fine#name", "a hash without digits at the end is an ordinary name")
    assert adapter.list_dir("") == ["fine#name"]


def test_a_conditional_write_needs_the_current_token(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("x", "1")
    first = adapter.read_text_versioned("x")
    assert first is not None
    second = adapter.write_text_if_match("x", "2", first.token)
    assert second is not None
    assert adapter.write_text_if_match("x", "3", first.token) is None
    assert adapter.read_text("x") == "2"
    assert adapter.write_text_if_match("x", "3", second) is not None
    assert adapter.write_text_if_match("nothing", "1", first.token) is None
    adapter.delete("x")
    assert adapter.write_text_if_match("x", "4", second) is None
    assert not adapter.exists("x")


def test_conditional_writers_lose_no_update(store: Store) -> None:
    adapter = store.adapter()
    adapter.write_text("counter", "0")

    def add_one(_: int) -> None:
        while True:
            seen = adapter.read_text_versioned("counter")
            assert seen is not None
            if adapter.write_text_if_match("counter", str(int(seen.text) + 1), seen.token) is not None:
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add_one, range(40)))
    assert adapter.read_text("counter") == "40"


def test_delete_prefix_takes_everything_below_and_nothing_beside(store: Store) -> None:
    adapter = store.adapter()
    for name in ("tree/a/x", "tree/a/b/y", "tree/ab/z", "tree/a.json"):
        adapter.write_text(name, "1")
    adapter.delete_prefix("tree/a")
    adapter.delete_prefix("tree/never")
    assert not adapter.exists("tree/a")
    assert adapter.exists("tree/ab/z")
    assert adapter.exists("tree/a.json")


def test_identity_names_one_incarnation(store: Store) -> None:
    adapter = store.adapter()
    assert adapter.identity("x") is None
    adapter.write_text("x", "1")
    first = adapter.identity("x")
    assert first is not None
    assert adapter.identity("x") == first
    adapter.write_text("x", "other text")
    assert adapter.identity("x") not in {first, None}


def test_every_write_reports_before_and_after(store: Store) -> None:
    adapter = store.adapter()
    heard: list[Event] = []
    with listen(heard.append):
        adapter.write_text("x", "1")
        adapter.write_text_if_absent("y", "1")
        adapter.rename_text("x", "z")
        adapter.delete("z")
    steps = [(e.kind, e.moment) for e in heard if isinstance(e, DurableOperation) and "sync" not in e.kind]
    assert steps == [
        (kind, moment)
        for kind in ("write_text", "write_text", "rename_text", "delete")
        for moment in ("before", "after")
    ]
    assert len([e for e in heard if isinstance(e, StorageCall)]) == 4


@pytest.mark.s3
@pytest.mark.parametrize("options", [{}, {"timeout": "30s"}], ids=["nothing given", "another option given"])
def test_the_environment_alone_reaches_a_store_without_encryption(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    store = s3_store()
    known = store.storage_options
    assert known is not None
    for name in ("aws_endpoint", "aws_region", "aws_access_key_id", "aws_secret_access_key"):
        monkeypatch.setenv(name.upper(), known[name])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    adapter = open_adapter(store.uri, storage_options=options)
    adapter.write_text("x", "there")
    assert adapter.read_text("x") == "there"
