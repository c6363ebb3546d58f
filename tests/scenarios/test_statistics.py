"""What a plan is made from is exact at every commit, whatever was written since it was first counted."""

import random
from collections import Counter

import pytest

from graphs import make_graph
from omnigraph.core.events import Progress, listen
from omnigraph.engine.edges import endpoints

SCHEMA = "node Person { k: String @key  n: I32? }\nedge Knows: Person -> Person"
PLANNED = "query q() { match { $a: Person $a.n > 2 $a knows $b $b knows $c } return { $a, $c } }"
EITHER_WAY = (
    'query q() { match { $a: Person { k: "p1" } $a knows $b } return { $b } }',
    'query q() { match { $a: Person { k: "p1" } $b knows $a } return { $b } }',
)
PAIRS = "query q() { match { $a: Person $a $e:knows $b } return { $a.k, $b.k } }"
VALUES = "query q() { match { $a: Person } return { $a.k, $a.n } }"


def statistics(graph, at=None) -> set[str]:
    """Those of a plan, once what it may read is in memory."""
    for text in EITHER_WAY:
        graph.query(text, at=at)
    plan = graph.explain(PLANNED, at=at)
    return {known for operator in plan.operators for known in operator.statistics}


def counted(graph) -> set[str]:
    """The same from the rows themselves."""
    rows = [tuple(row.values()) for row in graph.query(PAIRS).to_dicts()]
    values = [row["a.n"] for row in graph.query(VALUES).to_dicts()]
    pairs, known = set(rows), [value for value in values if value is not None]
    lines = {_values(values, known)} if values else set()
    for column in (0, 1):
        degrees = Counter(pair[column] for pair in pairs)
        each = f"{len(pairs) / max(len(values), 1):.1f} each, {max(degrees.values(), default=0)} at most"
        lines.add(
            f"Knows: {len(rows)} edges, {len(pairs)} pairs from {len(degrees)} of {len(values)} nodes, {each}"
        )
    return lines


def _values(values, known) -> str:
    span = f" from {min(known)} to {max(known)}" if known else ""
    nulls = f", {1 - len(known) / len(values):.0%} null" if len(known) < len(values) else ""
    return f"Person.n: {len(set(known))} values{span}{nulls}"


@pytest.mark.slow
def test_statistics_are_exact_at_every_commit(tmp_path) -> None:
    chosen = random.Random(11)
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        nodes = [f'insert Person {{ k: "p{n}", n: {n % 5} }}' for n in range(12)]
        edges = [
            f'insert Knows {{ from: "p{chosen.randrange(12)}", to: "p{chosen.randrange(12)}" }}'
            for _ in range(20)
        ]
        graph.mutate("query q() {" + "\n".join(nodes + edges) + "}")
        seen = {}
        for turn in range(8):
            found = statistics(graph)
            assert found <= counted(graph), turn
            assert {line.split(":")[0] for line in found} == {"Knows", "Person.n"}
            seen[graph.commits.head().id] = found
            graph.mutate("query q() {" + _change(turn, chosen) + "}")
        assert len({frozenset(found) for found in seen.values()}) > 5
        for commit, found in seen.items():
            assert statistics(graph, at=commit) == found


def _change(turn: int, chosen: random.Random) -> str:
    one, other = chosen.randrange(5), chosen.randrange(5)
    match turn % 4:
        case 0:
            return (
                f'insert Knows {{ from: "p1", to: "p{one}" }} insert Knows {{ from: "p{other}", to: "p3" }}'
            )
        case 1:
            return f'update Person set {{ n: {7 + turn} }} where k = "p{one}"'
        case 2:
            return f'delete Person where k = "p{5 + turn}"'
        case _:
            return f'insert Person {{ k: "q{turn}" }} insert Knows {{ from: "q{turn}", to: "p1" }}'


def test_a_build_that_somebody_waits_for_says_how_far_it_is(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(endpoints, "THREADED_EDGES_MIN", 1)
    monkeypatch.setattr(endpoints, "SAID_AFTER_SECONDS", 0.0)
    ring = [f'insert Person {{ k: "p{n}" }}' for n in range(5)]
    ring += [f'insert Knows {{ from: "p{n}", to: "p{(n + 1) % 5}" }}' for n in range(5)]
    heard = []
    with make_graph(tmp_path / "g", SCHEMA) as graph:
        graph.mutate("query q() {" + "\n".join(ring) + "}")
        with listen(heard.append):
            graph.query(EITHER_WAY[0])
    assert Progress("read", "adjacency", 5, 5, "edges") in heard
