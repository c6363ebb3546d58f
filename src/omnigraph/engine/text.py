"""Full-text search over one column of a table image: membership, phrases, near spellings, relevance.

The index is built in memory from the analysed text on first use and belongs to the rows it was built from, so
an answer never depends on whether the table has an index of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.storage.text import analyse, analyse_query

if TYPE_CHECKING:
    from omnigraph.engine.images import Ordinals

BM25_K1: Final = 1.2
BM25_B: Final = 0.75

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class TextIndex:
    """Postings of one column: for each token the places where it stands, in document order.

    Documents are positions in the list of live rows the index was built from; `ordinals` names the rows.
    """

    ordinals: Ordinals
    vocabulary: pa.StringArray
    starts: NDArray[np.int64]
    documents: NDArray[np.int64]
    places: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self.ordinals, self.starts, self.documents, self.places, self.lengths)
        return sum(a.nbytes for a in arrays) + int(self.vocabulary.nbytes)

    def search(self, query: str) -> Mask:
        """The documents that contain at least one token of the query."""
        return self._holding(self._codes(set(analyse_query(query))))

    def fuzzy(self, query: str, edits: int) -> Mask:
        """The documents with a token at most `edits` edits away from a token of the query."""
        words = sorted(set(analyse_query(query)))
        near = [np.flatnonzero(edit_distances(self.vocabulary, word, edits) <= edits) for word in words]
        codes: NDArray[np.int64] = np.unique(np.concatenate(near)) if near else np.empty(0, np.int64)
        return self._holding(codes)

    def phrase(self, query: str) -> Mask:
        """The documents in which the tokens of the query stand next to each other, in order."""
        found = np.zeros(len(self.ordinals), np.bool_)
        tokens = analyse_query(query)
        if not tokens:
            return found
        codes = [self._code(token) for token in tokens]
        if any(code < 0 for code in codes):
            return found
        begins = self.places[self._span(codes[0])]
        for distance, code in enumerate(codes[1:], start=1):
            begins = begins[np.isin(begins + distance, self.places[self._span(code)])]
        # A place is unique over all documents, with a gap between two, so a phrase cannot cross a boundary.
        starts = np.cumsum(self.lengths + 1) - (self.lengths + 1)
        found[np.searchsorted(starts, begins, side="right") - 1] = True
        return found

    def bm25(self, query: str) -> NDArray[np.float64]:
        """The relevance of every document; 0 where no token of the query occurs."""
        scores = np.zeros(len(self.ordinals), np.float64)
        count = len(self.lengths)
        if count == 0:
            return scores
        average = max(float(self.lengths.mean()), 1e-9)
        norm = BM25_K1 * (1 - BM25_B + BM25_B * self.lengths / average)
        for token in sorted(set(analyse_query(query))):
            code = self._code(token)
            if code < 0:
                continue
            documents, frequency = np.unique(self.documents[self._span(code)], return_counts=True)
            rarity = np.log((count - len(documents) + 0.5) / (len(documents) + 0.5) + 1)
            scores[documents] += rarity * frequency * (BM25_K1 + 1) / (frequency + norm[documents])
        return scores

    def _holding(self, codes: NDArray[np.int64]) -> Mask:
        found = np.zeros(len(self.ordinals), np.bool_)
        for code in codes.tolist():
            found[self.documents[self._span(code)]] = True
        return found

    def _span(self, code: int) -> slice:
        return slice(int(self.starts[code]), int(self.starts[code + 1]))

    def _code(self, token: str) -> int:
        # The vocabulary is sorted by bytes, which for UTF-8 is the order of code points.
        low, high = 0, len(self.vocabulary)
        while low < high:
            middle = (low + high) // 2
            if self.vocabulary[middle].as_py() < token:
                low = middle + 1
            else:
                high = middle
        hit = low < len(self.vocabulary) and self.vocabulary[low].as_py() == token
        return low if hit else -1

    def _codes(self, tokens: set[str]) -> NDArray[np.int64]:
        codes = [self._code(token) for token in tokens]
        return np.array([code for code in codes if code >= 0], np.int64)


def build_text_index(texts: pa.StringArray, ordinals: Ordinals) -> TextIndex:
    """Index the texts of the rows at `ordinals`; a null is a document without tokens."""
    analysed = analyse(texts)
    encoded: Any = analysed.tokens.dictionary_encode()
    by_text = pc.array_sort_indices(encoded.dictionary)
    vocabulary = encoded.dictionary.take(by_text)
    rank = np.empty(len(vocabulary), np.int64)
    rank[np.asarray(by_text)] = np.arange(len(vocabulary))
    codes = rank[np.asarray(encoded.indices)] if len(vocabulary) else np.empty(0, np.int64)
    lengths = np.bincount(analysed.texts, minlength=len(texts)).astype(np.int64)
    places = np.arange(len(codes), dtype=np.int64) + analysed.texts
    order = np.argsort(codes, kind="stable")
    starts = np.zeros(len(vocabulary) + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=len(vocabulary)), out=starts[1:])
    return TextIndex(
        ordinals=ordinals,
        vocabulary=vocabulary,
        starts=starts,
        documents=analysed.texts[order],
        places=places[order],
        lengths=lengths,
    )


def edit_distances(words: pa.StringArray, word: str, edits: int) -> NDArray[np.int64]:
    """The edit distance of every word to `word`, exact up to `edits`, larger than it otherwise.

    All words advance through the distance table together, one row of it at a time.
    """
    far = edits + 1
    result = np.full(len(words), far, np.int64)
    lengths = np.asarray(pc.utf8_length(words).to_numpy(zero_copy_only=False), np.int64)
    chosen = np.flatnonzero(np.abs(lengths - len(word)) <= edits)
    if not len(chosen):
        return result
    width = len(word) + edits
    letters = np.zeros((len(chosen), max(width, 1)), np.uint32)
    for column in range(width):
        letter = pc.utf8_slice_codeunits(words.take(pa.array(chosen)), column, column + 1)
        letters[:, column] = _code_points(letter)
    previous = np.tile(np.arange(width + 1, dtype=np.int64), (len(chosen), 1))
    for row, character in enumerate(word, start=1):
        current = np.empty_like(previous)
        current[:, 0] = row
        for column in range(1, width + 1):
            differs = letters[:, column - 1] != ord(character)
            best = np.minimum(previous[:, column] + 1, previous[:, column - 1] + differs)
            current[:, column] = np.minimum(best, current[:, column - 1] + 1)
        previous = current
    result[chosen] = np.minimum(previous[np.arange(len(chosen)), lengths[chosen]], far)
    return result


def _code_points(letters: pa.StringArray) -> NDArray[np.uint32]:
    """The code point of each one-letter string; 0 for an empty one."""
    encoded: Any = letters.dictionary_encode()
    points = np.array([ord(text) if text else 0 for text in encoded.dictionary.to_pylist()], np.uint32)
    return points[np.asarray(encoded.indices)]
