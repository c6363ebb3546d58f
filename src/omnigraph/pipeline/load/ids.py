"""Generated ids in bulk: ULIDs as Arrow text, without a Python object per id."""

import secrets
import time
from typing import Final

import numpy as np
import pyarrow as pa

_ALPHABET: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_LENGTH: Final = 26
_RANDOM_BITS: Final = 80
_COUNTED_BITS: Final = 30
"""Low bits that count within one call: six characters."""


def new_ids(count: int, now_ms: int | None = None) -> pa.StringArray:
    """`count` new ULIDs in ascending order: 48 bits of time, then a random start from which they count on.

    The start has 80 bits from the operating system; two calls meet only if their starts lie within `count`
    of each other. Ascending ids compress well and are nearly sorted already when they are indexed.
    """
    if count > 1 << (_COUNTED_BITS - 1):
        raise ValueError(f"{count:,} ids at once")
    moment = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    # Half of the counted range stays free, so that counting never carries into the fixed characters.
    start = secrets.randbits(_RANDOM_BITS) & ~(1 << (_COUNTED_BITS - 1))
    whole = (moment << _RANDOM_BITS) | start
    counted = np.arange(count, dtype=np.int64) + (whole & ((1 << _COUNTED_BITS) - 1))
    places = _COUNTED_BITS // 5
    digits = np.empty((count, _LENGTH), np.uint8)
    for place in range(_LENGTH - places):
        digits[:, place] = _ALPHABET[(whole >> (5 * (_LENGTH - 1 - place))) & 31]
    for place in range(places):
        digits[:, _LENGTH - 1 - place] = _ALPHABET[(counted >> (5 * place)) & 31]
    offsets = np.arange(0, (count + 1) * _LENGTH, _LENGTH, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(digits))
