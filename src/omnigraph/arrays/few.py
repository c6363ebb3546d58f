"""Arrays of few values."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping

FEW_VALUES_MAX: Final = 32
_TEXT: Final = pa.string().id
_CODES: Final[Mapping[int, str]] = {
    pa.int32().id: "i",
    pa.uint32().id: "I",
    pa.int64().id: "q",
    pa.uint64().id: "Q",
    pa.float64().id: "d",
}
"""How the standard library calls numbers that lie in memory as Arrow's do."""


def few_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """What `pa.array` gives. That looks for pandas first, which takes longer than to make a short array."""
    if 0 < len(values) <= FEW_VALUES_MAX and None not in values:
        if kind.id == _TEXT:
            texts = [text.encode() for text in values]
            ends = array("i", accumulate(map(len, texts), initial=0))
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))]
            return pa.Array.from_buffers(kind, len(values), buffers)
        code = _CODES.get(kind.id)
        if code is not None:
            return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(array(code, values))])
    return pa.array(values, kind)
