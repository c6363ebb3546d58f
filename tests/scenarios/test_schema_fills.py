"""Rows that exist get values in added columns, and wider integers, without any other column being written."""

import datetime as dt
import json
import subprocess
import sys
from pathlib import Path

import pytest

import omnigraph
from graphs import make_graph
from invariants import assert_healthy
from omnigraph.core.errors import (
    BadRequest,
    ConstraintViolation,
    MigrationUnsupported,
    QuerySyntaxError,
    QueryTypeError,
)
from omnigraph.core.events import TableRead, TableStaged, listen
from recovery_graph import FAST

CHILD = Path(__file__).with_name("fault_child.py")
TOURS = """node Tour { code: String @key  stops: I32? @index  price: F64?  total: I64? }
edge Next: Tour -> Tour { since: I32? }
"""


@pytest.fixture
def graph(tmp_path):
    with make_graph(tmp_path / "graph", TOURS) as made:
        made.mutate(
            'query q() { insert Tour { code: "a", stops: 1, price: 2.0, total: 3000000000 } '
            'insert Tour { code: "b", stops: 2, price: 2.5, total: 7 } insert Tour { code: "x" } }'
        )
        made.mutate('query q() { insert Tour { code: "c" } insert Next { from: "a", to: "b", since: 4 } }')
        made.mutate('query q() { delete Tour where code = "x" }')
        yield made


def shown(graph, *names, **where):
    asked = ", ".join(f"$t.{name}" for name in ("code", *names))
    rows = graph.query(f"query q() {{ match {{ $t: Tour }} return {{ {asked} }} }}", **where)
    return {row["t.code"]: tuple(row[f"t.{name}"] for name in names) for row in rows}


def added(text):
    return TOURS.replace("total: I64?", f"total: I64?  {text}")


@pytest.mark.slow
def test_a_required_property_gets_its_default_in_every_row(graph):
    old = graph.commits.head().id
    assert graph.apply_schema(added('tier: String @default("basic")')).applied
    assert shown(graph, "tier", "stops") == {"a": ("basic", 1), "b": ("basic", 2), "c": ("basic", None)}
    graph.mutate('query q() { insert Tour { code: "d" } update Tour set { tier: "gold" } where code = "a" }')
    assert shown(graph, "tier") == {"a": ("gold",), "b": ("basic",), "c": ("basic",), "d": ("basic",)}
    assert shown(graph, "stops", at=old) == {"a": (1,), "b": (2,), "c": (None,)}
    assert graph.verify(deep=True).violations == ()


def test_only_the_new_column_is_written(graph):
    staged = []
    with listen(lambda event: staged.append(event) if isinstance(event, TableStaged) else None):
        graph.apply_schema(added("tier: I32 @default(5)"))
    assert [(each.table_key, each.primitive, each.rows) for each in staged] == [
        ("node:Tour", "stage_columns", 0)
    ]
    assert 0 < staged[0].bytes < 4096


@pytest.mark.parametrize(
    ("added_property", "fill", "values"),
    [
        ("tier: String", '"basic"', ("basic", "basic", "basic")),
        ("tier: String", "$row.code", ("a", "b", "c")),
        ("tier: I64?", "$row.stops", (1, 2, None)),
        ("tier: F32?", "$row.stops", (1.0, 2.0, None)),
        ("tier: enum(a, b, c)", "$row.code", ("a", "b", "c")),
        ("tier: Date", 'date("2024-06-01")', (dt.date(2024, 6, 1),) * 3),
        ("tier: [String]", '["x"]', (["x"],) * 3),
        ("tier: Vector(2)", "[1, 2.5]", ([1.0, 2.5],) * 3),
        ("tier: String?", "null", (None, None, None)),
        ("tier: I32?", "$row.stops * 10 + 1", (11, 21, None)),
        ("tier: F64?", "($row.price - 1) / $row.stops", (1.0, 0.75, None)),
        ("tier: I64?", "$row.price * 2", (4, 5, None)),
        ("tier: U32", "2 * 3", (6, 6, 6)),
        ('tier: String @default("z")', '"given"', ("given",) * 3),
    ],
)
def test_a_fill_is_a_value_a_property_of_the_row_or_computed_from_it(graph, added_property, fill, values):
    assert graph.apply_schema(added(added_property), fills=[f"Tour.tier = {fill}"]).applied
    assert shown(graph, "tier") == {code: (each,) for code, each in zip("abc", values, strict=True)}
    assert graph.verify(deep=True).violations == ()


