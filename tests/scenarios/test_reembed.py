"""All vectors of a property made again: on a branch, resumed after a stop, compared, merged."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import omnigraph as og
from omnigraph.core.errors import BadRequest, EmbedderError, MergeConflicts
from omnigraph.core.settings import Settings
from omnigraph.engine.search.offline_embedder import OfflineEmbedder
from omnigraph.pipeline.load import reembed as module

SCHEMA = """
node Doc {
  slug: String @key
  body: String?
  stars: I32?
  vec: Vector(4)? @embed(body)
}
node Note {
  text: String
  vec: Vector(2) @embed(text, model="m1")
}
"""
COUNT = 45
SETTINGS = Settings(durability="os")


@dataclass
class Embedder:
    model: str = "m1"
    asked: list[str] = field(default_factory=list)
    fails_on: str | None = None

    def embed(self, texts: Sequence[str], dimension: int) -> Any:
        if self.fails_on in texts:
            raise ConnectionError("no route")
        self.asked += texts
        # Another model gives other vectors.
        return OfflineEmbedder("any").embed([f"{self.model} {text}" for text in texts], dimension)


def vector(model: str, text: str, dimension: int = 4) -> list[float]:
    return Embedder(model).embed([text], dimension)[0].tolist()


def docs(graph, branch="main"):
    rows = graph.query(
        "query q() { match { $d: Doc } return { $d.slug, $d.body, $d.stars, $d.vec } }", branch=branch
    )
    return {row["d.slug"]: (row["d.body"], row["d.stars"], row["d.vec"]) for row in rows}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PIECE_ROWS", 10)
    where = tmp_path / "docs.omni"
    with og.init(where, schema=SCHEMA, settings=SETTINGS, embedder=Embedder()) as graph:
        rows = [
            {"slug": f"{number:02}", "body": f"text {number}", "stars": number} for number in range(COUNT)
        ]
        rows.append({"slug": "none", "body": None, "stars": 1, "vec": [1.0, 0.0, 0.0, 0.0]})
        graph.load_frames(
            {"Doc": rows, "Note": [{"text": "a"}, {"text": "b"}]}, mode="append", engine="local"
        )
    return where


def opened(place, embedder):
    return og.open(place, settings=SETTINGS, embedder=embedder)


def expected(model: str) -> dict:
    texts = {
        f"{number:02}": (f"text {number}", number, vector(model, f"text {number}")) for number in range(COUNT)
    }
    return texts | {"none": (None, 1, [1.0, 0.0, 0.0, 0.0])}


@pytest.mark.slow
def test_every_text_gets_a_new_vector_and_nothing_else_changes(place):
    other = Embedder("m2")
    with opened(place, other) as graph:
        before = graph.commits.head().id
        assert docs(graph) == expected("m1")
        report = graph.embed("Doc.vec", engine="local", actor="ines")
        assert docs(graph) == expected("m2")
        assert (report.rows, report.changed, report.model, report.merged) == (COUNT, COUNT, "m2", True)
        assert -1 <= report.similarity < 0.9
        assert graph.commits.head().id == report.commit
        assert sorted(other.asked) == sorted(f"text {number}" for number in range(COUNT))
        changes = graph.diff(before, "main")
        assert {(each.type_name, each.op) for each in changes} == {("Doc", "update")}
        assert graph.verify().violations == ()


def test_the_same_model_changes_no_row(place):
    with opened(place, Embedder()) as graph:
        report = graph.embed("Doc.vec", engine="local")
        assert (report.rows, report.changed) == (COUNT, 0)
        assert report.similarity == pytest.approx(1.0)
        assert docs(graph) == expected("m1")


def test_rows_without_a_key_are_found_by_their_ids(place):
    with opened(place, Embedder("m1")) as graph:
        report = graph.embed("Note.vec", engine="local")
        assert (report.rows, report.changed) == (2, 0)
        rows = graph.query("query q() { match { $n: Note } return { $n.text, $n.vec } order { $n.text } }")
        assert [tuple(row.values()) for row in rows] == [(text, vector("m1", text, 2)) for text in "ab"]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_asks_for_the_rest_only(place):
    failing = Embedder("m2", fails_on="text 25")
    with opened(place, failing) as graph:
        with pytest.raises(EmbedderError, match="ConnectionError"):
            graph.embed("Doc.vec", engine="local")
        assert docs(graph) == expected("m1")
        staged = sum(each.splits_staged for each in graph.resumable_loads())
    again = Embedder("m2")
    with opened(place, again) as graph:
        report = graph.embed("Doc.vec", engine="local")
        assert docs(graph) == expected("m2")
        assert (report.rows, report.changed) == (COUNT, COUNT)
        assert COUNT - 10 * staged <= len(again.asked) <= COUNT - 10 * staged + 5  # the last piece has five
        assert graph.resumable_loads() == []
        assert graph.verify().violations == ()


@pytest.mark.slow
def test_a_run_that_was_stopped_starts_over_with_another_model(place):
    with opened(place, Embedder("m2", fails_on="text 25")) as graph, pytest.raises(EmbedderError):
        graph.embed("Doc.vec", engine="local")
    with opened(place, Embedder("m3")) as graph:
        graph.embed("Doc.vec", engine="local")
        assert docs(graph) == expected("m3")
        assert graph.resumable_loads() == []


@pytest.mark.slow
def test_vectors_may_wait_on_their_branch_and_are_not_made_twice(place):
    first = Embedder("m2")
    with opened(place, first) as graph:
        report = graph.embed("Doc.vec", merge=False, engine="local")
        assert (report.merged, report.changed) == (False, COUNT)
        assert docs(graph) == expected("m1")
        assert docs(graph, report.working_branch) == expected("m2")
        graph.mutate('query q() { insert Doc { slug: "new", stars: 1 } }')
    again = Embedder("m2")
    with opened(place, again) as graph:
        graph.embed("Doc.vec", engine="local")
        assert again.asked == []
        assert docs(graph) == expected("m2") | {"new": (None, 1, None)}


@pytest.mark.slow
def test_a_second_run_embeds_what_came_meanwhile(place):
    with opened(place, Embedder("m2")) as graph:
        graph.embed("Doc.vec", engine="local")
        graph.mutate('query q() { insert Doc { slug: "new", body: "fresh", vec: [1.0, 0.0, 0.0, 0.0] } }')
        report = graph.embed("Doc.vec", engine="local")
        assert (report.rows, report.changed) == (COUNT + 1, 1)
        assert docs(graph)["new"] == ("fresh", None, vector("m2", "fresh"))


@pytest.mark.slow
def test_rows_of_a_branch_are_embedded_for_that_branch(place):
    with opened(place, Embedder("m2")) as graph:
        graph.branches.create("team/a")
        graph.embed("Doc.vec", branch="team/a", engine="local")
        assert docs(graph, "team/a") == expected("m2")
        assert docs(graph) == expected("m1")


@pytest.mark.slow
def test_a_text_that_changes_meanwhile_is_a_conflict_and_stays(place):
    with opened(place, Embedder("m2")) as graph:
        graph.embed("Doc.vec", merge=False, engine="local")
        graph.mutate('query q() { update Doc set { body: "other" } where slug = "07" }')
        with pytest.raises(MergeConflicts):
            graph.embed("Doc.vec", engine="local")
        assert docs(graph)["07"] == ("other", 7, vector("m2", "other"))
        assert docs(graph)["08"] == ("text 8", 8, vector("m1", "text 8"))


def test_what_cannot_be_embedded_is_refused_before_anything(place):
    with opened(place, Embedder("m2")) as graph:
        for wrong in ("Doc", "Doc.body", "Doc.nothing", "Nobody.vec", "", "Doc.vec.x"):
            with pytest.raises(BadRequest, match="is not a vector that is made from a text"):
                graph.embed(wrong, engine="local")
        with pytest.raises(EmbedderError, match=r"Note\.vec was embedded with 'm1'"):
            graph.embed("Note.vec", engine="local")
        with pytest.raises(EmbedderError, match="the embedder of this handle is of 'm2', not of 'm3'"):
            graph.embed("Doc.vec", model="m3", engine="local")
        assert graph.branches.list() == ["main"]
    with (
        og.open(place, settings=SETTINGS) as graph,
        pytest.raises(EmbedderError, match="no embedder is configured"),
    ):
        graph.embed("Doc.vec", engine="local")


@pytest.mark.crash
@pytest.mark.parametrize(
    "window",
    [
        "load.split_staged",
        "load.post_verify",
        "mutation.post_finalize_pre_publisher",
        "graph_publish.after_manifest_commit",
    ],
)
def test_a_run_that_was_killed_goes_on_by_the_same_command(tmp_path, window):
    where = tmp_path / "docs.omni"
    with og.init(where, schema=SCHEMA, settings=SETTINGS) as graph:
        rows = [{"slug": f"{number:02}", "body": f"text {number}"} for number in range(COUNT)]
        graph.load_frames({"Doc": rows}, mode="append", engine="local")
    main = "from omnigraph.cli.main import main; main()"
    command = [sys.executable, "-c", main, "embed", "Doc.vec", "--engine", "local", "--store", str(where)]
    environment = os.environ | {"OMNIGRAPH_EMBED_PROVIDER": "mock", "OMNIGRAPH_DURABILITY": "os"}
    killed = subprocess.run(
        command,
        env=environment | {"OMNIGRAPH_FAILPOINTS": f"{window}=kill"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr.decode()
    done = subprocess.run(command, env=environment, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    assert f"embedded {COUNT} texts of Doc.vec with mock" in done.stdout
    assert "merged into main; commit " in done.stdout
    with og.open(where, settings=SETTINGS) as graph:
        found = {slug: vec for slug, (_, _, vec) in docs(graph).items()}
        assert found == {
            f"{number:02}": OfflineEmbedder("any").embed([f"text {number}"], 4)[0].tolist()
            for number in range(COUNT)
        }
        assert graph.verify().violations == ()
