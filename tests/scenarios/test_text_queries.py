"""Texts in `nearest`: everywhere it may stand, by whom they are embedded, and what is refused before that."""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import omnigraph as og
from omnigraph.core.errors import BadRequest, Cancelled, DeadlineExceeded, EmbedderError
from omnigraph.core.events import TextsEmbedded, listen
from omnigraph.core.settings import Settings
from omnigraph.engine.read import query as query_module
from omnigraph.engine.search.offline_embedder import OfflineEmbedder

SCHEMA = """
node Doc {
  slug: String @key
  body: String
  vec: Vector(2)? @embed(body)
  deep: Vector(3)? @embed(body)
  old: Vector(2)? @embed(body, model="m1")
}
edge Cites: Doc -> Doc
"""
ROWS = {
    "d1": {"body": "reef", "vec": [1.0, 0.0], "deep": [1.0, 0.0, 0.0], "old": [1.0, 0.0]},
    "d2": {"body": "tide", "vec": [0.0, 1.0], "deep": [0.0, 1.0, 0.0], "old": [0.0, 1.0]},
    "d3": {"body": "tide reef", "vec": [-3.0, 0.5], "deep": None, "old": None},
    "d4": {"body": "moss", "vec": None, "deep": [0.0, 0.0, 1.0], "old": None},
}
RANKED = """query near($t: String?) {
  match { $d: Doc } return { $d.slug } order { nearest($d.vec, $t) } limit 9
}"""


@dataclass
class Counting:
    """An embedder that remembers what it was asked for and gives vectors of its own choice."""

    model: str = "m1"
    asked: list[tuple[list[str], int]] = field(default_factory=list)
    answer: Any = None

    def embed(self, texts: Sequence[str], dimension: int) -> Any:
        self.asked.append((list(texts), dimension))
        if callable(self.answer):
            return self.answer(texts, dimension)
        return OfflineEmbedder(self.model).embed(texts, dimension) if self.answer is None else self.answer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    where = tmp_path_factory.mktemp("texts") / "docs.omni"
    with og.init(where, schema=SCHEMA, settings=Settings(durability="os")) as graph:
        frame = [{"slug": slug, **row} for slug, row in ROWS.items()]
        graph.load_frames({"Doc": frame}, mode="append", engine="local")
        graph.mutate(
            'query q() { insert Cites { from: "d1", to: "d2" } insert Cites { from: "d1", to: "d3" } }'
        )
    return where


def opened(place, embedder=None, **settings):
    return og.open_read_only(place, settings=Settings(durability="os", **settings), embedder=embedder)


@pytest.fixture
def counting():
    return Counting()


@pytest.fixture
def graph(place, counting):
    with opened(place, counting) as found:
        yield found


def offline(text: str, dimension: int = 2) -> list[float]:
    return OfflineEmbedder("any").embed([text], dimension)[0].tolist()


def distance(slug: str, text: str, column: str = "vec") -> float | None:
    vector = ROWS[slug][column]
    return None if vector is None else math.dist(vector, offline(text, len(vector)))


def ranking(text: str) -> list[str]:
    found = [(away, slug) for slug in ROWS if (away := distance(slug, text)) is not None]
    return [slug for _, slug in sorted(found)]


def slugs(rows) -> list[str]:
    return [row["d.slug"] for row in rows]


# --- everywhere ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["reef", "tide", "", "Straße 東京", "77kepQFQ8Kl", 'a "quoted" text'])
def test_a_text_ranks_as_brute_force_over_its_vector_does(graph, text):
    assert slugs(graph.query(RANKED, {"t": text})) == ranking(text)
    by_vector = RANKED.replace("String?", "Vector(2)")
    assert slugs(graph.query(by_vector, {"t": offline(text)})) == ranking(text)


