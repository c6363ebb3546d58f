"""Search and ranking against a naive evaluator: every way to an answer, indexes present, stale and absent."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphs
from omnigraph.engine import create
from omnigraph.engine.read import query as query_module
from omnigraph.engine.search import choice as search_access
from omnigraph.engine.search import fulltext as text_module
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.storage import indexes as storage_indexes
from omnigraph.storage.text_analysis import analyse_query, analyser_options

SCHEMA = """
node Doc { slug: String @key  body: String? @index(text: ANALYSIS)  vec: Vector(2)? @index  live: Bool? }
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
    analysis: str = "plain"

    def words(self, text: str) -> list[str]:
        """What a text is searched by; only the words of a language are left to the analyser."""
        match self.analysis:
            case "plain":
                return text.lower().split()
            case "folded":
                return text.lower().replace("é", "e").split()
            case _:
                return analyse_query(text, self.analysis)

    def tokens(self, slug: str) -> list[str]:
        return self.words(self.docs[slug].get("body") or "")

    def distance(self, slug: str, query: list[float]) -> float | None:
        vector = self.docs[slug].get("vec")
        return None if vector is None else math.dist(vector, query)

    def relevance(self, slug: str, query: str) -> float | None:
        average = sum(len(self.tokens(each)) for each in self.docs) / len(self.docs)
        mine, score = self.tokens(slug), 0.0
        for token in sorted(set(self.words(query))):
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
        mine, wanted = self.tokens(slug), self.words(query)
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
    st.lists(st.sampled_from(["tide", "reef", "the", "Reefs", "moss", "rief", "Réef"]), max_size=5).map(
        " ".join
    ),
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
    st.sampled_from(["tide", "reef tide", "the", "moss moss reef", "zebra", "tide reef", "RÉEF"]),
    st.integers(0, 4),
    slugs,
    st.sampled_from(["plain", "plain", "folded", "english"]),
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
            cites = frozenset(c for c in model.cites if name not in c)
            return replace(model, docs=kept, cites=cites)
        case "cite" if name in model.docs and value in model.docs:
            graphs.run(graph, f'insert Cites {{ from: "{name}", to: "{value}" }}')
            return replace(model, cites=model.cites | {(name, value)})
        case "index":
            graph.ensure_indices()
            return model
        case _:
            return model


def check(graph: Any, model: Model, at: str, query: tuple[list[float], str, int, str, str]) -> None:
    vector, text, limit, start, _ = query
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


def run_program(path, way, program, query):
    analysis = query[-1]
    model = Model(analysis=analysis)
    states: list[tuple[str, Model]] = []
    with graphs.make_graph(path, SCHEMA.replace("ANALYSIS", analysis)) as graph, forced(way):
        for step in program:
            model = apply(graph, model, step)
            states.append((graph.commits.head().id, model))
            check(graph, model, states[-1][0], query)
        for commit, state in states[:-1]:
            check(graph, state, commit, query)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(steps, min_size=3, max_size=12), query=queries)
def test_search_equals_brute_force_at_every_commit(tmp_path, way, program, query):
    run_program(tmp_path / f"{way}-{next(numbers)}", way, program, query)


@pytest.mark.torture
@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=st.lists(steps, min_size=8, max_size=30), query=queries)
def test_long_programs_search_like_brute_force(tmp_path, way, program, query):
    run_program(tmp_path / f"{way}-{next(numbers)}", way, program, query)


# --- larger tables ---------------------------------------------------------------------------------------

