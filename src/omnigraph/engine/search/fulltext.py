"""Full-text search over one column of a table image: membership, phrases, near spellings, relevance.

Postings are made from the analysed text on first use and belong to the rows they were made from, so an answer
never depends on whether the table has an index of its own. They come in segments over ranges of ordinals: a
commit that adds rows adds a segment, one that deletes rows changes only the mask of live rows.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.text_buffers import text_bounds, text_bytes
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.search.segments import SegmentKind
from omnigraph.storage.text_analysis import analyse, analyse_query

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from omnigraph.arrays.types import Mask, Ordinals

BM25_K1: Final = 1.2
BM25_B: Final = 0.75

Scores = NDArray[np.float64]

SPARSE_SHARE: Final = 8
"""Scores are added up by sorting when they concern fewer rows than the table has divided by this."""

_NONE: Final[NDArray[np.int64]] = np.empty(0, np.int64)
_Occurrences = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]
"""Rows with a token, how often it stands there, and how long their texts are."""


@dataclass(frozen=True, slots=True, eq=False)
class TextSegment:
    """Postings of the rows from ordinal `first` on: the documents of each token, and its places in each.

    A document is a row, numbered from 0 in the segment. A place is unique over all documents of the segment,
    with a gap between two, so that a phrase cannot cross a boundary.
    """

    first: int
    vocabulary: pa.StringArray
    """Ascending by bytes."""
    starts: NDArray[np.int64]
    """Token to its first posting."""
    documents: NDArray[np.int64]
    """Posting to its document; ascending within a token."""
    counts: NDArray[np.int32]
    """Posting to how often the token stands in the document."""
    place_starts: NDArray[np.int64]
    """Token to its first place."""
    places: NDArray[np.int64]
    """Ascending within a token."""
    lengths: NDArray[np.int32]
    """Tokens of each document."""
    known: Mask
    """Whether the document has a text at all."""
    token_count: int
    """The tokens of all documents together."""
    absent: NDArray[np.int64]
    """Documents that were not there when the segment was made; it says nothing about them."""

    @property
    def rows(self) -> int:
        """How many ordinals it covers."""
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        postings = (self.starts, self.documents, self.counts, self.place_starts, self.places)
        rows = (self.lengths, self.known, self.absent)
        return sum(array.nbytes for array in (*postings, *rows)) + int(self.vocabulary.nbytes)

    def code(self, token: str) -> int:
        """The place of a token in the vocabulary; -1 when no document holds it."""
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

    def postings(self, code: int) -> slice:
        """The postings of a token."""
        return slice(int(self.starts[code]), int(self.starts[code + 1]))

    def near(self, words: Sequence[str], edits: int) -> Iterable[int]:
        """The tokens at most `edits` edits away from one of the words, each once."""
        close = [np.flatnonzero(edit_distances(self.vocabulary, word, edits) <= edits) for word in words]
        return np.unique(np.concatenate(close)).tolist() if close else []

    def holding(self, codes: Iterable[int]) -> Ordinals:
        """The rows that hold one of the tokens, ascending; -1 stands for a token that no row holds."""
        found = [self.documents[self.postings(code)] for code in codes if code >= 0]
        if not found:
            return _NONE
        rows = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
        return rows + self.first if self.first else rows

    def phrase(self, tokens: Sequence[str]) -> Ordinals:
        """The rows in which the tokens stand next to each other, in order, ascending."""
        codes = [self.code(token) for token in tokens]
        if not codes or any(code < 0 for code in codes):
            return _NONE
        spans = [slice(int(self.place_starts[code]), int(self.place_starts[code + 1])) for code in codes]
        rarest = min(range(len(codes)), key=lambda each: spans[each].stop - spans[each].start)
        begins = self.places[spans[rarest]] - rarest
        for distance, span in enumerate(spans):
            if distance != rarest:
                begins = begins[_among(begins + distance, self.places[span])]
        ends = np.cumsum(self.lengths.astype(np.int64) + 1)
        return np.unique(np.searchsorted(ends, begins, side="right")) + self.first


@dataclass(frozen=True, slots=True, eq=False)
class TextIndex:
    """The searchable text of one column at one state of its table. Every question is one pass over it."""

    segments: Iterable[TextSegment]
    live: Mask | None
    """By ordinal, which rows the state shows; None: all of them."""
    extent: int
    """One more than the greatest ordinal."""
    analysis: str
    """How a text becomes words, here and in the segments."""

    @property
    def document_count(self) -> int:
        """Rows the state shows; one without text is an empty document."""
        return self.extent if self.live is None else int(self.live.sum())

    @property
    def known(self) -> Mask:
        """By ordinal, whether the row has a text."""
        parts = [segment.known for segment in self.segments]
        return np.concatenate(parts) if parts else np.zeros(0, np.bool_)

    def search(self, query: str) -> Ordinals:
        """The rows that contain at least one token of the query, ascending."""
        tokens = set(analyse_query(query, self.analysis))
        return self._shown(
            segment.holding(segment.code(token) for token in tokens) for segment in self.segments
        )

    def fuzzy(self, query: str, edits: int) -> Ordinals:
        """The rows with a token at most `edits` edits away from a token of the query, ascending."""
        words = sorted(set(analyse_query(query, self.analysis)))
        return self._shown(segment.holding(segment.near(words, edits)) for segment in self.segments)

    def phrase(self, query: str) -> Ordinals:
        """The rows in which the tokens of the query stand next to each other, in order, ascending."""
        tokens = analyse_query(query, self.analysis)
        return self._shown(segment.phrase(tokens) for segment in self.segments)

    def bm25(self, query: str) -> tuple[Ordinals, Scores]:
        """The rows that hold a token of the query, ascending, and the relevance of each.

        Cost: the postings of the query's tokens.
        """
        tokens = sorted(set(analyse_query(query, self.analysis)))
        found: list[list[_Occurrences]] = [[] for _ in tokens]
        total = 0
        for segment in self.segments:
            total += self._length(segment)
            for number, token in enumerate(tokens):
                if (code := segment.code(token)) >= 0:
                    found[number].append(self._occurrences(segment, code))
        rows: list[Ordinals] = []
        weights: list[Scores] = []
        count = self.document_count
        average = max(total / count if count else 0.0, 1e-9)
        for each in found:
            if not each:
                continue
            ordinals, frequency, lengths = each[0] if len(each) == 1 else _joined(each)
            rarity = np.log((count - len(ordinals) + 0.5) / (len(ordinals) + 0.5) + 1)
            weight = rarity * frequency
            weight *= BM25_K1 + 1
            # Worked out in place, in the order of the formula: the sums below are compared bit by bit.
            norm = BM25_B * lengths
            norm /= average
            norm += 1 - BM25_B
            norm *= BM25_K1
            norm += frequency
            weight /= norm
            rows.append(ordinals)
            weights.append(weight)
        return self._summed(rows, weights)

    def _summed(self, rows: list[Ordinals], weights: list[Scores]) -> tuple[Ordinals, Scores]:
        """One sum per row, added in the order of the tokens, so that equal documents get equal sums."""
        if not rows:
            return _NONE, np.empty(0, np.float64)
        if len(rows) == 1:
            return rows[0], weights[0]
        if sum(map(len, rows)) * SPARSE_SHARE > self.extent:
            sums = np.zeros(self.extent, np.float64)
            held = np.zeros(self.extent, np.bool_)
            for ordinals, weight in zip(rows, weights, strict=True):
                sums[ordinals] += weight
                held[ordinals] = True
            found = np.flatnonzero(held)
            return found, sums[found]
        found, place = np.unique(np.concatenate(rows), return_inverse=True)
        # The stubs of bincount forget that weights make floats.
        added: Any = np.bincount(place.reshape(-1), np.concatenate(weights), minlength=len(found))
        return found, added

    def _occurrences(self, segment: TextSegment, code: int) -> _Occurrences:
        span = segment.postings(code)
        documents, counts = segment.documents[span], segment.counts[span]
        ordinals = documents + segment.first if segment.first else documents
        if self.live is not None:
            shown = self.live[ordinals]
            documents, counts, ordinals = documents[shown], counts[shown], ordinals[shown]
        return ordinals, counts, segment.lengths[documents]

    def _length(self, segment: TextSegment) -> int:
        """The tokens of the documents a state shows."""
        if self.live is None:
            return segment.token_count
        dead = np.flatnonzero(~self.live[segment.first : segment.first + segment.rows])
        return segment.token_count - int(segment.lengths[dead].sum(dtype=np.int64))

    def _shown(self, found: Iterable[Ordinals]) -> Ordinals:
        parts = list(found)
        ordinals = np.concatenate(parts) if parts else _NONE
        return ordinals if self.live is None else ordinals[self.live[ordinals]]


def build_segment(
    texts: pa.StringArray, ordinals: Ordinals, analysis: str, *, first: int, rows: int
) -> TextSegment:
    """Index the texts of the rows at `ordinals`, of the `rows` rows from `first` on.

    A null is a document without tokens.
    """
    analysed = analyse(texts, analysis)
    own = ordinals - first
    documents = own[analysed.texts]
    lengths = np.bincount(documents, minlength=rows).astype(np.int32)
    places = np.arange(len(documents), dtype=np.int64) + documents
    order = np.argsort(analysed.codes, kind="stable")
    codes, documents, places = analysed.codes[order], documents[order], places[order]
    # A posting begins where the token or the document changes.
    fresh = np.ones(len(codes), np.bool_)
    fresh[1:] = (codes[1:] != codes[:-1]) | (documents[1:] != documents[:-1])
    begins = np.flatnonzero(fresh)
    words = len(analysed.vocabulary)
    known = np.zeros(rows, np.bool_)
    known[own] = np.asarray(pc.is_valid(texts).to_numpy(zero_copy_only=False), np.bool_)
    there = np.zeros(rows, np.bool_)
    there[own] = True
    return TextSegment(
        first=first,
        vocabulary=analysed.vocabulary,
        starts=_starts(codes[begins], words),
        documents=documents[begins],
        counts=np.diff(begins, append=len(codes)).astype(np.int32),
        place_starts=_starts(codes, words),
        places=places,
        lengths=lengths,
        known=known,
        token_count=len(codes),
        absent=np.flatnonzero(~there),
    )


def _starts(codes: NDArray[np.int64], words: int) -> NDArray[np.int64]:
    """Where the run of each code begins in ascending codes, and where the last one ends."""
    starts = np.zeros(words + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=words), out=starts[1:])
    return starts


@dataclass(frozen=True, slots=True, eq=False)
class _Merged:
    """How two lists that are ordered by token become one."""

    order: NDArray[np.int64]
    starts: NDArray[np.int64]


def _merged(*sides: tuple[NDArray[np.int64], NDArray[np.int64]]) -> _Merged:
    """Sides are the new code of each token and where its run begins."""
    codes = np.concatenate([np.repeat(words, np.diff(starts)) for words, starts in sides])
    most = max((int(words.max()) + 1 for words, _ in sides if len(words)), default=0)
    return _Merged(np.argsort(codes, kind="stable"), _starts(codes, most))


def _joined(parts: Sequence[_Occurrences]) -> _Occurrences:
    ordinals, counts, lengths = zip(*parts, strict=True)
    return np.concatenate(ordinals), np.concatenate(counts), np.concatenate(lengths)


def join_segments(left: TextSegment, right: TextSegment) -> TextSegment:
    """One segment of two whose ranges follow each other. Cost: one sort of the postings, no text."""
    shift = right.first - left.first
    encoded: Any = pa.concat_arrays([left.vocabulary, right.vocabulary]).dictionary_encode()
    by_text = pc.array_sort_indices(encoded.dictionary)
    rank = np.empty(len(by_text), np.int64)
    rank[np.asarray(by_text)] = np.arange(len(by_text))
    words = rank[np.asarray(encoded.indices)]
    of_left, of_right = words[: len(left.vocabulary)], words[len(left.vocabulary) :]
    postings = _merged((of_left, left.starts), (of_right, right.starts))
    occurrences = _merged((of_left, left.place_starts), (of_right, right.place_starts))
    gap = left.token_count + left.rows
    return TextSegment(
        first=left.first,
        vocabulary=encoded.dictionary.take(by_text),
        starts=postings.starts,
        documents=np.concatenate([left.documents, right.documents + shift])[postings.order],
        counts=np.concatenate([left.counts, right.counts])[postings.order],
        place_starts=occurrences.starts,
        places=np.concatenate([left.places, right.places + gap])[occurrences.order],
        lengths=np.concatenate([left.lengths, right.lengths]),
        known=np.concatenate([left.known, right.known]),
        token_count=left.token_count + right.token_count,
        absent=np.concatenate([left.absent, right.absent + shift]),
    )


def freeze_segment(segment: TextSegment) -> dict[str, NDArray[Any]]:
    """A segment as plain arrays."""
    ends = text_bounds(segment.vocabulary)
    letters = np.frombuffer(text_bytes(segment.vocabulary)[ends[0] : ends[-1]], np.uint8)
    return {
        "words": ends - ends[0],
        "letters": letters,
        "starts": segment.starts,
        "documents": segment.documents,
        "counts": segment.counts,
        "place_starts": segment.place_starts,
        "places": segment.places,
        "lengths": segment.lengths,
        "known": segment.known,
        "absent": segment.absent,
    }


def thaw_segment(first: int, arrays: dict[str, NDArray[Any]]) -> TextSegment:
    """A segment of the arrays `freeze_segment` gave."""
    words = arrays["words"]
    vocabulary = pa.StringArray.from_buffers(
        len(words) - 1, pa.py_buffer(words), pa.py_buffer(arrays["letters"])
    )
    return TextSegment(
        first=first,
        vocabulary=vocabulary,
        starts=arrays["starts"],
        documents=arrays["documents"],
        counts=arrays["counts"],
        place_starts=arrays["place_starts"],
        places=arrays["places"],
        lengths=arrays["lengths"],
        known=arrays["known"],
        token_count=len(arrays["places"]),
        absent=arrays["absent"],
    )


def build_text_index(texts: pa.StringArray, ordinals: Ordinals, analysis: str) -> TextIndex:
    """Index the texts of the rows at `ordinals`, which are all that is shown."""
    rows = int(ordinals.max()) + 1 if len(ordinals) else 0
    segment = build_segment(texts, ordinals, analysis, first=0, rows=rows)
    live = None
    if len(segment.absent):
        live = np.ones(rows, np.bool_)
        live[segment.absent] = False
    return TextIndex((segment,), live, rows, analysis)


def _among(wanted: NDArray[np.int64], ascending: NDArray[np.int64]) -> Mask:
    """Which of the numbers are among the ascending ones."""
    if not len(ascending):
        return np.zeros(len(wanted), np.bool_)
    place = np.minimum(np.searchsorted(ascending, wanted), len(ascending) - 1)
    return ascending[place] == wanted


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


@cache
def texts(analysis: str) -> SegmentKind[TextSegment]:
    """Segments of words that are made in one way; those of another way are others, also in files."""
    return SegmentKind(
        f"texts-{analysis}",
        lambda values, ordinals, first, rows: build_segment(
            values, ordinals, analysis, first=first, rows=rows
        ),
        join_segments,
        freeze_segment,
        thaw_segment,
    )
