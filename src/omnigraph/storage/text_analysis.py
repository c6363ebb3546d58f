"""Text analysis, exactly as the table format's inverted indexes do it.

The one place where a text becomes words: what it says about a text and about a query decides a search, with
or without an index. How, is what the schema says of the property (`catalog/texts`).
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.texts import FOLDED, LANGUAGES, PLAIN
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ANALYSED_WORDS_MAX: Final = 65_536
"""Words analysed by one call of the substrate; bounds the token objects alive at once."""

SPLIT_TEXTS_MAX: Final = 65_536
"""Texts split into words at a time."""

_MARKS: Final = re.compile("[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")
"""Marks that are written over, under and through letters: accents. Vowel signs are letters of their own."""

_BOUNDARY: Final = str(int.from_bytes(os.urandom(12), "big") | 1 << 99)
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


def analyser_options(analysis: str) -> dict[str, Any]:
    """What the table format is told, here and when it builds an index, about one of `TEXT_ANALYSES`."""
    by_language = analysis in LANGUAGES
    return {
        "base_tokenizer": "simple",
        "language": analysis.capitalize() if by_language else "English",
        "lower_case": True,
        "stem": by_language,
        "remove_stop_words": by_language,
        "ascii_folding": analysis != PLAIN,
        # Of words of a language the longest are no words; plain ones are found however long they are.
        "max_token_length": 40 if by_language else None,
    }


def analyse(texts: pa.StringArray, analysis: str) -> Tokens:
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
    counts, codes, vocabulary = _analyse_words(joined.chunk(0).dictionary, analysis)
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


def analyse_query(text: str, analysis: str) -> list[str]:
    """The tokens of one query text, in order, repetitions kept."""
    return list(_tokens(text, analysis))


def _tokens(text: str, analysis: str) -> Iterator[str]:
    if analysis == FOLDED:
        text = _folded(text)
    import lance  # noqa: PLC0415  a heavy package

    return (token.text for token in lance.tokenize(text, **analyser_options(analysis)))


def _folded(text: str) -> str:
    """The text without case, accents and forms of letters. The table format folds Latin letters only, one by
    one and after lower case, which makes two characters of one such as İ.
    """
    apart = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFKC", _MARKS.sub("", apart)).casefold()


def _analyse_words(
    words: pa.StringArray, analysis: str
) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.StringArray]:
    """How many tokens each word has, the tokens as codes, and what the codes stand for."""
    counts: list[NDArray[np.int64]] = []
    found: list[pa.StringArray] = []
    for first in range(0, len(words), ANALYSED_WORDS_MAX):
        chunk = words.slice(first, ANALYSED_WORDS_MAX)
        joined = f" {_BOUNDARY} ".join(chunk.to_pylist())
        tokens = pa.array(list(_tokens(joined, analysis)), pa.string())
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
