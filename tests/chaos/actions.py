"""What a lane of the chaos run may do, and what each action does to its model.

A lane is one thread of one process. It alone writes rows whose names begin with its own, on main and on a branch of
its own beside it; all lanes share the tables, the manifest and the lease. A new kind of action is one more entry of
`ACTIONS`.
"""

import copy
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omnigraph.core.errors import IoFailure
from omnigraph.maintenance.repair import Classification

SCHEMA = "node Person { name: String @key  age: I64? }\nedge Knows: Person -> Person { since: I64? }\n"
INSERT = "insert Person {{ name: $n{0}, age: $v }} insert Knows {{ from: $n{0}, to: $n{0}, since: $v }}"
UPDATE = """query u($n: String, $v: I64) {
  update Person set { age: $v } where name = $n
  update Knows set { since: $v } where from = $n }"""
DELETE = "query d($n: String) { delete Person where name = $n }"
READ = """query r($n: String) {
  match { $p: Person { name: $n } $p knows $q } return { $p.age as age, $q.name as other } }"""
ROWS_MAX = 30


@dataclass
class State:
    """The rows of one lane, by name: on main, on its branch, where that branch began, and at its tag."""

    main: dict[str, int] = field(default_factory=dict)
    side: dict[str, int] | None = None
    base: dict[str, int] = field(default_factory=dict)
    tag: dict[str, int] | None = None
    last: list[str] = field(default_factory=list)
    """The names of the newest commit of this lane on main, if that was an insert: it can be taken back."""

    def rows(self, branch: str) -> dict[str, int]:
        rows = self.main if branch == "main" else self.side
        assert rows is not None, branch
        return rows

    def shows(self, found: "State") -> bool:
        """Whether this is what was found. What a tag names is seen when it is restored."""
        same_tag = (self.tag is None) == (found.tag is None)
        return (self.main, self.side) == (found.main, found.side) and same_tag


Arguments = list[Any]


@dataclass(frozen=True)
class Action:
    """`plan` gives the arguments, or None where the action makes no sense now."""

    name: str
    weight: float
    plan: Callable[[State, random.Random, str], Arguments | None]
    run: Callable[[Any, str, Arguments], Any]
    apply: Callable[[State, Arguments], None]

    def after(self, state: State, arguments: Arguments) -> State:
        changed = copy.deepcopy(state)
        changed.last = []
        self.apply(changed, arguments)
        return changed


def side_of(lane: str) -> str:
    return f"{lane}side"


def tag_of(lane: str) -> str:
    return f"{lane}tag"


def _somewhere(state: State, chance: random.Random) -> str:
    return "main" if state.side is None or chance.random() < 0.4 else "side"


def _branch(lane: str, where: str) -> str:
    return "main" if where == "main" else side_of(lane)


# --- rows


def _plan_insert(state: State, chance: random.Random, fresh: str) -> Arguments | None:
    where = _somewhere(state, chance)
    if len(state.rows(where)) > ROWS_MAX:
        return None
    return [where, [f"{fresh}{letter}" for letter in "abc"[: chance.randint(1, 3)]], chance.randint(0, 999)]


def insert(graph: Any, lane: str, arguments: Arguments) -> Any:
    where, names, value = arguments
    declared = ", ".join(f"$n{number}: String" for number in range(len(names)))
    statements = " ".join(INSERT.format(number) for number in range(len(names)))
    params = {f"n{number}": name for number, name in enumerate(names)} | {"v": value}
    text = f"query i({declared}, $v: I64) {{ {statements} }}"
    return graph.mutate(text, params, branch=_branch(lane, where), actor=lane)


def _inserted(state: State, arguments: Arguments) -> None:
    where, names, value = arguments
    state.rows(where).update(dict.fromkeys(names, value))
    if where == "main":
        state.last = names


def _plan_change(state: State, chance: random.Random, _fresh: str) -> Arguments | None:
    # While there is a branch, main only gets new rows: every merge then has one result.
    where = "main" if state.side is None else "side"
    rows = state.rows(where)
    return [where, chance.choice(sorted(rows)), chance.randint(0, 999)] if rows else None


def _update(graph: Any, lane: str, arguments: Arguments) -> Any:
    where, name, value = arguments
    return graph.mutate(UPDATE, {"n": name, "v": value}, branch=_branch(lane, where), actor=lane)


