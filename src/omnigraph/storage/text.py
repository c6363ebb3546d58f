"""Text analysis, exactly as the table format's inverted indexes do it.

The one analyser: what it says about a text and about a query decides a search, with or without an index.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

ANALYSED_TEXTS_MAX: Final = 4_096
"""Texts analysed by one call of the substrate; bounds the token objects alive at once."""

TOKEN_LENGTH_MAX: Final = 40

_BOUNDARY: Final = str(secrets.randbits(100) | 1 << 99)
"""Stands between two texts of one call. All digits, so that no analysis step changes it; no text holds it."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of many texts, in order: which text each belongs to, and the token itself."""

    texts: NDArray[np.int64]
    tokens: pa.StringArray


def analyse(texts: pa.StringArray) -> Tokens:
    """The tokens of every text; a null has none.

    Cost: about half a microsecond a token; token objects live for one chunk of texts only.
    """
    owners: list[NDArray[np.int64]] = []
    tokens: list[pa.StringArray] = []
    for first in range(0, len(texts), ANALYSED_TEXTS_MAX):
        chunk = texts.slice(first, ANALYSED_TEXTS_MAX)
        words = pa.array(list(_words(chunk)), pa.string())
        boundary = np.asarray(pc.equal(words, _BOUNDARY).to_numpy(zero_copy_only=False), np.bool_)
        keep = ~boundary
        owners.append((np.cumsum(boundary) + first)[keep].astype(np.int64))
        tokens.append(words.filter(pa.array(keep)))
    if not tokens:
        return Tokens(np.empty(0, np.int64), pa.array([], pa.string()))
    return Tokens(np.concatenate(owners), pa.concat_arrays(tokens))


def analyse_query(text: str) -> list[str]:
    """The tokens of one query text, in order, repetitions kept."""
    return [token.text for token in lance.tokenize(text, max_token_length=TOKEN_LENGTH_MAX)]


def _words(chunk: pa.StringArray) -> Iterator[str]:
    joined = pc.binary_join(
        pa.array([pc.fill_null(chunk, "").to_pylist()], pa.list_(pa.string())), f" {_BOUNDARY} "
    )[0].as_py()
    return (token.text for token in lance.tokenize(joined, max_token_length=TOKEN_LENGTH_MAX))
