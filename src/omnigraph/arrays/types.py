"""Names for the arrays that say which rows are meant."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ordinals: TypeAlias = NDArray[np.int64]
"""Rows of one table version by their physical position; -1 stands for no row."""

Offsets: TypeAlias = NDArray[np.int64]
"""Rows of one fragment by their position in it."""

Addresses: TypeAlias = NDArray[np.uint64]
"""Rows of one table version by fragment and offset, see `arrays.addresses`."""

Mask: TypeAlias = NDArray[np.bool_]
"""One yes or no per row."""
