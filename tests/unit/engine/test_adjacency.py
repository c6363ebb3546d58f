"""Adjacency: following a table from state to state gives what building from nothing gives."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphs
from omnigraph.engine.edges import adjacency
from omnigraph.engine.edges.adjacency import AdjacencyCache, EdgeTables
from omnigraph.engine.edges.traverse import connected, expand, expand_edges, lengths_of
from omnigraph.engine.read.query import read_caches
from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.engine.tables.column_cache import ColumnCache
from omnigraph.engine.tables.derived import DerivedCache
from omnigraph.engine.tables.images import TableImage
from omnigraph.engine.tables.layout import arrange, begins_with
from omnigraph.planning.steps import Direction
from omnigraph.storage.handles import Fragment

SCHEMA = """
node Person { name: String @key  age: I32? }
node Club { name: String @key }
edge Knows: Person -> Person { since: I32? }
edge Joins: Person -> Club
"""
NAMES = "abcdef"


def tables_of(graph, edge_name, layouts=None):
    session = graph.session
    snapshot = graph.snapshot()
    catalog = session.catalog_of(snapshot)
    edge = catalog.edge(edge_name)

    def image(key):
        made = TableImage(
            identity=session.root.identity,
            storage=session.storage,
            handle=session.open_entry(snapshot.entries[key]),
            keys=session.keys,
            cache=ColumnCache(1 << 24),
            layout=() if layouts is None else layouts.get(key, ()),
        )
        if layouts is not None:
            layouts[key] = made.layout
        return made

    return EdgeTables(
        edges=image(f"edge:{edge_name}"),
        sources=image(f"node:{edge.source}"),
        targets=image(f"node:{edge.target}"),
    )


def claim(_):
    pass


def near(index, nodes, ends):
    """What the index says about all nodes at once and one by one, and about every pair."""
    every = [each.tolist() for each in expand(index, nodes, claim)]
    single = [expand(index, nodes[at : at + 1], claim)[1].tolist() for at in range(len(nodes))]
    assert sorted(every[1]) == sorted(tail for tails in single for tail in tails)
    twice = np.append(nodes, nodes[::-1])  # a node may be asked about in several rows
    assert lengths_of(index, twice).tolist() == [len(tails) for tails in single + single[::-1]]
    heads, tails = np.repeat(nodes, len(ends)), np.tile(ends, len(nodes))
    return [sorted(zip(*every, strict=True)), single, connected(index, heads, tails).tolist()]


def around(index, nodes):
    every = [each.tolist() for each in expand_edges(index, nodes, claim)]
    counts = np.bincount(every[0], minlength=len(nodes))
    assert lengths_of(index, nodes).tolist() == counts.tolist()
    return [list(zip(*every, strict=True)), expand_edges(index, nodes[::-1][:2], claim)[2].tolist()]


def everything(cache, tables):
    """All an adjacency can be asked, in every direction, with nodes that stand for nobody among them."""
    ways = [Direction.FORWARD, Direction.BACKWARD]
    if tables.sources.handle.table_key == tables.targets.handle.table_key:
        ways.append(Direction.EITHER)
    found = []
    for way in ways:
        nodes = np.append(tables.heads(way).live(), -1)
        ends = np.append(tables.tails(way).live(), -1)
        found.append(near(cache.neighbours(tables, way), nodes, ends))
        found.append(around(cache.incidence(tables, way), nodes))
    return found


names = st.sampled_from(NAMES)
statements = st.one_of(
    st.builds('insert Knows {{ from: "{}", to: "{}" }}'.format, names, names),
    st.builds('insert Joins {{ from: "{}", to: "{}" }}'.format, names, names),
    st.builds('update Person set {{ age: 7 }} where name = "{}"'.format, names),
    st.builds('update Knows set {{ since: 9 }} where from = "{}"'.format, names),
    st.builds('delete Knows where to = "{}"'.format, names),
    st.builds('delete Person where name = "{}"'.format, names),
    st.builds('insert Person {{ name: "{}" }}'.format, names),
)


@pytest.mark.model
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(statements, min_size=1, max_size=8))
def test_a_followed_index_equals_a_new_one(tmp_path_factory, program):
    graph = graphs.make_graph(tmp_path_factory.mktemp("adjacency") / "g", SCHEMA)
    people = " ".join(
        f'insert Person {{ name: "{name}" }} insert Club {{ name: "{name}" }}' for name in NAMES
    )
    ties = " ".join(
        f'insert Knows {{ from: "{a}", to: "{b}" }} insert Joins {{ from: "{a}", to: "{b}" }}'
        for a, b in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True)
    )
    graphs.run(graph, people + ties + ties)
    followed = AdjacencyCache(DerivedCache(1 << 24))
    layouts = {}
    for edge in ("Knows", "Joins"):
        everything(followed, tables_of(graph, edge, layouts))
    for statement in program:
        try:
            graphs.run(graph, statement)
        except graphs.omnigraph.OmnigraphError:
            continue  # an end that was deleted
        for edge in ("Knows", "Joins"):
            tables = tables_of(graph, edge, layouts)
            fresh = AdjacencyCache(DerivedCache(1 << 24))
            assert everything(followed, tables) == everything(fresh, tables)
    graph.close()


@pytest.fixture(autouse=True)
def _overlays_of_any_size(monkeypatch):
    """The tables here are so small that every commit is a large share of them."""
    monkeypatch.setattr(adjacency, "OVERLAY_SHARE_MAX", 1e9)


@pytest.fixture
def ring(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as graph:
        people = " ".join(f'insert Person {{ name: "p{n}" }}' for n in range(40))
        ties = " ".join(f'insert Knows {{ from: "p{n}", to: "p{(n + 1) % 40}" }}' for n in range(40))
        graphs.run(graph, people + ties)
        yield graph


@pytest.mark.parametrize(
    "statement",
    [
        'insert Knows { from: "p1", to: "p9" }',
        'delete Knows where from = "p3"',
        'update Person set { age: 1 } where name = "p5"',
        'insert Person { name: "new" }',
    ],
)
def test_a_small_commit_is_followed_not_rebuilt(ring, statement):
    cache = AdjacencyCache(DerivedCache(1 << 24))
    everything(cache, tables_of(ring, "Knows"))
    graphs.run(ring, statement)
    tables = tables_of(ring, "Knows")
    fresh = AdjacencyCache(DerivedCache(1 << 24))
    assert everything(cache, tables) == everything(fresh, tables)
    assert (cache.built, cache.followed) == (1, 1)


def test_an_older_state_keeps_its_own_index(ring):
    cache = AdjacencyCache(DerivedCache(1 << 24))
    older = tables_of(ring, "Knows")
    before = everything(cache, older)
    graphs.run(ring, 'insert Knows { from: "p1", to: "p9" }')
    newer = tables_of(ring, "Knows")
    after = everything(cache, newer)
    assert before != after
    assert everything(cache, older) == before
    assert everything(cache, newer) == after


@pytest.mark.slow
def test_rewriting_the_same_row_again_and_again_is_followed(ring):
    """The fragment of the row before is gone each time: nothing else may move for it."""
    cache = AdjacencyCache(DerivedCache(1 << 24))
    layouts = {}
    everything(cache, tables_of(ring, "Knows", layouts))
    for age in range(4):
        graphs.run(ring, f'update Person set {{ age: {age} }} where name = "p5"')
        tables = tables_of(ring, "Knows", layouts)
        fresh = AdjacencyCache(DerivedCache(1 << 24))
        assert everything(cache, tables) == everything(fresh, tables)
    assert (cache.built, cache.followed) == (1, 4)


@pytest.mark.slow
def test_an_overlay_that_grew_is_folded_beside_the_readers(ring, monkeypatch):
    monkeypatch.setattr(adjacency, "FOLD_CHANGES_MIN", 4)
    cache = AdjacencyCache(DerivedCache(1 << 24))
    layouts = {}
    older = tables_of(ring, "Knows", layouts)
    before = everything(cache, older)
    for number in range(9):
        graphs.run(ring, f'insert Knows {{ from: "p{number}", to: "p{number + 20}" }}')
        graphs.run(ring, f'delete Knows where from = "p{number + 10}"')
        tables = tables_of(ring, "Knows", layouts)
        fresh = AdjacencyCache(DerivedCache(1 << 24))
        assert everything(cache, tables) == everything(fresh, tables)
        if number % 3 == 2:
            BACKGROUND.drain(ring.session.root.identity)
    assert cache.built == 1
    assert cache.folds >= 2
    assert everything(cache, older) == before


def test_an_overlay_that_is_read_widely_is_folded_however_small(ring):
    """From few nodes an overlay costs nothing, from all of them each read would pay for it."""
    counted = "query q() { match { $a: Person $a knows $b } return { $a.name, count($b) as n } }"
    found = 'query q() { match { $a: Person { name: "p5" } $a knows $b } return { $b.name } }'
    ring.query(counted)
    graphs.run(ring, 'insert Knows { from: "p1", to: "p9" }')
    adjacencies = read_caches(ring.session).adjacency
    folds = adjacencies.folds
    for _ in range(2 * adjacency.WIDE_READS_MIN):
        ring.query(found)
    BACKGROUND.drain(ring.session.root.identity)
    assert adjacencies.folds == folds
    answers = [ring.query(counted).to_dicts() for _ in range(adjacency.WIDE_READS_MIN)]
    BACKGROUND.drain(ring.session.root.identity)
    assert adjacencies.folds == folds + 1
    assert sorted(map(str, ring.query(counted).to_dicts())) == sorted(map(str, answers[0]))


def test_an_overlay_that_is_no_longer_small_is_folded_at_once(ring, monkeypatch):
    monkeypatch.setattr(adjacency, "OVERLAY_SHARE_MAX", 0.1)
    cache = AdjacencyCache(DerivedCache(1 << 24))
    layouts = {}
    everything(cache, tables_of(ring, "Knows", layouts))
    graphs.run(ring, " ".join(f'insert Knows {{ from: "p{n}", to: "p{n + 9}" }}' for n in range(9)))
    tables = tables_of(ring, "Knows", layouts)
    fresh = AdjacencyCache(DerivedCache(1 << 24))
    assert everything(cache, tables) == everything(fresh, tables)
    assert (cache.built, cache.folds) == (1, 1)


def test_a_layout_keeps_places_and_the_order_of_the_version():
    a, b, c, d = (Fragment(0, (name,), rows) for name, rows in (("a", 9), ("b", 1), ("c", 1), ("d", 2)))
    long_b, long_c = Fragment(0, ("b",), 50), Fragment(0, ("c",), 9)
    assert arrange((a, b), ()) == (a, b)
    assert arrange((a, c), (a, b)) == (a, b, c)
    assert arrange((a,), (a, b)) == (a, b)
    assert arrange((long_c, a), (a, b)) == (long_c, a)  # its own order wins
    assert arrange((b, a), (a, b)) == (b, a)
    assert arrange((a, d), (a, long_b)) == (a, d)  # mostly rows it does not have


def test_a_layout_begins_with_the_same_rows_whatever_was_deleted_in_them():
    a, b = Fragment(0, ("a",), 9), Fragment(1, ("b",), 5)
    fewer = Fragment(7, ("a",), 9, "a-1.arrow", 3)
    assert begins_with((fewer, b), (a,))
    assert begins_with((a, b), (fewer, b.gone()))
    assert not begins_with((a,), (a, b))
    assert not begins_with((b, a), (a,))
    assert not begins_with((Fragment(0, ("a",), 8),), (a,))