def _updated(state: State, arguments: Arguments) -> None:
    where, name, value = arguments
    if name in state.rows(where):
        state.rows(where)[name] = value


def _delete(graph: Any, lane: str, arguments: Arguments) -> Any:
    where, name, _ = arguments
    return graph.mutate(DELETE, {"n": name}, branch=_branch(lane, where), actor=lane)


def _deleted(state: State, arguments: Arguments) -> None:
    where, name, _ = arguments
    state.rows(where).pop(name, None)


def _load_with(engine: str) -> Callable[[Any, str, Arguments], Any]:
    def load(graph: Any, lane: str, arguments: Arguments) -> Any:
        where, names, value = arguments
        lines = [{"type": "Person", "data": {"name": name, "age": value}} for name in names]
        lines += [{"edge": "Knows", "from": name, "to": name, "data": {"since": value}} for name in names]
        with _input("\n".join(map(json.dumps, lines)) + "\n") as path:
            return graph.load(path, mode="append", engine=engine, branch=_branch(lane, where), actor=lane)

    return load


@contextmanager
def _input(text: str) -> Generator[Path]:
    """A file with the text. Without room for it the action is refused before it begins."""
    place = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        try:
            (place / "input.jsonl").write_text(text)
        except OSError as error:
            raise IoFailure(f"the input cannot be written: {error}") from error
        yield place / "input.jsonl"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _loaded(state: State, arguments: Arguments) -> None:
    where, names, value = arguments
    state.rows(where).update(dict.fromkeys(names, value))


# --- branches, tags, history


def _if(holds: Callable[[State], bool]) -> Callable[[State, random.Random, str], Arguments | None]:
    return lambda state, _chance, _fresh: [] if holds(state) else None


def _branched(state: State, _arguments: Arguments) -> None:
    state.side, state.base = dict(state.main), dict(state.main)


def _dropped(state: State, _arguments: Arguments) -> None:
    state.side, state.base = None, {}


def _merged(state: State, _arguments: Arguments) -> None:
    side = state.rows("side")
    since = {name: value for name, value in state.main.items() if name not in state.base}
    state.main, state.base = {**side, **since}, dict(side)


def _tagged(state: State, _arguments: Arguments) -> None:
    state.tag = dict(state.rows("side"))


def _untagged(state: State, _arguments: Arguments) -> None:
    state.tag = None


def _restored(state: State, _arguments: Arguments) -> None:
    if state.tag is not None:
        state.side = dict(state.tag)


def _revert(graph: Any, lane: str, _arguments: Arguments) -> Any:
    commits = graph.commits.list(actor=lane, limit=5)
    return graph.revert(next(each.id for each in commits if each.operation == "mutation"), actor=lane)


def _reverted(state: State, arguments: Arguments) -> None:
    (names,) = arguments
    for name in names:
        state.main.pop(name, None)


# --- what changes nothing


def _unchanged(_state: State, _arguments: Arguments) -> None:
    """Nothing a reader can see."""


def _plan_read(state: State, chance: random.Random, _fresh: str) -> Arguments | None:
    where = _somewhere(state, chance)
    rows = state.rows(where)
    if not rows:
        return None
    name = chance.choice(sorted(rows))
    return [where, name, rows[name]]


def _read(graph: Any, lane: str, arguments: Arguments) -> None:
    where, name, value = arguments
    found = [dict(row) for row in graph.query(READ, {"n": name}, branch=_branch(lane, where))]
    if found != [{"age": value, "other": name}]:
        raise AssertionError(f"{name} on {where} was read as {found}, not {value}")


def _clone(graph: Any, lane: str, _arguments: Arguments) -> None:
    place = tempfile.mkdtemp(prefix=f"chaos-{lane}")
    try:
        graph.clone(Path(place) / "copy")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _schema(graph: Any, lane: str, arguments: Arguments) -> None:
    """A type more, or one less: nobody has rows of it."""
    (names,) = arguments
    extra = "".join(f"node {name} {{ k: String @key }}\n" for name in names)
    graph.apply_schema(SCHEMA + extra, actor=lane)


