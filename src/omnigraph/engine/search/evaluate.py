"""Search and ranking over working rows: which rows match a text, how near or relevant each is, the best few.

Every answer is the one brute force gives, whatever is in memory and whichever indexes the table has. The one
exception is asked for by name: with `vector_probes` set, a vector index may answer from a part of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.core.errors import QueryRuntimeError
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.search.choice import Access, Path, exact_way, indexed_matches, indexed_nearest
from omnigraph.engine.search.fulltext import TextIndex, build_text_index, texts
from omnigraph.engine.search.segments import live_mask, segments_of, stream_parts, whole
from omnigraph.engine.search.vectors import (
    VECTORS,
    best,
    distances_at,
    distances_of,
    nearest_rows,
    stream_nearest,
)
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir
from omnigraph.planning.filters import HasValue, filter_text

if TYPE_CHECKING:
    from omnigraph.arrays.types import Mask, Ordinals
    from omnigraph.engine.read.frame import Frame
    from omnigraph.engine.read.reading import Reading
    from omnigraph.engine.search.vectors import Vector
    from omnigraph.engine.tables.images import TableImage

Scores = NDArray[np.float64]
SortKeys = list[tuple[NDArray[Any], str]]
"""Values by row and the way they sort."""

FUZZY_EDITS_DEFAULT: Final = 2
RRF_K_DEFAULT: Final = 60
UNRANKED: Final = np.iinfo(np.int64).max >> 1
"""The place of an entity that an arm does not rank; small enough to count on."""

FETCHED_TEXTS: Final = 4096
"""Texts that are fetched and looked at together when an index names the rows."""


# --- text ------------------------------------------------------------------------------------------------


def text_index(reading: Reading, reference: ir.PropertyRef, access: Access) -> TextIndex:
    """The analysed text of a property, over all live rows of the snapshot."""
    image, column, analysis = reading.image(reference.owner), reference.prop.name, reference.prop.text
    kind = texts(analysis)
    if access.path is Path.PASS:
        return TextIndex(stream_parts(image, column, kind), live_mask(image), image.extent, analysis)
    parts = segments_of(reading.caches.derived, image, column, kind).parts
    return TextIndex(parts, live_mask(image), image.extent, analysis)


def search_hits(reading: Reading, search: ir.Search, frame: Frame) -> Mask:
    """Which rows match a text search."""
    query = reading.value(search.query)
    if query is None:
        return np.zeros(frame.rows, dtype=np.bool_)
    found, _ = _matches(reading, search, str(query))
    by_ordinal = np.zeros(reading.image(search.property.owner).extent + 1, dtype=np.bool_)
    by_ordinal[found] = True  # one more slot than there are rows, for no entity
    return by_ordinal[frame[search.property.variable]]


def search_matches(reading: Reading, search: ir.Search, frame: Frame) -> tuple[Mask, Mask]:
    """Which rows match a text search, and for which the answer is known at all: those that have a text."""
    ordinals = frame[search.property.variable]
    query = reading.value(search.query)
    if query is None:
        nothing = np.zeros(frame.rows, dtype=np.bool_)
        return nothing, nothing
    image = reading.image(search.property.owner)
    found, known = _matches(reading, search, str(query))
    by_ordinal = np.zeros((2, image.extent + 1), dtype=np.bool_)
    by_ordinal[0][found] = True
    if known is not None:
        by_ordinal[1][: image.extent] = known
    elif search.property.prop.nullable:
        by_ordinal[1][image.select(filter_text(HasValue(search.property.prop.name, wanted=True)))] = True
    else:
        by_ordinal[1][: image.extent] = True
    return by_ordinal[0][ordinals], by_ordinal[1][ordinals]


def _matches(reading: Reading, search: ir.Search, query: str) -> tuple[Ordinals, Mask | None]:
    """The rows that match; and by ordinal whether a row has a text, when that is at hand.

    Searched for once per run, however often working rows ask.
    """
    known = reading.searched.matched.get(id(search))
    if known is None:
        known = reading.searched.matched[id(search)] = _search(reading, search, query)
    return known


def _search(reading: Reading, search: ir.Search, query: str) -> tuple[Ordinals, Mask | None]:
    access = _way(reading, search, 0)
    if access.path is Path.INDEX and search.function is Function.SEARCH:
        return indexed_matches(reading, search.property, query), None
    if access.path is Path.INDEX:
        return _phrase_among(reading, search.property, query), None
    index = text_index(reading, search.property, access)
    match search.function:
        case Function.SEARCH:
            found = index.search(query)
        case Function.MATCH_TEXT:
            found = index.phrase(query)
        case Function.FUZZY:
            edits = FUZZY_EDITS_DEFAULT if search.edits is None else reading.value(search.edits)
            found = index.fuzzy(query, int(edits) if isinstance(edits, int) else FUZZY_EDITS_DEFAULT)
        case _:
            raise QueryRuntimeError(f"{search.function} is not a text search")
    return found, index.known if access.path is Path.MEMORY else None


def _phrase_among(reading: Reading, reference: ir.PropertyRef, query: str) -> Ordinals:
    """The rows with a phrase: an index names those with all of its tokens, and their texts are looked at."""
    image, column = reading.image(reference.owner), reference.prop.name
    rows = np.sort(indexed_matches(reading, reference, query, every_token=True))
    found: list[Ordinals] = [np.empty(0, np.int64)]
    for first in range(0, len(rows), FETCHED_TEXTS):
        reading.limits.check()
        part = rows[first : first + FETCHED_TEXTS]
        rows_ = image.storage.take(image.handle, image.to_addresses(part), [column])
        every = np.arange(len(part), dtype=np.int64)
        index = build_text_index(whole(rows_.column(column)), every, reference.prop.text)
        found.append(part[index.phrase(query)])
    return np.concatenate(found)


def _relevant(reading: Reading, score: ir.Bm25) -> tuple[Ordinals, Scores]:
    """All rows that match a query text, ascending, and how relevant each is."""
    query = reading.value(score.query)
    if query is None:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    access = _way(reading, score, 0)
    return text_index(reading, score.property, access).bm25(str(query))


def relevance(reading: Reading, score: ir.Bm25, ordinals: Ordinals) -> Scores:
    """The relevance of the text of each entity; NaN where it does not match at all."""
    found, scores = _relevant(reading, score)
    by_ordinal = np.full(reading.image(score.property.owner).extent + 1, np.nan)
    by_ordinal[found] = scores
    return by_ordinal[ordinals]


# --- vectors ---------------------------------------------------------------------------------------------


def query_vector(reading: Reading, nearest: ir.Nearest) -> Vector | None:
    """The vector that is asked for; None when there is none."""
    query = reading.value(nearest.query)
    if isinstance(query, str):
        return reading.searched.vectors[query, nearest.property.type.vector_dim or 0]
    return np.array(query, dtype=np.float32) if isinstance(query, tuple) else None


def distances(reading: Reading, nearest: ir.Nearest, ordinals: Ordinals) -> Scores:
    """The Euclidean distance of each entity's vector to the query; NaN where it has none."""
    query = query_vector(reading, nearest)
    if query is None or not len(ordinals):
        return np.full(len(ordinals), np.nan)
    image, column = reading.image(nearest.property.owner), nearest.property.prop.name
    access = exact_way(reading.accesses.searches[id(nearest)], len(ordinals))
    reading.took(nearest, access)
    match access.path:
        case Path.MEMORY:
            parts = segments_of(reading.caches.derived, image, column, VECTORS).parts
            return distances_at(parts, ordinals, query)
        case Path.FETCH:
            wanted = np.unique(ordinals[ordinals >= 0])
            rows = image.storage.take(image.handle, image.to_addresses(wanted), [column])
            found = [(wanted, distances_of(whole(rows.column(column)), query))]
        case _:
            found = [
                (shown, distances_of(whole(rows.column(column)), query))
                for shown, rows in image.read_live([column])
            ]
    by_ordinal = np.full(image.extent + 1, np.nan)
    for places, values in found:
        by_ordinal[places] = values
    return by_ordinal[ordinals]