def test_many_texts_rank_as_brute_force_does(tmp_path):
    random = np.random.default_rng(7)
    vectors = random.normal(size=(300, 24)).astype(np.float32)
    rows = [{"slug": f"{place:03}", "vec": vector.tolist()} for place, vector in enumerate(vectors)]
    schema = "node Doc { slug: String @key  vec: Vector(24) @index }"
    with og.init(
        tmp_path / "many.omni", schema=schema, settings=Settings(durability="os", embed_provider="mock")
    ) as graph:
        graph.load_frames({"Doc": rows}, mode="append", engine="local")
        for text in ("reef", "tide and moss", ""):
            away = np.linalg.norm(vectors - OfflineEmbedder("any").embed([text], 24)[0], axis=1)
            assert slugs(graph.query(RANKED, {"t": text})) == [
                f"{place:03}" for place in np.argsort(away)[:9]
            ]


def test_a_literal_text_ranks(graph):
    query = 'query q() { match { $d: Doc } return { $d.slug } order { nearest($d.vec, "moss") } limit 9 }'
    assert slugs(graph.query(query)) == ranking("moss")


def test_a_distance_is_a_column(graph):
    query = 'query q() { match { $d: Doc } return { $d.slug, nearest($d.vec, "moss") as away } order { away asc } }'
    found = {row["d.slug"]: row["away"] for row in graph.query(query)}
    assert found == {slug: pytest.approx(distance(slug, "moss")) for slug in ROWS}
    assert found["d4"] is None


@pytest.mark.parametrize("clause", ["nearest($d.vec, $t) < 1.5", "not { nearest($d.vec, $t) >= 1.5 }"])
def test_a_distance_filters(graph, clause):
    query = f"query q($t: String) {{ match {{ $d: Doc  {clause} }} return {{ $d.slug }} }}"
    near = {slug for slug in ROWS if (away := distance(slug, "moss")) is not None and away < 1.5}
    unknown = {"d4"} if clause.startswith("not") else set()
    assert 0 < len(near) < 3
    assert set(slugs(graph.query(query, {"t": "moss"}))) == near | unknown


def test_a_distance_after_a_traversal_and_in_a_maybe_block(graph):
    query = """query q($t: String) { match { $s: Doc { slug: "d1" } $s cites $d }
      return { $d.slug, nearest($d.vec, $t) as away } order { nearest($d.vec, $t) } limit 5 }"""
    assert slugs(graph.query(query, {"t": "moss"})) == [
        slug for slug in ranking("moss") if slug in {"d2", "d3"}
    ]
    query = """query q($t: String) { match { $s: Doc  maybe { $s cites $d  nearest($d.vec, $t) < 9.0 } }
      return { $s.slug, $d.slug } }"""
    assert len(graph.query(query, {"t": "moss"})) == 5


def test_a_fused_ranking_takes_a_text_for_both_arms(graph):
    query = """query q($t: String) { match { $d: Doc } return { $d.slug }
      order { rrf(nearest($d.vec, $t), bm25($d.body, $t)) } limit 4 }"""
    arms = [
        ranking("tide"),
        slugs(
            graph.query("""query q() { match { $d: Doc } return { $d.slug }
      order { bm25($d.body, "tide") } }""")
        ),
    ]
    scores = {
        slug: sum(1 / (61 + arm.index(slug)) for arm in arms if slug in arm) for slug in ranking("tide")
    }
    assert slugs(graph.query(query, {"t": "tide"})) == sorted(scores, key=lambda slug: -scores[slug])


@pytest.mark.parametrize("arms", ["{a}, {b}", "{b}, {a}"])
def test_a_text_may_be_in_either_arm_alone(graph, arms):
    fused = arms.format(a="nearest($d.vec, $t)", b='bm25($d.body, "reef")')
    query = (
        f"query q($t: String) {{ match {{ $d: Doc }} return {{ $d.slug }} order {{ rrf({fused}) }} limit 4 }}"
    )
    by_vector = query.replace("String", "Vector(2)")
    assert slugs(graph.query(query, {"t": "moss"})) == slugs(graph.query(by_vector, {"t": offline("moss")}))


