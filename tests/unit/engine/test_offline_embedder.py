"""The offline embedder against a slow evaluation of its definition, one number at a time."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnigraph.engine.search.offline_embedder import OfflineEmbedder, fnv1a

OFFLINE = OfflineEmbedder("m")
ZERO_HASHES = ["77kepQFQ8Kl", "!0IC=VloaY"]


def single(number: float) -> float:
    """A double narrowed to single precision."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def defined(text: str, dimension: int) -> list[float]:
    state = 14695981039346656037
    for byte in text.encode("utf-8"):
        state = ((state ^ byte) * 1099511628211) % 2**64
    numbers, squares = [], 0.0
    for _ in range(dimension):
        state = state ^ (state << 13) % 2**64
        state = state ^ (state >> 7)
        state = state ^ (state << 17) % 2**64
        r = single(float(state) / float(2**64 - 1))
        numbers.append(single(2 * r - 1))
        squares += numbers[-1] * numbers[-1]
    norm = single(math.sqrt(squares))
    return [single(number / norm) for number in numbers]


@pytest.mark.slow
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5), st.integers(1, 40))
def test_vectors_are_those_of_the_definition_bit_by_bit(texts, dimension):
    found = OFFLINE.embed(texts, dimension)
    assert found.dtype == np.float32
    assert found.tolist() == [defined(text, dimension) for text in texts]


@pytest.mark.parametrize(
    ("data", "hashed"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_known_hashes(data, hashed):
    assert fnv1a(data) == hashed


KNOWN = {
    "": [-0.462013632, -0.81558466, -0.348374963],
    "reef": [-0.390018493, 0.798613667, 0.458368599],
    "Straße 東京 🐚": [0.886003733, -0.176557824, -0.428747803],
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_vectors(text):
    assert OFFLINE.embed([text], 3)[0].tolist() == [single(number) for number in KNOWN[text]]


@pytest.mark.parametrize("text", ZERO_HASHES)
def test_a_text_whose_hash_is_zero_has_equal_negative_components(text):
    assert fnv1a(text.encode()) == 0
    assert OFFLINE.embed([text], 4).tolist() == [[-0.5] * 4]


def test_a_text_gives_the_same_vector_alone_and_among_others():
    together = OFFLINE.embed(["reef", "tide", "moss"], 1536)
    assert together[1].tolist() == OFFLINE.embed(["tide"], 1536)[0].tolist()
    assert np.linalg.norm(together.astype(np.float64), axis=1) == pytest.approx(1, abs=2e-7)


def test_no_texts_and_one_component():
    assert OFFLINE.embed([], 3).shape == (0, 3)
    assert set(np.abs(OFFLINE.embed(["a", "b", "c", "d"], 1)).ravel().tolist()) == {1.0}
