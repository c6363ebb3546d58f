"""What `explain` says is what runs: the same ways before a run, in a query and in an analyzed one."""

import itertools
from unittest import mock

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import omnigraph
from graphs import make_graph
from model import programs
from model.crowd import CHAINS, gather
from model.programs import SCHEMA, graphs, queries, seed
from omnigraph.core import limits
from omnigraph.core.errors import QueryTypeError
from omnigraph.core.events import PathTaken, listen
from omnigraph.core.settings import Settings
from omnigraph.engine.edges import choice as edge_choice
from omnigraph.engine.edges.adjacency import AdjacencyCache
from omnigraph.engine.read import access, chains, measures, query
from omnigraph.engine.search import choice as search_choice

numbers = itertools.count()
FAST = Settings(durability="os")

# Nothing is built beside a run, and the keys that a handle knows do not count: the state that is explained is
# the one that is read.
STILL = [
    (AdjacencyCache, "build_later", lambda *_: False),
    (AdjacencyCache, "_save", lambda *_: None),
    (edge_choice, "BUILD_NODE_MS", 0.0),
]
WAYS = {
    "small tables": [],
    "filters in the table format": [(each, "SCANNED_IN_MEMORY_ROWS_MAX", -1) for each in (access, measures)],
    "chains that are left": [(chains, "FEW_LINKS", 1)],
    "few nodes by probes, more by the adjacency": [
        *STILL,
        (limits, "CACHED_ROWS_MIN", 1),
        (edge_choice, "BUILD_EDGE_MS", 0.9),
        (edge_choice, "PROBE_NODE_MS", 1.0),
    ],
    "probes as far as they go": [*STILL, (limits, "CACHED_ROWS_MIN", 1), (edge_choice, "BUILD_EDGE_MS", 1e6)],
}
WARM = [
    "query q() { match { $a: A $a e $b $b f $c } return { $a, $b, $c } }",
    "query q() { match { $a: A $a $e: e $b $a $f: f $c } return { $a.n, $e.w, $f.w, $b, $c.n } }",
    "query q() { match { $a: A $b e $a $a <e> $c } return { $a.s, $b.n, $c } }",
]


def forget():
    """What a new process begins with."""
    return mock.patch.object(query, "_caches", None)


def heard(action):
    """What an action gives, and the ways it took, in order."""
    taken = []
    with listen(lambda event: taken.append(event) if isinstance(event, PathTaken) else None):
        result = action()
    return result, taken


def every(operators):
    for operator in operators:
        yield operator
        yield from every(operator.inner)


def ways_of(operator):
    """The names of the ways an explained operator may take."""
    return [way["access"] for way in operator.ways] or [operator.access]


def names(operator, path):
    """Whether an operator speaks of a way that was taken. One search in a condition or a result is told of
    the operator that has it.
    """
    mine = path.step in operator.detail or (operator.name == "project" and operator.exact is not None)
    return mine and path.how in ways_of(operator)


def check_paths(graph, text, warm):
    """One state: explained, read and analyzed."""

    def fresh(action):
        with forget():
            for each in warm:
                graph.query(each)
            return heard(action)

    params = programs.given(text)
    (planned, rows), taken = fresh(lambda: (graph.explain(text, params), graph.query(text, params)))
    analyzed, measured = fresh(lambda: graph.explain(text, params, analyze=True))
    assert taken == measured, text
    assert analyzed.rows == len(rows)
    for path in taken:
        assert any(names(operator, path) for operator in every(planned.operators)), (text, path)
    ran = {path.how for path in taken} | {"both rankings"}
    for operator in every(analyzed.operators):
        if operator.access and operator.actual_rows:
            assert set(operator.access.split(", then ")) <= ran, text
    left = any("left after" in operator.why for operator in every(analyzed.operators))
    if not left:
        for before, after in zip(every(planned.operators), every(analyzed.operators), strict=True):
            assert (after.detail, after.ways, after.folded) == (before.detail, before.ways, before.folded)
            turns = {before.access, ", then ".join(ways_of(before)), *ways_of(before)}
            assert after.access in turns, text
            if not before.ways:
                assert (after.access, after.why) == (before.access, before.why), text
    return planned, analyzed


@pytest.mark.model
@pytest.mark.parametrize("way", WAYS)
@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(graph=graphs(), texts=st.lists(queries(), min_size=4, max_size=8), warm=st.booleans())
def test_a_query_takes_the_ways_that_explain_names(tmp_path, way, graph, texts, warm) -> None:
    with (
        omnigraph.init(tmp_path / str(next(numbers)), schema=SCHEMA, settings=FAST) as opened,
        pytest.MonkeyPatch.context() as patch,
    ):
        opened.mutate(seed(graph))
        for owner, name, value in WAYS[way]:
            patch.setattr(owner, name, value)
        for text in texts:
            try:
                _, analyzed = check_paths(opened, text, WARM if warm else [])
            except QueryTypeError:
                event("refused")
                continue
            for operator in every(analyzed.operators):
                event(operator.access.split(" (")[0])


