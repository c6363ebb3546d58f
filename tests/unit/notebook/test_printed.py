"""What `print` shows of results and reports: a few lines for people, never a dump of fields."""

import pytest

from graphs import make_graph
from omnigraph.core import html

SCHEMA = "node P { k: String @key  a: I32? }  edge R: P -> P"


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Each result of a short history, by what made it."""
    place = tmp_path_factory.mktemp("printed")
    with make_graph(place / "g", SCHEMA) as graph:
        seen = {
            "mutation": graph.mutate('query q() { insert P { k: "x" } insert P { k: "y" } }', actor="ana")
        }
        graph.branches.create("f")
        graph.mutate('query q() { update P set { a: 1 } where k = "x" }', branch="f")
        graph.mutate('query q() { update P set { a: 2 } where k = "x" }')
        seen["preview"] = graph.branches.preview("f")
        seen["merge"] = graph.branches.merge("f", on_conflict="theirs", actor="ben")
        seen["commit"] = seen["merge"].commit
        seen["blame"] = graph.blame("P", "x")
        seen["verify"] = graph.verify()
        seen["stats"] = graph.stats()
        seen["indexes"] = graph.indexes()
        seen["optimize"] = graph.optimize()
        seen["cleanup"] = graph.cleanup(keep=1, dry_run=True)
        return {name: (str(each), each) for name, each in seen.items()}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mutation", "q: 2 nodes, 0 edges; commit "),
        ("preview", "divergent_update  x: both sides changed it in different ways"),
        ("merge", "merge of f into main: outcome merged, commit "),
        ("commit", "merge  ben"),
        ("blame", "property  value"),
        ("verify", "verified: ok: branches 2, tables 4, rows 4"),
        ("stats", "main    node:P  2"),
        ("indexes", "indexes of main"),
        ("optimize", "optimize main: commit "),
        ("cleanup", "cleanup: dry run true"),
    ],
)
def test_a_printed_report_is_short_and_says_what_happened(printed, name, said):
    text, report = printed[name]
    assert said in text
    assert "(" + "id=" not in text
    assert type(report).__name__ + "(" not in text
    assert len(text.splitlines()) <= 16


def test_a_long_table_is_cut_and_counted():
    text = html.table(("a", "long name"), [(n, "x") for n in range(50)], more=3, unit="things").text()
    lines = text.splitlines()
    assert lines[0] == "a   long name"
    assert lines[1] == "0   x"
    assert len(lines) == 1 + html.PRINTED_ROWS_MAX + 1
    assert lines[-1] == "33 more things"


def test_a_table_without_rows_prints_its_caption_only():
    assert html.table(("a",), [], caption="nothing here").text() == "nothing here"
    assert (html.facts("load", {"x": None}) + html.NOTHING).text() == "load"
