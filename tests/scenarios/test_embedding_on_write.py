"""Vectors that a write leaves out: made from the text it gives, by the embedder of the handle, or not at all."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import omnigraph as og
from graphs import make_graph
from minilm import MiniLM, sentence_vector
from omnigraph.core.cancel import Cancellation
from omnigraph.core.errors import (
    Cancelled,
    ConstraintViolation,
    EmbedderError,
    LoadNotResumable,
    QueryTypeError,
)
from omnigraph.core.limits import EMBED_BATCH_TEXTS_MAX
from omnigraph.core.settings import Settings
from omnigraph.engine.search.offline_embedder import OfflineEmbedder

SCHEMA = """
node Doc {
  slug: String @key
  body: String?
  vec: Vector(3)? @embed(body)
}
node Note {
  by: String?
  text: String @default("empty")
  must: Vector(2) @embed(text)
}
"""
QUERIES = """
query add($slug: String, $body: String?) { insert Doc { slug: $slug, body: $body } }
query given($slug: String, $body: String?, $vec: Vector(3)?) { insert Doc { slug: $slug, body: $body, vec: $vec } }
query rewrite($slug: String, $body: String?) { update Doc set { body: $body } where slug = $slug }
query touch($slug: String, $vec: Vector(3)?) { update Doc set { vec: $vec } where slug = $slug }
query both($slug: String, $body: String) { insert Doc { slug: $slug, body: $body } insert Note { text: $body } }
query note($text: String) { insert Note { text: $text } }
query bare() { insert Note { by: "me" } }
"""


@dataclass
class Counting:
    """Remembers what it was asked for."""

    model: str = "m1"
    asked: list[list[str]] = field(default_factory=list)
    failing: bool = False

    def embed(self, texts: Sequence[str], dimension: int) -> Any:
        if self.failing:
            raise ConnectionError("no route")
        self.asked.append(list(texts))
        return OfflineEmbedder(self.model).embed(texts, dimension)

    @property
    def texts(self) -> list[str]:
        return sorted(text for batch in self.asked for text in batch)


def vector(text: str | None, dimension: int = 3) -> list[float] | None:
    return None if text is None else OfflineEmbedder("any").embed([text], dimension)[0].tolist()


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def graph(tmp_path, counting):
    settings = Settings(durability="os")
    with og.init(tmp_path / "docs.omni", schema=SCHEMA, settings=settings, embedder=counting) as graph:
        yield graph


def docs(graph, branch="main") -> dict[str, tuple[str | None, list[float] | None]]:
    rows = graph.query("query q() { match { $d: Doc } return { $d.slug, $d.body, $d.vec } }", branch=branch)
    return {row["d.slug"]: (row["d.body"], row["d.vec"]) for row in rows}


def notes(graph) -> list[tuple[str, list[float]]]:
    rows = graph.query("query q() { match { $n: Note } return { $n.text, $n.must } order { $n.text } }")
    return [(row["n.text"], row["n.must"]) for row in rows]


# --- mutations -------------------------------------------------------------------------------------------


def test_an_insert_gets_the_vector_it_leaves_out(graph, counting):
    graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add")
    assert docs(graph) == {"reef": ("a reef", vector("a reef"))}
    assert counting.asked == [["a reef"]]


@pytest.mark.parametrize("given", [[1.0, 2.0, 2.0], None])
def test_a_vector_that_is_given_stays_as_it_is(graph, counting, given):
    graph.mutate(QUERIES, {"slug": "reef", "body": "a reef", "vec": given}, name="given")
    assert docs(graph) == {"reef": ("a reef", given)}
    assert counting.asked == []


def test_a_null_text_has_no_vector_and_needs_no_embedder(graph, counting):
    counting.failing = True
    graph.mutate(QUERIES, {"slug": "reef", "body": None}, name="add")
    assert docs(graph) == {"reef": (None, None)}


def test_a_new_text_gets_a_new_vector_and_a_null_one_loses_it(graph):
    graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add")
    graph.mutate(QUERIES, {"slug": "reef", "body": "a tide"}, name="rewrite")
    assert docs(graph) == {"reef": ("a tide", vector("a tide"))}
    graph.mutate(QUERIES, {"slug": "reef", "body": None}, name="rewrite")
    assert docs(graph) == {"reef": (None, None)}


def test_an_update_without_the_text_embeds_nothing(graph, counting):
    graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add")
    counting.asked.clear()
    graph.mutate(QUERIES, {"slug": "reef", "vec": [0.0, 0.0, 1.0]}, name="touch")
    assert docs(graph) == {"reef": ("a reef", [0.0, 0.0, 1.0])}
    assert counting.asked == []


@pytest.mark.slow
def test_many_sets_embed_each_text_once_in_batches(graph, counting):
    texts = [f"text {place % 300}" for place in range(900)]
    sets = [{"slug": f"{place:03}", "body": text} for place, text in enumerate(texts)]
    graph.mutate_many(QUERIES, sets, name="add")
    assert docs(graph) == {f"{place:03}": (text, vector(text)) for place, text in enumerate(texts)}
    assert counting.texts == sorted(set(texts))
    assert max(map(len, counting.asked)) == EMBED_BATCH_TEXTS_MAX


def test_required_vectors_may_be_left_out_too_and_texts_may_be_defaults(graph, counting):
    graph.mutate(QUERIES, {"text": "a note"}, name="note")
    graph.mutate(QUERIES, name="bare")
    assert notes(graph) == [("a note", vector("a note", 2)), ("empty", vector("empty", 2))]
    graph.mutate(QUERIES, {"slug": "one", "body": "same"}, name="both")
    assert counting.asked[-2:] == [["same"], ["same"]]  # one call for each dimension
    assert docs(graph) == {"one": ("same", vector("same"))}


def test_without_an_embedder_everything_is_as_if_nobody_embedded(tmp_path):
    with make_graph(tmp_path / "g.omni", SCHEMA) as graph:
        with pytest.raises(QueryTypeError, match=r"T12: insert into 'Note' needs 'must'"):
            graph.mutate(QUERIES, {"text": "a note"}, name="note")
        graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add")
        graph.mutate(QUERIES, {"slug": "reef", "vec": [1.0, 0.0, 0.0]}, name="touch")
        graph.mutate(QUERIES, {"slug": "reef", "body": "a tide"}, name="rewrite")
        assert docs(graph) == {"reef": ("a tide", [1.0, 0.0, 0.0])}
        with pytest.raises(ConstraintViolation, match="must have a value"):
            graph.load_frames({"Note": [{"text": "x"}]}, mode="append", engine="local")
        assert notes(graph) == []


def test_an_embedder_that_fails_changes_nothing(graph, counting):
    head = graph.commits.list()[0].id
    counting.failing = True
    with pytest.raises(EmbedderError, match="ConnectionError"):
        graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add")
    with pytest.raises(EmbedderError, match="ConnectionError"):
        graph.load_frames({"Doc": [{"slug": "reef", "body": "x"}]}, mode="merge", engine="local")
    assert docs(graph) == {}
    assert graph.commits.list()[0].id == head


def test_a_repeated_request_needs_no_embedder(graph, counting):
    first = graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add", idempotency_key="once")
    counting.failing = True
    again = graph.mutate(QUERIES, {"slug": "reef", "body": "a reef"}, name="add", idempotency_key="once")
    assert again.repeated
    assert again.commit.id == first.commit.id


def test_a_cancelled_write_stops_between_two_batches(graph, counting):
    cancel = Cancellation()
    embed = counting.embed

    def cancelling(texts, dimension):
        cancel.request()
        return embed(texts, dimension)

    counting.embed = cancelling
    sets = [{"slug": f"{place:03}", "body": f"text {place}"} for place in range(300)]
    with pytest.raises(Cancelled):
        graph.mutate_many(QUERIES, sets, name="add", cancel=cancel)
    assert len(counting.asked) == 1
    assert docs(graph) == {}


def test_vectors_of_another_model_are_refused(tmp_path, counting):
    schema = 'node Doc { slug: String @key  body: String?  vec: Vector(3)? @embed(body, model="m2") }'
    settings = Settings(durability="os")
    with og.init(tmp_path / "g.omni", schema=schema, settings=settings, embedder=counting) as graph:
        with pytest.raises(EmbedderError, match=r"Doc\.vec was embedded with 'm2', the embedder uses 'm1'"):
            graph.mutate(QUERIES.partition("query both")[0], {"slug": "a", "body": "b"}, name="add")
        with pytest.raises(EmbedderError, match=r"Doc\.vec was embedded with 'm2'"):
            graph.load_frames({"Doc": [{"slug": "a", "body": "b"}]}, mode="append", engine="local")
        graph.load_frames(
            {"Doc": [{"slug": "a", "body": "b", "vec": [1, 0, 0]}]}, mode="append", engine="local"
        )
        assert docs(graph) == {"a": ("b", [1.0, 0.0, 0.0])}
    assert counting.asked == []


def test_a_vector_of_the_wrong_length_is_refused(graph, counting):
    counting.embed = lambda texts, _dimension: [[1.0, 0.0]] * len(texts)
    with pytest.raises(EmbedderError, match="2 components for text 1 of 1; 3 are needed"):
        graph.mutate(QUERIES, {"slug": "a", "body": "b"}, name="add")
    with pytest.raises(EmbedderError, match="3 are needed"):
        graph.load_frames({"Doc": [{"slug": "a", "body": "b"}]}, mode="append", engine="local")
    assert docs(graph) == {}


# --- loads -----------------------------------------------------------------------------------------------


ROWS = [
    {"slug": "a", "body": "reef"},
    {"slug": "b", "body": "tide", "vec": [0.0, 3.0, 4.0]},
    {"slug": "c", "body": "moss", "vec": None},
    {"slug": "d", "body": None},
    {"slug": "e"},
    {"slug": "f", "body": "reef"},
]
LOADED = {
    "a": ("reef", vector("reef")),
    "b": ("tide", [0.0, 3.0, 4.0]),
    "c": ("moss", None),
    "d": (None, None),
    "e": (None, None),
    "f": ("reef", vector("reef")),
}


def lines(tmp_path, rows) -> str:
    import json

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"type": "Doc", "data": row}) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("mode", ["append", "merge", "overwrite", "patch"])
def test_a_load_gets_the_vectors_its_records_leave_out(graph, counting, tmp_path, mode):
    graph.load(lines(tmp_path, ROWS), mode=mode, engine="local")
    assert docs(graph) == LOADED
    assert counting.asked == [["reef"]]


def test_rows_and_columns_load_as_records_do(graph, tmp_path):
    graph.load_frames({"Doc": ROWS}, mode="append", engine="local")
    assert docs(graph) == LOADED
    table = pa.table({"slug": ["x", "y"], "body": ["sand", None]})
    graph.load_frames({"Doc": table}, mode="append", engine="local")
    (tmp_path / "docs.csv").write_text("slug,body\nz,dune\n")
    graph.load(tmp_path / "docs.csv", type_name="Doc", mode="append", engine="local")
    found = docs(graph)
    assert [found[slug] for slug in "xyz"] == [
        ("sand", vector("sand")),
        (None, None),
        ("dune", vector("dune")),
    ]


@pytest.mark.slow
def test_a_patch_with_a_text_renews_the_vector_and_one_without_keeps_it(graph, counting, tmp_path):
    graph.load(lines(tmp_path, ROWS), mode="append", engine="local")
    counting.asked.clear()
    patch = [
        {"slug": "a", "body": "sand"},
        {"slug": "b"},
        {"slug": "c", "body": "moss"},
        {"slug": "f", "body": None},
        {"slug": "new", "body": "dune"},
    ]
    graph.load(lines(tmp_path, patch), mode="patch", engine="local")
    changed = {
        "a": ("sand", vector("sand")),
        "c": ("moss", vector("moss")),
        "f": (None, None),
        "new": ("dune", vector("dune")),
    }
    assert docs(graph) == LOADED | changed
    assert counting.texts == ["dune", "moss", "sand"]


def test_a_text_that_is_a_default_is_embedded_by_a_load(graph):
    graph.load_frames({"Note": [{"text": "x"}, {}]}, mode="append", engine="local")
    assert notes(graph) == [("empty", vector("empty", 2)), ("x", vector("x", 2))]


def test_a_record_without_text_and_vector_is_refused_where_one_is_required(graph):
    with pytest.raises(ConstraintViolation, match="must have a value"):
        graph.load_frames({"Note": [{"text": None}]}, mode="append", engine="local")


def test_records_that_are_set_aside_leave_the_vectors_of_the_others(graph, tmp_path):
    rows = [{"slug": f"{place}", "body": f"text {place}"} for place in range(5)]
    rows[2]["slug"] = None
    graph.load(lines(tmp_path, rows), mode="append", engine="local", rejects=tmp_path / "aside")
    kept = [row for row in rows if row["slug"] is not None]
    assert docs(graph) == {row["slug"]: (row["body"], vector(row["body"])) for row in kept}


def test_a_load_that_an_embedder_stopped_is_resumed_with_the_same_model_only(tmp_path, counting):
    """Two files; the embedder fails at the second: what the first staged is kept, but not mixed with vectors of
    another model.
    """
    place, settings = tmp_path / "g.omni", Settings(durability="os")
    for number, text in enumerate(["good", "bad"]):
        (tmp_path / f"{number}.jsonl").write_text(
            f'{{"type":"Doc","data":{{"slug":"{number}","body":"{text}"}}}}\n'
        )
    embed = counting.embed

    def stumbling(texts, dimension):
        if "bad" in texts:
            while not list(place.glob("__loads/*/journal/split-0.json")):
                threading.Event().wait(0.001)
            raise ConnectionError("gone")
        return embed(texts, dimension)

    counting.embed = stumbling
    with og.init(place, schema=SCHEMA, settings=settings, embedder=counting) as graph:
        with pytest.raises(EmbedderError) as stopped:
            graph.load(str(tmp_path / "?.jsonl"), mode="append", engine="local")
        load_id = stopped.value.details["load_id"]
    with og.open(place, settings=settings, embedder=Counting("m2")) as graph:
        with pytest.raises(LoadNotResumable, match="vectors are made by 'm2', were made by 'm1'"):
            graph.load(resume=load_id, engine="local")
        assert docs(graph) == {}
    again = Counting()
    with og.open(place, settings=settings, embedder=again) as graph:
        graph.load(resume=load_id, engine="local")
        assert docs(graph) == {"0": ("good", vector("good")), "1": ("bad", vector("bad"))}
    assert again.texts == ["bad"]


# --- a real model ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_model_gives_the_similarities_its_authors_publish():
    vectors = [
        sentence_vector(text)
        for text in (
            "That is a happy person",
            "That is a happy dog",
            "That is a very happy person",
            "Today is a sunny day",
        )
    ]
    found = [float(vectors[0] @ other) for other in vectors[1:]]
    assert found == pytest.approx([0.695, 0.943, 0.257], abs=0.0006)


@pytest.mark.slow
def test_a_real_model_finds_what_was_written_without_vectors(tmp_path):
    schema = 'node Doc { slug: String @key  body: String  vec: Vector(384) @embed(body, model="all-MiniLM-L6-v2") }'
    bodies = {
        "cat": "A kitten rests on the rug",
        "market": "Shares lost value on the exchange",
        "sea": "Waves roll over the coral reef",
        "bread": "Knead the dough and let it rise",
    }
    with og.init(
        tmp_path / "g.omni", schema=schema, settings=Settings(durability="os"), embedder=MiniLM()
    ) as graph:
        rows = [{"slug": slug, "body": body} for slug, body in bodies.items()]
        graph.load_frames({"Doc": rows[:2]}, mode="append", engine="local")
        insert = "query add($slug: String, $body: String) { insert Doc { slug: $slug, body: $body } }"
        graph.mutate_many(insert, rows[2:])
        near = """query near($text: String) {
          match { $d: Doc } return { $d.slug, $d.vec } order { nearest($d.vec, $text) } limit 1 }"""
        asked = {
            "a cat sleeping": "cat",
            "the stock market fell": "market",
            "fish in the ocean": "sea",
            "how to bake a loaf": "bread",
        }
        for text, slug in asked.items():
            row = graph.query(near, {"text": text})[0]
            assert row["d.slug"] == slug
            assert np.allclose(row["d.vec"], sentence_vector(bodies[slug]), atol=1e-6)


def test_an_embedder_that_cannot_be_used_is_refused_when_a_write_needs_it(tmp_path):
    settings = Settings(durability="os", embed_provider="nobody")
    with og.init(tmp_path / "g.omni", schema=SCHEMA, settings=settings) as graph:
        with pytest.raises(EmbedderError, match="there is no embedding provider 'nobody'"):
            graph.mutate(QUERIES, {"slug": "a", "body": "b"}, name="add")
        with pytest.raises(EmbedderError, match="there is no embedding provider 'nobody'"):
            graph.load_frames({"Doc": [{"slug": "a", "body": "b"}]}, mode="append", engine="local")
        assert docs(graph) == {}
