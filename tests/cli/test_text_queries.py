"""Texts in `nearest` through the command: the offline provider, profiles of settings, what is refused."""

from pathlib import Path

import pytest

import omnigraph as og
from cli.conftest import Run
from omnigraph.core.settings import Settings
from omnigraph.engine.search.offline_embedder import OfflineEmbedder

SCHEMA = """node Doc {
  slug: String @key
  body: String
  vec: Vector(2) @embed(body)
  old: Vector(2)? @embed(body, model="m1")
}
"""
QUERIES = """query near($t: String) {
  match { $d: Doc } return { $d.slug, nearest($d.vec, $t) as away } order { nearest($d.vec, $t) } limit 3
}
query old($t: String) { match { $d: Doc } return { $d.slug } order { nearest($d.old, $t) } limit 3 }
"""
ASK = ("near", "--query", "docs.gq", "-p", "t=reef", "--store", "docs.omni", "--json")
OFFLINE = {"OMNIGRAPH_EMBED_PROVIDER": "offline"}


@pytest.fixture(autouse=True)
def docs(tmp_path: Path) -> None:
    """A document whose vector is that of its text, and one with the opposite vector."""
    (tmp_path / "docs.gq").write_text(QUERIES)
    vector = OfflineEmbedder("mock").embed(["reef"], 2)[0].tolist()
    with og.init(tmp_path / "docs.omni", schema=SCHEMA, settings=Settings(durability="os")) as graph:
        rows = [
            {"slug": "away", "body": "tide", "vec": [-number for number in vector]},
            {"slug": "here", "body": "reef", "vec": vector},
        ]
        graph.load_frames({"Doc": rows}, mode="append", engine="local")


@pytest.mark.slow
def test_the_installed_command_ranks_by_a_text_offline(run: Run) -> None:
    rows = run("query", *ASK, env=OFFLINE).json["rows"]
    assert [row["d.slug"] for row in rows] == ["here", "away"]
    assert rows[0]["away"] == 0.0
    assert rows[1]["away"] == pytest.approx(2.0)


def test_the_personal_file_names_the_provider(here: Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("settings: {embed_provider: mock, embed_model: m1}\n")
    env = {"OMNIGRAPH_HOME": str(tmp_path)}
    assert here("query", *ASK, env=env).json["row_count"] == 2
    assert here("query", "old", *ASK[1:], env=env).json["row_count"] == 0
    shown = {row["name"]: row for row in here("config", "show", "--json", env=env).json["settings"]}
    assert shown["embed_provider"]["value"] == "mock"
    assert shown["embed_deadline_ms"]["value"] == 60_000


def test_a_key_is_not_shown_and_not_taken_from_a_file(here: Run, tmp_path: Path) -> None:
    assert "hush" not in here("config", "show", env={"OMNIGRAPH_EMBED_API_KEY": "hush"}).out
    (tmp_path / "config.yaml").write_text("settings: {embed_api_key: hush}\n")
    refused = here("query", *ASK, env={**OFFLINE, "OMNIGRAPH_HOME": str(tmp_path)}, rc=1)
    assert refused.error["kind"] == "bad_request"
    assert "hush" not in refused.err


def test_without_an_embedder_the_error_says_how_to_get_one(here: Run) -> None:
    error = here("query", *ASK, rc=1).error
    assert error["kind"] == "embedding_provider"
    assert "OMNIGRAPH_EMBED_PROVIDER" in error["hint"]


def test_another_model_is_refused(here: Run) -> None:
    error = here("query", "old", *ASK[1:], env=OFFLINE, rc=1).error
    assert error["error"] == "Doc.old was embedded with 'm1', the embedder uses 'mock'"


def test_an_overridden_provider_is_told_on_stderr(here: Run) -> None:
    env = {"OMNIGRAPH_EMBED_PROVIDER": "openai", "OMNIGRAPH_EMBEDDINGS_MOCK": "1"}
    ran = here("query", *ASK, env=env)
    assert ran.json["row_count"] == 2
    assert "texts are embedded offline, not by 'openai'" in ran.err


def test_explain_names_the_model_and_needs_no_provider(here: Run) -> None:
    ask = [word for word in ASK if word != "--json"]
    env = {"OMNIGRAPH_EMBED_BASE_URL": "http://127.0.0.1:1/v1", "OMNIGRAPH_EMBED_MODEL": "m1"}
    assert "the text is embedded by the model 'm1'" in here("explain", *ask, env=env).out
