"""The form of a case file and the registry of steps.

A case file holds cases. A case starts with `case <label>  <title>`; its steps follow, one per line: a verb, an
argument, and optionally an indented block below. `#` starts a comment line between cases or steps.

    case S03  a comma between members is refused
    schema
        node Boat { hull: String, crew: U32? }
    error SchemaSyntaxError

A language adds its verbs in a module of its own with `@step("verb")`; `test_cases.py` imports those modules.
"""

import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CASES_DIR = Path(__file__).parent


@dataclass(frozen=True)
class Step:
    verb: str
    argument: str
    block: str
    line: int


@dataclass(frozen=True)
class Case:
    label: str
    title: str
    file: Path
    line: int
    steps: tuple[Step, ...]

    @property
    def id(self) -> str:
        return f"{self.file.parent.name}/{self.file.stem}-{self.label}"


@dataclass
class World:
    """What the steps of one case share. A verb keeps its results under names of its own choice."""

    facts: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        assert name in self.facts, f"no step before this one made '{name}'"
        return self.facts[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.facts[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        return self.facts.get(name, default)

    def clear(self, *names: str) -> None:
        for name in names:
            self.facts.pop(name, None)


Action = Callable[[World, Step], None]
VERBS: dict[str, Action] = {}


def step(verb: str) -> Callable[[Action], Action]:
    """Registers the action of a verb. A verb has one meaning in all languages."""

    def register(action: Action) -> Action:
        assert VERBS.setdefault(verb, action) is action, f"the verb '{verb}' is taken"
        return action

    return register


def read_cases(file: Path) -> list[Case]:
    """The cases of one file. Raises ValueError naming file and line when it is malformed."""
    cases: list[Case] = []
    for line, label, title, body in _split(file):
        cases.append(Case(label, title, file, line, tuple(_steps(file, body))))
    return cases


def _split(file: Path) -> Iterator[tuple[int, str, str, list[tuple[int, str]]]]:
    current: tuple[int, str, str, list[tuple[int, str]]] | None = None
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        heading = re.fullmatch(r"case\s+(\S+)\s+(\S.*)", text)
        if heading:
            if current is not None:
                yield current
            current = (number, heading[1], heading[2], [])
        elif current is not None:
            current[3].append((number, text))
        elif text.strip() and not text.startswith("#"):
            raise ValueError(f"{file.name}:{number}: a file starts with 'case <label> <title>'")
    if current is not None:
        yield current


def _steps(file: Path, body: list[tuple[int, str]]) -> Iterator[Step]:
    at = 0
    while at < len(body):
        number, text = body[at]
        at += 1
        if not text.strip() or text.startswith("#"):
            continue
        if text[0].isspace():
            raise ValueError(f"{file.name}:{number}: an indented line belongs below a step")
        verb, _, argument = text.partition(" ")
        block: list[str] = []
        while at < len(body) and (not body[at][1].strip() or body[at][1][0].isspace()):
            block.append(body[at][1])
            at += 1
        yield Step(verb, argument.strip(), textwrap.dedent("\n".join(block)).rstrip("\n"), number)


def run_case(case: Case) -> None:
    """Runs the steps in order; a failure names the line of its step."""
    world = World()
    for current in case.steps:
        place = f"{case.file.name}:{current.line}: {current.verb} {current.argument}".rstrip()
        action = VERBS.get(current.verb)
        assert action is not None, f"{place}: unknown verb; known are {', '.join(sorted(VERBS))}"
        try:
            action(world, current)
        except AssertionError as failure:
            raise AssertionError(f"{place}\n{failure}") from failure


def all_cases() -> list[Case]:
    return [case for file in sorted(CASES_DIR.rglob("*.case")) for case in read_cases(file)]


# Conformance numbers

CONFORMANCE: dict[str, int] = {"M": 50, "Q": 107, "S": 80}
"""Prefix of a specification's conformance cases to the number of its last case."""


def conformance_labels() -> set[str]:
    return {f"{prefix}{number:02d}" for prefix, last in CONFORMANCE.items() for number in range(1, last + 1)}


def waiting() -> dict[str, str]:
    """Conformance cases that need parts which are not there yet: label to what they wait for."""
    found: dict[str, str] = {}
    for line in (CASES_DIR / "waiting.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            label, _, reason = line.partition(" ")
            found[label] = reason.strip()
    return found
