"""A graph of three tables, the writers that change it, and the model they are compared with."""

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from omnigraph.core.limits import UNCOVERED_FRAGMENTS_MAX

SCHEMA = """
node Person { name: String @key  age: I32? }
edge Knows: Person -> Person { since: I32? }
edge Likes: Person -> Person
"""


@dataclass
class Model:
    """The people and their ties, without generated edge ids."""

    people: dict[str, int | None] = field(default_factory=dict)
    knows: Counter = field(default_factory=Counter)
    likes: Counter = field(default_factory=Counter)

    @classmethod
    def read(cls, exported: str) -> "Model":
        model = cls()
        for line in exported.splitlines():
            value = json.loads(line)
            if value.get("type") == "Person":
                name = value["data"]["name"]
                assert name not in model.people, f"{name} occurs twice"
                model.people[name] = value["data"]["age"]
            elif value.get("edge") == "Knows":
                model.knows[value["from"], value["to"], value["data"]["since"]] += 1
            else:
                model.likes[value["from"], value["to"]] += 1
        return model

    def copy(self) -> "Model":
        return Model(dict(self.people), Counter(self.knows), Counter(self.likes))


Query = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Writer:
    """One kind of write: what it runs, where, and what it does to the model. `tag` makes each run its own."""

    name: str
    query: Callable[[str], Query]
    apply: Callable[[Model, str], None]
    on_new_branch: bool = False
    act: Callable[[Any, str], None] | None = None
    """What it calls instead of `mutate`."""
    check: Callable[..., list[str]] | None = None
    """What else must hold of what was found, given the tag and whether the call had returned."""
    ready: Callable[[Any, str], None] | None = None
    """What must be there before it runs."""
    forgets: Callable[[str], str] | None = None
    """A text that no file holds once the call has returned."""

    def after(self, before: Model, tag: str) -> Model:
        changed = before.copy()
        self.apply(changed, tag)
        return changed

    def run(self, graph: Any, tag: str, branch: str = "main") -> None:
        if self.act is not None:
            self.act(graph, tag)
            return
        source, params = self.query(tag)
        graph.mutate(source, params, branch=branch, actor="ana")


def _insert(tag: str) -> Query:
    return (
        """query w($a: String, $b: String) {
             insert Person { name: $a, age: 1 }
             insert Person { name: $b, age: 2 }
             insert Knows { from: $a, to: $b, since: 3 }
             insert Likes { from: $b, to: $a }
             insert Knows { from: $a, to: "ada", since: 4 } }""",
        {"a": f"a-{tag}", "b": f"b-{tag}"},
    )


def _inserted(model: Model, tag: str) -> None:
    a, b = f"a-{tag}", f"b-{tag}"
    model.people |= {a: 1, b: 2}
    model.knows[a, b, 3] += 1
    model.knows[a, "ada", 4] += 1
    model.likes[b, a] += 1


def _update(tag: str) -> Query:
    number = int(tag)
    return (
        """query w($n: I32) {
             update Person set { age: $n } where name = "ada"
             update Person set { age: $n } where name = "bob"
             update Knows set { since: $n } where from = "ada" }""",
        {"n": number},
    )


def _updated(model: Model, tag: str) -> None:
    number = int(tag)
    model.people |= {"ada": number, "bob": number}
    model.knows = Counter(
        {(a, b, number if a == "ada" else since): count for (a, b, since), count in model.knows.items()}
    )


def _delete(tag: str) -> Query:
    return "query w($n: String) { delete Person where name = $n }", {"n": f"victim-{tag}"}


def _deleted(model: Model, tag: str) -> None:
    gone = f"victim-{tag}"
    del model.people[gone]
    model.knows = Counter({key: n for key, n in model.knows.items() if gone not in key[:2]})
    model.likes = Counter({key: n for key, n in model.likes.items() if gone not in key})


def _merged(model: Model, tag: str) -> None:
    _inserted(model, tag)
    _updated(model, tag)
    _deleted(model, tag)


def _merge(graph: Any, tag: str) -> None:
    graph.branches.merge(f"b{tag}", into="main", actor="ana")


def _switch(graph: Any, tag: str) -> None:
    graph.branches.merge("main", into=f"b{tag}", actor="ana")


