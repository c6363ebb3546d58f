"""Rules that a schema adds are asked of the rows that exist: those that break one come back, nothing moves."""

import pytest

from graphs import make_graph
from omnigraph.core.errors import ConstraintViolation, QueryTypeError

TOURS = """node Tour { code: String @key  stops: I32?  mood: enum(fun, calm)  name: String? }
node Bus { plate: String @key }
edge Uses: Tour -> Bus
"""


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "graph", TOURS) as made:
        rows = [
            'insert Tour { code: "a", stops: 1, mood: "fun", name: "a" }',
            'insert Tour { code: "b", stops: 2, mood: "calm", name: "b" }',
            'insert Tour { code: "c", stops: 1, mood: "fun", name: "x" }',
            'insert Tour { code: "d", mood: "fun" }',
            'insert Bus { plate: "p" }',
            'insert Bus { plate: "q" }',
            'insert Uses { from: "a", to: "p" }',
            'insert Uses { from: "a", to: "q" }',
        ]
        made.mutate(f"query q() {{ {' '.join(rows)} }}")
        yield made


BROKEN = {
    "required": ("stops: I32?", "stops: I32", "required", "Tour.stops must have a value"),
    "unique": ("stops: I32?", "stops: I32? @unique", "unique", "Tour.stops: '1' is held by 'a' and 'c'"),
    "range": ("name: String?", "name: String?  @range(stops, 2..)", "range", "Tour.stops: 1 is below 2"),
    "check": ("name: String?", 'name: String?  @check(name, "^[a-m]")', "check", "'x' does not match"),
    "enum": ("enum(fun, calm)", "enum(fun)", "enum", "Tour.mood: 'calm' is not one of fun"),
    "cardinality": ("Tour -> Bus", "Tour -> Bus @card(0..1)", "cardinality", "'a' would have 2 edges"),
}
MENDED = {
    "required": 'update Tour set { stops: 7 } where code = "d"',
    "unique": 'update Tour set { stops: 9 } where code = "c"',
    "range": "update Tour set { stops: 5 } where stops = 1",
    "check": 'update Tour set { name: "e" } where code = "c"',
    "enum": 'update Tour set { mood: "fun" } where code = "b"',
    "cardinality": 'delete Uses where to = "q"',
}


@pytest.mark.parametrize("name", MENDED)
def test_rows_that_break_a_new_rule_refuse_it_until_they_are_corrected(graph, name):
    old, new, rule, says = BROKEN[name]
    head = graph.commits.head().id
    for dry_run in (True, False):
        with pytest.raises(ConstraintViolation, match=says) as refused:
            graph.apply_schema(TOURS.replace(old, new), dry_run=dry_run)
        assert refused.value.rule == rule
    assert graph.commits.head().id == head
    assert graph.schema_source() == TOURS
    graph.mutate(f"query q() {{ {MENDED[name]} }}")
    assert graph.apply_schema(TOURS.replace(old, new)).applied
    assert graph.verify().violations == ()
    with pytest.raises((ConstraintViolation, QueryTypeError)):
        graph.mutate(f"query q() {{ {AGAINST[name]} }}")


AGAINST = {
    "required": 'insert Tour { code: "n", mood: "fun", stops: null }',
    "unique": 'insert Tour { code: "n", mood: "fun", stops: 9 }',
    "range": 'insert Tour { code: "n", mood: "fun", stops: 1 }',
    "check": 'insert Tour { code: "n", mood: "fun", name: "z" }',
    "enum": 'update Tour set { mood: "calm" } where code = "a"',
    "cardinality": 'insert Uses { from: "a", to: "q" }',
}


def test_a_hundred_rows_are_listed_and_all_are_counted(graph, tmp_path):
    source = tmp_path / "tours.jsonl"
    source.write_text(
        "".join(f'{{"type":"Tour","data":{{"code":"n{i:03d}","mood":"fun"}}}}\n' for i in range(250))
    )
    graph.load(source, mode="append", engine="local")
    with pytest.raises(ConstraintViolation) as refused:
        graph.apply_schema(TOURS.replace("stops: I32?", "stops: I32"))
    assert (len(refused.value.violations), refused.value.total) == (100, 251)


@pytest.mark.slow
def test_a_key_may_change_where_every_id_is_the_new_key(graph):
    other = TOURS.replace("code: String @key", "code: String").replace("name: String?", "name: String @key")
    graph.mutate('query q() { delete Tour where code = "d" }')
    with pytest.raises(ConstraintViolation, match="Tour 'c': its key is 'x', which is not its id"):
        graph.apply_schema(other)
    graph.mutate('query q() { update Tour set { name: "c" } where code = "c" }')
    assert graph.apply_schema(other).applied
    graph.mutate('query q() { insert Tour { name: "a", code: "new", mood: "fun" } }')
    rows = graph.query('query q() { match { $t: Tour { name: "a" } } return { $t.code } }')
    assert [row["t.code"] for row in rows] == ["new"]
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_constraints_are_removed_and_an_indexed_property_is_dropped(graph):
    ruled = TOURS.replace("stops: I32?", "stops: I32? @index").replace(
        "name: String?", 'name: String? @unique @index  @range(stops, 0..9)  @check(name, "^.$")'
    )
    graph.apply_schema(ruled)
    graph.optimize()
    plain = TOURS.replace("  stops: I32?", "")
    kinds = [step.kind for step in graph.apply_schema(plain).steps]
    assert kinds.count("remove_constraint") == 5
    assert "drop_property" in kinds
    graph.mutate('query q() { insert Tour { code: "e", mood: "fun", name: "a" } }')
    rows = graph.query(
        'query q() { match { $t: Tour { name: "a" } } return { $t.code } order { $t.code asc } }'
    )
    assert [row["t.code"] for row in rows] == ["a", "e"]
    assert graph.apply_schema(TOURS).applied
    rows = graph.query("query q() { match { $t: Tour } return { $t.stops } }")
    assert {row["t.stops"] for row in rows} == {None}
    assert graph.verify().violations == ()


@pytest.mark.slow
def test_a_property_may_become_nullable_beside_branches(graph):
    graph.branches.create("team")
    graph.mutate('query q() { insert Tour { code: "t", mood: "fun" } }', branch="team")
    assert graph.apply_schema(TOURS.replace("enum(fun, calm)", "enum(fun, calm)?")).applied
    graph.mutate('query q() { insert Tour { code: "n" } }')
    graph.mutate('query q() { insert Tour { code: "m" } }', branch="team")
    graph.branches.merge("team", into="main")
    rows = graph.query("query q() { match { $t: Tour } return { $t.code, $t.mood } }")
    moods = {row["t.code"]: row["t.mood"] for row in rows}
    assert (moods["n"], moods["m"], moods["t"]) == (None, None, "fun")
    assert graph.verify().violations == ()
