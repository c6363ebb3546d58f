"""The patterns of `benchmarks.patterns`, each said once and printed for every contender.

A pattern is a list of edges between variables, conditions, and parts that are optional or must not be. The
clauses of our text can be written in any order; the texts of the peers are theirs to order.
"""

import random
from dataclasses import dataclass, field

from benchmarks._pattern_network import EDGES

Edge = tuple[str, str, str]
"""Variable, edge type, variable."""


@dataclass(frozen=True)
class Pattern:
    """One question about the network."""

    edges: list[Edge]
    tests: list[Edge] = field(default_factory=list[Edge])
    """Property of a variable, operator, literal: `("t.name", "=", "'Tag-3'")`."""
    unequal: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Variables that are different nodes."""
    maybe: list[list[Edge]] = field(default_factory=list[list[Edge]])
    without: list[list[Edge]] = field(default_factory=list[list[Edge]])
    group: str | None = None
    """The property that the rows are counted by; None: all of them."""
    counted: str | None = None
    """The variable that is counted; None: the first."""

    @property
    def types(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for edges in (self.edges, *self.maybe, *self.without):
            for source, edge, target in edges:
                found.setdefault(source, EDGES[edge][0])
                found.setdefault(target, EDGES[edge][1])
        return found

    @property
    def own(self) -> list[str]:
        """The variables of the pattern itself."""
        return list(dict.fromkeys(name for source, _, target in self.edges for name in (source, target)))


def _hop(edge: Edge) -> str:
    source, name, target = edge
    return f"${source} {name[0].lower()}{name[1:]} ${target}"


def our_text(pattern: Pattern, order: int) -> str:
    """Our query. Order 0 is as said above, 1 the reverse, 2 and on are shuffled."""
    nodes = [f"${name}: {pattern.types[name]}" for name in pattern.own]
    clauses = [_hop(edge) for edge in pattern.edges]
    if order == 1:
        nodes, clauses = nodes[::-1], clauses[::-1]
    elif order > 1:
        random.Random(order).shuffle(nodes)
        random.Random(order).shuffle(clauses)
    for place, op, literal in pattern.tests:
        quoted = literal.replace("'", '"')
        clauses.insert(0 if order == 1 else len(clauses), f"${place} {op} {quoted}")
    clauses += [f"${a}.key != ${b}.key" for a, b in pattern.unequal]
    clauses += [f"maybe {{ {' '.join(map(_hop, edges))} }}" for edges in pattern.maybe]
    clauses += [f"not {{ {' '.join(map(_hop, edges))} }}" for edges in pattern.without]
    counted = f"count(${pattern.counted or pattern.own[0]}) as n"
    shown = counted if pattern.group is None else f"${pattern.group}, {counted}"
    return f"query q() {{ match {{ {' '.join(nodes + clauses)} }} return {{ {shown} }} }}"


def sql_text(pattern: Pattern) -> str:
    """The same for engines of tables."""
    where: list[str] = []
    place: dict[str, str] = {}
    sources: list[str] = []

    def join(edges: list[Edge], tag: str, known: dict[str, str]) -> tuple[list[str], list[str]]:
        tables: list[str] = []
        equal: list[str] = []
        for number, (source, edge, target) in enumerate(edges):
            alias = f"{tag}{number}"
            tables.append(f"{edge} {alias}")
            for name, column in ((source, f"{alias}.src"), (target, f"{alias}.dst")):
                if name in known:
                    equal.append(f"{known[name]} = {column}")
                else:
                    known[name] = column
        return tables, equal

    sources, where = join(pattern.edges, "e", place)
    used = {test[0].split(".")[0] for test in pattern.tests}
    used |= set() if pattern.group is None else {pattern.group.split(".")[0]}
    for name in sorted(used):
        sources.append(f"{pattern.types[name]} n_{name}")
        where.append(f"n_{name}.key = {place[name]}")
    where += [f"n_{test[0]} {test[1]} {test[2]}" for test in pattern.tests]
    where += [f"{place[a]} != {place[b]}" for a, b in pattern.unequal]
    for number, edges in enumerate(pattern.without):
        tables, equal = join(edges, f"w{number}_", dict(place))
        where.append(f"not exists (select 1 from {', '.join(tables)} where {' and '.join(equal)})")
    left = ""
    for number, edges in enumerate(pattern.maybe):
        (source, edge, target), *more = edges
        assert not more, "only single edges are optional here"
        alias = f"m{number}"
        inner, outer = ("src", source) if source in place else ("dst", target)
        left += f" left join {edge} {alias} on {alias}.{inner} = {place[outer]}"
    from_ = " cross join ".join(sources) if left else ", ".join(sources)
    if left:  # a left join may only follow what it mentions
        columns = ", ".join(f"{column} as v_{name}" for name, column in place.items())
        inner_from = f"(select {columns} from {', '.join(sources)}"
        inner_from += f" where {' and '.join(where)}) x" if where else ") x"
        for name, column in place.items():
            left = left.replace(f"= {column}", f"= x.v_{name}")
        from_, where = inner_from, []
    tail = f" where {' and '.join(where)}" if where else ""
    if pattern.group is None:
        return f"select count(*) from {from_}{left}{tail}"
    return f"select n_{pattern.group}, count(*) from {from_}{left}{tail} group by 1"


def cypher_text(pattern: Pattern) -> str:
    """The same for engines that speak Cypher."""

    def path(edge: Edge) -> str:
        source, name, target = edge
        types = pattern.types
        return f"({source}:{types[source]})-[:{name}]->({target}:{types[target]})"

    where = [f"{place} {'<>' if op == '!=' else op} {literal}" for place, op, literal in pattern.tests]
    where += [f"{a}.key <> {b}.key" for a, b in pattern.unequal]
    where += [f"not exists {{ match {', '.join(map(path, edges))} }}" for edges in pattern.without]
    tail = f" where {' and '.join(where)}" if where else ""
    maybe = "".join(f" optional match {', '.join(map(path, edges))}" for edges in pattern.maybe)
    shown = "count(*)" if pattern.group is None else f"{pattern.group}, count(*)"
    return f"match {', '.join(map(path, pattern.edges))}{tail}{maybe} return {shown}"


COUNTRY = [(f"{p}", "LivesIn", f"c{p}") for p in ("a", "b", "c")] + [
    (f"c{p}", "PartOf", "country") for p in ("a", "b", "c")
]
TRIANGLE = [("a", "Knows", "b"), ("b", "Knows", "c"), ("a", "Knows", "c")]
FRIENDS = [("a", "Knows", "b"), ("b", "Knows", "c"), ("c", "Interest", "t")]

PATTERNS = {
    "chain of 8 edges": Pattern(
        [
            ("city", "PartOf", "country"),
            ("p", "LivesIn", "city"),
            ("f", "Member", "p"),
            ("f", "Contains", "post"),
            ("k", "ReplyOf", "post"),
            ("k", "CommentTag", "tag"),
            ("tag", "OfClass", "class"),
            ("k", "CommentBy", "q"),
        ]
    ),
    "cycle: reply to a friend": Pattern(
        [("k", "ReplyOf", "post"), ("k", "CommentBy", "p"), ("post", "PostBy", "q"), ("p", "Knows", "q")]
    ),
    "triangle of friends": Pattern(TRIANGLE),
    "triangle in one country": Pattern([*COUNTRY[3:], *COUNTRY[:3], *TRIANGLE]),
    "triangle in a named country": Pattern(
        [*COUNTRY[3:], *COUNTRY[:3], *TRIANGLE], tests=[("country.name", "=", "'Country-9'")]
    ),
    "star around a post": Pattern(
        [
            ("post", "PostTag", "t"),
            ("post", "PostBy", "p"),
            ("q", "LikesPost", "post"),
            ("k", "ReplyOf", "post"),
        ]
    ),
    "two tags": Pattern(
        [("k", "ReplyOf", "post"), ("k", "CommentTag", "s"), ("post", "PostTag", "t")], unequal=[("s", "t")]
    ),
    "friend of friend": Pattern(FRIENDS, unequal=[("a", "c")]),
    "friend of friend, not friends": Pattern(FRIENDS, unequal=[("a", "c")], without=[[("a", "Knows", "c")]]),
    "optional likes and replies": Pattern(
        [("post", "PostTag", "t"), ("post", "PostBy", "p")],
        maybe=[[("q", "LikesPost", "post")], [("k", "ReplyOf", "post")]],
    ),
    "no tag in common": Pattern(
        [("k", "ReplyOf", "post"), ("k", "CommentTag", "t")], without=[[("post", "PostTag", "t")]]
    ),
    "likes of friends by country": Pattern(
        [
            ("a", "Knows", "b"),
            ("b", "LikesPost", "post"),
            ("a", "LivesIn", "city"),
            ("city", "PartOf", "country"),
        ],
        group="country.name",
    ),
    "filtered at the near end": Pattern(
        [("tag", "OfClass", "class"), ("p", "Interest", "tag"), ("p", "Knows", "q"), ("f", "Member", "q")],
        tests=[("class.name", "=", "'TagClass-7'")],
    ),
    "filtered at the far end": Pattern(
        [("f", "Member", "p"), ("p", "Knows", "q"), ("q", "LikesPost", "post"), ("post", "PostTag", "t")],
        tests=[("t.name", "=", "'Tag-3'")],
    ),
    "filtered at both ends": Pattern(
        [("f", "Contains", "post"), ("k", "ReplyOf", "post"), ("k", "CommentBy", "p"), ("p", "LivesIn", "c")],
        tests=[("f.size", "<", "10"), ("c.size", ">", "90")],
    ),
    "cycle of 4 friends in a named country": Pattern(
        [
            ("a", "Knows", "b"),
            ("b", "Knows", "c"),
            ("c", "Knows", "d"),
            ("d", "Knows", "a"),
            ("a", "LivesIn", "city"),
            ("city", "PartOf", "country"),
        ],
        tests=[("country.name", "=", "'Country-9'")],
        unequal=[("a", "c"), ("b", "d")],
    ),
    "bow-tie in a named country": Pattern(
        [
            ("a", "Knows", "b"),
            ("b", "Knows", "c"),
            ("c", "Knows", "a"),
            ("a", "Knows", "d"),
            ("d", "Knows", "e"),
            ("e", "Knows", "a"),
            ("a", "LivesIn", "city"),
            ("city", "PartOf", "country"),
        ],
        tests=[("country.name", "=", "'Country-9'")],
    ),
}
