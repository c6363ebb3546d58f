"""The power goes while a graph is copied: the copy is whole once the call has returned, and can be made again before.

`make torture` looks at every state that a cut may leave, the suite at a few.
"""

import copy
import json
from collections import Counter

import pytest

from crash.people import BRANCH_DELETE
from powercut.disk import Disk, cuts, place, read
from powercut.scene import TAG, is_return, where_possible
from powercut.shim import CannotShow, built, calls

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(3600)]

IN_THE_SUITE = 12


class Copying:
    """A graph with a branch of its own rows, the calls of a process that copies it, and the states of the copy."""

    def __init__(self, children, directory):
        self._children = children
        self._source, self.target = directory / "source", directory / "copy"
        self._result, self._errors = directory / "result.json", directory / "errors"
        made = children.run(
            "create", path=str(self._source), writer=BRANCH_DELETE.name, tag=TAG, result=str(self._result)
        )
        assert made == 0
        self.target.mkdir()
        self.empty = Disk(self.target)
        self.empty.look()
        log = directory / "calls"
        watched = {"library": str(built()), "root": str(self.target), "log": str(log)}
        self._errors.write_text("")
        status = self._run("clone", watched=watched)
        if CannotShow.__name__ in self._errors.read_text():
            raise CannotShow(self._errors.read_text().strip().splitlines()[-1])
        assert status == 0, self._errors.read_text()
        self.calls = list(calls(log))

    def states(self):
        """Every different state that a cut may leave, and whether the call had returned."""
        disk, seen, returned = copy.deepcopy(self.empty), set(), False
        for number, call in enumerate(self.calls, 1):
            disk.apply(call)
            returned = returned or is_return(call)
            for how, image in cuts(disk, [number]):
                key = hash((returned, frozenset(image.items())))
                if key not in seen:
                    seen.add(key)
                    yield f"after {number} calls: {how}", image, returned
        assert disk.now() == self._copied, "the recording does not tell what is on the disk"

    def judge(self, image, returned):
        """What is wrong with what the cut left."""
        place(image, self.target)
        self._errors.write_text("")
        if self._run("examine_clone", returned=returned, durability="os") != 0:
            return [self._errors.read_text()[-2000:]]
        return json.loads(self._result.read_text())

    def _run(self, command, **told):
        status = self._children.run(
            command,
            path=str(self._source),
            target=str(self.target),
            result=str(self._result),
            errors=str(self._errors),
            **told,
        )
        if command == "clone":
            self._copied = read(self.target)
        return status


def judged(children, directory, count):
    copying = Copying(children, directory)
    states = list(copying.states())
    step = max(1, len(states) // count)
    broken, kinds = {}, Counter()
    for where, image, returned in [*states[::step], states[-1]]:
        kinds["returned" if returned else "cut"] += 1
        problems = copying.judge(image, returned)
        if problems:
            broken[where] = problems
    assert broken == {}, f"{len(broken)} of {kinds.total()} states"
    assert kinds["returned"] > 0
    print(
        f"\ncopy: {len(copying.calls)} calls, {len(states)} different states, judged {dict(kinds)}, none broken"
    )


def test_a_copy_that_was_cut_is_made_again(children, tmp_path, record_property):
    with where_possible(record_property):
        judged(children, tmp_path, IN_THE_SUITE)


@pytest.mark.torture
def test_a_copy_that_was_cut_anywhere_is_made_again(children, tmp_path, record_property):
    with where_possible(record_property):
        judged(children, tmp_path, 1_000_000)