# --- how often -------------------------------------------------------------------------------------------


def test_a_query_embeds_each_text_once_for_each_dimension(graph, counting):
    query = """query q($t: String, $u: String) {
      match { $d: Doc  nearest($d.vec, $t) < 99.0  not { nearest($d.deep, $u) > 99.0 } }
      return { $d.slug, nearest($d.vec, $t) as a, nearest($d.vec, "moss") as b, nearest($d.deep, $t) as c,
               nearest($d.old, $u) as e }
      order { rrf(nearest($d.vec, $t), nearest($d.deep, $t)) } limit 9 }"""
    heard: list[Any] = []
    with listen(heard.append):
        graph.query(query, {"t": "reef", "u": "reef"})
    assert sorted((sorted(texts), dimension) for texts, dimension in counting.asked) == [
        (["moss", "reef"], 2),
        (["reef"], 3),
    ]
    told = [event for event in heard if isinstance(event, TextsEmbedded)]
    assert sorted((event.model, event.texts, event.dimension) for event in told) == [
        ("m1", 1, 3),
        ("m1", 2, 2),
    ]


def test_a_null_text_ranks_nothing_and_embeds_nothing(place, graph, counting):
    assert slugs(graph.query(RANKED, {"t": None})) == []
    query = "query q($t: String?) { match { $d: Doc } return { nearest($d.vec, $t) as away } }"
    assert [row["away"] for row in graph.query(query, {"t": None})] == [None] * 4
    assert counting.asked == []
    with opened(place) as nobody:
        assert slugs(nobody.query(RANKED, {"t": None})) == []


def test_explain_embeds_nothing_and_says_by_which_model(graph, counting):
    told = str(graph.explain(RANKED, {"t": "reef"}))
    assert "the text is embedded by the model 'm1'" in told
    assert counting.asked == []
    operators = graph.explain(RANKED, {"t": "reef"}, analyze=True).to_dict()["operators"]
    (rank,) = (each for each in operators if each["operator"] == "rank")
    assert rank["embedding"] == "the text is embedded by the model 'm1'"
    assert counting.asked == [(["reef"], 2)]


@pytest.mark.parametrize(
    "query",
    [
        'query q() { match { $d: Doc nearest($d.vec, "a") < 1.0 } return { $d.slug } }',
        'query q() { match { $d: Doc not { nearest($d.vec, "a") < 1.0 } } return { $d.slug } }',
        'query q() { match { $d: Doc } return { nearest($d.vec, "a") as away } }',
        'query q() { match { $d: Doc } return { $d.slug } order { rrf(nearest($d.vec, "a"), bm25($d.body, "a")) } limit 1 }',
    ],
)
def test_explain_finds_the_text_wherever_it_stands(graph, query):
    assert str(graph.explain(query)).count("the text is embedded by the model 'm1'") == 1


# --- refused ---------------------------------------------------------------------------------------------


def test_without_an_embedder_a_text_is_refused_and_a_vector_is_not(place):
    with opened(place) as nobody:
        with pytest.raises(EmbedderError, match="no embedder is configured") as caught:
            nobody.query(RANKED, {"t": "reef"})
        assert "OMNIGRAPH_EMBED_PROVIDER" in (caught.value.hint or "")
        assert "embedder" in (caught.value.hint or "")
        assert "cannot be embedded: no embedder is configured" in str(nobody.explain(RANKED, {"t": "reef"}))
        by_vector = RANKED.replace("String?", "Vector(2)")
        assert slugs(nobody.query(by_vector, {"t": [1.0, 0.0]}))[0] == "d1"


