"""A key is given in its own type wherever a node is named: entities, pictures, blame, ends of edges."""

import datetime as dt
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

import graphs
from omnigraph import picture
from omnigraph.core.errors import (
    BadRequest,
    ConstraintViolation,
    EntityNotFound,
    LoadFormatError,
    QueryTypeError,
)

SCHEMA = """
node Airport { code: I64 @key  name: String? }
node Day { day: Date @key }
node Moment { at: DateTime @key }
node Level { height: F64 @key }
node Seat { row: I32  letter: String  @key(row, letter) }
node Person { handle: String @key }
node Note { text: String }
edge Route: Airport -> Airport { miles: I32? }
edge Flies: Airport -> Day
edge Meets: Day -> Moment
"""
DAY, MOMENT = dt.date(2026, 1, 31), dt.datetime(2026, 1, 31, 9, 30, tzinfo=dt.UTC)


@pytest.fixture
def graph(tmp_path):
    with graphs.make_graph(tmp_path / "g", SCHEMA) as made:
        graphs.run(
            made,
            'insert Airport { code: 421, name: "Oslo" } insert Airport { code: -7 }'
            ' insert Day { day: date("2026-01-31") } insert Moment { at: datetime("2026-01-31T09:30:00Z") }'
            ' insert Level { height: 1.5 } insert Seat { row: 12, letter: "C" } insert Person { handle: "7" }',
        )
        yield made


@pytest.mark.parametrize(
    ("type_name", "spellings"),
    [
        ("Airport", [421, "421", "0421", np.int64(421)]),
        ("Airport", [-7, "-7"]),
        ("Day", [DAY, "2026-01-31", "20484"]),
        (
            "Moment",
            [MOMENT, MOMENT.replace(tzinfo=None), "2026-01-31T09:30:00Z", "2026-01-31T10:30:00+01:00"],
        ),
        ("Level", [1.5, "1.5", "1.50"]),
        ("Seat", [{"row": 12, "letter": "C"}, {"letter": "C", "row": "12"}]),
        ("Person", ["7"]),
    ],
)
def test_every_spelling_of_a_key_names_the_same_entity(graph, type_name, spellings):
    ids = {graph.entity(type_name, each).id for each in spellings}
    assert len(ids) == 1
    assert {graph.blame(type_name, each).id for each in spellings} == ids
    assert {picture(graph, type_name, each).about.nodes[0].id for each in spellings} == ids
    assert graph.at(graph.commits.head().id).entity(type_name, spellings[0]).id in ids


@pytest.mark.parametrize(
    ("type_name", "key"),
    [
        ("Airport", 4.5),
        ("Airport", True),
        ("Airport", 2**70),
        ("Airport", DAY),
        ("Airport", {"code": 1, "name": "x"}),
        ("Day", 20484),
        ("Person", 7),
        ("Seat", 12),
        ("Seat", {"row": 12}),
        ("Seat", {"row": 12, "letter": 1}),
        ("Note", 7),
        ("Route", 7),
    ],
)
def test_a_key_of_another_type_is_a_bad_request(graph, type_name, key):
    for call in (graph.entity, graph.blame):
        with pytest.raises(BadRequest, match=f"names no {type_name}"):
            call(type_name, key)


@pytest.mark.parametrize(("type_name", "key"), [("Airport", 422), ("Airport", "OSL"), ("Day", "x")])
def test_a_key_that_nobody_has_is_not_found(graph, type_name, key):
    with pytest.raises(EntityNotFound):
        graph.entity(type_name, key)


