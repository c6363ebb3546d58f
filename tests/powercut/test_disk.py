"""The model of what a file system may keep: only what was synced is sure."""

from pathlib import Path

import pytest

from powercut.disk import Disk, cuts
from powercut.shim import Call, Kind

ROOT = Path("/g")
LOST, NAMES, HALF, ZEROS, ALL = range(5)


class Story:
    """Calls written down by hand."""

    def __init__(self) -> None:
        self.disk = Disk(ROOT)
        self._inodes = {"": 0}
        self.disk._nodes[0] = self.disk.top

    def call(self, kind: Kind, name: str, other: str = "", data: bytes = b"", offset: int = 0) -> "Story":
        if kind in {Kind.OPEN, Kind.MKDIR}:
            self._inodes.setdefault(name, len(self._inodes))
        number = self._inodes.get(name, -1)
        if kind in {Kind.RENAME, Kind.LINK}:
            self._inodes[other] = number
        path, target = f"{ROOT}/{name}".rstrip("/"), f"{ROOT}/{other}" if other else ""
        self.disk.apply(Call(kind, path, target, 0, number, offset, data))
        return self

    def file(self, name: str, data: bytes, *, synced: bool = False) -> "Story":
        self.call(Kind.OPEN, name).call(Kind.WRITE, name, data=data)
        return self.call(Kind.SYNC, name) if synced else self

    def left(self) -> list[dict[str, bytes | None]]:
        return [image for _, image in cuts(self.disk, ())]

    def mixtures(self) -> list[dict[str, bytes | None]]:
        return [image for _, image in cuts(self.disk, range(300))][5:]


def test_what_was_never_synced_may_be_gone_or_empty_or_torn():
    left = Story().file("a", b"1234").left()
    assert left[LOST] == {}
    assert left[NAMES] == {"a": b""}
    assert left[HALF] == {"a": b"12"}
    assert left[ZEROS] == {"a": b"\0\0\0\0"}
    assert left[ALL] == {"a": b"1234"}


def test_a_synced_file_keeps_its_bytes_and_may_lose_its_name():
    left = Story().file("a", b"1234", synced=True).left()
    assert left[LOST] == {}
    assert left[NAMES] == left[HALF] == left[ZEROS] == left[ALL] == {"a": b"1234"}


def test_a_synced_directory_keeps_its_names():
    story = Story().file("a", b"1234").call(Kind.SYNC, "")
    assert story.left()[LOST] == {"a": b""}
    assert all("a" in image for image in story.mixtures())


def test_a_name_in_a_directory_that_is_lost_is_lost_with_it():
    story = Story().call(Kind.MKDIR, "d").file("d/a", b"1", synced=True).call(Kind.SYNC, "d")
    assert story.left()[LOST] == {}
    assert story.call(Kind.SYNC, "").left()[LOST] == {"d": None, "d/a": b"1"}


def test_a_rename_happens_as_a_whole_or_not_at_all():
    story = Story().file("new", b"2", synced=True).file("old", b"1", synced=True).call(Kind.SYNC, "")
    story.call(Kind.RENAME, "new", "old")
    found = {tuple(sorted(image.items())) for image in story.mixtures()}
    assert found == {(("new", b"2"), ("old", b"1")), (("old", b"2"),)}


def test_a_removal_that_was_not_synced_may_be_undone():
    story = Story().file("a", b"1", synced=True).call(Kind.SYNC, "").call(Kind.UNLINK, "a")
    assert story.left()[LOST] == {"a": b"1"}
    assert story.left()[ALL] == {}
    assert {bool(image) for image in story.mixtures()} == {True, False}
    assert story.call(Kind.SYNC, "").left()[LOST] == {}


def test_a_link_gives_the_bytes_a_second_name():
    story = Story().file("tmp", b"1").call(Kind.LINK, "tmp", "final").call(Kind.UNLINK, "tmp")
    found = {frozenset(image) for image in story.mixtures()}
    assert found == {frozenset(), frozenset({"tmp"}), frozenset({"final"}), frozenset({"tmp", "final"})}
    assert story.call(Kind.SYNC, "").left()[HALF] == {"final": b""}
    assert story.call(Kind.SYNC, "final").left()[LOST] == {"final": b"1"}


def test_bytes_written_after_the_sync_are_not_sure():
    story = (
        Story()
        .file("a", b"1234", synced=True)
        .call(Kind.SYNC, "")
        .call(Kind.WRITE, "a", data=b"5678", offset=4)
    )
    left = story.left()
    assert [left[LOST]["a"], left[HALF]["a"], left[ZEROS]["a"], left[ALL]["a"]] == [
        b"1234",
        b"123456",
        b"1234\0\0\0\0",
        b"12345678",
    ]


def test_a_call_of_unknown_effect_is_refused():
    with pytest.raises(AssertionError, match="not known"):
        Story().call(Kind.UNKNOWN, "a")
