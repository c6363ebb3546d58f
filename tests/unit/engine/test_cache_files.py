"""Cache files: what was written comes back, anything else is not believed."""

import threading
from pathlib import Path

import numpy as np
import pytest

from omnigraph.core.settings import Settings
from omnigraph.engine.tables import cache_files
from omnigraph.engine.tables.cache_files import CacheFiles, directory_of
from omnigraph.storage.layout import GraphRoot

ARRAYS = {
    "numbers": np.arange(3000, dtype=np.uint32),
    "none": np.empty(0, np.int64),
    "few": np.array([7, -1], np.int64),
}
FACTS = {"names": ["a", "b"], "count": 3}


@pytest.fixture
def files(tmp_path):
    return CacheFiles(tmp_path / "__cache", 1 << 20)


def the_file(files) -> Path:
    [path] = files.directory.glob("*.cache")
    return path


def is_whole(found) -> bool:
    return (
        found is not None
        and found.facts == FACTS
        and found.arrays.keys() == ARRAYS.keys()
        and all(np.array_equal(found.arrays[name], ARRAYS[name]) for name in ARRAYS)
    )


def test_what_was_saved_is_loaded(files):
    assert files.load("keys-1", "s") is None
    assert files.save("keys-1", "s", FACTS, ARRAYS)
    assert is_whole(files.load("keys-1", "s"))
    assert [is_whole(each) for each in files.newest("keys-1")] == [True]
    assert files.load("keys-1", "other") is None
    assert files.load("keys-2", "s") is None
    assert files.save("empty-1", "s", {"only": "facts"}, {})
    found = files.load("empty-1", "s")
    assert found is not None
    assert (found.facts, dict(found.arrays)) == ({"only": "facts"}, {})


def cut(size):
    return lambda data: data[: size(len(data))]


def flipped(place):
    def flip(data):
        at = place(len(data))
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return flip


