"""The choice between index probes and the adjacency, and what probes answer."""

import threading

import numpy as np
import pytest

import graphs
from omnigraph.core import limits
from omnigraph.core.events import StorageCall, listen
from omnigraph.core.settings import Settings
from omnigraph.engine.edges import choice as access
from omnigraph.engine.edges.adjacency import AdjacencyCache, EdgeTables
from omnigraph.engine.edges.choice import Kind, Path, choose, follow_edges, follow_neighbours, nodes_asked
from omnigraph.engine.edges.traverse import connected, expand, expand_edges, reach
from omnigraph.engine.tables import cache_work
from omnigraph.engine.tables.cache_work import BACKGROUND, Background
from omnigraph.engine.tables.column_cache import ColumnCache
from omnigraph.engine.tables.derived import DerivedCache
from omnigraph.engine.tables.images import TableImage
from omnigraph.planning.steps import Direction

SCHEMA = "node Person { name: String @key } edge Knows: Person -> Person { since: I32? }"
TIES = [(0, 1), (0, 2), (0, 1), (1, 2), (2, 0), (3, 3), (4, 0), (2, 4)]


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        people = [f'insert Person {{ name: "p{number}" }}' for number in range(6)]
        ties = [f'insert Knows {{ from: "p{a}", to: "p{b}" }}' for a, b in TIES]
        graphs.run(made, " ".join(people + ties))
        yield made


def tables_of(graph):
    session, snapshot = graph.session, graph.snapshot()

    def image(key):
        handle = session.open_entry(snapshot.entries[key])
        return TableImage(session.root.identity, session.storage, handle, session.keys, ColumnCache(1 << 20))

    people = image("node:Person")
    return EdgeTables(edges=image("edge:Knows"), sources=people, targets=people)


def claim(_):
    pass


def no_matter():
    pass


def chosen(graph, nodes=1, cache=None, **named):
    """The way for so many nodes, as the choice of this state has it."""
    tables, way = tables_of(graph), Direction.FORWARD
    cache = cache or AdjacencyCache(DerivedCache(1 << 20))
    choice = choose(cache, tables, way, Kind.NEIGHBOURS, **named)
    return choice.at(nodes_asked(tables, way, nodes, named.get("hops", 1)))


def test_a_small_table_is_indexed_at_once(graph):
    assert chosen(graph) == access.Access(Path.ADJACENCY, "it is made from 8 edges at once")


def test_the_setting_decides(graph):
    assert chosen(graph, forced="probe").path is Path.PROBE
    assert chosen(graph, forced="adjacency").path is Path.ADJACENCY


@pytest.fixture
def large(graph, monkeypatch):
    """As if the tables were so large that building takes its time."""
    monkeypatch.setattr(limits, "CACHED_ROWS_MIN", 1)
    monkeypatch.setattr(access, "BUILD_EDGE_MS", 100.0)
    return graph


def test_few_nodes_are_looked_up_while_the_adjacency_is_made(large):
    cache = AdjacencyCache(DerivedCache(1 << 20))
    found = chosen(large, cache=cache)
    assert found.path is Path.PROBE
    assert found.builds
    assert found.why == "scans of the edges cost less than making the adjacency, about 800 ms"
    tables = tables_of(large)
    index = follow_neighbours(cache, tables, Direction.FORWARD, found, no_matter)
    assert expand(index, np.array([0]), claim)[1].tolist() == [1, 2]
    BACKGROUND.drain(large.session.root.identity)
    assert cache.is_ready(tables, Direction.FORWARD, "neighbours")
    assert chosen(large, cache=cache).why == "it is in memory for this state of the tables"


def test_an_index_on_the_edges_makes_lookups_cheap(large):
    large.ensure_indices()
    assert chosen(large).why == "index probes cost less than making the adjacency, about 800 ms"


def test_many_nodes_and_many_hops_are_followed_in_memory(large, monkeypatch):
    monkeypatch.setattr(access, "PROBE_NODE_MS", 500.0)
    assert chosen(large, nodes=1).path is Path.PROBE
    assert chosen(large, nodes=5).path is Path.ADJACENCY
    assert chosen(large, nodes=1, hops=3).path is Path.ADJACENCY


def test_an_adjacency_that_has_no_room_is_not_made_beside(large):
    found = chosen(large, cache=AdjacencyCache(DerivedCache(10)))
    assert (found.path, found.builds) == (Path.PROBE, False)


