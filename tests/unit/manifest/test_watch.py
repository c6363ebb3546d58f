"""Whether a branch is still at rest: by two exact probes, and by one once its directory has settled."""

import os
from pathlib import Path

import lance
import pytest

from omnigraph.manifest import watch
from omnigraph.manifest.watch import Watch
from unit.manifest.ground import PERSON, advance, new_store, open_store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that have passed, in a list of one."""
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now


def watched(directory: Path) -> Watch:
    (directory / "hint.json").write_text("1")
    return Watch(str(directory / "2.manifest"), str(directory / "hint.json"))


def within_one_step(directory: Path, change: Path) -> None:
    """A change that the directory's clock does not tell from the one before it."""
    before = directory.stat()
    change.touch()
    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))


def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []
    access = os.access
    monkeypatch.setattr(watch.os, "access", lambda path, mode: asked.append(path) or access(path, mode))
    return asked


def test_one_probe_once_the_directory_has_settled(tmp_path, clock, monkeypatch) -> None:
    watch, asked = watched(tmp_path), probes(monkeypatch)
    for seconds in (0.0, 1.0, 1.4):
        clock[0] += seconds
        assert watch.at_rest()
    assert len(asked) == 3
    clock[0] += 0.2  # longer than any clock's step since the stamp was first seen
    assert watch.at_rest()
    assert watch.at_rest()
    assert len(asked) == 4
    (tmp_path / "2.manifest").touch()
    assert not watch.at_rest()


def test_a_second_change_within_one_step_of_the_clock_is_seen(tmp_path, clock) -> None:
    watch = watched(tmp_path)
    assert watch.at_rest()
    clock[0] += 2.4
    assert watch.at_rest()
    within_one_step(tmp_path, tmp_path / "2.manifest")
    assert not watch.at_rest()


def test_a_change_that_is_no_commit_starts_the_wait_anew(tmp_path, clock, monkeypatch) -> None:
    watch, asked = watched(tmp_path), probes(monkeypatch)
    for _ in range(3):
        assert watch.at_rest()
        clock[0] += 3.0
    settled = len(asked)
    (tmp_path / "something.tmp").touch()
    assert watch.at_rest()
    clock[0] += 2.4
    assert watch.at_rest()
    assert len(asked) == settled + 2
    within_one_step(tmp_path, tmp_path / "2.manifest")
    assert not watch.at_rest()


@pytest.mark.parametrize("gone", ["directory", "hint"])
def test_what_is_gone_is_not_at_rest(tmp_path, clock, gone) -> None:
    directory = tmp_path / "versions"
    directory.mkdir()
    watch = watched(directory)
    for _ in range(3):
        assert watch.at_rest()
        clock[0] += 3.0
    if gone == "hint":
        (directory / "hint.json").unlink()
    else:
        directory.rename(tmp_path / "elsewhere")
    assert not watch.at_rest()


def test_another_directory_in_its_place_is_seen(tmp_path, clock) -> None:
    directory = tmp_path / "versions"
    directory.mkdir()
    watch = watched(directory)
    for _ in range(3):
        assert watch.at_rest()
        clock[0] += 3.0
    before = directory.stat()
    directory.rename(tmp_path / "elsewhere")
    directory.mkdir()
    (directory / "hint.json").write_text("7")
    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not watch.at_rest()


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_settled_store_sees_a_publish_of_another_process_at_once(tmp_path, clock, cleaned) -> None:
    store, other = new_store(tmp_path), open_store(tmp_path)
    seen = store.current(None).manifest_version
    lance.dataset(str(tmp_path / "__manifest")).tags.create("kept", seen)
    for _ in range(4):
        assert store.current(None).manifest_version == seen
        clock[0] += 3.0
    assert store._watched[1]._settled is not None
    for _ in range(3):
        advance(other)
    if cleaned:
        (tmp_path / store.dataset.version_file(None, seen + 1)).unlink()
    assert store.current(None).pin(PERSON) == 4
