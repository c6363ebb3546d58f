"""A load is finished when it says so: what the first reads ask is in files, and nobody builds what none reads."""

import json
import subprocess
import sys

import pytest

import omnigraph
from graphs import forget_everything
from omnigraph.core import limits
from omnigraph.core.events import Warned, listen
from omnigraph.core.settings import Settings
from omnigraph.engine.read.query import read_caches
from omnigraph.engine.tables import key_cache
from omnigraph.maintenance import read_structures

SCHEMA = """
node Person { name: String @key  bio: String? @index  age: I32? @index }
edge Knows: Person -> Person
"""
PEOPLE = 12_000
NOT_NEEDED = "not needed: read structures"

FIRST_READS = """
import sys
import omnigraph
from omnigraph.core import limits
from omnigraph.engine.read.query import read_caches
from omnigraph.engine.tables import key_cache

limits.CACHED_ROWS_MIN = key_cache.UNINDEXED_ROWS_MIN = 1
with omnigraph.open_read_only(sys.argv[1]) as graph:
    query = 'query q($n: String) { match { $p: Person { name: $n } $p knows $q $q knows $r } return { $r.name } }'
    rows = graph.query(query, {"n": "p7"})
    assert [row["r.name"] for row in rows] == ["p9"], list(rows)
    back = 'query q($n: String) { match { $p: Person { name: $n } $q knows $p } return { $q.name } }'
    assert [row["q.name"] for row in graph.query(back, {"n": "p7"})] == ["p6"]
    adjacency = read_caches(graph.session).adjacency
    print(adjacency.built, adjacency.loaded)
"""


def lines(begin, end):
    for number in range(begin, end):
        person = {"name": f"p{number}", "bio": f"person {number}", "age": number % 90}
        yield json.dumps({"type": "Person", "data": person})
    for number in range(begin, end):
        yield json.dumps({"edge": "Knows", "from": f"p{number}", "to": f"p{(number + 1) % end}"})


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A graph, loaded where so many rows count as a large table."""
    monkeypatch.setattr(read_structures, "SERVED_ROWS_MIN", PEOPLE)
    monkeypatch.setattr(limits, "CACHED_ROWS_MIN", 1)
    monkeypatch.setattr(key_cache, "UNINDEXED_ROWS_MIN", 1)
    forget_everything(monkeypatch)
    omnigraph.init(tmp_path / "g", schema=SCHEMA).close()
    (tmp_path / "all.jsonl").write_text("\n".join(lines(0, PEOPLE)))
    return tmp_path / "g"


def loaded(place, **words):
    graph = omnigraph.open(place, **words)
    graph.load(place.parent / "all.jsonl", mode="append", engine="local")
    return graph


def states(graph):
    return {
        f"{column.type_name}.{index.name}": index.state.value
        for column in graph.indexes()
        for index in column.indexes
    }


@pytest.mark.slow
def test_the_first_reads_after_a_load_find_everything_in_files(place):
    loaded(place).close()
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READS, str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built, found = map(int, done.stdout.split())
    assert (built, found > 0) == (0, True)


@pytest.mark.slow
def test_a_load_builds_the_indexes_that_something_reads_and_no_others(place):
    with loaded(place) as graph:
        assert states(graph) == {
            "Person.id_btree": NOT_NEEDED,
            "Person.name_btree": "complete",
            "Person.name_fts": NOT_NEEDED,
            "Person.bio_fts": "complete",
            "Person.age_btree": "complete",
            "Knows.id_btree": NOT_NEEDED,
            "Knows.src_btree": NOT_NEEDED,
            "Knows.dst_btree": NOT_NEEDED,
        }
        found = graph.query('query q() { match { $p: Person search($p.name, "p77") } return { $p.name } }')
        assert [row["p.name"] for row in found] == ["p77"]


@pytest.mark.slow
def test_without_cache_files_a_load_builds_every_index(place, tmp_path):
    with loaded(place, settings=Settings(cache_dir="off")) as graph:
        assert set(states(graph).values()) == {"complete"}


@pytest.mark.slow
def test_indexes_that_are_there_stay_complete_when_their_table_grows_large(place, monkeypatch):
    monkeypatch.setattr(read_structures, "SERVED_ROWS_MIN", PEOPLE + 1)
    loaded(place).close()
    monkeypatch.setattr(read_structures, "SERVED_ROWS_MIN", PEOPLE)
    (place.parent / "more.jsonl").write_text("\n".join(lines(PEOPLE, 2 * PEOPLE)))
    with omnigraph.open(place) as graph:
        assert set(states(graph).values()) == {"complete"}
        graph.load(place.parent / "more.jsonl", mode="append", engine="local")
        assert set(states(graph).values()) == {"complete"}


@pytest.mark.slow
def test_a_small_load_into_a_large_table_makes_nothing_anew(place):
    loaded(place).close()
    (place.parent / "few.jsonl").write_text("\n".join(lines(PEOPLE, PEOPLE + 100)))
    with omnigraph.open(place) as graph:
        before = read_caches(graph.session).adjacency.built
        graph.load(place.parent / "few.jsonl", mode="append", engine="local")
        query = 'query q() { match { $p: Person { name: "p12000" } $p knows $q } return { $q.name } }'
        assert [row["q.name"] for row in graph.query(query)] == ["p12001"]
        assert read_caches(graph.session).adjacency.built == before


@pytest.mark.slow
def test_an_optimization_that_rewrites_large_tables_leaves_their_structures_ready(place, monkeypatch):
    monkeypatch.setattr(read_structures, "SERVED_ROWS_MIN", PEOPLE // 4)
    with loaded(place) as graph:
        graph.mutate("query q() { delete Person where age >= 50 }")
        report = graph.optimize()
        assert any(each.fragments_removed for each in report.tables)
    done = subprocess.run(
        [sys.executable, "-c", FIRST_READS, str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "0"


def test_a_structure_that_cannot_be_made_is_a_warning_of_a_load_that_landed(place, monkeypatch):
    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(read_structures, "_make_adjacencies", fail)
    warned = []
    with omnigraph.open(place) as graph, listen(warned.append):
        report = graph.load(place.parent / "all.jsonl", mode="append", engine="local")
    assert report.commit is not None
    messages = [each.message for each in warned if isinstance(each, Warned)]
    assert any("read structure" in each for each in messages), messages