def test_a_state_that_can_be_followed_is_near(large):
    cache = AdjacencyCache(DerivedCache(1 << 20))
    cache.neighbours(tables_of(large), Direction.FORWARD)
    graphs.run(large, 'insert Knows { from: "p5", to: "p0" }')
    found = chosen(large, cache=cache)
    assert found.path is Path.ADJACENCY
    assert found.why == "an earlier state of it is in memory, or a file has it"


@pytest.mark.parametrize("way", Direction)
@pytest.mark.parametrize("indexed", [False, True])
def test_lookups_answer_like_the_adjacency(graph, way, indexed):
    if indexed:
        graph.ensure_indices()
        graphs.run(graph, 'insert Knows { from: "p5", to: "p5" }')
        graphs.run(graph, 'delete Knows where to = "p4"')
    cache = AdjacencyCache(DerivedCache(1 << 20))
    tables = tables_of(graph)
    probing = access.Access(Path.PROBE, "")
    nodes = np.array([0, 3, -1, 5, 0, 2])
    near = cache.neighbours(tables, way)
    looked_up = follow_neighbours(cache, tables, way, probing, no_matter)
    edges = cache.incidence(tables, way)
    found_edges = follow_edges(cache, tables, way, probing, no_matter)
    for asked in (nodes, nodes[:1], nodes[:0]):
        for one, other in (
            (expand(near, asked, claim), expand(looked_up, asked, claim)),
            (expand_edges(edges, asked, claim), expand_edges(found_edges, asked, claim)),
            (reach(near, asked, 1, 3, claim), reach(looked_up, asked, 1, 3, claim)),
        ):
            assert [each.tolist() for each in one] == [each.tolist() for each in other]
    heads, tails = np.repeat(np.arange(-1, 6), 7), np.tile(np.arange(-1, 6), 7)
    assert connected(near, heads, tails).tolist() == connected(looked_up, heads, tails).tolist()


def test_lookups_give_way_when_the_hops_grow(graph):
    cache = AdjacencyCache(DerivedCache(1 << 20))
    tables = tables_of(graph)
    probing, told = access.Access(Path.PROBE, "", nodes_max=1), []
    index = follow_neighbours(cache, tables, Direction.FORWARD, probing, lambda: told.append("gave way"))
    expand(index, np.array([0]), claim)
    assert not cache.is_ready(tables, Direction.FORWARD, "neighbours")
    assert told == []
    assert expand(index, np.array([0, 1]), claim)[1].tolist() == [1, 2, 2]
    assert told == ["gave way"]
    assert cache.is_ready(tables, Direction.FORWARD, "neighbours")


def test_a_probing_handle_reads_the_edges_each_time(graph):
    text = 'query q() { match { $a: Person { name: "p0" } $a knows $b } return { $b } }'
    with graphs.reopen(graph, settings=Settings(durability="os", expand_access="probe")) as probing:
        probing.query(text)
        calls = []
        with listen(lambda event: calls.append(event) if isinstance(event, StorageCall) else None):
            assert len(probing.query(text)) == 2
        assert [call.kind for call in calls if call.kind == "scan" and "/edges/" in call.target] == ["scan"]


# --- work in the background ------------------------------------------------------------------------------


def test_background_work_runs_once_and_only_for_open_graphs():
    background = Background()
    done = []
    assert not background.submit("g", "w", lambda: done.append(1))
    background.attach("g")
    assert background.is_open("g")
    assert background.submit("g", "w", lambda: done.append(2))
    background.drain("g")
    assert done == [2]
    background.detach("g")
    assert not background.is_open("g")


def test_closing_the_last_handle_stops_what_is_built():
    background = Background()
    background.attach("g")
    background.attach("g")
    begun, seen = threading.Event(), []

    def build():
        begun.set()
        try:
            while True:
                background.check("g")
        except cache_work.Stopped:
            seen.append("stopped")
            raise

    background.submit("g", "build", build)
    assert not background.submit("g", "build", build)  # it is under way
    background.submit("g", "later", lambda: seen.append("later"))
    assert begun.wait(10)
    background.detach("g")
    assert background.is_open("g")
    background.detach("g")
    assert seen == ["stopped"]


def test_a_failure_in_the_background_is_a_warning():
    background = Background()
    background.attach("g")
    heard = []
    with listen(heard.append, everywhere=True):
        background.submit("g", "w", lambda: 1 / 0)
        background.drain("g")
    assert [type(event).__name__ for event in heard] == ["Warned"]
    background.detach("g")
