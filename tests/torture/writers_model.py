"""Random mutations over a small graph, and a dictionary model that says what each of them must do."""

import random
from dataclasses import dataclass, field
from typing import Any

SCHEMA = """
node Person { name: String @key  age: I32?  nick: String? @unique }
node Company { name: String @key }
node Note { text: String }
edge Knows: Person -> Person { weight: I32? }
edge WorksAt: Person -> Company @card(0..1)
"""

PEOPLE = [f"p{n}" for n in range(24)]
COMPANIES = [f"c{n}" for n in range(6)]
NICKS = [f"n{n}" for n in range(40)]
CONSTRUCTIVE = (
    "upsert",
    "insert_new",
    "company",
    "note",
    "knows",
    "works_at",
    "update_one",
    "update_many",
    "weigh",
)
DESTRUCTIVE = ("delete_person", "delete_knows", "delete_young")

Step = list[Any]


class Refused(Exception):
    """What the model says a mutation must be refused with."""


def random_mutation(rng: random.Random) -> list[Step]:
    """One to four steps of one kind."""
    if rng.random() < 0.2:
        return [random_step(rng, rng.choice(DESTRUCTIVE)) for _ in range(rng.randint(1, 2))]
    return [random_step(rng, rng.choice(CONSTRUCTIVE)) for _ in range(rng.randint(1, 4))]


def random_step(rng: random.Random, what: str) -> Step:
    person, other = rng.choice(PEOPLE), rng.choice(PEOPLE)
    age = rng.randint(0, 100)
    match what:
        case "upsert" | "insert_new":
            return [what, person, age, rng.choice(NICKS) if rng.random() < 0.3 else None]
        case "company":
            return [what, rng.choice(COMPANIES)]
        case "note":
            return [what, f"text {rng.random()}"]
        case "knows":
            return [what, person, other, age]
        case "works_at":
            return [what, person, rng.choice(COMPANIES)]
        case "update_one":
            return [what, person, age]
        case "update_many":
            return [what, age, age + rng.randint(1, 5)]
        case "weigh":
            return [what, person, age]
        case "delete_person" | "delete_knows":
            return [what, person]
        case _:
            return [what, rng.randint(0, 4)]


def query_text(steps: list[Step]) -> tuple[str, dict[str, Any]]:
    """The mutation as the language spells it, with every value as a parameter."""
    declared: list[str] = []
    values: dict[str, Any] = {}
    lines: list[str] = []

    def param(value: Any) -> str:
        name = f"v{len(values)}"
        kind = "I32" if isinstance(value, int) else "String"
        declared.append(f"${name}: {kind}{'?' if value is None else ''}")
        values[name] = value
        return f"${name}"

    for what, *args in steps:
        given = [param(value) for value in args]
        lines.append(_TEXTS[what].format(*given))
    return f"query torture({', '.join(declared)}) {{ {' '.join(lines)} }}", values


_TEXTS = {
    "upsert": "insert Person {{ name: {0}, age: {1}, nick: {2} }}",
    "insert_new": "insert new Person {{ name: {0}, age: {1}, nick: {2} }}",
    "company": "insert Company {{ name: {0} }}",
    "note": "insert Note {{ text: {0} }}",
    "knows": "insert Knows {{ from: {0}, to: {1}, weight: {2} }}",
    "works_at": "insert WorksAt {{ from: {0}, to: {1} }}",
    "update_one": "update Person set {{ age: {1} }} where name = {0}",
    "update_many": "update Person set {{ age: {1} }} where age = {0}",
    "weigh": "update Knows set {{ weight: {1} }} where from = {0}",
    "delete_person": "delete Person where name = {0}",
    "delete_knows": "delete Knows where from = {0}",
    "delete_young": "delete Person where age < {0}",
}


@dataclass
class Model:
    """The graph as dictionaries."""

    persons: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    companies: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)
    knows: dict[str, tuple[str, str, int | None]] = field(default_factory=dict)
    works: dict[str, tuple[str, str]] = field(default_factory=dict)

    def copy(self) -> "Model":
        return Model(
            dict(self.persons), set(self.companies), dict(self.notes), dict(self.knows), dict(self.works)
        )

    def apply(self, steps: list[Step], ids: list[str]) -> tuple[int, int]:
        """Does what the mutation does; `ids` are those of its inserts. Raises Refused naming the rule."""
        if steps[0][0] in DESTRUCTIVE:
            return self._delete(steps)
        fresh = iter(ids)
        nodes = edges = 0
        for what, *args in steps:
            match what:
                case "upsert" | "insert_new":
                    if what == "insert_new" and args[0] in self.persons:
                        raise Refused("key")
                    self.persons[args[0]] = (args[1], args[2])
                    nodes += 1
                    next(fresh)
                case "company":
                    self.companies.add(args[0])
                    nodes += 1
                    next(fresh)
                case "note":
                    self.notes[next(fresh)] = args[0]
                    nodes += 1
                case "knows":
                    self.knows[next(fresh)] = (args[0], args[1], args[2])
                    edges += 1
                case "works_at":
                    self.works[next(fresh)] = (args[0], args[1])
                    edges += 1
                case "update_one":
                    if args[0] in self.persons:
                        self.persons[args[0]] = (args[1], self.persons[args[0]][1])
                        nodes += 1
                case "update_many":
                    for name, (age, nick) in list(self.persons.items()):
                        if age == args[0]:
                            self.persons[name] = (args[1], nick)
                            nodes += 1
                case "weigh":
                    for edge, (source, target, _) in list(self.knows.items()):
                        if source == args[0]:
                            self.knows[edge] = (source, target, args[1])
                            edges += 1
        self._check()
        return nodes, edges

    def _check(self) -> None:
        nicks = [nick for _, nick in self.persons.values() if nick is not None]
        if len(nicks) != len(set(nicks)):
            raise Refused("unique")
        for source, target, _ in self.knows.values():
            if source not in self.persons or target not in self.persons:
                raise Refused("endpoint")
        for source, target in self.works.values():
            if source not in self.persons or target not in self.companies:
                raise Refused("endpoint")
        sources = [source for source, _ in self.works.values()]
        if len(sources) != len(set(sources)):
            raise Refused("cardinality")

    def _delete(self, steps: list[Step]) -> tuple[int, int]:
        gone: set[str] = set()
        edges: set[str] = set()
        for what, arg in steps:
            if what == "delete_person":
                gone |= {arg} & set(self.persons)
            elif what == "delete_young":
                gone |= {n for n, (age, _) in self.persons.items() if age is not None and age < arg}
            else:
                edges |= {e for e, (source, _, _) in self.knows.items() if source == arg}
        edges |= {e for e, (s, t, _) in self.knows.items() if s in gone or t in gone}
        works = {e for e, (s, _) in self.works.items() if s in gone}
        for name in gone:
            del self.persons[name]
        for edge in edges:
            del self.knows[edge]
        for edge in works:
            del self.works[edge]
        return len(gone), len(edges) + len(works)

    def rows(self) -> dict[str, dict[str, Any]]:
        """In the shape the graph is compared in."""
        return {
            "Person": {n: {"age": a, "nick": k} for n, (a, k) in self.persons.items()},
            "Company": {n: {} for n in self.companies},
            "Note": {i: {"text": t} for i, t in self.notes.items()},
            "Knows": {i: {"from": s, "to": t, "weight": w} for i, (s, t, w) in self.knows.items()},
            "WorksAt": {i: {"from": s, "to": t} for i, (s, t) in self.works.items()},
        }
