"""Text search in memory against its definition, spelled out word by word."""

import math
import re
import unicodedata

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.catalog.texts import TEXT_ANALYSES
from omnigraph.engine.search.fulltext import (
    BM25_B,
    BM25_K1,
    TextIndex,
    build_segment,
    build_text_index,
    edit_distances,
    freeze_segment,
    join_segments,
    thaw_segment,
)
from omnigraph.storage.text_analysis import analyse, analyse_query, analyser_options

DOCUMENTS = ["reef", "tide", "tide tide tide", "Reefs!", None, "the tide and a reef", "Cafés are naïve"]
words = st.sampled_from(["tide", "reef", "the", "running", "Cafés", "x", "42", ""])
texts = st.lists(st.one_of(st.none(), st.lists(words, max_size=5).map(" ".join)), max_size=6)


def index_of(documents, analysis="english"):
    rows = np.arange(len(documents), dtype=np.int64)
    return build_text_index(pa.array(documents, pa.string()), rows, analysis)


def hits(ordinals):
    return ordinals.tolist()


def levenshtein(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row, before = [i], row
        for j, y in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (x != y)))
    return row[-1]


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ["plain", "folded", "english"])
@given(texts)
def test_many_texts_are_analysed_like_each_alone(analysis, documents):
    got = analyse(pa.array(documents, pa.string()), analysis)
    expected = [
        (i, token) for i, text in enumerate(documents) for token in analyse_query(text or "", analysis)
    ]
    assert list(zip(got.texts.tolist(), got.tokens.to_pylist(), strict=True)) == expected


LETTERS = "aZ0 -_'éÉßİıçΣσς東\u0301\u00a0ﬁÅ"


@given(st.text(LETTERS, max_size=30))
def test_plain_words_are_runs_of_letters_and_digits_in_lower_case(text):
    runs = re.findall(r"[^\W_]+", text)
    assert analyse_query(text, "plain") == ["".join(letter.lower() for letter in run) for run in runs]


@given(st.text(LETTERS, max_size=30))
def test_folded_words_do_not_depend_on_case_accents_and_composition(text):
    folded = analyse_query(text, "folded")
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        assert analyse_query(unicodedata.normalize(form, text), "folded") == folded
    assert analyse_query(text.casefold(), "folded") == folded
    assert analyse_query(" ".join(folded), "folded") == folded


def test_a_language_must_be_known_to_the_analyser():
    assert {name: analyse_query("x", name) for name in TEXT_ANALYSES} == {
        name: ["x"] for name in TEXT_ANALYSES
    }
    assert analyse_query("les maisons", "french") == ["maison"]


def test_plain_words_are_found_however_long_they_are():
    assert hits(index_of(["x" * 80, "y"], "plain").search("X" * 80)) == [0]


def test_any_token_matches_after_folding_and_stemming():
    index = index_of(DOCUMENTS)
    assert hits(index.search("REEF")) == [0, 3, 5]
    assert hits(index.search("reef tide")) == [0, 1, 2, 3, 5]
    assert hits(index.search("cafe")) == [6]
    assert hits(index.search("zebra")) == []
    assert hits(index.search("the")) == []


SPELLED = ["résumé", "café", "École", "clichés", "İzmir"]


def found_by_all(analysis, query):
    """The rows that the five functions find, which is the same for a word alone."""
    index = index_of(SPELLED, analysis)
    rows = hits(index.search(query))
    assert hits(index.phrase(query)) == hits(index.fuzzy(query, 0)) == hits(index.bm25(query)[0]) == rows
    return [SPELLED[row] for row in rows]


@pytest.mark.parametrize(
    ("analysis", "found"),
    [
        ("plain", [[], [], [], [], []]),
        ("folded", [["résumé"], ["café"], ["École"], ["clichés"], ["İzmir"]]),
        ("english", [[], ["café"], [], [], []]),
        ("french", [["résumé"], ["café"], ["École"], ["clichés"], []]),
    ],
)
def test_what_a_spelling_without_accents_finds(analysis, found):
    """What the page of the schema language says of each way."""
    assert [found_by_all(analysis, each) for each in ("resume", "CAFE", "ecole", "cliches", "izmir")] == found
    for spelled in SPELLED:
        assert found_by_all(analysis, spelled) == found_by_all(analysis, spelled.lower()) == [spelled] or (
            spelled == "İzmir" and analysis != "folded"
        )