def _load(graph: Any, tag: str) -> None:
    lines = [
        {"type": "Person", "data": {"name": f"a-{tag}", "age": 1}},
        {"type": "Person", "data": {"name": f"b-{tag}", "age": 2}},
        {"edge": "Knows", "from": f"a-{tag}", "to": f"b-{tag}", "data": {"since": 3}},
        {"edge": "Knows", "from": f"a-{tag}", "to": "ada", "data": {"since": 4}},
        {"edge": "Likes", "from": f"b-{tag}", "to": f"a-{tag}", "data": {}},
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("\n".join(map(json.dumps, lines)) + "\n")
        file.flush()
        graph.load(file.name, mode="append", engine="local", actor="ana")


def _in_turn(graph: Any, tag: str) -> None:
    graph.session.disturbed = True  # as if the last write had met one of another process
    source, params = _insert(tag)
    graph.mutate(source, params, actor="ana")


def _unchanged(model: Model, tag: str) -> None:
    """Nothing a reader can see."""


def _is_there(what: str, names: Any, name: str, *, wanted: bool, returned: bool) -> list[str]:
    """A name that a finished call must have made or removed."""
    return (
        [f"{what} {name} after the call had returned"] if returned and (name in names) is not wanted else []
    )


def _branch_made(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    name, exports = f"n{tag}", found["exports"]
    problems = _is_there("branch", exports, name, wanted=True, returned=returned)
    if name in exports and Model.read(exports[name]) != Model.read(exports["main"]):
        problems.append(f"branch {name} does not show what main shows")
    return problems


def _branch_gone(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    name, exports = f"b{tag}", found["exports"]
    problems = _is_there("branch", exports, name, wanted=False, returned=returned)
    if name in exports and f"a-{tag}" not in Model.read(exports[name]).people:
        problems.append(f"branch {name} is there without its rows")
    return problems


def _tag_made(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    return _is_there("tag", found["tags"], f"t{tag}", wanted=True, returned=returned)


def _tag_gone(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    return _is_there("tag", found["tags"], f"t{tag}", wanted=False, returned=returned)


def _revert(graph: Any, tag: str) -> None:
    # Not the head: index work may have followed the insert.
    inserted = next(commit for commit in graph.commits.list() if commit.operation == "mutation")
    graph.revert(inserted.id, actor="ana")


def _reverted(model: Model, tag: str) -> None:
    a, b = f"a-{tag}", f"b-{tag}"
    for name in (a, b):
        del model.people[name]
    model.knows = Counter({key: n for key, n in model.knows.items() if a not in key[:2]})
    model.likes = Counter({key: n for key, n in model.likes.items() if a not in key})


def _many(graph: Any, tag: str) -> None:
    graph.mutate_many(
        """query w($n: String, $age: I32, $other: String, $since: I32) {
             insert Person { name: $n, age: $age }
             insert Knows { from: $n, to: $other, since: $since } }""",
        [
            {"n": f"a-{tag}", "age": 1, "other": "ada", "since": 3},
            {"n": f"b-{tag}", "age": 2, "other": "bob", "since": 4},
        ],
        actor="ana",
    )


def _many_inserted(model: Model, tag: str) -> None:
    model.people |= {f"a-{tag}": 1, f"b-{tag}": 2}
    model.knows[f"a-{tag}", "ada", 3] += 1
    model.knows[f"b-{tag}", "bob", 4] += 1


def _victim(graph: Any, tag: str) -> None:
    """Somebody with ties both ways. Every table keeps a row beside the deleted ones, so that deletion files are written."""
    graph.mutate(
        """query v($n: String, $k: String) {
             insert Person { name: $n }
             insert Person { name: $k }
             insert Knows { from: $n, to: "ada" }
             insert Knows { from: "bob", to: $n }
             insert Knows { from: $k, to: $k }
             insert Likes { from: $n, to: $n }
             insert Likes { from: $k, to: $k } }""",
        {"n": f"victim-{tag}", "k": f"kept-{tag}"},
    )


def _spread_victim(graph: Any, tag: str) -> None:
    _victim(graph, tag)
    graph.branches.create("side")


def _forgotten(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    holding = [name for name, exported in found["exports"].items() if f"victim-{tag}" in exported]
    return [f"on {holding} after it was erased"] if returned and holding else []


def _old_states(graph: Any, tag: str) -> None:
    """States, a branch of which nothing is left, and a tag, so that there is much to reclaim and much to keep."""
    for number in range(2):
        source, params = _insert(f"{tag}-{number}")
        graph.mutate(source, params)
    graph.tags.create(f"kept-{tag}")
    graph.branches.create("gone")
    source, params = _insert(f"{tag}-gone")
    graph.mutate(source, params, branch="gone")
    graph.branches.delete("gone")
    _victim(graph, tag)
    graph.mutate(*_delete(tag))


def _with_property(text: str) -> str:
    return SCHEMA.replace("age: I32?", f"age: I32?  {text}", 1)


def _fill(graph: Any, tag: str) -> None:
    graph.apply_schema(_with_property('city: String @default("Bern")'), actor="ana")


def _filled(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    cities = [person.get("city") for person in _people_of(found)]
    if returned and set(cities) != {"Bern"}:
        return [f"an acknowledged schema shows the cities {cities}"]
    return [] if len(set(cities)) == 1 else [f"some are filled: {cities}"]


def _people_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    lines = map(json.loads, found["exports"]["main"].splitlines())
    return [line["data"] for line in lines if line.get("type") == "Person"]


def _secret(graph: Any, tag: str) -> None:
    graph.apply_schema(_with_property("nick: String?"))
    graph.mutate(
        'query n($n: String) { update Person set { nick: $n } where name = "ada" }', {"n": f"hush-{tag}"}
    )


def _drop(graph: Any, tag: str) -> None:
    graph.apply_schema(SCHEMA, actor="ana", allow_data_loss=True)


def _dropped(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    shown = ["nick" in person for person in _people_of(found)]
    if returned and any(shown):
        return ["a dropped property is shown"]
    return [] if len(set(shown)) == 1 else ["a dropped property is shown of some"]


def _embeddable(graph: Any, tag: str) -> None:
    graph.apply_schema(_with_property("taste: Vector(4)? @embed(name)"))


def _embed(graph: Any, tag: str) -> None:
    graph.embed("Person.taste", engine="local", actor="ana")


def _embedded(found: Mapping[str, Any], tag: str, *, returned: bool) -> list[str]:
    has = [person["taste"] is not None for person in _people_of(found)]
    if returned and not all(has):
        return ["an acknowledged vector is gone"]
    return [] if len(set(has)) == 1 else ["some have vectors"]


def _clone(graph: Any, tag: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        graph.clone(f"{place}/copy")


INSERT = Writer("insert", _insert, _inserted)
UPDATE = Writer("update", _update, _updated)
DELETE = Writer("delete", _delete, _deleted)
BRANCH_INSERT = Writer("branch_insert", _insert, _inserted, on_new_branch=True)
TURN = Writer("turn", _insert, _inserted, act=_in_turn)
"""The insert that first becomes the next before the lease, and syncs its files while it waits."""
FAST_FORWARD = Writer("fast_forward", _insert, _merged, act=_merge)
THREE_WAY = Writer("three_way", _insert, _merged, act=_merge)
SWITCH = Writer("switch", _insert, _inserted, act=_switch, on_new_branch=True)
"""The merge of main into a branch that has written nothing: it shows other versions and writes no row."""
RECONCILED = Writer("reconciled", _insert, _inserted)
"""The insert after which every table has index work, so that it goes on after its publish."""
LOAD = Writer("load", _insert, _inserted, act=_load)
INDICES = Writer("indices", _insert, _unchanged, act=lambda graph, _tag: graph.ensure_indices())
BRANCH_CREATE = Writer(
    "branch_create",
    _insert,
    _unchanged,
    act=lambda graph, tag: graph.branches.create(f"n{tag}"),
    check=_branch_made,
)
BRANCH_DELETE = Writer(
    "branch_delete",
    _insert,
    _unchanged,
    act=lambda graph, tag: graph.branches.delete(f"b{tag}"),
    check=_branch_gone,
)
TAG_CREATE = Writer(
    "tag_create", _insert, _unchanged, act=lambda graph, tag: graph.tags.create(f"t{tag}"), check=_tag_made
)
TAG_DELETE = Writer(
    "tag_delete", _insert, _unchanged, act=lambda graph, tag: graph.tags.delete(f"t{tag}"), check=_tag_gone
)
REVERT = Writer("revert", _insert, _reverted, act=_revert)
RESTORE = Writer(
    "restore",
    _insert,
    _reverted,
    act=lambda graph, tag: graph.branches.restore("main", to=f"before-{tag}", actor="ana"),
)
OPTIMIZE = Writer("optimize", _insert, _unchanged, act=lambda graph, _tag: graph.optimize())
GROUPED = Writer("grouped", _insert, _many_inserted, act=_many)
CLEANUP = Writer(
    "cleanup", _insert, _unchanged, act=lambda graph, _tag: graph.cleanup(keep=1), ready=_old_states
)
ERASE = Writer(
    "erase",
    _insert,
    _deleted,
    act=lambda graph, tag: graph.erase("Person", f"victim-{tag}", actor="ana"),
    check=_forgotten,
    ready=_spread_victim,
    forgets=lambda tag: f"victim-{tag}",
)
FILL = Writer("fill", _insert, _unchanged, act=_fill, check=_filled)
"""A change of the schema that gives every row a value."""
HARD_DROP = Writer(
    "hard_drop",
    _insert,
    _unchanged,
    act=_drop,
    check=_dropped,
    ready=_secret,
    forgets=lambda tag: f"hush-{tag}",
)
EMBED = Writer("embed", _insert, _unchanged, act=_embed, check=_embedded, ready=_embeddable)
CLONE = Writer("clone", _insert, _unchanged, act=_clone)
"""It writes a pin into the graph it copies, and takes it away."""
REPAIR = Writer("repair", _insert, _unchanged, act=lambda graph, _tag: graph.repair(confirm=True))
"""It publishes what moved a table; when it dies before, the table is as it was found."""
RESTORING = Writer(
    "restoring", _insert, _unchanged, act=lambda graph, _tag: graph.repair(confirm=True, restore=True)
)
"""It undoes what moved a table."""
MUTATIONS = (INSERT, UPDATE, DELETE, BRANCH_INSERT)
NAMES = (BRANCH_CREATE, BRANCH_DELETE, TAG_CREATE, TAG_DELETE)
"""Writers of references: a handful of durable operations each."""
LONG = (FAST_FORWARD, THREE_WAY, INDICES, RESTORE, RECONCILED, OPTIMIZE, CLEANUP, FILL)
"""Writers of many durable operations, most of them of a hundred and more."""
LONGEST = (ERASE, HARD_DROP, EMBED, CLONE)
"""Writers that are made of several others, or copy everything."""
WRITERS = {
    each.name: each
    for each in (
        *MUTATIONS,
        TURN,
        FAST_FORWARD,
        THREE_WAY,
        SWITCH,
        LOAD,
        INDICES,
        REVERT,
        RESTORE,
        *NAMES,
        RECONCILED,
        OPTIMIZE,
        GROUPED,
        CLEANUP,
        ERASE,
        FILL,
        HARD_DROP,
        EMBED,
        CLONE,
    )
}
REPAIRS = {each.name: each for each in (REPAIR, RESTORING)}
"""What they work on is not healthy before they are done, so they are judged in their own way."""


def prepare(graph: Any, writer: Writer, tag: str) -> str:
    """What must be there before the writer runs; returns the branch it writes."""
    if writer.ready is not None:
        writer.ready(graph, tag)
    if writer in {DELETE, FAST_FORWARD, THREE_WAY}:
        _victim(graph, tag)
    if writer is RECONCILED:
        # Each table has one fragment from the seed; the writer adds the one that is too many without an index.
        for number in range(UNCOVERED_FRAGMENTS_MAX - 2):
            source, params = _insert(f"{tag}-{number}")
            graph.mutate(source, params)
    if writer is OPTIMIZE:
        for number in range(3):
            source, params = _insert(f"{tag}-{number}")
            graph.mutate(source, params)
        graph.mutate("query d($n: String) { delete Person where name = $n }", {"n": f"a-{tag}-1"})
    if writer is RESTORE:
        graph.tags.create(f"before-{tag}")
    if writer in {REVERT, RESTORE}:
        source, params = _insert(tag)
        graph.mutate(source, params)
    if writer is TAG_DELETE:
        graph.tags.create(f"t{tag}")
    if writer is BRANCH_DELETE:
        graph.branches.create(f"b{tag}")
        source, params = _insert(tag)
        graph.mutate(source, params, branch=f"b{tag}")
    if writer.on_new_branch:
        graph.branches.create(f"b{tag}")
        if writer is SWITCH:
            source, params = _insert(tag)
            graph.mutate(source, params)
        return f"b{tag}"
    if writer.act is _merge:
        graph.branches.create(f"b{tag}")
        for change in (_insert, _update, _delete):
            source, params = change(tag)
            graph.mutate(source, params, branch=f"b{tag}")
    if writer is THREE_WAY:
        graph.mutate("query m($n: String) { insert Person { name: $n } }", {"n": f"main-{tag}"})
    return "main"


def seed(graph: Any) -> None:
    """The rows every test starts with."""
    graph.mutate(
        """query s() {
             insert Person { name: "ada", age: 0 }
             insert Person { name: "bob", age: 0 }
             insert Knows { from: "ada", to: "bob", since: 0 }
             insert Likes { from: "ada", to: "bob" } }"""
    )
