"""Whether a pair of ordinals may be among many: one look into a table instead of a search."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from omnigraph.arrays.types import Mask
from omnigraph.core.late_dataclass import dataclass

SLOTS_PER_PAIR: Final = 8
SLOTS_MIN: Final = 1 << 10
_HEADS: Final = np.uint64(0x9E3779B97F4A7C15)
_TAILS: Final = np.uint64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True, eq=False)
class PairFilter:
    """Slots that pairs fall into. What it says no to is not among the pairs; a yes has to be proven."""

    slots: NDArray[np.bool_]
    shift: np.uint64

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.slots.nbytes

    @staticmethod
    def of(heads: NDArray[np.integer], tails: NDArray[np.integer]) -> "PairFilter":
        """The filter of these pairs. Cost: one pass."""
        bits = max(len(heads) * SLOTS_PER_PAIR, SLOTS_MIN).bit_length()
        shift = np.uint64(64 - bits)
        slots = np.zeros(1 << bits, dtype=np.bool_)
        slots[_slots(heads, tails, shift)] = True
        return PairFilter(slots, shift)

    def may_have(self, heads: NDArray[np.integer], tails: NDArray[np.integer]) -> Mask:
        """For each pair, whether it may be among them."""
        return self.slots[_slots(heads, tails, self.shift)]


def _slots(heads: NDArray[np.integer], tails: NDArray[np.integer], shift: np.uint64) -> NDArray[np.int64]:
    mixed = heads.astype(np.uint64)
    mixed *= _HEADS
    mixed ^= tails.astype(np.uint64)
    mixed *= _TAILS
    mixed >>= shift
    return mixed.view(np.int64)
