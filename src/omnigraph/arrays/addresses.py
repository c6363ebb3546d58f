"""Row addresses: the number of a fragment in the upper half, a row of it in the lower."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.arrays.types import Addresses, Offsets

ADDRESS: Final = "_rowaddr"
"""The column of a scan that holds the addresses."""

ABSENT: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
"""No row address has this value: it would be the last row of the last possible fragment."""

OFFSET_BITS: Final = 32
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
"""For one address that is a Python number: a call costs more than the arithmetic."""

_BITS: Final = np.uint64(OFFSET_BITS)
_MASK: Final = np.uint64(OFFSET_MASK)


def addresses_in(rows: Any) -> Addresses:
    """The addresses of the rows of an Arrow table or batch."""
    return np.asarray(rows.column(ADDRESS).to_numpy(zero_copy_only=False), np.uint64)


def fragments_of(addresses: Addresses) -> NDArray[np.uint64]:
    """The number of the fragment of each address."""
    return addresses >> _BITS


def offsets_of(addresses: Addresses) -> Offsets:
    """For each address the row within its fragment."""
    return (addresses & _MASK).astype(np.int64)


def addresses_of(fragments: int | NDArray[np.uint64], offsets: NDArray[np.integer]) -> Addresses:
    """The addresses of rows: all in one fragment, or each in a fragment of its own."""
    numbers = np.uint64(fragments) if isinstance(fragments, int) else fragments
    return (numbers << _BITS) | offsets.astype(np.uint64, copy=False)


def all_rows(fragment: int, physical_rows: int) -> Addresses:
    """The addresses of all rows of a fragment, dead ones too."""
    return addresses_of(fragment, np.arange(physical_rows, dtype=np.uint64))


def by_fragment(ascending: Addresses) -> Iterator[tuple[int, NDArray[np.uint32], slice]]:
    """For each fragment its number, its rows among the ascending addresses, and which of the addresses they
    are.

    Cost: one pass, whatever the number of fragments.
    """
    if not len(ascending):
        return
    numbers = fragments_of(ascending)
    offsets = (ascending & _MASK).astype(np.uint32)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(ascending)], strict=True):
        part = slice(start, end)
        yield int(numbers[start]), offsets[part], part