DAMAGES = {
    "empty": cut(lambda size: 0),
    "a few bytes": cut(lambda size: 20),
    "half": cut(lambda size: size // 2),
    "without its last byte": cut(lambda size: size - 1),
    "longer": lambda data: data + b"\0",
    "another magic": flipped(lambda size: 0),
    "another format": flipped(lambda size: 8),
    "another head": flipped(lambda size: 60),
    "a changed value": flipped(lambda size: 4096 + 17),
    "a changed last byte": flipped(lambda size: size - 1),
    "a page of zeros": lambda data: data[:4096] + bytes(4096) + data[8192:],
    "two pages swapped": lambda data: data[:4096] + data[8192:12288] + data[4096:8192] + data[12288:],
    "two words of a page swapped": lambda data: data[:4096] + data[4104:4112] + data[4096:4104] + data[4112:],
    "two flips that make up for each other": lambda data: (
        data[:4096] + bytes([data[4096] + 1]) + data[4097:4104] + bytes([data[4104] - 1]) + data[4105:]
    ),
    "nothing we know": lambda data: b"not a cache file at all" * 1000,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("noted", [True, False])
def test_a_damaged_file_is_not_believed(files, damage, noted):
    files.save("keys-1", "s", FACTS, ARRAYS)
    path = the_file(files)
    if not noted:
        path.with_name(path.name + ".seen").unlink()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert files.load("keys-1", "s") is None
    assert list(files.newest("keys-1")) == []
    assert files.save("keys-1", "s", FACTS, ARRAYS)
    assert is_whole(files.load("keys-1", "s"))


def test_the_damaged_files_are_named_even_when_their_times_say_nothing(files, monkeypatch):
    files.save("keys-1", "s", FACTS, ARRAYS)
    assert files.damaged() == []
    path = the_file(files)
    path.write_bytes(DAMAGES["a changed value"](path.read_bytes()))
    # As after a flip on the disk: the file system knows of no change.
    monkeypatch.setattr(cache_files, "_is_seen", lambda *_: True)
    assert files.load("keys-1", "s") is not None
    assert files.damaged() == [path.name]
    monkeypatch.setattr(cache_files, "CACHE_FORMAT", cache_files.CACHE_FORMAT + 1)
    assert files.damaged() == [], "a file of another program is none of ours"


def test_a_damaged_copy_in_the_place_of_a_checked_file_is_not_believed(files):
    files.save("keys-1", "s", FACTS, ARRAYS)
    path = the_file(files)
    other = path.with_name("other")
    other.write_bytes(DAMAGES["a changed value"](path.read_bytes()))
    other.replace(path)
    assert files.load("keys-1", "s") is None


def test_a_file_under_a_wrong_name_is_not_believed(files):
    files.save("keys-1", "s", FACTS, ARRAYS)
    path = the_file(files)
    path.rename(path.with_name("keys-2-s.cache"))
    assert files.load("keys-2", "s") is None
    assert list(files.newest("keys-2")) == []
    (files.directory / "keys-2-s.cache").rename(files.directory / "keys-1-t.cache")
    assert files.load("keys-1", "t") is None


def test_files_of_another_version_are_not_read(files, monkeypatch):
    monkeypatch.setattr(cache_files, "CACHE_FORMAT", cache_files.CACHE_FORMAT + 1)
    files.save("keys-1", "s", FACTS, ARRAYS)
    monkeypatch.undo()
    assert files.load("keys-1", "s") is None


def test_without_a_boot_number_every_load_checks(files, monkeypatch):
    monkeypatch.setattr(cache_files, "boot_id", lambda: None)
    files.save("keys-1", "s", FACTS, ARRAYS)
    path = the_file(files)
    assert not path.with_name(path.name + ".seen").exists()
    assert is_whole(files.load("keys-1", "s"))
    assert not path.with_name(path.name + ".seen").exists()


def test_a_checked_file_is_noted(files):
    files.save("keys-1", "s", FACTS, ARRAYS)
    note = the_file(files).with_name(the_file(files).name + ".seen")
    assert note.exists()
    note.write_text("{}")
    assert is_whole(files.load("keys-1", "s"))
    assert note.read_text() != "{}"


def test_generations_and_bytes_are_bounded(tmp_path):
    files = CacheFiles(tmp_path / "c", 60_000)
    for number in range(6):
        files.save("keys-1", f"s{number}", FACTS, ARRAYS)
    assert [each.state for each in files.newest("keys-1")] == ["s5", "s4"]  # a third one has no room
    files.save("keys-2", "s", FACTS, ARRAYS)
    assert files.load("keys-2", "s") is not None
    assert sum(path.stat().st_size for path in files.directory.glob("*.cache")) <= 60_000
    assert len(list(files.directory.glob("*.seen"))) == len(list(files.directory.glob("*.cache")))
    assert not files.save("keys-3", "s", {}, {"large": np.zeros(100_000, np.uint8)})
    roomy = CacheFiles(tmp_path / "d", 1 << 20)
    for number in range(6):
        roomy.save("keys-1", f"s{number}", FACTS, ARRAYS)
    assert [each.state for each in roomy.newest("keys-1")] == ["s5", "s4", "s3"]


def test_what_dead_writers_left_is_removed(files, monkeypatch):
    files.save("keys-1", "s", FACTS, ARRAYS)
    left = files.directory / "keys-1-x.cache.1-1.new"
    left.write_bytes(b"half")
    files.save("keys-1", "t", FACTS, ARRAYS)
    assert left.exists()  # its writer may live
    monkeypatch.setattr(cache_files, "UNFINISHED_S_MAX", -1)
    files.save("keys-1", "u", FACTS, ARRAYS)
    assert not left.exists()


def test_a_place_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    files = CacheFiles(tmp_path / "file" / "__cache", 1 << 20)
    assert not files.save("keys-1", "s", FACTS, ARRAYS)
    assert files.load("keys-1", "s") is None
    assert list(files.newest("keys-1")) == []
    assert files.nbytes() == 0


def test_a_removed_graph_does_not_come_back_as_a_directory(tmp_path):
    files = CacheFiles(tmp_path / "gone" / "__cache", 1 << 20)
    assert not files.save("keys-1", "s", FACTS, ARRAYS)
    assert not (tmp_path / "gone").exists()


def test_many_writers_of_one_file(files):
    def save():
        for _ in range(5):
            files.save("keys-1", "s", FACTS, ARRAYS)
            assert is_whole(files.load("keys-1", "s"))

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_whole(files.load("keys-1", "s"))
    assert [path.name for path in files.directory.glob("*.new")] == []


def test_a_mapped_file_outlives_its_removal(files):
    files.save("keys-1", "s", FACTS, ARRAYS)
    found = files.load("keys-1", "s")
    for path in files.directory.iterdir():
        path.unlink()
    assert is_whole(found)


def test_where_caches_are(tmp_path, monkeypatch):
    local = GraphRoot(str(tmp_path / "g"))
    remote = GraphRoot("s3://bucket/graph")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert directory_of(local, Settings()) == tmp_path / "g" / "__cache"
    assert directory_of(remote, Settings()).parent == tmp_path / "home" / "omnigraph"
    assert directory_of(remote, Settings()) != directory_of(GraphRoot("s3://bucket/other"), Settings())
    assert directory_of(GraphRoot("memory://g"), Settings()) is None
    moved = Settings.from_environment({"OMNIGRAPH_CACHE_DIR": str(tmp_path / "moved")})
    assert directory_of(local, moved).parent == tmp_path / "moved"
    off = Settings.from_environment({"OMNIGRAPH_CACHE_DIR": "off"})
    assert directory_of(local, off) is None
    assert directory_of(remote, off) is None
    assert not CacheFiles.of(local, off, read_only=False).writable
    # Reading only, a handle writes nothing below the graph itself.
    assert not CacheFiles.of(local, Settings(), read_only=True).writable
    assert CacheFiles.of(local, moved, read_only=True).writable
    assert CacheFiles.of(remote, Settings(), read_only=True).writable
