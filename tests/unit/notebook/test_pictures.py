"""What a notebook shows: well-formed, escaped, deterministic."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

import omnigraph as og
from graphs import make_graph
from omnigraph.core import html
from omnigraph.engine.entities.neighbourhood import Neighbourhood, PictureEdge, PictureNode
from omnigraph.notebook.picture import CROWDED, draw, layout

SCHEMA = """node Person { handle: String @key  name: String? }
node Team { code: String @key }
edge Knows: Person -> Person
edge MemberOf: Person -> Team
"""
EVIL = "<script>alert(\"x\")</script> & 'quoted'"
VOID = {"br", "hr", "img", "meta", "link", "input"}


class Checker(HTMLParser):
    """Every tag is closed in order; gathers tags and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.open == []
    assert "script" not in checker.tags
    return checker


@pytest.fixture
def graph(tmp_path: Path) -> og.Graph:
    graph = make_graph(tmp_path / "g.omni", SCHEMA)
    graph.mutate(
        """query seed($evil: String) {
          insert Person { handle: "ada", name: $evil }
          insert Person { handle: "ben", name: "Ben" }
          insert Person { handle: "cyd" }
          insert Team { code: "o'hara" }
          insert Knows { from: "ada", to: "ben" }
          insert Knows { from: "ben", to: "cyd" }
          insert Knows { from: "ada", to: "ada" }
          insert MemberOf { from: "ben", to: "o'hara" }
        }""",
        {"evil": EVIL},
        actor=EVIL,
    )
    return graph


ALL = "query all() { match { $p: Person } return { $p.handle, $p.name } order { $p.handle asc } }"


def test_rows(graph: og.Graph) -> None:
    seen = checked(graph.query(ALL)._repr_html_())
    assert "".join(seen.text).count(EVIL) == 1
    assert seen.tags.count("tr") == 4
    assert "null" in seen.text


def test_a_long_result_is_counted_and_a_long_value_cut() -> None:
    assert "3 more rows" in html.table(("a",), [(1,)], more=3).html()
    [cell] = [
        text for text in checked(html.table(("a",), [("x" * 500,)]).html()).text if text.startswith("x")
    ]
    assert (len(cell), cell[-1]) == (html.CELL_CHARACTERS_MAX, "…")


@pytest.mark.slow
def test_plans_reports_and_differences(graph: og.Graph, tmp_path: Path) -> None:
    assert "scan" in "".join(checked(graph.explain(ALL)._repr_html_()).text)
    before = graph.commits.head().id
    (tmp_path / "in.jsonl").write_text('{"type":"Person","data":{"handle":"dov","name":"<b>"}}\n')
    loaded = graph.load(tmp_path / "in.jsonl", mode="merge", engine="local")
    assert "Person" in checked(loaded._repr_html_()).text
    changed = graph.mutate('query q() { update Person set { name: "<i>" } where handle = "ben" }')
    assert "mutation q" in checked(changed._repr_html_()).text
    told = checked(graph.diff(before, "main")._repr_html_())
    assert "name: Ben → <i>" in told.text
    assert {"b", "i"}.isdisjoint(told.tags)
    graph.branches.create("side")
    graph.mutate('query q() { update Person set { name: "Bo" } where handle = "ben" }', branch="side")
    graph.mutate('query q() { update Person set { name: "Benno" } where handle = "ben" }')
    preview = checked(graph.branches.preview("side")._repr_html_())
    assert "divergent_update" in preview.text
    merged = graph.branches.merge("side", on_conflict="ours")
    assert "merge of side into main" in checked(merged._repr_html_()).text
    assert "verified: ok" in checked(graph.verify()._repr_html_()).text
    assert EVIL in checked(graph.blame("Person", "ada")._repr_html_()).text
    assert "MemberOf" in checked(graph._repr_html_()).text


def test_a_picture_of_the_surroundings(graph: og.Graph) -> None:
    one = og.picture(graph, "Person", "ada")
    assert {(node.type_name, node.id, node.hops) for node in one.about.nodes} == {
        ("Person", "ada", 0),
        ("Person", "ben", 1),
    }
    two = og.picture(graph, "Person", "ada", hops=2)
    assert {node.id for node in two.about.nodes} == {"ada", "ben", "cyd", "o'hara"}
    assert {edge.type_name for edge in two.about.edges} == {"Knows", "MemberOf"}
    assert two.svg == og.picture(graph, "Person", "ada", hops=2).svg
    root = ET.fromstring(two.svg)
    texts = {each.text for each in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Ben", "cyd", "o'hara", "Person", "Team"} <= texts
    assert any(text is not None and text.startswith("<script>") for text in texts)
    assert "<script" not in two.svg
    checked(two._repr_html_())
    few = og.picture(graph, "Person", "ben", nodes_max=2)
    assert len(few.about.nodes) == 2
    assert f"{few.about.left_out} more nodes" in few._repr_html_()
    with pytest.raises(og.errors.EntityNotFound):
        og.picture(graph, "Person", "nobody")
    with pytest.raises(og.errors.TypeNotFound):
        og.picture(graph, "Knows", "x")


def test_no_two_nodes_of_a_picture_share_a_place() -> None:
    nodes = [PictureNode("A", "middle", "middle", 0)]
    nodes += [PictureNode("A", f"{n:03}", f"{n}", 1) for n in range(5)]
    nodes += [PictureNode("B", f"{n:03}", f"{n}", 2) for n in range(CROWDED * 10)]
    edges = [PictureEdge("E", ("A", "middle"), ("A", f"{n:03}")) for n in range(5)]
    edges += [PictureEdge("F", ("A", f"{n % 5:03}"), ("B", f"{n:03}")) for n in range(CROWDED * 10)]
    about = Neighbourhood(tuple(nodes), tuple(edges), 0)
    places = layout(about)
    rounded = {(round(x), round(y)) for x, y in places.values()}
    assert len(rounded) == len(nodes)
    ET.fromstring(draw(about))