def nearest_in_frame(
    reading: Reading, nearest: ir.Nearest, ordinals: Ordinals, depth: int
) -> tuple[NDArray[np.int64], Scores]:
    """Positions of the rows that can be among the best `depth`, ties included, and their distances."""
    query = query_vector(reading, nearest)
    if query is None or not len(ordinals) or depth <= 0:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    access = _way(reading, nearest, len(ordinals))
    if access.exact:
        return _exact_nearest(reading, nearest, access, ordinals, query, depth)
    rows, keys = _indexed_nearest(reading, nearest, ordinals, query, depth)
    if reading.trace is not None:
        with reading.trace.aside():
            truth = _exact_nearest(reading, nearest, access, ordinals, query, depth)[1]
        if len(truth):
            furthest = np.sort(truth)[min(depth, len(truth)) - 1]
            share = min(int((keys <= furthest).sum()), depth) / min(depth, len(truth))
            reading.trace.recalls[id(nearest)] = share
    return rows, keys


def _exact_nearest(
    reading: Reading, nearest: ir.Nearest, access: Access, ordinals: Ordinals, query: Vector, depth: int
) -> tuple[NDArray[np.int64], Scores]:
    image, column = reading.image(nearest.property.owner), nearest.property.prop.name
    everything = ordinals is image.live()
    if access.path is Path.MEMORY:
        parts = segments_of(reading.caches.derived, image, column, VECTORS).parts
        every_row = everything and not image.has_dead
        return nearest_rows(parts, None if every_row else ordinals, image.extent, query, depth)
    if access.path is Path.FETCH:
        scores = distances(reading, nearest, ordinals)
        rows = np.flatnonzero(~np.isnan(scores))
        return best(rows, scores[rows], depth)
    wanted = None
    if not everything:
        wanted = np.zeros(image.extent + 1, np.bool_)
        wanted[ordinals] = True
    found, keys = stream_nearest(image, column, query, wanted, depth, reading.limits.check)
    return _rows_of(image, ordinals, found, keys, depth)


