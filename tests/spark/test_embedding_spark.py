"""Vectors that records leave out are made in the tasks of a load, by a copy of the embedder."""

import threading
from pathlib import Path

import numpy as np
import pytest

import minilm
import omnigraph as og
from omnigraph.core.errors import BadRequest, EmbedderError
from omnigraph.core.settings import Settings
from omnigraph.engine.search.offline_embedder import OfflineEmbedder

SCHEMA = "node Doc { slug: String @key  body: String?  vec: Vector(3) @embed(body) }"


def rows(count: int) -> list[dict[str, str]]:
    return [{"slug": f"{place:04}", "body": f"text {place}"} for place in range(count)]


def vectors(graph) -> dict[str, list[float]]:
    found = graph.query("query q() { match { $d: Doc } return { $d.body, $d.vec } }")
    return {row["d.body"]: row["d.vec"] for row in found}


def offline(texts) -> dict[str, list[float]]:
    return {text: OfflineEmbedder("any").embed([text], 3)[0].tolist() for text in texts}


def test_tasks_make_the_configured_embedder_themselves(tmp_path):
    settings = Settings(durability="os", embed_provider="mock")
    with og.init(tmp_path / "g.omni", schema=SCHEMA, settings=settings) as graph:
        report = graph.load_frames({"Doc": rows(500)}, mode="append")
        assert report.engine == "spark"
        assert vectors(graph) == offline(row["body"] for row in rows(500))
        assert graph.verify().violations == ()


def test_an_embedder_that_is_given_goes_along_with_its_class(tmp_path):
    class Own:  # of no module that a worker could import
        model = "own"

        def embed(self, texts, dimension):
            return [[1.0 + len(text), 1.0, 1.0][:dimension] for text in texts]

    with og.init(
        tmp_path / "g.omni", schema=SCHEMA, settings=Settings(durability="os"), embedder=Own()
    ) as graph:
        graph.load_frames({"Doc": [{"slug": "a", "body": "x"}, {"slug": "b", "body": "xyz"}]}, mode="append")
        found = vectors(graph)
    assert found == {
        text: pytest.approx(
            (np.array([1.0 + len(text), 1, 1]) / np.hypot(1 + len(text), np.sqrt(2))).tolist()
        )
        for text in ("x", "xyz")
    }


def test_what_cannot_travel_or_fails_there_is_an_error_and_changes_nothing(tmp_path):
    class Held:
        model = "held"

        def __init__(self):
            self.lock = threading.Lock()

        def embed(self, texts, dimension):
            with self.lock:
                return [[1.0] * dimension for _ in texts]

    class Failing:
        model = "failing"

        def embed(self, texts, dimension):
            raise ConnectionError("no route")

    place, settings = tmp_path / "g.omni", Settings(durability="os")
    with og.init(place, schema=SCHEMA, settings=settings, embedder=Held()) as graph:
        with pytest.raises(BadRequest, match="cannot be sent to Spark"):
            graph.load_frames({"Doc": rows(3)}, mode="append")
        graph.load_frames({"Doc": rows(1)}, mode="append", engine="local")
    with og.open(place, settings=settings, embedder=Failing()) as graph:
        with pytest.raises(EmbedderError, match="ConnectionError"):
            graph.load_frames({"Doc": rows(3)}, mode="merge")
        assert len(vectors(graph)) == 1


def test_a_real_model_embeds_on_spark_as_it_does_here(tmp_path):
    tests = str(Path(minilm.__file__).parent)

    class Lazy:
        """The model is loaded where the texts are."""

        model = "all-MiniLM-L6-v2"

        def embed(self, texts, dimension):
            import sys

            sys.path.append(tests)
            from minilm import MiniLM

            return MiniLM().embed(texts, dimension)

    schema = SCHEMA.replace("Vector(3)", "Vector(384)")
    texts = [f"a sentence about {what}" for what in ("tides", "bread", "shares", "cats")]
    with og.init(
        tmp_path / "g.omni", schema=schema, settings=Settings(durability="os"), embedder=Lazy()
    ) as graph:
        frame = [{"slug": text, "body": text} for text in texts]
        assert graph.load_frames({"Doc": frame}, mode="append").engine == "spark"
        found = vectors(graph)
    for text in texts:
        assert np.allclose(found[text], minilm.sentence_vector(text), atol=1e-6)