@pytest.mark.parametrize(
    ("added_property", "fill", "looks"),
    [
        ("tier: I32  @range(tier, 0..9)", "2", False),
        ("tier: enum(a, b)", '"b"', False),
        ("tier: String", "$row.code", True),
        ("tier: I32? @unique", "null", True),
    ],
)
def test_rules_about_a_constant_are_asked_of_the_constant(graph, added_property, fill, looks):
    read = []
    with listen(lambda event: read.append(event.table_key) if isinstance(event, TableRead) else None):
        graph.apply_schema(added(added_property), fills=[f"Tour.tier = {fill}"], dry_run=True)
    assert read == ["node:Tour"] * len(read)
    assert bool(read) is looks


def test_a_fill_of_now_is_one_moment(graph):
    graph.apply_schema(added("tier: DateTime"), fills=["Tour.tier = now()"])
    assert len(set(shown(graph, "tier").values())) == 1


@pytest.mark.parametrize(
    ("added_property", "fill", "error", "says"),
    [
        ("tier: String", "null", QueryTypeError, "must have a value and cannot be null"),
        ("tier: I32", "3000000000", QueryTypeError, "3000000000 does not fit I32"),
        ("tier: I32", '"seven"', QueryTypeError, "the value is not an integer"),
        ("tier: I32", "$row.code", QueryTypeError, "String does not fit I32 'tier'"),
        ("tier: String", "$row.nosuch", QueryTypeError, "'Tour' has no property 'nosuch'"),
        ("tier: String", "$tour.code", QueryTypeError, r"the row is called \$row"),
        ("tier: String", "count($row)", QueryTypeError, "a fill is a value"),
        ("tier: String", "", QuerySyntaxError, "expected a value"),
        ("tier: I32?", "$row.total", ConstraintViolation, "Tour.tier: 3000000000 does not fit I32"),
        ("tier: I32?", "$row.price", ConstraintViolation, "Tour.tier: 2.5 does not fit I32"),
        ("tier: U32", "$row.stops", ConstraintViolation, "Tour.tier must have a value"),
        ("tier: enum(a, b)", "$row.code", ConstraintViolation, "'c' is not one of a, b"),
        ("tier: I32  @range(tier, 0..1)", "2", ConstraintViolation, "Tour.tier: 2 is above 1"),
        ("tier: String @unique", '"one"', ConstraintViolation, "'one' is held by 'a' and 'b'"),
        ("tier: I64?  more: I64?", "$row.more", MigrationUnsupported, "added by the same change"),
        (
            "tier: I64?  more: I64?",
            "$row.stops + $row.more",
            MigrationUnsupported,
            "added by the same change",
        ),
        ("tier: I64", "$row.stops + 1", ConstraintViolation, "Tour.tier must have a value"),
        ("tier: I32?", "$row.total * 10", ConstraintViolation, "30000000000 does not fit I32"),
        (
            "tier: I64?",
            "$row.total * 9000000000",
            ConstraintViolation,
            r"\$row.total \* 9000000000 has no result",
        ),
        ("tier: F64?", "1 / ($row.stops - 1)", ConstraintViolation, "has no result"),
        ("tier: I64", "1 / 0", ConstraintViolation, "1 / 0 has no result"),
        ("tier: String", "$row.stops + 1", QueryTypeError, "I64 does not fit String 'tier'"),
        ("tier: I64", "$row.code + 1", QueryTypeError, r"'\+' needs numbers, got String"),
        ("tier: I64", "$row.nosuch + 1", QueryTypeError, "'Tour' has no property 'nosuch'"),
        ("tier: I64", "$tour.stops + 1", QueryTypeError, "tour"),
        ("tier: I64", "count($row) + 1", QueryTypeError, "count"),
    ],
)
def test_a_fill_that_does_not_fit_changes_nothing(graph, added_property, fill, error, says):
    head = graph.commits.head().id
    for dry_run in (True, False):
        with pytest.raises(error, match=says):
            graph.apply_schema(added(added_property), fills=[f"Tour.tier = {fill}"], dry_run=dry_run)
    assert graph.commits.head().id == head
    assert graph.schema_source() == TOURS
    assert graph.verify().violations == ()


def test_a_fill_names_a_property_that_the_change_adds(graph):
    with pytest.raises(MigrationUnsupported, match=r"does not add 'Tour.stops'"):
        graph.apply_schema(added("tier: I32?"), fills=["Tour.stops = 1"])
    with pytest.raises(BadRequest, match=r"'Tour.tier' is filled twice"):
        graph.apply_schema(added("tier: I32?"), fills=["Tour.tier = 1", "Tour.tier = 2"])
    with pytest.raises(MigrationUnsupported, match="OG-MF-103"):
        graph.apply_schema(added("tier: I32"))


