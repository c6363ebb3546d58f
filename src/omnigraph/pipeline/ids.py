"""Generated ids in bulk: ULIDs as Arrow text, without a Python object per id."""

import time
from typing import Final

import numpy as np
import pyarrow as pa

_ALPHABET: Final = np.frombuffer(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ", np.uint8)
_LENGTH: Final = 26
_TIME_CHARACTERS: Final = 10


def new_ids(count: int, now_ms: int | None = None) -> pa.StringArray:
    """`count` new ULIDs: 48 bits of time, 80 random bits each, seeded from the operating system."""
    moment = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    digits = np.empty((count, _LENGTH), np.uint8)
    for place in range(_TIME_CHARACTERS):
        digits[:, place] = (moment >> (5 * (_TIME_CHARACTERS - 1 - place))) & 31
    random = np.random.default_rng()
    digits[:, _TIME_CHARACTERS:] = random.integers(0, 32, (count, _LENGTH - _TIME_CHARACTERS), np.uint8)
    offsets = np.arange(0, (count + 1) * _LENGTH, _LENGTH, dtype=np.int32)
    values = _ALPHABET[digits].tobytes()
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(values))
