"""A load that is refused names the way out: the option that reads the file, the form of a record, the mode."""

from pathlib import Path

import pytest

from graphs import make_graph
from omnigraph.api.graph import Graph
from omnigraph.core.errors import ConstraintViolation, OmnigraphError

SCHEMA = """
node Airport { iata: String @key  name: String?  height: I32? }
edge Route: Airport -> Airport { miles: I32? }
edge Near: Airport -> Airport { km: I32?  @unique(src, dst) }
"""
SOME = '{"type":"Airport","data":{"iata":"A"}}\n{"type":"Airport","data":{"iata":"B"}}\n'


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    place = tmp_path_factory.mktemp("hints")
    with make_graph(place / "g", SCHEMA) as made:
        (place / "some.jsonl").write_text(SOME + '{"edge":"Near","from":"A","to":"B"}\n')
        made.load(place / "some.jsonl", mode="append", engine="local")
        yield made


def refused(graph: Graph, path: Path, content: str | bytes, **options) -> OmnigraphError:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = graph.commits.head().id
    with pytest.raises(OmnigraphError) as caught:
        graph.load(path, engine="local", **{"mode": "merge", **options})
    assert graph.commits.head().id == before
    return caught.value


@pytest.mark.parametrize(
    ("name", "content", "said", "hint"),
    [
        ("Airport.csv", "iata;name\nC;c\n", "its cells seem to be separated by ';'", "--delimiter ';'"),
        (
            "Airport.csv",
            'iata\t"name"\nC\tc\n',
            "its cells seem to be separated by a tab",
            "--delimiter $'\\t'",
        ),
        ("Airport.tsv", "iata,name\nC,c\n", "its cells seem to be separated by ,", "--delimiter ,"),
        (
            "Airport.csv",
            "IATA,Name of it,Height\nC,c,1\n",
            "it names them differently",
            "--rename IATA=iata --rename Height=height (rename=)",
        ),
        (
            "Route.csv",
            "source,target\nA,B\n",
            "it names them differently",
            "--rename source=from --rename target=to",
        ),
        ("Airport.csv", "C,c\n", "the file seems to have no header", "Airport has height, iata, name"),
        ("Route.csv", "A,B\n", "the file seems to have no header", "Route has from, to, miles"),
        (
            "Airport.csv",
            "iata,height\nC,\\N\n",
            ":2: Airport.height: '\\N' is not an",
            "--null '\\N' (nulls=)",
        ),
        ("Airport.csv", "iata,height\nC,n/a\n", "'n/a' is not an integer", "--null 'n/a'"),
        ("Airport.csv", b"iata,name\nC,Z\xfcrich\n", ":2: the record is not valid UTF-8", "iconv"),
        ("a.jsonl", b'{"type":"Airport","data":{"iata":"Z\xfc"}}\n', "not valid UTF-8", "iconv"),
        ("a.dat", "C,c\n", "not one JSON object", "--format and --type"),
        (
            "a.json",
            '{"type": "Airport",\n "data": {"iata": "C"}}\n',
            "not one JSON object",
            "one whole object",
        ),
        ("a.json", '[{"type":"Airport","data":{"iata":"C"}}]\n', "a record is a JSON object", "on each line"),
        ("a.jsonl", '{"iata":"C"}\n', "has exactly one of 'type' and 'edge'", 'a node is {"type": ...'),
        ("a.jsonl", '{"type":"Airport","iata":"C"}\n', "unknown member 'iata'", '"data": {...}}'),
        (
            "a.jsonl",
            '{"edge":"Route","src":"A","dst":"B"}\n',
            "unknown member 'src'",
            '"from": ..., "to": ...',
        ),
        ("a.jsonl", '{"type":"Route","data":{}}\n', "unknown node type 'Route'", "Route is a type of edges"),
        ("a.jsonl", '{"edge":"Airport"}\n', "unknown edge type 'Airport'", "Airport is a type of nodes"),
    ],
)
def test_a_file_in_another_form_is_refused_with_the_option_that_reads_it(
    graph: Graph, tmp_path: Path, name: str, content: str | bytes, said: str, hint: str
) -> None:
    error = refused(graph, tmp_path / name, content)
    assert said in error.message
    assert hint in error.hint
    assert error.hint in str(error), "a hint is part of the text in Python"


def test_the_hint_about_a_delimiter_works(graph: Graph, tmp_path: Path) -> None:
    (tmp_path / "Airport.csv").write_text("iata;height\nC;\\N\n")
    report = graph.load(
        tmp_path / "Airport.csv",
        mode="merge",
        engine="local",
        delimiter=";",
        nulls=["\\N"],
        branch="x",
        base="main",
    )
    assert report.total_entities == 1


def test_a_column_is_renamed_to_something_the_type_has(graph: Graph, tmp_path: Path) -> None:
    error = refused(graph, tmp_path / "Airport.csv", "IATA\nC\n", rename={"IATA": "iatta"})
    assert (
        "a column cannot be renamed: unknown field 'iatta' for Airport; did you mean 'iata'?" in error.message
    )


@pytest.mark.parametrize("ends", ["A,B", "B,A"])
def test_an_edge_that_occurs_twice_is_named_by_its_ends(graph: Graph, tmp_path: Path, ends: str) -> None:
    error = refused(graph, tmp_path / "Near.csv", f"from,to,km\n{ends},1\n{ends},2\n")
    assert isinstance(error, ConstraintViolation)
    source, target = ends.split(",")
    assert (
        f":2: Near.(src, dst): ('{source}', '{target}') occurs more than once in the input" in error.message
    )
    assert error.hint.startswith("--on-duplicate first or last (on_duplicate=)")


def test_an_edge_that_exists_is_updated_by_other_modes(graph: Graph, tmp_path: Path) -> None:
    error = refused(graph, tmp_path / "Near.csv", "from,to\nA,B\n", mode="append")
    assert "Near.(src, dst): ('A', 'B') is held by '" in error.message
    assert error.hint == "in merge and patch mode a record changes the edge that has its ends"


def test_a_key_that_occurs_twice_says_how_to_keep_one(graph: Graph, tmp_path: Path) -> None:
    error = refused(graph, tmp_path / "Airport.csv", "iata\nC\nC\n")
    assert error.hint.startswith("--on-duplicate first or last")