@pytest.mark.slow
def test_integers_are_widened_and_renamed_with_their_index_and_their_past(graph):
    old = graph.commits.head().id
    wider = TOURS.replace("stops: I32?", 'legs: I64? @rename_from("stops")').replace(
        "since: I32?", "since: I64?"
    )
    assert {step.kind for step in graph.apply_schema(wider).steps} == {"widen_property", "rename_property"}
    assert shown(graph, "legs") == {"a": (1,), "b": (2,), "c": (None,)}
    assert shown(graph, "legs", at=old) == shown(graph, "legs")
    graph.mutate('query q() { update Tour set { legs: 3000000000 } where code = "b" }')
    graph.ensure_indices()
    found = graph.query("query q() { match { $t: Tour { legs: 3000000000 } } return { $t.code } }")
    assert [row["t.code"] for row in found] == ["b"]
    assert len(list(graph.diff(old, "main"))) == 1
    graph.revert(graph.commits.list(limit=5, upkeep=False)[0].id)
    assert shown(graph, "legs") == {"a": (1,), "b": (2,), "c": (None,)}
    assert graph.verify(deep=True).violations == ()


def test_an_insert_is_reverted_after_its_property_was_renamed_and_widened(tmp_path):
    with make_graph(tmp_path / "g", "node N { k: String @key  n: I32? }") as graph:
        graph.mutate('query q() { insert N { k: "a", n: 1 } }')
        inserted = graph.commits.head().id
        graph.apply_schema('node N { k: String @key  m: I64? @rename_from("n") }')
        graph.revert(inserted)
        assert list(graph.query("query q() { match { $n: N } return { $n.k } }")) == []


def test_a_key_is_widened_and_keeps_its_ids(tmp_path):
    with make_graph(tmp_path / "g", "node N { k: U32 @key  n: I32? }") as graph:
        graph.mutate("query q() { insert N { k: 7, n: 1 } }")
        graph.apply_schema("node N { k: U64 @key  n: I32? }")
        graph.mutate("query q() { insert N { k: 7, n: 2 } insert N { k: 5000000000 } }")
        rows = graph.query("query q() { match { $n: N } return { $n.k, $n.n } order { $n.k asc } }")
        assert [(row["n.k"], row["n.n"]) for row in rows] == [(7, 2), (5000000000, None)]
        assert graph.verify().violations == ()


def test_an_empty_table_takes_a_required_property_and_a_wider_one(tmp_path):
    with make_graph(tmp_path / "g", "node N { k: U32 @key }") as graph:
        graph.apply_schema("node N { k: I64 @key  n: I32 @default(3) }")
        graph.mutate("query q() { insert N { k: 7 } }")
        assert [row["n.n"] for row in graph.query("query q() { match { $n: N } return { $n.n } }")] == [3]


def test_branches_stand_in_the_way_of_a_fill(graph):
    graph.branches.create("team")
    with pytest.raises(omnigraph.errors.MigrationBlocked, match="team"):
        graph.apply_schema(added("tier: I32?"), fills=["Tour.tier = 1"])


@pytest.mark.slow
def test_a_full_disk_in_the_middle_of_a_column_changes_nothing(tmp_path):
    """The system refuses to extend a file beyond a size that only the new column reaches."""
    where, source = tmp_path / "graph", tmp_path / "people.jsonl"
    schema = "node Person { name: String @key }"
    names = [f"person{number:06d}{'x' * 40}" for number in range(4000)]
    source.write_text("".join(f'{{"type":"Person","data":{{"name":"{name}"}}}}\n' for name in names))
    with omnigraph.init(where, schema=schema, settings=FAST) as graph:
        graph.load(source, mode="append", engine="local")
        head = graph.commits.head().id
    fill = "Person.label = $row.name"
    done = subprocess.run(
        [sys.executable, CHILD, str(where), "file_size", "30000", fill],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert json.loads(done.stdout)["kind"] == "io", done
    with omnigraph.open(where, settings=FAST) as graph:
        assert graph.commits.head().id == head
        assert graph.schema_source() == schema
        assert graph.verify(deep=True).violations == ()
        assert graph.apply_schema(schema.replace("@key", "@key  label: String?"), fills=[fill]).applied
        rows = graph.query("query q() { match { $p: Person } return { $p.name, $p.label } }")
        assert all(row["p.name"] == row["p.label"] for row in rows)
    assert_healthy(where)