def _indexed_nearest(
    reading: Reading, nearest: ir.Nearest, ordinals: Ordinals, query: Vector, depth: int
) -> tuple[NDArray[np.int64], Scores]:
    image = reading.image(nearest.property.owner)
    wanted = None if ordinals is image.live() else np.unique(ordinals[ordinals >= 0])
    found, vectors = indexed_nearest(reading, nearest.property, query, wanted, depth)
    return _rows_of(image, ordinals, found, distances_of(vectors, query), depth)


def _rows_of(
    image: TableImage, ordinals: Ordinals, found: Ordinals, keys: Scores, depth: int
) -> tuple[NDArray[np.int64], Scores]:
    """From the best entities to the best rows: an entity stands for all the rows it is in."""
    if ordinals is image.live():
        known = np.flatnonzero(~np.isnan(keys))
        order = known[np.argsort(found[known])]
        return best(_positions(image, found[order]), keys[order], depth)
    by_ordinal = np.full(image.extent + 1, np.nan)
    by_ordinal[found] = keys
    scores = by_ordinal[ordinals]
    rows = np.flatnonzero(~np.isnan(scores))
    return best(rows, scores[rows], depth)


# --- ranking ---------------------------------------------------------------------------------------------


def ranked_rows(
    reading: Reading, ranking: ir.Ranking, frame: Frame, depth: int | None
) -> tuple[NDArray[np.int64], SortKeys]:
    """The rows a leading search ranks, ascending by position, with the keys that order them best first.

    With a `depth`, only rows that can be among the first `depth`. Equal keys are all kept, so that what
    breaks ties later decides among all of them.
    """
    with reading.measured(ranking) as done:
        rows, keys = _ranked(reading, ranking, frame, depth)
        done(len(rows))
    return rows, keys


def _ranked(
    reading: Reading, ranking: ir.Ranking, frame: Frame, depth: int | None
) -> tuple[NDArray[np.int64], SortKeys]:
    match ranking:
        case ir.Nearest():
            ordinals = frame[ranking.property.variable]
            rows, scores = nearest_in_frame(
                reading, ranking, ordinals, frame.rows if depth is None else depth
            )
            return rows, [(scores, "ascending")]
        case ir.Bm25():
            return _ranked_by_relevance(reading, ranking, frame, depth)
        case ir.Rrf():
            fused = fuse(reading, ranking, frame).at(frame[ranking.variable])
            rows = np.flatnonzero(~np.isnan(fused.scores))
            keys: list[tuple[NDArray[Any], str]] = [
                (fused.scores, "descending"),
                (fused.first, "ascending"),
                (fused.second, "ascending"),
            ]
            if depth is not None and len(rows) > depth:
                rows = rows[_highest(fused.scores[rows], depth)]
            return rows, [(values[rows], way) for values, way in keys]
        case _:
            assert_never(ranking)