@pytest.fixture(scope="module")
def crowd(tmp_path_factory):
    with omnigraph.init(tmp_path_factory.mktemp("crowd") / "g", schema=SCHEMA, settings=FAST) as graph:
        gather(graph)
        yield graph


@pytest.mark.model
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_queries_that_begin_at_one_node_take_the_ways_that_explain_names(crowd, way, warm, monkeypatch):
    for owner, name, value in WAYS[way]:
        monkeypatch.setattr(owner, name, value)
    for body in CHAINS:
        check_paths(crowd, f"query q() {{ {body} }}", WARM if warm else [])


@pytest.mark.model
def test_a_chain_is_one_operator_that_counts_the_rows_of_its_steps(crowd, monkeypatch):
    text = 'query q() { match { $a: A { k: "n5" } $a e $b $b e $c $c.n >= 0 } return { $c.k } }'
    warm = [*WARM, 'query q() { match { $a: A { k: "n5" } $a e $b } return { $b } }']
    planned, analyzed = check_paths(crowd, text, warm)
    assert [(op.name, op.access) for op in planned.operators] == [
        ("chain", "lists of nodes"),
        ("project", ""),
    ]
    (chain, _) = analyzed.operators
    assert chain.detail == "$a to $c in 4 steps"
    assert [(op.name, op.access, op.actual_rows) for op in chain.inner] == [
        ("scan", "key index", 1),
        ("expand", "adjacency", 1),
        ("expand", "adjacency", 1),
        ("filter", "", 1),
    ]
    assert chain.actual_rows == 1
    assert chain.seconds > 0
    assert all(operator.seconds is None for operator in chain.inner)
    monkeypatch.setattr(chains, "FEW_LINKS", 0)
    _, left = check_paths(crowd, text, warm)
    assert [op.name for op in left.operators] == ["chain", "expand", "expand", "filter", "project"]
    assert left.operators[0].why == "left after 1 of 4 steps, for more than 0 nodes"
    assert [op.actual_rows for op in left.operators] == [1, 1, 1, 1, 1]


DOCUMENTS = "node Doc { slug: String @key  body: String? @index  vec: Vector(2)? @index }"
SEARCHES = [
    'match { $d: Doc search($d.body, "reef") } return { $d.slug }',
    'match { $d: Doc match_text($d.body, "deep reef") } return { $d.slug }',
    'match { $d: Doc fuzzy($d.body, "reet") } return { count($d) as n }',
    'match { $d: Doc bm25($d.body, "reef") > 0.1 } return { $d.slug, bm25($d.body, "moss") as m }',
    'match { $d: Doc } return { $d.slug, nearest($d.vec, [1.0, 0.0]) as far } order { bm25($d.body, "reef") } limit 3',
    "match { $d: Doc } return { $d.slug } order { nearest($d.vec, [1.0, 0.0]) } limit 2",
    'match { $d: Doc } return { $d.slug } order { rrf(nearest($d.vec, [1.0, 0.0]), bm25($d.body, "reef")) } limit 2',
]


@pytest.mark.model
@pytest.mark.parametrize("rows_max", [0, 100])
@pytest.mark.parametrize("fetched", [2, 100])
def test_searches_take_the_ways_that_explain_names(tmp_path, monkeypatch, rows_max, fetched) -> None:
    """Of tables that count as small and as large; by candidates fetched alone, indexes, and memory."""
    monkeypatch.setattr(search_choice, "EXACT_ROWS_MAX", rows_max)
    monkeypatch.setattr(search_choice, "FETCHED_ROWS_MAX", fetched)
    with make_graph(tmp_path / "g", DOCUMENTS) as graph:
        bodies = ["deep reef", "reef and moss", "moss", "the deep", "reef reef"]
        lines = [
            f'insert Doc {{ slug: "d{n}", body: "{body}", vec: [{n}.0, 1.0] }}'
            for n, body in enumerate(bodies)
        ]
        graph.mutate("query q() { " + " ".join([*lines, 'insert Doc { slug: "empty" }']) + " }")
        graph.ensure_indices()
        taken = set()
        for body in SEARCHES:
            _, analyzed = check_paths(graph, f"query q() {{ {body} }}", [])
            taken.update(operator.access for operator in every(analyzed.operators))
    assert "text in memory" in taken
    if not rows_max:
        assert "index body_fts" in taken
        assert ("vectors of the candidates alone" if fetched > len(bodies) else "vectors in memory") in taken
