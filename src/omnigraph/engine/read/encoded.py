"""A whole column by ordinal, as small numbers: what groups are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from omnigraph.engine.tables.images import TableImage


@dataclass(frozen=True, slots=True, eq=False)
class Codes:
    """A column as small numbers, equal exactly where the values are, null being a value."""

    codes: NDArray[np.int32]
    width: int
    """One more than the greatest code."""
    samples: NDArray[np.int64]
    """For each code an ordinal that has it; -1 for null where no row is null."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.codes.nbytes + self.samples.nbytes


def encode(column: pa.Array) -> Codes:
    """The codes of a scalar column and, in one more slot at the end, that of null."""
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # both zeros are one value
    encoded = column.dictionary_encode(null_encoding="encode")
    indices = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int32)
    nulls = np.flatnonzero(np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False), dtype=np.bool_))
    width = len(encoded.dictionary)
    null = int(indices[nulls[0]]) if len(nulls) else width
    width = max(width, null + 1)
    samples = np.full(width, -1, np.int64)
    samples[indices[::-1]] = np.arange(len(indices) - 1, -1, -1)  # backwards, so that the first one stays
    return Codes(np.append(indices, np.int32(null)), width, samples)


def codes_of(image: TableImage, column: str) -> Codes:
    """The values of a column as small numbers, by ordinal; the last slot stands for no entity."""
    return encode(image.take(column, np.arange(image.extent, dtype=np.int64)))
