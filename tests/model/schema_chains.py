"""Random changes of a schema among live branches, and the model of what every commit must show."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from crash.harness import CUT, run_child
from omnigraph.core.errors import ConstraintViolation, MigrationBlocked
from omnigraph.core.failpoints import Window
from recovery_graph import FAST

NAMES = ("p", "q", "r", "s")
KILLED = {
    Window.SCHEMA_APPLY_AFTER_LOCK: False,
    Window.SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT: False,
    Window.SCHEMA_APPLY_BEFORE_STAGING_WRITE: False,
    Window.SCHEMA_APPLY_AFTER_STAGING_WRITE: True,
    Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT: True,
    Window.SCHEMA_APPLY_BETWEEN_RENAMES: True,
}
"""Where an apply dies, and whether it has happened then."""


@dataclass(frozen=True)
class Prop:
    """One property as the schema has it now. `number` is what it is, whatever it is called."""

    number: int
    name: str
    kind: str = "I32"
    required: bool = False
    formerly: str | None = None

    @property
    def text(self) -> str:
        hint = f' @rename_from("{self.formerly}")' if self.formerly else ""
        return f"{self.name}: {self.kind}{'' if self.required else '?'}{hint}"


Rows = dict[str, dict[int, int]]


@dataclass
class Chain:
    """A graph, and what it must show: the rows of each branch, the schema, and every commit of main so far."""

    path: Path
    graph: Any
    props: list[Prop] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=lambda: {"main": {}})
    past: list[tuple[str, list[Prop], Rows]] = field(default_factory=list)
    inserts: list[tuple[str, str]] = field(default_factory=list)
    """Commits of main that each made one row, and the row."""
    numbers: int = 0
    refusals: int = 0
    kills: int = 0

    def schema(self, props: list[Prop]) -> str:
        return f"node T {{ code: String @key  {'  '.join(each.text for each in props)} }}\n"

    # --- steps: each takes two numbers that choose among what is possible

    def add(self, one: int, two: int) -> None:
        free = [name for name in NAMES if name not in {each.name for each in self.props}]
        if not free:
            return
        self.numbers += 1
        new, number = Prop(self.numbers, free[one % len(free)]), self.numbers
        if two % 3 == 0:
            value = two % 7

            # A row that got a value since is not what its insert made: reverting that is a conflict.
            self.inserts = self.inserts if len(self.rows) > 1 else []

            def filled(rows: Rows) -> Rows:
                return {code: {**row, number: value} for code, row in rows.items()}

            self.apply([*self.props, replace(new, required=True)], two, filled, f"T.{new.name} = {value}")
        else:
            self.apply([*self.props, new], two, additive=True)

    def drop(self, one: int, two: int) -> None:
        if self.props:
            gone = self.props[one % len(self.props)]
            left = [each for each in self.props if each is not gone]
            self.apply(
                left, two, lambda rows: {code: without(row, gone.number) for code, row in rows.items()}
            )

    def rename(self, one: int, two: int) -> None:
        free = [name for name in NAMES if name not in {each.name for each in self.props}]
        if self.props and free:
            at = one % len(self.props)
            old = self.props[at]
            changed = replace(old, name=free[two % len(free)], formerly=old.name)
            self.apply([*self.props[:at], changed, *self.props[at + 1 :]], two)

    def widen(self, one: int, two: int) -> None:
        narrow = [each for each in self.props if each.kind == "I32"]
        if narrow:
            chosen = narrow[one % len(narrow)]
            self.apply([replace(each, kind="I64") if each is chosen else each for each in self.props], two)

    def require(self, one: int, two: int) -> None:
        if not self.props:
            return
        chosen = self.props[one % len(self.props)]
        changed = [
            replace(each, required=not each.required) if each is chosen else each for each in self.props
        ]
        stricter = not chosen.required
        broken = stricter and any(chosen.number not in row for row in self.rows["main"].values())
        self.apply(changed, two, additive=not stricter, broken=broken)

    def apply(self, props, two, change=None, fill=None, *, additive=False, broken=False) -> None:
        text, fills = self.schema(props), [fill] if fill else []
        if len(self.rows) > 1 and not additive:
            self.refused(MigrationBlocked, text, fills)
            return
        if broken:
            self.refused(ConstraintViolation, text, fills)
            return
        happened = False
        if two % 5 == 0 and not fill and self.kills < 2:
            self.kills += 1
            window = list(KILLED)[two % len(KILLED)]
            self.graph.close()
            command = {"command": "apply_schema", "path": str(self.path), "schema": text}
            status, errors = run_child(command, failpoints=f"{window}=kill")
            assert status == CUT, errors
            self.graph = omnigraph.open(self.path, settings=FAST)
            happened = KILLED[window]
            assert (self.graph.schema_source() == text) is happened
        if not happened:
            assert self.graph.apply_schema(text, fills=fills).applied
        self.props = [replace(each, formerly=None) for each in props]
        if change is not None:
            self.rows["main"] = change(self.rows["main"])
        self.remember()

    def refused(self, error, text, fills) -> None:
        head = self.graph.commits.head().id
        with pytest.raises(error) as refusal:
            self.graph.apply_schema(text, fills=fills)
        self.refusals += 1
        assert refusal.value.hint
        assert self.graph.commits.head().id == head

    def write(self, one: int, two: int) -> None:
        branch = sorted(self.rows)[one % len(self.rows)]
        code = f"{branch}{two % 3}"
        given = {
            each: (two + at) % 9 for at, each in enumerate(self.props) if each.required or (two + at) % 2
        }
        members = "".join(f", {prop.name}: {value}" for prop, value in given.items())
        new = code not in self.rows[branch]
        statement = f'insert T {{ code: "{code}"{members} }}'
        if not new and not given:
            return
        if not new:
            assigned = ", ".join(f"{prop.name}: {value}" for prop, value in given.items())
            statement = f'update T set {{ {assigned} }} where code = "{code}"'
        self.graph.mutate(f"query q() {{ {statement} }}", branch=branch)
        row = {**self.rows[branch].get(code, {}), **{prop.number: value for prop, value in given.items()}}
        self.rows[branch] = {**self.rows[branch], code: row}
        if branch == "main":
            self.inserts = [each for each in self.inserts if each[1] != code]
            if new:
                self.inserts.append((self.graph.commits.head().id, code))
            self.remember()

    def branch(self, one: int, two: int) -> None:
        free = [name for name in ("ana", "ben") if name not in self.rows]
        if free:
            self.graph.branches.create(free[0])
            self.rows[free[0]] = dict(self.rows["main"])

    def merge(self, one: int, two: int) -> None:
        others = sorted(set(self.rows) - {"main"})
        if not others:
            return
        name = others[one % len(others)]
        self.graph.branches.merge(name, into="main")
        self.graph.branches.delete(name)
        theirs = {code: row for code, row in self.rows.pop(name).items() if code.startswith(name)}
        known = {each.number for each in self.props}
        kept = {code: {n: v for n, v in row.items() if n in known} for code, row in theirs.items()}
        self.rows["main"] = {**self.rows["main"], **kept}
        self.remember()

    def revert(self, one: int, two: int) -> None:
        if self.inserts and len(self.rows) == 1:
            commit, code = self.inserts.pop()
            self.graph.revert(commit)
            self.rows["main"] = {each: row for each, row in self.rows["main"].items() if each != code}
            self.remember()

    def reopen(self, one: int, two: int) -> None:
        self.graph.close()
        self.graph = omnigraph.open(self.path, settings=FAST)

    # --- what it shows

    def remember(self) -> None:
        rows = {code: dict(row) for code, row in self.rows["main"].items()}
        self.past.append((self.graph.commits.head().id, list(self.props), rows))

    def check(self) -> None:
        """Every branch, and every commit of main, under the names of now."""
        for name, rows in self.rows.items():
            for prop in self.props:
                assert self.shown(prop.name, branch=name) == {c: r.get(prop.number) for c, r in rows.items()}
        for commit, props, rows in self.past:
            own = {each.name: each.number for each in props}
            for prop in self.props:
                number = own.get(prop.name, prop.number)
                expected = {code: row.get(number) for code, row in rows.items()}
                assert self.shown(prop.name, at=commit) == expected, (commit, prop)
        assert self.graph.verify().violations == ()

    def shown(self, name: str, **where: str) -> dict[str, int | None]:
        rows = self.graph.query(f"query q() {{ match {{ $t: T }} return {{ $t.code, $t.{name} }} }}", **where)
        return {row["t.code"]: row[f"t.{name}"] for row in rows}


def without(row: dict[int, int], number: int) -> dict[int, int]:
    return {each: value for each, value in row.items() if each != number}


STEPS = (
    "add",
    "add",
    "drop",
    "rename",
    "widen",
    "require",
    "write",
    "write",
    "write",
    "branch",
    "merge",
    "revert",
)


def run(path: Path, steps: list[tuple[int, int, int]]) -> Chain:
    """One chain from an empty graph to its end, checked there."""
    graph = omnigraph.init(path, schema="node T { code: String @key }\n", settings=FAST)
    chain = Chain(path, graph)
    try:
        for kind, one, two in steps:
            getattr(chain, STEPS[kind % len(STEPS)])(one, two)
        chain.reopen(0, 0)
        chain.check()
    finally:
        chain.graph.close()
    return chain
