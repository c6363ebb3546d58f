"""The embedder that needs no provider: a vector follows from the bytes of a text alone. For tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

FNV_BASIS: Final = 0xCBF29CE484222325
FNV_PRIME: Final = 0x100000001B3
WORD: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class OfflineEmbedder:
    """The same text gives the same vector everywhere; texts that mean the same are as far apart as any."""

    model: str
    provider: ClassVar[str] = "mock"

    def embed(self, texts: Sequence[str], dimension: int) -> NDArray[np.float32]:
        """One vector of unit length for each text.

        A text whose hash is 0 (they exist) stays at state 0: all its components are equal and negative.
        """
        state = np.array([fnv1a(text.encode()) for text in texts], np.uint64)
        numbers = np.empty((len(texts), dimension), np.float32)
        squares = np.zeros(len(texts), np.float64)
        # A state follows from the one before, so the loop is over components; all texts take a step at once.
        for place in range(dimension):
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            share = (state.astype(np.float64) / float(WORD)).astype(np.float32)
            numbers[:, place] = np.float32(2) * share - np.float32(1)
            squares += numbers[:, place].astype(np.float64) ** 2
        return numbers / np.sqrt(squares).astype(np.float32)[:, np.newaxis]


def fnv1a(data: bytes) -> int:
    """The FNV-1a hash of 64 bits."""
    state = FNV_BASIS
    for byte in data:
        state = (state ^ byte) * FNV_PRIME & WORD
    return state
