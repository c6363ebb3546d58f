"""Search and ranking against a naive evaluator: every way to an answer, indexes present, stale and absent."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphs
from omnigraph.engine import search_access
from omnigraph.storage.text import analyse_query

SCHEMA = """
node Doc { slug: String @key  body: String? @index  vec: Vector(2)? @index  live: Bool? }
edge Cites: Doc -> Doc
"""
K1, B = 1.2, 0.75

WAYS = {
    "memory": {},
    "pass": {"_fits": lambda *_: False, "EXACT_ROWS_MAX": -1, "FETCHED_ROWS_MAX": -1},
    "index": {"EXACT_ROWS_MAX": -1, "INDEX_USES_MAX": 10**9},
}
"""How searches get their answers; the last asks indexes whenever there is one, and fetches vectors."""


@contextlib.contextmanager
def forced(way: str) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for name, value in WAYS[way].items():
            held.enter_context(mock.patch.object(search_access, name, value))
        yield


# --- the naive evaluator ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """Documents by slug, and which cites which."""

    docs: dict[str, dict[str, Any]] = field(default_factory=dict)
    cites: frozenset[tuple[str, str]] = frozenset()

    def tokens(self, slug: str) -> list[str]:
        return analyse_query(self.docs[slug].get("body") or "")

    def distance(self, slug: str, query: list[float]) -> float | None:
        vector = self.docs[slug].get("vec")
        return None if vector is None else math.dist(vector, query)

    def relevance(self, slug: str, query: str) -> float | None:
        average = sum(len(self.tokens(each)) for each in self.docs) / len(self.docs)
        mine, score = self.tokens(slug), 0.0
        for token in sorted(set(analyse_query(query))):
            count = sum(token in self.tokens(each) for each in self.docs)
            often = mine.count(token)
            if often:
                norm = K1 * (1 - B + B * len(mine) / average)
                rarity = np.log((len(self.docs) - count + 0.5) / (count + 0.5) + 1)
                score += rarity * often * (K1 + 1) / (often + norm)
        return score or None

    def nearest(self, slugs: list[str], query: list[float], limit: int) -> list[str]:
        ranked = sorted((d, s) for s in slugs if (d := self.distance(s, query)) is not None)
        return [slug for _, slug in ranked][:limit]

    def bm25(self, slugs: list[str], query: str) -> list[str]:
        ranked = sorted((-r, s) for s in slugs if (r := self.relevance(s, query)) is not None)
        return [slug for _, slug in ranked]

    def fused(self, slugs: list[str], vector: list[float], text: str, limit: int) -> list[str]:
        arms = [self.nearest(slugs, vector, limit), self.bm25(slugs, text)]
        places = {slug: [arm.index(slug) if slug in arm else 10**9 for arm in arms] for slug in slugs}
        scores = {s: sum(1 / (61 + p) for p in places[s] if p < 10**9) for s in slugs}
        ranked = sorted((-scores[s], *places[s], s) for s in slugs if scores[s])
        return [row[-1] for row in ranked][:limit]

    def holds(self, slug: str, function: str, query: str) -> bool:
        mine, wanted = self.tokens(slug), analyse_query(query)
        match function:
            case "search":
                return bool(set(mine) & set(wanted))
            case "match_text":
                starts = range(len(mine) - len(wanted) + 1)
                return bool(wanted) and any(mine[i : i + len(wanted)] == wanted for i in starts)
            case _:
                return any(edits(a, b) <= 1 for a in mine for b in wanted)

    def live(self) -> list[str]:
        return sorted(slug for slug, doc in self.docs.items() if doc.get("live"))

    def cited_by(self, slug: str) -> list[str]:
        return sorted(target for source, target in self.cites if source == slug and target in self.docs)


def edits(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row, before = [i], row
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y)))
    return row[-1]


# --- programs --------------------------------------------------------------------------------------------

SLUGS = "abcdefg"
slugs = st.sampled_from(SLUGS)
bodies = st.one_of(
    st.none(),
    st.lists(st.sampled_from(["tide", "reef", "the", "Reefs", "moss", "rief"]), max_size=5).map(" ".join),
)
vectors = st.one_of(st.none(), st.tuples(*[st.sampled_from([-1.0, 0.0, 1.0, 3.0])] * 2).map(list))
documents = st.fixed_dictionaries(
    {"body": bodies, "vec": vectors, "live": st.sampled_from([True, False, None])}
)
steps = st.one_of(
    st.tuples(st.just("put"), slugs, documents),
    st.tuples(st.just("delete"), slugs, st.none()),
    st.tuples(st.just("cite"), slugs, slugs),
    st.tuples(st.just("index"), st.none(), st.none()),
)
queries = st.tuples(
    st.tuples(*[st.sampled_from([-1.0, 0.0, 0.5, 2.0])] * 2).map(list),
    st.sampled_from(["tide", "reef tide", "the", "moss moss reef", "zebra", "tide reef"]),
    st.integers(0, 4),
    slugs,
)
numbers = itertools.count()

PUT = """query q($s: String, $b: String?, $v: Vector(2)?, $l: Bool?) {
  insert Doc { slug: $s, body: $b, vec: $v, live: $l }
}"""


def apply(graph: Any, model: Model, step: tuple[str, Any, Any]) -> Model:
    kind, name, value = step
    match kind:
        case "put":
            params = {"s": name, "b": value["body"], "v": value["vec"], "l": value["live"]}
            graph.mutate(PUT, params)
            return replace(model, docs={**model.docs, name: value})
        case "delete":
            graphs.run(graph, f'delete Doc where slug = "{name}"')
            kept = {slug: doc for slug, doc in model.docs.items() if slug != name}
            return Model(kept, frozenset(c for c in model.cites if name not in c))
        case "cite" if name in model.docs and value in model.docs:
            graphs.run(graph, f'insert Cites {{ from: "{name}", to: "{value}" }}')
            return replace(model, cites=model.cites | {(name, value)})
        case "index":
            graph.ensure_indices()
            return model
        case _:
            return model


def check(graph: Any, model: Model, at: str, query: tuple[list[float], str, int, str]) -> None:
    vector, text, limit, start = query
    everything = sorted(model.docs)
    params = {"v": vector, "t": text, "s": start}

    def ask(match: str, tail: str = "") -> list[str]:
        used = {name: kind for name, kind in TYPES.items() if f"${name}" in match + tail}
        head = ", ".join(f"${name}: {kind}" for name, kind in used.items())
        source = f"query q({head}) {{ match {{ {match} }} return {{ $d.slug }} {tail} }}"
        rows = graph.query(source, {name: params[name] for name in used}, at=at)
        return [row["d.slug"] for row in rows]

    near = f"order {{ nearest($d.vec, $v) }} limit {limit}"
    both = f"order {{ rrf(nearest($d.vec, $v), bm25($d.body, $t)) }} limit {limit}"
    cited = "$x: Doc { slug: $s } $x cites $d"
    assert ask("$d: Doc", near) == model.nearest(everything, vector, limit)
    assert ask("$d: Doc { live: true }", near) == model.nearest(model.live(), vector, limit)
    assert ask(cited, near) == model.nearest(model.cited_by(start), vector, limit)
    assert ask("$d: Doc", "order { bm25($d.body, $t) }") == model.bm25(everything, text)
    assert ask(cited, "order { bm25($d.body, $t) } limit 2") == model.bm25(model.cited_by(start), text)[:2]
    assert ask("$d: Doc", both) == model.fused(everything, vector, text, limit)
    assert ask("$d: Doc { live: true }", both) == model.fused(model.live(), vector, text, limit)
    for function in ("search", "match_text", "fuzzy"):
        call = f"{function}($d.body, $t{', 1' if function == 'fuzzy' else ''})"
        held = [slug for slug in everything if model.holds(slug, function, text)]
        known = [slug for slug in everything if model.docs[slug]["body"] is not None]
        assert sorted(ask(f"$d: Doc {call}")) == held
        assert sorted(ask(f"$d: Doc {call} = false")) == [slug for slug in known if slug not in held]


TYPES = {"v": "Vector(2)", "t": "String", "s": "String"}


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(steps, min_size=3, max_size=12), query=queries)
def test_search_equals_brute_force_at_every_commit(tmp_path, way, program, query):
    model = Model()
    states: list[tuple[str, Model]] = []
    with graphs.make_graph(tmp_path / f"{way}-{next(numbers)}", SCHEMA) as graph, forced(way):
        for step in program:
            model = apply(graph, model, step)
            states.append((graph.commits.head().id, model))
            check(graph, model, states[-1][0], query)
        for commit, state in states[:-1]:
            check(graph, state, commit, query)