def routes(graph):
    found = graph.query("query q() { match { $a: Airport $a route $b } return { $a.code, $b.code } }")
    return sorted((row["a.code"], row["b.code"]) for row in found)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("I64", 421), ("I32", 421), ("U32", 421), ("String", "421"), ("String", "0421"), ("F64", 421.0)],
)
def test_an_end_takes_the_type_of_the_key(graph, kind, value):
    add = f"query q($a: {kind}) {{ insert Route {{ from: $a, to: -7 }} }}"
    graph.mutate(add, {"a": value})
    assert routes(graph) == [(421, -7)]
    graph.mutate(f"query q($a: {kind}) {{ update Route set {{ miles: 5 }} where from = $a }}", {"a": value})
    found = graph.query("query q() { match { $a: Airport $a $r:route $b } return { $r.miles } }")
    assert found["r.miles"] == [5]
    graph.mutate(f"query q($a: {kind}) {{ delete Route where from = $a and to != $a }}", {"a": value})
    assert routes(graph) == []


def test_ends_of_dates_and_moments(graph):
    graphs.run(graph, 'insert Flies { from: 421, to: date("2026-01-31") }')
    graph.mutate("query q($d: Date) { insert Flies { from: -7, to: $d } }", {"d": DAY})
    graph.mutate('query q($d: String) { insert Flies { from: "421", to: $d } }', {"d": "2026-01-31"})
    graph.mutate(
        "query q($d: Date, $m: DateTime) { insert Meets { from: $d, to: $m } }", {"d": DAY, "m": MOMENT}
    )
    found = graph.query(
        "query q() { match { $a: Airport $a $f:flies $d $d meets $m } return { $a.code, $d.day, $m.at } }"
    )
    assert sorted(map(tuple, map(dict.values, found.to_dicts()))) == [
        (-7, DAY, MOMENT),
        (421, DAY, MOMENT),
        (421, DAY, MOMENT),
    ]


@pytest.mark.parametrize("value", [422, 2**40])
def test_an_end_that_nobody_has_names_what_was_given(graph, value):
    with pytest.raises(ConstraintViolation, match=f"no Airport with id '{value}'"):
        graph.mutate("query q($a: I64) { insert Route { from: $a, to: -7 } }", {"a": value})


@pytest.mark.parametrize(
    "statement",
    [
        "insert Route { from: true, to: -7 }",
        'insert Route { from: date("2026-01-31"), to: -7 }',
        "insert Route { from: 4.5, to: -7 }",
        "delete Route where from = true",
        "delete Route where from < 421",
    ],
)
def test_an_end_of_another_type_is_refused_before_anything_runs(graph, statement):
    with pytest.raises(QueryTypeError):
        graphs.run(graph, statement)


def ends_of(graph, edge):
    lines = (json.loads(line) for line in graph.export().splitlines())
    return sorted((line["from"], line["to"]) for line in lines if line.get("edge") == edge)


@pytest.mark.parametrize(
    "columns",
    [
        {"from": [421, -7], "to": [DAY, DAY]},
        {"from": ["421", "-007"], "to": ["2026-01-31", "20484"]},
        {"from": [decimal.Decimal(421), decimal.Decimal(-7)], "to": [20484, 20484]},
    ],
)
@pytest.mark.parametrize("form", ["frame", "parquet", "csv"])
def test_columns_of_ends_take_the_type_of_the_key(graph, tmp_path, columns, form):
    table = pa.table(columns)
    if form == "frame":
        graph.load_frames({"Flies": table}, mode="append", engine="local")
    else:
        path = tmp_path / f"Flies.{form}"
        if form == "parquet":
            pq.write_table(table, path)
        else:
            pc.write_csv(table, path)
        graph.load(path, mode="append", engine="local")
    assert ends_of(graph, "Flies") == [("-7", "20484"), ("421", "20484")]


def test_a_column_of_ends_that_are_no_keys_is_refused_by_record(graph):
    with pytest.raises(LoadFormatError, match=r"Flies.from: Decimal\('4.5'\)|Flies.from: 4.5"):
        graph.load_frames(
            {"Flies": pa.table({"from": [decimal.Decimal("4.5")], "to": [DAY]})},
            mode="append",
            engine="local",
        )
    with pytest.raises(BadRequest, match="'to' holds bool"):
        graph.load_frames({"Flies": pa.table({"from": [421], "to": [True]})}, mode="append", engine="local")