def _ranked_by_relevance(
    reading: Reading, ranking: ir.Bm25, frame: Frame, depth: int | None
) -> tuple[NDArray[np.int64], SortKeys]:
    ordinals = frame[ranking.property.variable]
    image = reading.image(ranking.property.owner)
    found, scores = _relevant(reading, ranking)
    if ordinals is image.live():
        rows = _positions(image, found)
    else:
        by_ordinal = np.full(image.extent + 1, np.nan)
        by_ordinal[found] = scores
        scores = by_ordinal[ordinals]
        rows = np.flatnonzero(~np.isnan(scores))
        scores = scores[rows]
    if depth is not None and len(rows) > depth:
        chosen = _highest(scores, depth)
        rows, scores = rows[chosen], scores[chosen]
    return rows, [(scores, "descending")]


def _positions(image: TableImage, found: Ordinals) -> NDArray[np.int64]:
    """Where rows stand among all live ones: every row is there once, in order."""
    return np.searchsorted(image.live(), found) if image.has_dead else found


def _highest(scores: Scores, depth: int) -> NDArray[np.int64]:
    """Positions of the `depth` highest scores and all that are equal to the last of them, ascending."""
    if depth <= 0:
        return np.empty(0, np.int64)
    place = len(scores) - depth
    return np.flatnonzero(scores >= np.partition(scores, place)[place])


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A fused ranking by ordinal: the score, and the place in each arm that breaks ties."""

    scores: Scores
    first: NDArray[np.int64]
    second: NDArray[np.int64]

    def at(self, ordinals: Ordinals) -> Fused:
        """The same by row."""
        return Fused(self.scores[ordinals], self.first[ordinals], self.second[ordinals])


def fuse(reading: Reading, rrf: ir.Rrf, candidates: Frame) -> Fused:
    """Reciprocal rank fusion by ordinal; NaN for entities that neither arm ranks.

    Places depend on which rows there are, so a run fuses once: whoever asks again, about fewer rows, gets
    the scores among the candidates of the first call.
    """
    known = reading.searched.fused.get(rrf)
    if known is None:
        known = reading.searched.fused[rrf] = _fused(reading, rrf, candidates[rrf.variable])
    return known


def _fused(reading: Reading, rrf: ir.Rrf, ordinals: Ordinals) -> Fused:
    image = reading.image(rrf.first.property.owner)
    k = reading.value(rrf.k)
    constant = k if isinstance(k, int) else RRF_K_DEFAULT
    nodes = image.live() if ordinals is image.live() else np.unique(ordinals[ordinals >= 0])
    first, second = (_ranks(reading, arm, nodes) for arm in (rrf.first, rrf.second))
    scores = np.zeros(image.extent + 1, dtype=np.float64)
    for ranks in (first, second):
        ranked = np.flatnonzero(ranks < UNRANKED)
        scores[ranked] += 1.0 / (constant + ranks[ranked] + 1)
    scores[(first == UNRANKED) & (second == UNRANKED)] = np.nan
    return Fused(scores, first, second)


def _ranks(reading: Reading, arm: ir.Nearest | ir.Bm25, nodes: Ordinals) -> NDArray[np.int64]:
    """By ordinal the place in one arm, best first, from 0; among equals the smaller id is first."""
    image = reading.image(arm.property.owner)
    if isinstance(arm, ir.Nearest):
        depth = reading.rank_depth
        rows, keys = nearest_in_frame(reading, arm, nodes, len(nodes) if depth is None else depth)
        ranked = nodes[rows]
    else:
        depth = None
        found, scores = _relevant(reading, arm)
        among = np.zeros(image.extent + 1, np.bool_)
        among[nodes] = True
        ranked, keys = found[among[found]], -scores[among[found]]
    order = pc.sort_indices(
        pa.table({"key": keys, "id": image.take("id", ranked)}),
        sort_keys=[("key", "ascending"), ("id", "ascending")],
    )
    best_first = ranked[np.asarray(order)][:depth]
    ranks = np.full(image.extent + 1, UNRANKED, dtype=np.int64)
    ranks[best_first] = np.arange(len(best_first))
    return ranks


def _way(reading: Reading, search: ir.SearchExpr, candidates: int) -> Access:
    """The way this run takes for a search, noted."""
    access = reading.accesses.searches[id(search)].at(candidates)
    reading.took(search, access)
    return access
