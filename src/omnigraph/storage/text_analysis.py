"""Text analysis, exactly as the table format's inverted indexes do it.

The one analyser: what it says about a text and about a query decides a search, with or without an index.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ANALYSED_WORDS_MAX: Final = 65_536
"""Words analysed by one call of the substrate; bounds the token objects alive at once."""

SPLIT_TEXTS_MAX: Final = 65_536
"""Texts split into words at a time."""

TOKEN_LENGTH_MAX: Final = 40

_BOUNDARY: Final = str(secrets.randbits(100) | 1 << 99)
"""Stands between two words of one call. All digits, so that no analysis step changes it; no word holds it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of many texts, in order: which text each belongs to, and the token as a code."""

    texts: NDArray[np.int64]
    codes: NDArray[np.int64]
    vocabulary: pa.StringArray
    """The distinct tokens, ascending by bytes; a code is a place in it."""

    @property
    def tokens(self) -> pa.StringArray:
        """The tokens themselves."""
        return self.vocabulary.take(pa.array(self.codes))


def analyse(texts: pa.StringArray) -> Tokens:
    """The tokens of every text; a null has none.

    A space always ends a token, and no step of the analysis looks at a token's neighbours. So a text is
    split there first and each distinct word is analysed once, however often it occurs.
    Cost: about a microsecond for each distinct word, and a tenth of that for each occurrence.
    """
    owners: list[NDArray[np.int64]] = []
    parts: list[Any] = []
    for first in range(0, len(texts), SPLIT_TEXTS_MAX):
        words = pc.ascii_split_whitespace(texts.slice(first, SPLIT_TEXTS_MAX))
        owners.append(np.asarray(pc.list_parent_indices(words), np.int64) + first)
        parts.append(pc.list_flatten(words).dictionary_encode())
    if not parts:
        return Tokens(np.empty(0, np.int64), np.empty(0, np.int64), pa.array([], pa.string()))
    joined: Any = pa.chunked_array(parts).unify_dictionaries()
    places = np.concatenate([np.asarray(part.indices, np.int64) for part in joined.chunks])
    counts, codes, vocabulary = _analyse_words(joined.chunk(0).dictionary)
    starts = np.cumsum(counts) - counts
    of_word = counts[places]
    return Tokens(
        np.repeat(np.concatenate(owners), of_word), codes[spread(starts[places], of_word)], vocabulary
    )


def spread(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The numbers start, start + 1, ... of each range, one range after the other."""
    total = int(counts.sum())
    ends = np.cumsum(counts)
    return np.arange(total, dtype=np.int64) + np.repeat(starts - (ends - counts), counts)


def analyse_query(text: str) -> list[str]:
    """The tokens of one query text, in order, repetitions kept."""
    return [token.text for token in lance.tokenize(text, max_token_length=TOKEN_LENGTH_MAX)]


def _analyse_words(words: pa.StringArray) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.StringArray]:
    """How many tokens each word has, the tokens as codes, and what the codes stand for."""
    counts: list[NDArray[np.int64]] = []
    found: list[pa.StringArray] = []
    for first in range(0, len(words), ANALYSED_WORDS_MAX):
        chunk = words.slice(first, ANALYSED_WORDS_MAX)
        tokens = pa.array(list(_tokens(chunk)), pa.string())
        boundary = np.asarray(pc.equal(tokens, _BOUNDARY).to_numpy(zero_copy_only=False), np.bool_)
        owner = np.cumsum(boundary)[~boundary]
        counts.append(np.bincount(owner, minlength=len(chunk)).astype(np.int64))
        found.append(tokens.filter(pa.array(~boundary)))
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64), pa.array([], pa.string())
    encoded: Any = pa.concat_arrays(found).dictionary_encode()
    by_text = pc.array_sort_indices(encoded.dictionary)
    rank = np.empty(len(by_text), np.int64)
    rank[np.asarray(by_text)] = np.arange(len(by_text))
    return np.concatenate(counts), rank[np.asarray(encoded.indices)], encoded.dictionary.take(by_text)


def _tokens(chunk: pa.StringArray) -> Iterator[str]:
    joined = f" {_BOUNDARY} ".join(chunk.to_pylist())
    return (token.text for token in lance.tokenize(joined, max_token_length=TOKEN_LENGTH_MAX))
