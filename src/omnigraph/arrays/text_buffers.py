"""The bytes behind an array of texts, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


def text_bounds(texts: pa.Array) -> NDArray[np.int32]:
    """Where each text (or list) begins, and in one more slot where the last one ends."""
    ends = texts.buffers()[1]
    if ends is None or not len(texts):
        return np.zeros(1, np.int32)
    return np.frombuffer(memoryview(ends), np.int32, len(texts) + 1, texts.offset * 4)


def large_bounds(texts: pa.Array) -> NDArray[np.int64]:
    """What `text_bounds` says, for an array whose bytes are counted with 64 bits."""
    ends = texts.buffers()[1]
    if ends is None or not len(texts):
        return np.zeros(1, np.int64)
    return np.frombuffer(memoryview(ends), np.int64, len(texts) + 1, texts.offset * 8)


def text_bytes(texts: pa.Array) -> memoryview:
    """The bytes of all texts, with whatever else lies in their buffer."""
    data = texts.buffers()[2]
    return memoryview(b"") if data is None else memoryview(data).cast("B")