def _plan_schema(_state: State, chance: random.Random, _fresh: str) -> Arguments | None:
    return [[name for name in ("Extra", "Other", "Third") if chance.random() < 0.5]]


def _repair(graph: Any, lane: str, arguments: Arguments) -> None:
    """Nobody moves a table without telling: there is nothing to repair, ever."""
    (where,) = arguments
    report = graph.repair(branch=_branch(lane, where), confirm=True)
    moved = [each.to_dict() for each in report.tables if each.classification is not Classification.NO_DRIFT]
    if moved:
        raise AssertionError(f"moved without a publish: {moved}")


def _plan_where(state: State, chance: random.Random, _fresh: str) -> Arguments | None:
    return [_somewhere(state, chance)]


def _always(_state: State, _chance: random.Random, _fresh: str) -> Arguments | None:
    return []


ACTIONS = {
    each.name: each
    for each in (
        Action("insert", 20, _plan_insert, insert, _inserted),
        Action("update", 12, _plan_change, _update, _updated),
        Action("delete", 8, _plan_change, _delete, _deleted),
        Action("load", 5, _plan_insert, _load_with("local"), _loaded),
        Action("load_spark", 0, _plan_insert, _load_with("spark"), _loaded),
        Action(
            "branch",
            6,
            _if(lambda state: state.side is None),
            lambda graph, lane, _: graph.branches.create(side_of(lane)),
            _branched,
        ),
        Action(
            "drop",
            3,
            _if(lambda state: state.side is not None and state.tag is None),
            lambda graph, lane, _: graph.branches.delete(side_of(lane)),
            _dropped,
        ),
        Action(
            "merge",
            5,
            _if(lambda state: state.side is not None),
            lambda graph, lane, _: graph.branches.merge(side_of(lane), into="main", actor=lane),
            _merged,
        ),
        Action(
            "tag",
            4,
            _if(lambda state: state.side is not None and state.tag is None),
            lambda graph, lane, _: graph.tags.create(tag_of(lane), at=side_of(lane)),
            _tagged,
        ),
        Action(
            "untag",
            3,
            _if(lambda state: state.tag is not None),
            lambda graph, lane, _: graph.tags.delete(tag_of(lane)),
            _untagged,
        ),
        Action(
            "restore",
            3,
            _if(lambda state: state.tag is not None),
            lambda graph, lane, _: graph.branches.restore(side_of(lane), to=tag_of(lane), actor=lane),
            _restored,
        ),
        Action(
            "revert",
            4,
            lambda state, _chance, _fresh: [state.last] if state.last else None,
            _revert,
            _reverted,
        ),
        Action("read", 15, _plan_read, _read, _unchanged),
        Action("indices", 1, _always, lambda graph, _lane, _: graph.ensure_indices(), _unchanged),
        Action(
            "optimize",
            2,
            _plan_where,
            lambda graph, lane, arguments: graph.optimize(branch=_branch(lane, arguments[0]), actor=lane),
            _unchanged,
        ),
        Action("schema", 2, _plan_schema, _schema, _unchanged),
        Action("repair", 1, _plan_where, _repair, _unchanged),
        Action(
            "cleanup",
            1,
            _always,
            lambda graph, _lane, _: graph.cleanup(keep=20),
            _unchanged,
        ),
        Action("clone", 0.5, _always, _clone, _unchanged),
    )
}


def found_in(graph: Any, lane: str) -> State:
    """What the graph shows of a lane. Raises AssertionError for a row that is there twice or in part."""
    side, tag = side_of(lane), tag_of(lane)
    names = graph.branches.list()
    return State(
        main=lane_rows(graph.export(branch="main"), lane),
        side=lane_rows(graph.export(branch=side), lane) if side in names else None,
        tag={} if tag in graph.tags.list() else None,
    )


def lane_rows(exported: str, lane: str) -> dict[str, int]:
    people: dict[str, int] = {}
    knows: dict[str, int] = {}
    for line in exported.splitlines():
        value = json.loads(line)
        name = value["data"]["name"] if "type" in value else value["from"]
        if not name.startswith(lane):
            continue
        rows, number = (people, "age") if "type" in value else (knows, "since")
        assert name not in rows, f"doubled: {name}"
        rows[name] = value["data"][number]
    assert people == knows, f"in part: {people.items() ^ knows.items()}"
    return people
