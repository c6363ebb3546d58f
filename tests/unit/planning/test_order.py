"""The order of a match by cost: the same for every way to write its clauses, whatever the data are like."""

import random
from dataclasses import dataclass

import pytest

from omnigraph.catalog.build import compile_schema
from omnigraph.planning import ir
from omnigraph.planning.compile import compile_query
from omnigraph.planning.explain import title_of
from omnigraph.planning.order import by_cost
from omnigraph.planning.steps import Direction, steps_of

NODES = {"Person": 16_666, "City": 833, "Post": 66_664, "Comment": 133_328, "Tag": 2_083}
EDGES = {
    "LivesIn": ("Person", "City", 16_666, 1.4),
    "Knows": ("Person", "Person", 132_000, 10.0),
    "Interest": ("Person", "Tag", 98_000, 12.0),
    "PostBy": ("Post", "Person", 66_664, 8.0),
    "CommentBy": ("Comment", "Person", 133_328, 9.0),
    "ReplyOf": ("Comment", "Post", 133_328, 60.0),
    "LikesPost": ("Person", "Post", 83_283, 30.0),
    "PostTag": ("Post", "Tag", 66_472, 4.0),
}
"""Ends, pairs, and how many times busier than others the nodes are that an edge leads to."""
CATALOG = compile_schema(
    "\n".join(
        [f"node {name} {{ k: String @key }}" for name in NODES]
        + [f"edge {name}: {ends[0]} -> {ends[1]}" for name, ends in EDGES.items()]
    )
)


@dataclass
class Known:
    """Data that nobody changes."""

    def rows(self, node) -> float:
        return NODES[node.name]

    def share(self, node, test) -> float:
        return 1.0 if test is None else 1.0 / NODES[node.name]

    def degree(self, edge, direction, *, reached) -> float:
        _, _, pairs, busy = EDGES[edge.name]
        start = edge.target if direction is Direction.BACKWARD else edge.source
        return pairs / NODES[start] * (busy if reached else 1.0)


def drawn(chosen: random.Random) -> list[str]:
    """Clauses that hang together."""
    types, clauses = {"v0": chosen.choice(list(NODES))}, set[str]()
    for _ in range(chosen.randrange(3, 11)):
        name, (source, target, _, _) = chosen.choice(
            [(name, ends) for name, ends in EDGES.items() if set(ends[:2]) & set(types.values())]
        )
        at, leads = chosen.choice([(v, t == source) for v, t in types.items() if t in (source, target)])
        kind = target if leads else source
        known = [each for each, its in types.items() if its == kind and each != at]
        other = chosen.choice(known) if known and chosen.random() < 0.4 else f"v{len(types)}"
        types[other] = kind
        ends = (at, other) if leads else (other, at)
        clauses.add(f"${ends[0]} {name[0].lower()}{name[1:]} ${ends[1]}")
    return sorted(clauses)


def run_as(clauses: list[str]) -> list[tuple[str, str]]:
    plan = compile_query(
        f"query q() {{ match {{ {' '.join(clauses)} }} return {{ count($v0) as n }} }}", CATALOG
    )
    assert isinstance(plan, ir.ReadPlan)
    order = lambda block, bound, wanted: by_cost(block, bound, wanted, Known()).moves  # noqa: E731
    return [title_of(step) for step in steps_of(plan.match, order=order, wanted=frozenset())]


@pytest.mark.parametrize("seed", range(100, 150))
def test_equal_matches_have_equal_steps(seed) -> None:
    chosen = random.Random(seed)
    clauses = drawn(chosen)
    expected = run_as(clauses)
    for _ in range(3):
        chosen.shuffle(clauses)
        assert run_as(clauses) == expected
