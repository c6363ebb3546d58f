"""Two ordinals below 2^32 as one number, so that sorting and comparing pairs takes one pass."""

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from omnigraph.arrays.types import Ordinals

Packed: TypeAlias = NDArray[np.uint64]
"""Pairs of a head and a tail that sort by head, then by tail."""

_BITS: Final = np.uint64(32)
_TAIL: Final = np.uint64(0xFFFF_FFFF)


def pack(heads: NDArray[np.integer], tails: NDArray[np.integer]) -> Packed:
    """Pairs as single numbers."""
    return first_pair(heads) | tails.astype(np.uint64, copy=False)


def first_pair(heads: NDArray[np.integer]) -> Packed:
    """The least pair of each head."""
    return heads.astype(np.uint64) << _BITS


def heads_of(pairs: Packed) -> Ordinals:
    """The heads of packed pairs."""
    return (pairs >> _BITS).astype(np.int64)


def tails_of(pairs: Packed) -> Ordinals:
    """The tails of packed pairs."""
    return (pairs & _TAIL).astype(np.int64)


def unpack(pairs: Packed) -> tuple[Ordinals, Ordinals]:
    """Heads and tails of packed pairs."""
    return heads_of(pairs), tails_of(pairs)


def without_tails(pairs: Packed) -> Packed:
    """The least pair of the head of each pair."""
    return pairs & ~_TAIL
