"""What the shim does where a machine cannot show anything, and that it sees the calls of a process elsewhere."""

import subprocess
import sys

import pytest

from powercut.scene import where_possible
from powercut.shim import CannotShow, Kind, built, calls

WATCHED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from powercut.shim import Shim
shim = Shim(sys.argv[2])
shim.arm(sys.argv[3], sys.argv[4], fail_at=int(sys.argv[5]))
try:
    with open(sys.argv[3] + "/a", "wb") as file:
        file.write(b"12")
        file.flush()
        os.fsync(file.fileno())
    os.rename(sys.argv[3] + "/a", sys.argv[3] + "/b")
except OSError as error:
    shim.mark(f"failed {error.errno}")
"""


def watched(tmp_path, request, *, fail_at=0):
    place, log = tmp_path / "watched", tmp_path / "log"
    place.mkdir()
    tests = str(request.config.rootpath / "tests")
    command = [sys.executable, "-c", WATCHED, tests, str(built()), str(place), str(log), str(fail_at)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if CannotShow.__name__ in done.stderr:
        raise CannotShow(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return list(calls(log))


@pytest.mark.slow
def test_every_call_that_changes_something_is_seen_in_order(tmp_path, request, record_property):
    with where_possible(record_property):
        seen = watched(tmp_path, request)
        assert [call.kind for call in seen] == [Kind.OPEN, Kind.WRITE, Kind.SYNC, Kind.RENAME]
        assert seen[1].data == b"12"
        assert seen[3].other.endswith("/b")


def test_the_chosen_call_fails_and_does_nothing(tmp_path, request, record_property):
    with where_possible(record_property):
        seen = watched(tmp_path, request, fail_at=4)
        assert [call.kind for call in seen] == [Kind.OPEN, Kind.WRITE, Kind.SYNC, Kind.MARK]
        assert seen[-1].path == "failed 5"
        assert [path.name for path in (tmp_path / "watched").iterdir()] == ["a"]


def test_a_machine_without_a_compiler_says_why_nothing_was_run(monkeypatch):
    monkeypatch.setenv("PATH", "")
    told = {}
    with where_possible(told.__setitem__):
        built.__wrapped__()
    assert told["not_run"].startswith("there is no C compiler")


def test_a_failure_is_never_taken_for_a_machine_that_cannot(record_property):
    with pytest.raises(AssertionError, match="broken"), where_possible(record_property):
        raise AssertionError("broken")