def test_a_phrase_stays_inside_one_document_and_skips_stop_words():
    index = index_of(DOCUMENTS)
    assert hits(index.phrase("tide tide")) == [2]
    assert hits(index.phrase("tide reef")) == [5]
    assert hits(index.phrase("reef tide")) == []
    assert hits(index_of(["tide", "reef"]).phrase("tide reef")) == []


@pytest.mark.slow
@given(st.lists(st.text("abcé", max_size=6), max_size=8), st.text("abcé", max_size=6), st.integers(0, 3))
def test_edit_distance_is_exact_up_to_the_bound(vocabulary, word, edits):
    got = edit_distances(pa.array(vocabulary, pa.string()), word, edits)
    assert got.tolist() == [min(levenshtein(v, word), edits + 1) for v in vocabulary]


def test_fuzzy_finds_a_one_letter_typo():
    assert hits(index_of(DOCUMENTS).fuzzy("rief", 1)) == [0, 3, 5]
    assert hits(index_of(DOCUMENTS).fuzzy("rief", 0)) == []


def test_bm25_is_the_textbook_formula():
    index = index_of(["tide", "tide tide reef", "reef"])
    lengths, average = [1, 3, 1], 5 / 3
    rarity = math.log((3 - 2 + 0.5) / (2 + 0.5) + 1)

    def score(frequency, length):
        norm = BM25_K1 * (1 - BM25_B + BM25_B * length / average)
        return rarity * frequency * (BM25_K1 + 1) / (frequency + norm)

    rows, scores = index.bm25("tide")
    assert rows.tolist() == [0, 1]
    assert scores.tolist() == pytest.approx([score(1, lengths[0]), score(2, lengths[1])])


@pytest.mark.parametrize("analysis", ["plain", "english", "german"])
def test_membership_equals_the_inverted_index_of_the_table_format(tmp_path, analysis):
    documents = [d for d in DOCUMENTS if d is not None] + [
        "Running runs ran",
        "don't stop",
        "e-mail 3.14",
        "x" * 80,
        "ΟΔΟΣ İzmir Straße",
        "die Häuser",
    ]
    ds = lance.write_dataset(pa.table({"t": documents}), str(tmp_path / "t"))
    ds.create_scalar_index("t", "INVERTED", **analyser_options(analysis))
    index = index_of(documents, analysis)
    asked = ["reef", "tides", "run", "cafes naive", "mail", "14", "dont", "don't", "the", "x" * 80]
    for query in [*asked, "οδοσ", "İZMİR", "strasse", "straße", "haus", "die"]:
        found = ds.to_table(columns=[], full_text_query=query, with_row_id=True)["_rowid"].to_pylist()
        assert sorted(found) == hits(index.search(query)), query


@given(texts, texts, st.sampled_from(["tide", "reef tide", "Cafés x", "42 running", ""]))
@pytest.mark.slow
def test_two_segments_joined_are_one(left, right, query):
    """Cutting the documents anywhere changes nothing, and neither does a trip through a cache file."""
    documents = left + right
    whole = index_of(documents)
    rows = np.arange(len(documents), dtype=np.int64)
    first = build_segment(pa.array(left, pa.string()), rows[: len(left)], "english", first=0, rows=len(left))
    second = build_segment(
        pa.array(right, pa.string()), rows[len(left) :], "english", first=len(left), rows=len(right)
    )
    joined = join_segments(first, second)
    thawed = thaw_segment(0, freeze_segment(joined))
    for parts in ((first, second), (joined,), (thawed,)):
        index = TextIndex(parts, None, len(documents), "english")
        assert hits(index.search(query)) == hits(whole.search(query))
        assert hits(index.phrase(query)) == hits(whole.phrase(query))
        assert hits(index.fuzzy(query, 1)) == hits(whole.fuzzy(query, 1))
        for got, expected in zip(index.bm25(query), whole.bm25(query), strict=True):
            assert got.tolist() == expected.tolist()
        assert index.known.tolist() == [document is not None for document in documents]
