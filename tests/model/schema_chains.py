"""Random changes of a schema among live branches, and the model of what every commit must show."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import omnigraph
from crash.harness import CUT, run_child
from model.chain_schema import FIRST, Prop, Rows, Schema, Type, fits, known_part, text_of
from omnigraph.core.errors import BadRequest, ConstraintViolation, MergeConflicts, MigrationBlocked
from omnigraph.core.failpoints import Window
from recovery_graph import FAST

NAMES = ("p", "q", "r", "s")
TYPE_NAMES = ("T", "U", "V")
OTHER_TYPE = "B"
EDGE_NAMES = ("Link", "Tie")
BRANCHES = ("ana", "ben")
KILLS_MAX = 3
"""Processes that die in one chain: each costs as much as many steps."""
APPLY = {
    Window.SCHEMA_APPLY_AFTER_LOCK: False,
    Window.SCHEMA_APPLY_AFTER_COLUMN_FILES: False,
    Window.SCHEMA_APPLY_POST_SIDECAR_PRE_COMMIT: False,
    Window.SCHEMA_APPLY_AFTER_TABLE_CREATE: False,
    Window.SCHEMA_APPLY_AFTER_TABLE_COMMIT: False,
    Window.SCHEMA_APPLY_BEFORE_STAGING_WRITE: False,
    Window.SCHEMA_APPLY_AFTER_STAGING_WRITE: True,
    Window.SCHEMA_APPLY_AFTER_MANIFEST_COMMIT: True,
    Window.SCHEMA_APPLY_BETWEEN_RENAMES: True,
    Window.RECOVERY_SIDECAR_DELETE: True,
    Window.SCHEMA_APPLY_BEFORE_LOCK_RELEASE: True,
}
"""Where a change dies, and whether it has happened then. A window that it does not reach lets it finish."""
ADOPTION = {
    Window.SCHEMA_ADOPT_POST_SIDECAR_PRE_COMMIT: False,
    Window.SCHEMA_ADOPT_POST_COMMIT_PRE_PUBLISH: False,
}
WRITE = {
    **ADOPTION,
    Window.MUTATION_POST_SIDECAR_PRE_COMMIT: False,
    Window.MUTATION_POST_FINALIZE_PRE_PUBLISHER: True,
}
MERGE = {
    **ADOPTION,
    Window.BRANCH_MERGE_POST_EFFECTS_PRE_CONFIRM: False,
    Window.BRANCH_MERGE_POST_PHASE_B_PRE_MANIFEST_COMMIT: True,
}


@dataclass(frozen=True)
class Write:
    """The last thing that happened to a row on a branch, for a revert."""

    commit: str
    key: tuple[int, str]
    before: dict[int, int] | None
    after: dict[int, int] | None


@dataclass(frozen=True)
class Past:
    """One commit: whose it is, the schema it was made under, and its rows."""

    commit: str
    branch: str
    schema: Schema
    rows: Rows


@dataclass
class Chain:
    """A graph, and what it must show: the rows of each branch, the schema, and every commit so far."""

    path: Path
    graph: Any
    schema: Schema = (FIRST,)
    rows: dict[str, Rows] = field(default_factory=lambda: {"main": {}})
    past: list[Past] = field(default_factory=list)
    writes: dict[str, list[Write]] = field(default_factory=lambda: {"main": []})
    numbers: int = 1
    kills: int = 0
    told: dict[str, int] = field(default_factory=dict)
    """How often each kind of step and of refusal has happened."""

    def count(self, what: str) -> None:
        self.told[what] = self.told.get(what, 0) + 1

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def free(self, owner: Type) -> list[str]:
        return [name for name in NAMES if name not in {each.name for each in owner.props}]

    def chosen(self, one: int, where=lambda _: True) -> tuple[Type, Prop] | None:
        """One of the properties of all types."""
        found = [(owner, prop) for owner in self.schema for prop in owner.props if where(prop)]
        return found[one % len(found)] if found else None

    def changed(self, owner: Type, *props: Prop, gone: Prop | None = None) -> Schema:
        """The schema with these properties in a type, in the place of those with their numbers."""
        new = {each.number: each for each in props}
        kept = tuple(new.pop(each.number, each) for each in owner.props if each is not gone)
        changed = replace(owner, props=(*kept, *new.values()))
        return tuple(changed if each is owner else each for each in self.schema)

    # --- changes: each takes two numbers that choose among what is possible

    def add(self, one: int, two: int) -> None:
        owner = self.schema[one % len(self.schema)]
        free = self.free(owner)
        if not free:
            return
        new = Prop(self.new_number(), free[two % len(free)])
        if two % 3:
            self.apply(self.changed(owner, new), two, additive=True)
            return
        value, given = two % 7, f"{two % 7}"
        new = replace(new, required=True)
        if two % 2 and owner.props:
            source, more = owner.props[two % len(owner.props)], one % 3
            given = f"$row.{source.name} + {more}" if more else f"$row.{source.name}"
            new = replace(new, required=source.required, kind=source.kind)

            def filled(row):
                return {**row, new.number: row[source.number] + more} if source.number in row else row
        else:

            def filled(row):
                return {**row, new.number: value}

        self.apply(self.changed(owner, new), two, fill=(owner, filled, f"{owner.name}.{new.name} = {given}"))

    def drop(self, one: int, two: int) -> None:
        if found := self.chosen(one):
            owner, gone = found
            self.apply(self.changed(owner, gone=gone), two)

    def rename(self, one: int, two: int) -> None:
        if (found := self.chosen(one)) and (free := self.free(found[0])):
            owner, prop = found
            name = free[two % len(free)]
            self.apply(self.changed(owner, replace(prop, name=name, formerly=prop.name)), two)

    def widen(self, one: int, two: int) -> None:
        if found := self.chosen(one, lambda prop: prop.kind == "I32"):
            owner, prop = found
            self.apply(self.changed(owner, replace(prop, kind="I64")), two)

    def require(self, one: int, two: int) -> None:
        if found := self.chosen(one):
            owner, prop = found
            stricter = not prop.required
            self.apply(self.changed(owner, replace(prop, required=stricter)), two, additive=not stricter)

    def bound(self, one: int, two: int) -> None:
        if found := self.chosen(one):
            owner, prop = found
            most = two % 9 if prop.most is None else None
            self.apply(self.changed(owner, replace(prop, most=most)), two, additive=most is None)

    def index(self, one: int, two: int) -> None:
        if found := self.chosen(one):
            owner, prop = found
            self.apply(self.changed(owner, replace(prop, indexed=not prop.indexed)), two, additive=True)

    def rename_type(self, one: int, two: int) -> None:
        owner = self.schema[0]
        name = next(each for each in TYPE_NAMES[one % 2 :] if each != owner.name)
        self.apply((replace(owner, name=name, formerly=owner.name), *self.schema[1:]), two)

    def rename_edge(self, one: int, two: int) -> None:
        owner = self.schema[0]
        name = next(each for each in EDGE_NAMES if each != owner.edge)
        self.apply((replace(owner, edge=name, edge_formerly=owner.edge), *self.schema[1:]), two)

    def other_type(self, one: int, two: int) -> None:
        if len(self.schema) > 1:
            self.apply(self.schema[:1], two)
        else:
            new = Type(self.new_number(), OTHER_TYPE, (Prop(self.new_number(), NAMES[one % len(NAMES)]),))
            self.apply((*self.schema, new), two, additive=True)

    def apply(self, wanted: Schema, two, *, fill=None, additive=False) -> None:
        text, fills = text_of(wanted), [fill[2]] if fill else []
        if len(self.rows) > 1 and not additive:
            self.refused(MigrationBlocked, lambda: self.graph.apply_schema(text, fills=fills))
            return
        rows = self.rows["main"]
        if fill:
            number, give = fill[0].number, fill[1]
            rows = {key: give(row) if key[0] == number else row for key, row in rows.items()}
        rows = {key: part for key, row in rows.items() if (part := known_part(wanted, key, row)) is not None}
        if not fits(wanted, rows):
            self.refused(ConstraintViolation, lambda: self.graph.apply_schema(text, fills=fills))
            return
        command = {"command": "apply_schema", "schema": text, "fills": fills}
        happened = two % 5 == 0 and self.killed(APPLY, two, command)
        assert (self.graph.schema_source() == text) is happened
        # Whoever was killed sends the same call again, and it succeeds.
        assert self.graph.apply_schema(text, fills=fills).applied is not happened
        self.count("change")
        self.schema = tuple(each.settled() for each in wanted)
        self.rows["main"] = rows
        self.remember("main")

    def refused(self, error, call) -> None:
        """The call is refused with a way out; at most a branch has adopted the schema before it was."""
        heads = {name: self.graph.commits.head(branch=name).id for name in self.rows}
        source = self.graph.schema_source()
        with pytest.raises(error) as refusal:
            call()
        self.count(type(refusal.value).__name__)
        assert refusal.value.hint
        assert str(refusal.value)
        assert self.graph.schema_source() == source
        for name, head in heads.items():
            commits = self.graph.commits.list(branch=name)
            newer = commits[: [each.id for each in commits].index(head)]
            assert {each.operation for each in newer} <= {"adopt_schema"}, name

    def killed(self, windows, two, command) -> bool:
        """Run a command in a process that is killed; whether the command has happened."""
        if self.kills >= KILLS_MAX:
            return False
        self.kills += 1
        window = list(windows)[two % len(windows)]
        self.graph.close()
        status, errors = run_child({"path": str(self.path), **command}, failpoints=f"{window}=kill")
        assert status in {CUT, 0}, errors
        self.graph = omnigraph.open(self.path, settings=FAST)
        self.count(f"killed {command['command']}" if status == CUT else "not reached")
        return windows[window] if status == CUT else True

    # --- what goes on meanwhile

    def write(self, one: int, two: int) -> None:
        branch = sorted(self.rows)[one % len(self.rows)]
        owner = self.schema[two % len(self.schema)]
        key = (owner.number, f"{branch}{two % 3}")
        old = self.rows[branch].get(key)
        given = {
            each: (two + at) % (9 if each.most is None else each.most + 1)
            for at, each in enumerate(owner.props)
            if (each.required and old is None) or (two + at) % 2
        }
        members = ", ".join(f"{prop.name}: {value}" for prop, value in given.items())
        new = {**(old or {}), **{prop.number: value for prop, value in given.items()}}
        if old is None:
            statement = f'insert {owner.name} {{ code: "{key[1]}"{", " if members else ""}{members} }}'
            if owner.edge:
                statement += f' insert {owner.edge} {{ from: "{key[1]}", to: "{key[1]}" }}'
        elif two % 4 == 0:
            statement, new = f'delete {owner.name} where code = "{key[1]}"', None
        elif new == old:
            return
        else:
            statement = f'update {owner.name} set {{ {members} }} where code = "{key[1]}"'
        text = f"query q() {{ {statement} }}"
        command = {"command": "mutate", "query": text, "branch": branch}
        happened = one % 5 == 0 and self.killed(WRITE, two, command)
        if not happened:
            self.graph.mutate(text, branch=branch)
        self.count("write")
        self.put(branch, key, new)
        self.writes[branch] = [each for each in self.writes[branch] if each.key != key]
        if not happened:
            commit = self.graph.commits.head(branch=branch).id
            self.writes[branch].append(Write(commit, key, old, new))
        self.remember(branch)

    def put(self, branch, key, row) -> None:
        others = {each: value for each, value in self.rows[branch].items() if each != key}
        self.rows[branch] = others if row is None else {**others, key: row}

    def branch(self, one: int, two: int) -> None:
        free = [name for name in BRANCHES if name not in self.rows]
        if free:
            self.graph.branches.create(free[0])
            self.rows[free[0]] = dict(self.rows["main"])
            self.writes[free[0]] = []

    def merge(self, one: int, two: int) -> None:
        """A branch into main; it is deleted, or lives on."""
        if (name := self.other(one)) is None:
            return
        self.merged(name, "main", two)
        theirs = {key: row for key, row in self.rows[name].items() if key[1].startswith(name)}
        ours = {key: row for key, row in self.rows["main"].items() if not key[1].startswith(name)}
        self.rows["main"] = {**ours, **theirs}
        self.remember("main")
        if two % 4:
            self.graph.branches.delete(name)
            del self.rows[name], self.writes[name]
            self.past = [each for each in self.past if each.branch != name]

    def catch_up(self, one: int, two: int) -> None:
        """Main into a branch."""
        if (name := self.other(one)) is None:
            return
        self.merged("main", name, two)
        own = {key: row for key, row in self.rows[name].items() if key[1].startswith(name)}
        theirs = {key: row for key, row in self.rows["main"].items() if not key[1].startswith(name)}
        self.rows[name] = {**own, **theirs}
        self.remember(name)

    def merged(self, source: str, target: str, two: int) -> None:
        command = {"command": "merge", "source": source, "target": target}
        if not (two % 5 == 0 and self.killed(MERGE, two, command)):
            self.graph.branches.merge(source, into=target)
        self.count(f"merge into {'main' if target == 'main' else 'a branch'}")

    def other(self, one: int) -> str | None:
        others = sorted(set(self.rows) - {"main"})
        return others[one % len(others)] if others else None

    def revert(self, one: int, two: int) -> None:
        """The last write of one row is taken back, or the refusal says why not."""
        branch = sorted(self.rows)[one % len(self.rows)]
        numbers = {each.number for each in self.schema}
        self.writes[branch] = [each for each in self.writes[branch] if each.key[0] in numbers]
        if not self.writes[branch]:
            return
        write = self.writes[branch].pop(two % len(self.writes[branch]))

        def call():
            self.graph.revert(write.commit, branch=branch)

        now = self.rows[branch].get(write.key)
        if write.before is None and now != known_part(self.schema, write.key, write.after):
            # A fill gave the row a value since: it is not what was inserted.
            self.refused(MergeConflicts, call)
            return
        wanted = self.taken_back(write, now)
        if wanted == now:
            self.refused(BadRequest, call)
            return
        if wanted is not None and not fits(self.schema, {write.key: wanted}):
            self.refused((ConstraintViolation, MergeConflicts), call)
            return
        call()
        self.count("revert")
        self.put(branch, write.key, wanted)
        self.remember(branch)

    def taken_back(self, write: Write, now: dict[int, int] | None) -> dict[int, int] | None:
        if write.before is None:
            return None
        before = known_part(self.schema, write.key, write.before)
        if now is None:
            return before
        changed = {
            number
            for number in {*write.before, *(write.after or {})}
            if write.before.get(number) != (write.after or {}).get(number)
        }
        kept = {number: value for number, value in now.items() if number not in changed}
        return {**kept, **{number: value for number, value in before.items() if number in changed}}

    def optimize(self, one: int, two: int) -> None:
        self.graph.optimize()

    def look(self, one: int, two: int) -> None:
        """Some of what is checked in the end, from caches that know former schemas."""
        self.check_branch(sorted(self.rows)[one % len(self.rows)])
        if self.past:
            self.check_past(self.past[two % len(self.past)])

    def reopen(self) -> None:
        self.graph.close()
        self.graph = omnigraph.open(self.path, settings=FAST)

    # --- what it shows

    def remember(self, branch: str) -> None:
        rows = {key: dict(row) for key, row in self.rows[branch].items()}
        self.past.append(Past(self.graph.commits.head(branch=branch).id, branch, self.schema, rows))

    def check(self) -> None:
        """Every branch, and every commit, under the names of now and of then; and what differs between them."""
        for name in self.rows:
            self.check_branch(name)
        for past in self.past:
            self.check_past(past)
        main = [each for each in self.past if each.branch == "main"]
        for old, new in zip(main, main[3:], strict=False):
            self.check_diff(old, new)
        assert self.graph.verify(deep=True).violations == ()

    def check_branch(self, name: str) -> None:
        for owner in self.schema:
            self.check_rows(owner.name, {each.name: each.number for each in owner.props}, owner.number,
                            self.rows[name], branch=name)  # fmt: skip
        self.check_edges(self.schema[0], self.rows[name], branch=name)

    def check_past(self, past: Past) -> None:
        then = {each.name: each for each in past.schema}
        by_number = {each.number: each for each in past.schema}
        for owner in past.schema:
            names = {each.name: each.number for each in owner.props}
            self.check_rows(owner.name, names, owner.number, past.rows, at=past.commit)
        for owner in self.schema:
            own = then.get(owner.name, by_number.get(owner.number))
            named = {each.name: each.number for each in owner.props}
            if own is not None:
                # A name that meant something then means that; names of then and of now may be mixed.
                same = own.number == owner.number
                named = (named if same else {}) | {each.name: each.number for each in own.props}
            number = own.number if own else owner.number
            self.check_rows(owner.name, named, number, past.rows, at=past.commit)
        for owner in (past.schema[0], self.schema[0]):
            self.check_edges(owner, past.rows, at=past.commit)

    def check_edges(self, owner: Type, rows: Rows, **where: str):
        """Each row of the first type has one edge to itself, by the names of then and of now."""
        edge = owner.edge[0].lower() + owner.edge[1:]
        text = f"query q() {{ match {{ $t: {owner.name} $t {edge} $u }} return {{ $t.code, $u.code }} }}"
        shown = sorted(tuple(row.values()) for row in self.graph.query(text, **where))
        assert shown == sorted((code, code) for number, code in rows if number == owner.number), where

    def check_rows(self, type_name: str, names: dict[str, int], number: int, rows: Rows, **where: str):
        asked = ", ".join(f"$t.{name}" for name in ("code", *names))
        found = self.graph.query(f"query q() {{ match {{ $t: {type_name} }} return {{ {asked} }} }}", **where)
        shown = {row["t.code"]: {name: row[f"t.{name}"] for name in names} for row in found}
        expected = {
            code: {name: row.get(each) for name, each in names.items()}
            for (owner, code), row in rows.items()
            if owner == number
        }
        assert shown == expected, (type_name, where)

    def check_diff(self, old: Past, new: Past) -> None:
        """Entities that came and went: of a type that is gone by its former name, of others by the new one."""
        names = {each.number: each.name for each in (*old.schema, *new.schema)}
        expected = [("delete", names[key[0]], key[1]) for key in old.rows if key not in new.rows]
        expected += [("insert", names[key[0]], key[1]) for key in new.rows if key not in old.rows]
        found = [
            each
            for each in self.graph.diff(old.commit, new.commit, ops=["insert", "delete"])
            if each.type_name not in EDGE_NAMES
        ]
        assert sorted((each.op.value, each.type_name, each.id) for each in found) == sorted(expected)


CHANGES = (
    "add",
    "add",
    "drop",
    "rename",
    "widen",
    "require",
    "bound",
    "index",
    "rename_type",
    "rename_edge",
    "other_type",
)
MEANWHILE = ("write", "write", "write", "branch", "merge", "merge", "catch_up", "revert", "optimize", "look")


def run(path: Path, steps: list[tuple[int, int, int]]) -> Chain:
    """One chain from an empty graph to its end, checked there. Each step is a change and what goes on then."""
    graph = omnigraph.init(path, schema=text_of((FIRST,)), settings=FAST)
    chain = Chain(path, graph)
    try:
        for kind, one, two in steps:
            getattr(chain, CHANGES[kind % len(CHANGES)])(one, two)
            getattr(chain, MEANWHILE[(one + kind) % len(MEANWHILE)])(two, one)
            getattr(chain, MEANWHILE[(two + 7 * kind) % len(MEANWHILE)])(one, two)
        chain.reopen()
        chain.check()
    finally:
        chain.graph.close()
    return chain