def test_another_model_is_refused_before_anything_is_embedded_or_searched(place, monkeypatch):
    other = Counting("m2")
    query = """query q($t: String) { match { $d: Doc } return { $d.slug, nearest($d.vec, $t) as a }
      order { nearest($d.old, $t) } limit 1 }"""
    with opened(place, other) as graph:
        with monkeypatch.context() as patched:
            patched.setattr(query_module, "Matcher", lambda *_, **__: pytest.fail("the match was run"))
            with pytest.raises(EmbedderError) as caught:
                graph.query(query, {"t": "reef"})
        assert other.asked == []
        assert slugs(graph.query(RANKED, {"t": "reef"})) == ranking("reef")
    assert caught.value.message == "Doc.old was embedded with 'm1', the embedder uses 'm2'"
    assert caught.value.retry == "never"


def test_the_same_model_is_not(graph):
    query = RANKED.replace("$d.vec", "$d.old")
    assert set(slugs(graph.query(query, {"t": "reef"}))) == {"d1", "d2"}


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([[0.0, 0.0]], "a vector of zeros"),
        ([[1.0, math.nan]], "not finite"),
        ([[1.0, 0.0, 0.0]], "3 components"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(graph, counting, answer, said):
    counting.answer = answer
    with pytest.raises(EmbedderError, match=said):
        graph.query(RANKED, {"t": "reef"})


def test_answers_of_any_length_rank_as_unit_vectors(graph, counting):
    counting.answer = [[0.0, 1000.0]]
    query = 'query q($t: String) { match { $d: Doc { slug: "d2" } } return { nearest($d.vec, $t) as away } }'
    assert graph.query(query, {"t": "reef"})[0]["away"] == 0.0


def test_a_failing_embedder_is_a_typed_error_that_keeps_the_cause(graph, counting):
    def fail(texts, dimension):
        raise RuntimeError("s3cret")

    counting.answer = fail
    with pytest.raises(EmbedderError, match="'m1' failed with RuntimeError") as caught:
        graph.query(RANKED, {"t": "reef"})
    assert "s3cret" not in str(caught.value.to_dict())
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("wrong", ["openai", object()])
def test_what_is_no_embedder_is_refused_when_the_graph_is_opened(tmp_path, place, wrong):
    for opening in (og.open, og.open_read_only):
        with pytest.raises(BadRequest, match="is not an embedder"):
            opening(place, embedder=wrong)
    with pytest.raises(BadRequest, match="is not an embedder"):
        og.init(tmp_path / "never.omni", schema=SCHEMA, embedder=wrong)
    assert not (tmp_path / "never.omni").exists()


# --- limits ----------------------------------------------------------------------------------------------


def test_a_query_that_waits_for_an_embedder_ends_with_its_time_and_when_cancelled(place, counting):
    release, entered = threading.Event(), threading.Event()

    def hold(texts, dimension):
        entered.set()
        release.wait(30)
        return [[1.0, 0.0]]

    counting.answer = hold
    try:
        with opened(place, counting, query_seconds=0.2) as graph, pytest.raises(DeadlineExceeded):
            graph.query(RANKED, {"t": "reef"})
        entered.clear()
        cancel = og.Cancellation()
        threading.Thread(target=lambda: (entered.wait(30), cancel.request())).start()
        with opened(place, counting) as graph, pytest.raises(Cancelled):
            graph.query(RANKED, {"t": "reef"}, cancel=cancel)
    finally:
        release.set()


def test_an_embedder_may_be_given_to_every_way_to_open(tmp_path, counting):
    where = tmp_path / "ways.omni"
    with og.init(where, schema=SCHEMA, settings=Settings(durability="os"), embedder=counting) as graph:
        graph.mutate('query q() { insert Doc { slug: "a", body: "x", vec: [1.0, 0.0] } }')
        assert slugs(graph.query(RANKED, {"t": "reef"})) == ["a"]
        assert slugs(graph.at("main").query(RANKED, {"t": "reef"})) == ["a"]
    with og.open(where, settings=Settings(durability="os"), embedder=counting) as graph:
        assert slugs(graph.query(RANKED, {"t": "reef"})) == ["a"]
    assert counting.asked.count((["reef"], 2)) == 3
