"""The vectors of a column as matrices, and the nearest of them: single precision first, then exactly.

A distance is the square root of the sum of squared differences in double precision. Finding the best few
that way for every row would cost several passes over memory; a product of the matrix with the query costs
one, and its error has a bound. So the product selects every row that could be among the best, and only
those get their exact distance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.search.segments import SegmentKind, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.tables.images import TableImage

Scores = NDArray[np.float64]
Vector = NDArray[np.float32]

UNIT_ROUNDOFF: Final = 2.0**-24
"""The rounding unit of single precision."""
SQUARE_MAX: Final = 1e30
"""Squared lengths up to this never overflow on the way to a distance in single precision."""
GATHER_SHARE: Final = 0.25
"""Below this share of the rows their vectors are gathered; above it all rows are multiplied."""


@dataclass(frozen=True, slots=True, eq=False)
class VectorSegment:
    """The vectors of the rows from ordinal `first` on."""

    first: int
    matrix: NDArray[np.float32]
    squares: NDArray[np.float32]
    """The squared length of each vector; infinite where a row has none."""
    known: NDArray[np.bool_]
    """Whether the row has a vector."""
    absent: NDArray[np.int64]
    square_max: float
    """The greatest squared length."""

    @property
    def rows(self) -> int:
        """How many ordinals it covers."""
        return len(self.squares)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.matrix.nbytes + self.squares.nbytes + self.known.nbytes + self.absent.nbytes


def build_vectors(column: Any, ordinals: Ordinals, first: int, rows: int) -> VectorSegment:
    """The segment of a range, from the vectors of the rows shown."""
    width = int(column.type.list_size)
    known = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    dense = _matrix(column, known, width)
    own = ordinals - first
    there = np.zeros(rows, np.bool_)
    there[own] = True
    if len(dense) == rows:
        matrix = dense
    else:
        matrix = np.zeros((rows, width), np.float32)
        matrix[own[known]] = dense
    with np.errstate(over="ignore"):
        squares = np.einsum("ij,ij->i", matrix, matrix)
    # The sum may be too small by a unit roundoff for each of its terms.
    square_max = float(squares.max()) * (1 + 2 * width * UNIT_ROUNDOFF) if rows else 0.0
    has_vector = np.zeros(rows, np.bool_)
    has_vector[own[known]] = True
    squares[~has_vector] = np.inf
    return VectorSegment(first, matrix, squares, has_vector, np.flatnonzero(~there), square_max)


def join_vectors(left: VectorSegment, right: VectorSegment) -> VectorSegment:
    """One segment of two whose ranges follow each other."""
    return VectorSegment(
        first=left.first,
        matrix=np.concatenate([left.matrix, right.matrix]),
        squares=np.concatenate([left.squares, right.squares]),
        known=np.concatenate([left.known, right.known]),
        absent=np.concatenate([left.absent, right.absent + (right.first - left.first)]),
        square_max=max(left.square_max, right.square_max),
    )


VECTORS: Final = SegmentKind("vectors", build_vectors, join_vectors)


def exact_distances(matrix: NDArray[np.float32], query: Vector) -> Scores:
    """The Euclidean distance of each row to the query: the definition every other way has to meet."""
    difference = matrix.astype(np.float64) - query.astype(np.float64)
    return np.sqrt((difference**2).sum(axis=1))


def distances_at(segments: Sequence[VectorSegment], ordinals: Ordinals, query: Vector) -> Scores:
    """The exact distance of each row; NaN where it has no vector. An ordinal may be -1."""
    result = np.full(len(ordinals), np.nan)
    for segment in segments:
        mine = np.flatnonzero((ordinals >= segment.first) & (ordinals < segment.first + segment.rows))
        own = ordinals[mine] - segment.first
        has = segment.known[own]
        result[mine[has]] = exact_distances(segment.matrix[own[has]], query)
    return result


def nearest_rows(
    segments: Sequence[VectorSegment], ordinals: Ordinals | None, extent: int, query: Vector, depth: int
) -> tuple[NDArray[np.int64], Scores]:
    """The best `depth` rows, and all that are exactly as near as the last of them: positions and distances.

    `ordinals` are the candidates, repeated where they repeat, -1 for none; None: every row, where the
    positions are ordinals. `extent` is their number then.
    """
    count = extent if ordinals is None else len(ordinals)
    if depth <= 0 or count == 0:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    estimate, slack = _estimates(segments, ordinals, count, query)
    if estimate is None:
        chosen = np.arange(count, dtype=np.int64)
    elif depth < count:
        cut = float(np.partition(estimate, depth - 1)[depth - 1])
        # Whatever the true value of the row at the cut, nothing above this can be as near.
        chosen = np.flatnonzero(estimate <= cut + 2 * slack)
    else:
        chosen = np.flatnonzero(np.isfinite(estimate))
    wanted = chosen if ordinals is None else ordinals[chosen]
    found = distances_at(segments, wanted, query)
    known = ~np.isnan(found)
    chosen, found = chosen[known], found[known]
    return best(chosen, found, depth)


def best(rows: NDArray[np.int64], keys: Scores, depth: int) -> tuple[NDArray[np.int64], Scores]:
    """The rows with the `depth` smallest keys and all that are equal to the last of them, in their order."""
    if len(keys) > depth:
        keep = keys <= np.partition(keys, depth - 1)[depth - 1]
        return rows[keep], keys[keep]
    return rows, keys


def stream_nearest(
    image: TableImage,
    column: str,
    query: Vector,
    wanted: NDArray[np.bool_] | None,
    depth: int,
    check: Callable[[], None],
) -> tuple[Ordinals, Scores]:
    """The best rows as `nearest_rows` finds them, read in parts and not kept: for columns beyond the memory.

    `wanted` says by ordinal which rows are candidates; None: all. Ordinals come ascending. `check` is called
    after every part.
    """
    rows, keys = np.empty(0, np.int64), np.empty(0, np.float64)
    for ordinals, table in image.read_live([column]):
        vectors = whole(table.column(column))
        if wanted is not None:
            chosen = wanted[ordinals]
            vectors, ordinals = vectors.filter(pa.array(chosen)), ordinals[chosen]  # noqa: PLW2901
        known = np.asarray(vectors.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        dense = _matrix(vectors, known, int(vectors.type.list_size))
        part = build_vectors(vectors.filter(pa.array(known)), np.arange(len(dense)), 0, len(dense))
        places, found = nearest_rows([part], None, len(dense), query, depth)
        rows = np.concatenate([rows, ordinals[known][places]])
        keys = np.concatenate([keys, found])
        rows, keys = best(rows, keys, depth)
        check()
    return rows, keys


def distances_of(column: Any, query: Vector) -> Scores:
    """The exact distance of each vector of a column; NaN for null."""
    known = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    result = np.full(len(column), np.nan)
    if known.any():
        result[known] = exact_distances(_matrix(column, known, int(column.type.list_size)), query)
    return result


def _matrix(column: Any, known: NDArray[np.bool_], width: int) -> NDArray[np.float32]:
    """The vectors that are there, one row each."""
    dense = column if known.all() else column.filter(pa.array(known))
    flat = np.asarray(dense.flatten().to_numpy(zero_copy_only=False), np.float32)
    return flat.reshape(-1, width)


def _estimates(
    segments: Sequence[VectorSegment], ordinals: Ordinals | None, count: int, query: Vector
) -> tuple[NDArray[np.float32] | None, float]:
    """Squared distances less a constant, in single precision, and how far off each may be.

    None when single precision cannot hold them. Infinite where there is no vector.
    """
    square = float(np.dot(query.astype(np.float64), query.astype(np.float64)))
    longest = max((segment.square_max for segment in segments), default=0.0)
    if not longest + square < SQUARE_MAX:
        return None, 0.0
    estimate = np.full(count, np.inf, np.float32)
    for segment in segments:
        if ordinals is None:
            part = slice(segment.first, segment.first + segment.rows)
            estimate[part] = segment.squares - 2 * (segment.matrix @ query)
            continue
        mine = np.flatnonzero((ordinals >= segment.first) & (ordinals < segment.first + segment.rows))
        own = ordinals[mine] - segment.first
        if len(own) < GATHER_SHARE * segment.rows:
            estimate[mine] = segment.squares[own] - 2 * (segment.matrix[own] @ query)
        else:
            estimate[mine] = (segment.squares - 2 * (segment.matrix @ query))[own]
    # A sum of n products is off by at most n unit roundoffs of the sum of their sizes, which for the product
    # with the query is at most the product of the lengths. Doubling and the difference add a few more.
    terms = len(query) + 8
    slack = terms * UNIT_ROUNDOFF * (longest + 2 * math.sqrt(longest * square)) + 1e-30
    return estimate, slack