WIDE = "node Doc { slug: String @key  body: String @index  vec: Vector(8) @index }"
ROWS = 12_000
NEAR = (
    "query q($v: Vector(8)) { match { $d: Doc } return { $d.slug } order { nearest($d.vec, $v) } limit 10 }"
)
FIND = "query q($t: String) { match { $d: Doc } return { $d.slug } order { bm25($d.body, $t) } limit 10 }"
HOLDS = "query q($t: String) { match { $d: Doc search($d.body, $t) } return { $d.slug } }"


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Vectors and texts of 12,000 documents, as a Parquet file to load."""
    rng = np.random.default_rng(5)
    where = tmp_path_factory.mktemp("wide")
    vectors = rng.standard_normal((ROWS, 8)).astype(np.float32)
    bodies = [" ".join(f"w{n}" for n in row) for row in np.minimum(rng.zipf(1.4, (ROWS, 6)), 500)]
    table = pa.table(
        {
            "slug": [f"d{number:05d}" for number in range(ROWS)],
            "body": bodies,
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8),
        }
    )
    pq.write_table(table, where / "Doc.parquet")
    return where / "Doc.parquet", vectors, bodies


def load_wide(path, file, options=graphs.FAST):
    graph = graphs.make_graph(path, WIDE, settings=options)
    graph.load(file, mode="append", engine="local", type_name="Doc")
    return graph


def slugs_of(graph, text, **params):
    return [row["d.slug"] for row in graph.query(text, params)]


def rank_of(graph, text, **params):
    plan = graph.explain(text, params, analyze=True)
    return next(op for op in plan.operators if op.name == "rank"), plan


def forget():
    """What a new process begins with."""
    return mock.patch.object(query_module, "_caches", None)


@pytest.mark.slow
def test_an_approximate_search_reports_its_recall(tmp_path, wide):
    file, vectors, _ = wide
    queries = np.random.default_rng(1).standard_normal((20, 8)).astype(np.float32)
    options = replace(graphs.FAST, vector_probes=4)
    with (
        mock.patch.object(storage_indexes, "_ROWS_PER_PARTITION", 1000),
        mock.patch.object(search_access, "EXACT_ROWS_MAX", 1000),
        forget(),
        load_wide(tmp_path / "g", file, options) as graph,
    ):
        recalls = []
        for query in queries:
            truth = np.argsort(((vectors - query) ** 2).sum(axis=1))[:10]
            rank, _ = rank_of(graph, NEAR, v=query.tolist())
            assert (rank.access, rank.exact) == ("index vec_vec, 4 of 12 parts", False)
            assert rank.coverage == {"state": "Indexed", "index": "vec_vec"}
            found = slugs_of(graph, NEAR, v=query.tolist())
            share = len({f"d{number:05d}" for number in truth} & set(found)) / 10
            assert rank.recall == pytest.approx(share)
            recalls.append(share)
        assert 0.6 <= np.mean(recalls) <= 1.0
        # As many parts as there are, and the answer is certain again.
        with mock.patch.object(graph._session, "settings", replace(options, vector_probes=12)):
            rank, _ = rank_of(graph, NEAR, v=queries[0].tolist())
            assert rank.exact
            assert rank.recall is None


@pytest.mark.slow
def test_an_approximate_search_honours_its_candidates(tmp_path, wide):
    """Rows added and deleted after the index, and a filter: found, gone, and held before ranking."""
    file, vectors, _ = wide
    options = replace(graphs.FAST, vector_probes=11)
    filtered = NEAR.replace("$d: Doc }", '$d: Doc $d.slug < "d06000" }')
    with (
        mock.patch.object(storage_indexes, "_ROWS_PER_PARTITION", 1000),
        mock.patch.object(search_access, "EXACT_ROWS_MAX", 1000),
        forget(),
        load_wide(tmp_path / "g", file, options) as graph,
    ):
        query = vectors[100].tolist()
        assert slugs_of(graph, NEAR, v=query)[0] == "d00100"
        before = graph.commits.head().id
        graphs.run(graph, 'delete Doc where slug = "d00100"')
        graph.mutate(
            'query q($v: Vector(8)) { insert Doc { slug: "new", body: "w1", vec: $v } }', {"v": query}
        )
        assert slugs_of(graph, NEAR, v=query)[0] == "new"
        assert "d00100" not in slugs_of(graph, NEAR, v=query)
        assert next(row["d.slug"] for row in graph.query(NEAR, {"v": query}, at=before)) == "d00100"
        half = slugs_of(graph, filtered, v=query)
        assert len(half) == 10
        assert all(slug < "d06000" for slug in half)
        rank, _ = rank_of(graph, filtered, v=query)
        assert not rank.exact
        assert rank.coverage["state"] == "Degraded"


@pytest.mark.slow
def test_text_is_kept_for_the_next_process(tmp_path, wide):
    file, _, bodies = wide
    held = sorted(f"d{number:05d}" for number, body in enumerate(bodies) if "w77" in body.split())
    with forget(), load_wide(tmp_path / "g", file) as graph:
        first = slugs_of(graph, FIND, t="w77 w3")
        assert sorted(slugs_of(graph, HOLDS, t="w77")) == held
        BACKGROUND.drain(graph._session.root.identity)
    kept = list((tmp_path / "g").rglob("texts-*.cache"))
    assert len(kept) == 1
    with forget(), graphs.omnigraph.open(tmp_path / "g", settings=graphs.FAST) as graph:
        with mock.patch.object(text_module, "analyse", side_effect=AssertionError("analysed again")):
            assert slugs_of(graph, FIND, t="w77 w3") == first
        # One more document is analysed alone, and counts.
        graphs.run(graph, 'insert Doc { slug: "new", body: "w77", vec: [0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0] }')
        assert sorted(slugs_of(graph, HOLDS, t="w77")) == [*held, "new"]
    kept[0].write_bytes(kept[0].read_bytes()[:-5000])
    with forget(), graphs.omnigraph.open(tmp_path / "g", settings=graphs.FAST) as graph:
        assert sorted(slugs_of(graph, HOLDS, t="w77")) == [*held, "new"]


@pytest.mark.slow
def test_a_text_search_uses_the_index_until_the_text_is_in_memory(tmp_path, wide):
    file, _, bodies = wide
    held = sorted(f"d{number:05d}" for number, body in enumerate(bodies) if "w9" in body.split())
    with (
        mock.patch.object(search_access, "EXACT_ROWS_MAX", 1000),
        forget(),
        load_wide(tmp_path / "g", file) as graph,
    ):
        seen = []
        for _ in range(4):
            plan = graph.explain(HOLDS, {"t": "w9"}, analyze=True)
            search = plan.operators[1]
            seen.append(search.access)
            assert search.actual_rows == len(held)
            assert sorted(slugs_of(graph, HOLDS, t="w9")) == held
        assert seen == ["index body_fts", "text in memory", "text in memory", "text in memory"]


def test_explain_counts_what_a_search_reads(tmp_path, wide):
    file, _, _ = wide
    with forget(), load_wide(tmp_path / "g", file) as graph:
        rank, plan = rank_of(graph, NEAR, v=[0.0] * 8)
        assert rank.bytes >= ROWS * 8 * 4
        assert plan.bytes >= rank.bytes
        assert plan.requests >= rank.requests > 0
        again, plan = rank_of(graph, NEAR, v=[0.0] * 8)
        assert (again.bytes, plan.bytes, plan.storage_calls) == (0, 0, {})
        assert "vectors in memory" in str(plan)


@pytest.mark.slow
def test_an_index_built_for_other_words_is_not_asked_until_it_is_built_again(tmp_path, wide):
    """As in a graph from before a schema could say how a text becomes words: its indexes know stems."""
    file, _, _ = wide
    asked = "query q($t: String) { match { $d: Doc search($d.body, $t) } return { $d.slug } }"
    with mock.patch.object(create, "analyser_options", return_value=analyser_options("english")):
        graph = load_wide(tmp_path / "g", file)
        graph.ensure_indices()
        table = graph.session.open_entry(graph.session.manifest.current(None).entries["node:Doc"])
        (index,) = graph.session.storage.index_coverage(table, "body")
        assert index.makes_words("english")
    graphs.run(graph, 'insert Doc { slug: "new", body: "the reefs", vec: [0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0] }')
    with forced("index"):
        assert slugs_of(graph, asked, t="the") == ["new"]
        assert slugs_of(graph, asked, t="reef") == []
        built = graph.ensure_indices().built
        assert ("Doc", "body_fts") in built
        assert slugs_of(graph, asked, t="the") == ["new"]
        assert slugs_of(graph, asked, t="reef") == []
        table = graph.session.open_entry(graph.session.manifest.current(None).entries["node:Doc"])
        (index,) = graph.session.storage.index_coverage(table, "body")
        assert (index.makes_words("plain"), index.uncovered) == (True, frozenset())
        assert graph.ensure_indices().built == ()
    graph.close()
