"""A graph of three tables, the writers that change it, and the model they are compared with."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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

    def after(self, before: Model, tag: str) -> Model:
        changed = before.copy()
        self.apply(changed, tag)
        return changed

    def run(self, graph: Any, tag: str, branch: str = "main") -> None:
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


INSERT = Writer("insert", _insert, _inserted)
UPDATE = Writer("update", _update, _updated)
DELETE = Writer("delete", _delete, _deleted)
BRANCH_INSERT = Writer("branch_insert", _insert, _inserted, on_new_branch=True)
WRITERS = {each.name: each for each in (INSERT, UPDATE, DELETE, BRANCH_INSERT)}


def prepare(graph: Any, writer: Writer, tag: str) -> str:
    """What must be there before the writer runs; returns the branch it writes."""
    if writer is DELETE:
        # Every table keeps a row beside the deleted ones, so that deletion files are written.
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
    if writer.on_new_branch:
        graph.branches.create(f"b{tag}")
        return f"b{tag}"
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
