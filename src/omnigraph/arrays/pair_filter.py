"""Whether a pair of ordinals may be among many: one look into a table instead of a search."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.arrays.types import Mask
from omnigraph.core.late_dataclass import dataclass

SLOTS_PER_PAIR: Final = 8
SLOTS_MIN: Final = 1 << 10
_NO_HEAD: Final = -2
"""What no head is, not even that of no entity."""
_NO_SLOTS: Final = np.zeros(0, dtype=np.bool_)
_HEADS: Final = np.uint64(0x9E3779B97F4A7C15)
_TAILS: Final = np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True, eq=False)
class PairFilter:
    """Says of pairs whether they may be among many. A no is proven; a yes where it is exact."""

    slots: NDArray[np.bool_]
    """What pairs fall into, unless it is exact."""
    shift: np.uint64
    heads: NDArray[np.int64] | None
    """The one head of each tail, where no tail comes twice. Tails without a head have one that no head is; so
    has the slot behind the last, which -1 finds.
    """

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.slots.nbytes if self.heads is None else self.heads.nbytes

    @property
    def is_exact(self) -> bool:
        """Whether a yes is proven, too."""
        return self.heads is not None

    @staticmethod
    def of(heads: NDArray[np.integer], tails: NDArray[np.integer], tail_count: int) -> "PairFilter":
        """The filter of these pairs, each given once; tails are below `tail_count`. Cost: one pass."""
        if not len(tails) or np.bincount(tails).max() == 1:
            only = np.full(tail_count + 1, _NO_HEAD, dtype=np.int64)
            only[tails] = heads
            return PairFilter(_NO_SLOTS, np.uint64(0), only)
        bits = max(len(heads) * SLOTS_PER_PAIR, SLOTS_MIN).bit_length()
        shift = np.uint64(64 - bits)
        slots = np.zeros(1 << bits, dtype=np.bool_)
        slots[_slots(heads, tails, shift)] = True
        return PairFilter(slots, shift, None)

    def may_have(self, heads: NDArray[np.integer], tails: NDArray[np.integer]) -> Mask:
        """For each pair, whether it may be among them."""
        if self.heads is not None:
            return self.heads[tails] == heads
        return self.slots[_slots(heads, tails, self.shift)]


def _slots(heads: NDArray[np.integer], tails: NDArray[np.integer], shift: np.uint64) -> NDArray[np.int64]:
    mixed = heads.astype(np.uint64)
    mixed *= _HEADS
    mixed ^= tails.astype(np.uint64)
    mixed *= _TAILS
    mixed >>= shift
    return mixed.view(np.int64)
