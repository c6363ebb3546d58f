"""The same promise on a real file system: what had not reached the block device when the power went is gone.

A writer is killed on an ext4 that lives in a file. The file is copied while the file system is mounted: that is
what the device had, without anything the kernel still held back. The copy is mounted, which replays its journal,
and judged like any other state.

`OMNIGRAPH_TORTURE_DEATHS` bounds how often each writer dies in `make torture`; at every call without it.
"""

import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from crash.harness import CUT, Children
from crash.people import BRANCH_CREATE, BRANCH_DELETE, BRANCH_INSERT, INSERT, SWITCH
from powercut.scene import TAG, Cut, Scene, is_return, where_possible
from powercut.shim import CannotShow, Kind, built, calls

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3600)]

SIZE = 64 * 2**20
WRITTEN_BACK_S = 600
"""The journal is written by syncs alone: the kernel's own pace would make a cut depend on the clock."""
DEATHS_IN_THE_SUITE = 3
DEATHS_IN_TORTURE = int(os.environ.get("OMNIGRAPH_TORTURE_DEATHS", "1000000"))
WRITERS = (BRANCH_INSERT, BRANCH_CREATE, BRANCH_DELETE, SWITCH, INSERT)


def run(*command: str) -> None:
    tool = shutil.which(command[0], path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if tool is None:
        raise CannotShow(f"there is no {command[0]}")
    done = subprocess.run([tool, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotShow(f"{command[0]} is not allowed: {(done.stderr or done.stdout).strip()}")


def copied(source: Path, target: Path) -> None:
    """Byte for byte, with holes where there is nothing."""
    run("cp", "--sparse=always", str(source), str(target))


@contextmanager
def mounted(image: Path, at: Path):
    at.mkdir(exist_ok=True)
    run("mount", "-o", f"loop,commit={WRITTEN_BACK_S}", "-t", "ext4", str(image), str(at))
    try:
        yield at
    finally:
        run("umount", str(at))


class Device:
    """A disk with a graph on it, made once; every death begins with a fresh copy of it."""

    def __init__(self, children: Children, directory: Path, writer) -> None:
        if os.geteuid() != 0:
            raise CannotShow("only root may mount a file system")
        self.directory = directory
        self.at = directory / "disk"
        self._made = directory / "made.ext4"
        with self._made.open("wb") as file:
            file.truncate(SIZE)
        run("mkfs.ext4", "-q", "-F", str(self._made))
        with mounted(self._made, self.at):
            self.scene = Scene(children, self.at, writer)
            self.calls = len([call for call in self.scene.write() if call.kind is not Kind.MARK])
            self.scene.put_back()

    def die(self, number: int) -> list[str]:
        """What is wrong after the writer died in front of its call of that number and the power went."""
        scene = self.scene
        working, left = self.directory / "working.ext4", self.directory / "left.ext4"
        log = self.directory / f"calls-{number}"
        copied(self._made, working)
        with mounted(working, self.at):
            watched = {"library": str(built()), "root": str(scene.path), "log": str(log), "kill_at": number}
            told = {"writer": scene.writer.name, "tag": TAG, "branch": scene.branch}
            status = scene.children.run("write", path=str(scene.path), watched=watched, **told)
            assert status in {0, CUT}, status
            copied(working, left)
        with mounted(left, self.at):
            returned = any(map(is_return, calls(log)))
            cut = Cut(number, "ext4", {}, returned)
            return scene.judge_what_is_there(cut, thorough=False)


def deaths(children, tmp_path, writer, *, every):
    device = Device(children, tmp_path, writer)
    step = max(1, device.calls // (DEATHS_IN_TORTURE if every else DEATHS_IN_THE_SUITE))
    numbers = range(step, device.calls + 2, step)
    broken = {number: found for number in numbers if (found := device.die(number))}
    assert broken == {}, f"{len(broken)} of {len(numbers)} deaths of {writer.name}"
    print(f"\n{writer.name} on a real ext4: {len(numbers)} deaths and power cuts, none broken")


def test_a_first_write_on_a_branch_survives_the_power_cut_on_a_real_file_system(
    children, tmp_path, record_property
):
    with where_possible(record_property):
        deaths(children, tmp_path, BRANCH_INSERT, every=False)


@pytest.mark.torture
@pytest.mark.parametrize("writer", WRITERS, ids=lambda w: w.name)
def test_a_power_cut_at_any_call_on_a_real_file_system(children, tmp_path, writer, record_property):
    with where_possible(record_property):
        deaths(children, tmp_path, writer, every=True)
