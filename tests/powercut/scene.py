"""One writer on one graph, its calls recorded, and every state a power cut may leave of them judged."""

import copy
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crash.harness import Children
from crash.people import INSERT, Model, Writer
from powercut.disk import Disk, Image, cuts, place, read
from powercut.shim import Call, CannotShow, Kind, built, calls

RETURNED = "returned"
TAG, SECOND_TAG = "5", "6"


@dataclass(frozen=True)
class Cut:
    """What one power cut may leave, and what had been promised by then."""

    number: int
    """Calls that had been made."""
    how: str
    image: Image
    returned: bool
    second: str | None = None
    """The branch on which another process had acknowledged a write of its own."""

    def __str__(self) -> str:
        after = "" if self.second is None else f", then a write on {self.second}"
        return f"after {self.number} calls{after}: {self.how}"


class Scene:
    """A graph that one process makes and another one writes. Only what either has synced is sure."""

    def __init__(self, children: Children, directory: Path, writer: Writer) -> None:
        self.children = children
        self.writer = writer
        self.path = directory / "graph"
        self._directory = directory
        self._logs = 0
        self._result = directory / "result.json"
        self.path.mkdir(parents=True)
        self.made = Disk(self.path)
        self.made.look()
        told = {"writer": writer.name, "tag": TAG, "result": str(self._result)}
        self._play(self.made, self.record("create", **told))
        prepared = json.loads(self._result.read_text())
        self.branch = prepared["branch"]
        self._before = Model.read(prepared["before"])
        self._after = writer.after(self._before, TAG)
        assert self.made.now() == read(self.path), "the recording does not tell what is on the disk"

    def record(self, command: str, **told: object) -> list[Call]:
        """The calls of one command in a process of its own, which ends with it."""
        self._logs += 1
        log = self._directory / f"calls-{self._logs}"
        errors = self._directory / "errors"
        errors.write_text("")
        watched = {"library": str(built()), "root": str(self.path), "log": str(log)}
        status = self.children.run(command, path=str(self.path), watched=watched, errors=str(errors), **told)
        text = errors.read_text()
        if CannotShow.__name__ in text:
            raise CannotShow(text.strip().splitlines()[-1])
        assert status == 0, text
        return list(calls(log))

    def write(self, **how: object) -> list[Call]:
        """The calls of the writer on the graph as it was made."""
        self.put_back()
        self.made.look()
        return self.record("write", writer=self.writer.name, tag=TAG, branch=self.branch, **how)

    def put_back(self) -> None:
        """The graph as it was made."""
        place(self.made.now(), self.path)

    def fail(self, number: int, error: int) -> tuple[str, bool]:
        """The call of that number fails: how the writer ended, and whether a reader sees what it was to do."""
        self.put_back()
        self._logs += 1
        log, errors = self._directory / f"calls-{self._logs}", self._directory / "errors"
        watched = {"library": str(built()), "root": str(self.path), "log": str(log)}
        told = {"writer": self.writer.name, "tag": TAG, "branch": self.branch, "errors": str(errors)}
        errors.write_text("")
        self.children.run(
            "write", path=str(self.path), watched=watched | {"fail_at": number, "error": error}, **told
        )
        (end,) = [call.path for call in calls(log) if call.kind is Kind.MARK]
        assert self._judging("look") == 0
        found = json.loads(self._result.read_text())
        if self.writer.check is not None:
            return end, self.writer.check(found, TAG, returned=True) == []
        return end, Model.read(found["exports"][self.branch]) == self._after

    def cuts(self, written: Iterable[Call], seeds: int = 1) -> Iterator[Cut]:
        """Every different state that a cut after any of these calls may leave."""
        disk, seen = copy.deepcopy(self.made), set[int]()
        returned = False
        for number, call in enumerate(written, 1):
            disk.apply(call)
            returned = returned or is_return(call)
            for how, image in cuts(disk, range(number * seeds, (number + 1) * seeds)):
                key = hash((returned, frozenset(image.items())))
                if key not in seen:
                    seen.add(key)
                    yield Cut(number, how, image, returned)

    def cuts_after_another(
        self, written: list[Call], number: int, seeds: int = 1, *, without: str | None = None
    ) -> Iterator[Cut]:
        """The writer dies after that many calls, another process writes on top of it, then the power goes.

        `without` switches off a part of the protocol in the process that writes on top.
        """
        disk = copy.deepcopy(self.made)
        self._play(disk, written[:number])
        returned = any(map(is_return, written[:number]))
        place(disk.now(), self.path)
        disk.look()
        told = {"writer": INSERT.name, "tag": SECOND_TAG, "wanted": [f"n{TAG}", f"b{TAG}", "main"]}
        second = self.record("write_on_top", without=without, **told)
        self._play(disk, second)
        assert disk.now() == read(self.path), "the recording does not tell what is on the disk"
        (mark,) = [call.path for call in second if call.kind is Kind.MARK]
        branch = mark.removeprefix(f"{RETURNED} ")
        seen = set[int]()
        for how, image in cuts(disk, range(number * seeds, (number + 1) * seeds)):
            key = hash(frozenset(image.items()))
            if key not in seen:
                seen.add(key)
                yield Cut(number, how, image, returned, branch)

    def judge(self, cut: Cut, *, thorough: bool) -> list[str]:
        """What is wrong with a graph that this cut left; nothing, if the promise holds."""
        place(cut.image, self.path)
        return self.judge_what_is_there(cut, thorough=thorough)

    def judge_what_is_there(self, cut: Cut, *, thorough: bool) -> list[str]:
        """As `judge` for what lies at the place of the graph now."""
        errors = self._directory / "errors"
        errors.write_text("")
        if self._judging("examine", thorough=thorough, errors=str(errors)) != 0:
            return [f"the graph cannot be used: {errors.read_text()[-2000:]}"]
        found = json.loads(self._result.read_text())
        problems = list(found["violations"])
        if self.branch not in found["exports"]:
            return [*problems, f"the branch {self.branch} is gone"]
        shown = _without_second(Model.read(found["exports"][self.branch]))
        if shown not in (self._before, self._after):
            problems.append(f"neither before nor after: {shown}")
        if cut.returned and shown != self._after:
            problems.append("an acknowledged write is gone")
        if cut.returned and self.writer.forgets is not None:
            text = self.writer.forgets(TAG).encode()
            problems += [
                f"{text!r} is in {name}" for name, held in cut.image.items() if text in (held or b"")
            ]
        if cut.second is not None:
            people = Model.read(found["exports"].get(cut.second, "")).people
            if not {f"a-{SECOND_TAG}", f"b-{SECOND_TAG}"} <= people.keys():
                problems.append(f"the acknowledged write of the second process on {cut.second} is gone")
        elif self.writer.check is not None:
            problems.extend(self.writer.check(found, TAG, returned=cut.returned))
        return problems

    def _judging(self, command: str, **told: object) -> int:
        """Whether what judges a state reaches the device itself does not matter."""
        path, result = str(self.path), str(self._result)
        return self.children.run(command, path=path, result=result, durability="os", **told)

    def _play(self, disk: Disk, recorded: Iterable[Call]) -> None:
        for call in recorded:
            disk.apply(call)


def is_return(call: Call) -> bool:
    """Whether this is the mark of a call that has returned to its caller."""
    return call.kind is Kind.MARK and call.path.startswith(RETURNED)


def _without_second(model: Model) -> Model:
    """The rows of the first writer alone."""
    own = {f"a-{SECOND_TAG}", f"b-{SECOND_TAG}"}
    return Model(
        {name: age for name, age in model.people.items() if name not in own},
        Counter({key: count for key, count in model.knows.items() if not own & {*key[:2]}}),
        Counter({key: count for key, count in model.likes.items() if not own & {*key}}),
    )


def spread(cuts_found: list[Cut], count: int) -> list[Cut]:
    """That many of them, from the first to the last; all where there are fewer."""
    if len(cuts_found) <= count:
        return cuts_found
    return [cuts_found[number * (len(cuts_found) - 1) // (count - 1)] for number in range(count)]


@contextmanager
def where_possible(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Where a machine cannot show it, say so and why; the summary of the run lists it as not run."""
    try:
        yield
    except CannotShow as reason:
        record_property("not_run", f"{reason} ({os.uname().sysname} {os.uname().machine})")
