"""Row addresses: the number of a fragment in the upper half, a row of it in the lower."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def by_fragment(ascending: NDArray[np.uint64]) -> Iterator[tuple[int, NDArray[np.uint32], slice]]:
    """Each fragment that ascending addresses name, its rows among them, and which of the addresses these are.

    Cost: one pass, whatever the number of fragments.
    """
    if not len(ascending):
        return
    numbers = ascending >> np.uint64(32)
    offsets = (ascending & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
    starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]]).tolist()
    for start, end in zip(starts, [*starts[1:], len(ascending)], strict=True):
        part = slice(start, end)
        yield int(numbers[start]), offsets[part], part
