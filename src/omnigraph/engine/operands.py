"""Values of expressions over working rows: properties fetched late, search conditions, scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.core.errors import EmbedderError, QueryRuntimeError
from omnigraph.engine.compare import Column, Constant, Mask, Values, as_array, compare
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir

if TYPE_CHECKING:
    from omnigraph.engine.frame import Frame
    from omnigraph.engine.images import Ordinals
    from omnigraph.engine.reading import Reading

Scores = NDArray[np.float64]

FUZZY_EDITS_DEFAULT = 2
RRF_K_DEFAULT = 60
UNRANKED = np.iinfo(np.int64).max >> 1
"""The place of an entity that an arm does not rank; small enough to count on."""


def condition_holds(reading: Reading, condition: ir.Condition, frame: Frame) -> Mask:
    """The rows for which a condition of the match is true."""
    match condition:
        case ir.Comparison():
            left = operand_values(reading, condition.left, frame)
            right = operand_values(reading, condition.right, frame)
            return compare(left, condition.op, right, frame.rows)
        case ir.NullCheck():
            values = as_array(operand_values(reading, condition.operand, frame), frame.rows)
            mask = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
            return ~mask if condition.negated else mask
        case ir.SearchTest():
            hit, known = search_matches(reading, condition.search, frame)
            return (hit if condition.wanted else ~hit) & known
        case _:
            assert_never(condition)


def operand_values(reading: Reading, operand: ir.Operand, frame: Frame) -> Values:
    """The values of an expression, one a row or one for all."""
    match operand:
        case ir.Literal() | ir.Param():
            return Constant(reading.value(operand), operand.type)
        case ir.Now():
            return Constant(reading.value(operand), ir.DATETIME)
        case ir.NodeRef():
            return Column(reading.image(operand.node).take("id", frame[operand.variable]), ir.STRING)
        case ir.PropertyRef():
            image = reading.image(operand.owner)
            return Column(image.take(operand.prop.name, frame[operand.variable]), operand.type)
        case ir.Search():
            hit, known = search_matches(reading, operand, frame)
            return Column(pa.array(hit, mask=~known), ir.BOOL)
        case ir.Nearest():
            return _scores_column(distances(reading, operand, frame[operand.property.variable]))
        case ir.Bm25():
            return _scores_column(relevance(reading, operand, frame[operand.property.variable]))
        case ir.Rrf():
            return _scores_column(fuse(reading, operand, frame).scores)
        case _:
            assert_never(operand)


def _scores_column(scores: Scores) -> Column:
    return Column(pa.array(scores, mask=np.isnan(scores)), ir.F64)


def search_matches(reading: Reading, search: ir.Search, frame: Frame) -> tuple[Mask, Mask]:
    """Which rows match a text search, and for which the answer is known at all."""
    ordinals = frame[search.property.variable]
    query = reading.value(search.query)
    if query is None:
        nothing = np.zeros(frame.rows, dtype=np.bool_)
        return nothing, nothing
    index = reading.text_index(search.property)
    text = str(query)
    match search.function:
        case Function.SEARCH:
            found = index.search(text)
        case Function.MATCH_TEXT:
            found = index.phrase(text)
        case Function.FUZZY:
            edits = FUZZY_EDITS_DEFAULT if search.edits is None else reading.value(search.edits)
            found = index.fuzzy(text, int(edits) if isinstance(edits, int) else FUZZY_EDITS_DEFAULT)
        case _:
            raise QueryRuntimeError(f"{search.function} is not a text search")
    by_ordinal = np.zeros(reading.image(search.property.owner).extent, dtype=np.bool_)
    by_ordinal[index.ordinals[found]] = True
    present = ordinals >= 0
    values = reading.image(search.property.owner).take(search.property.prop.name, ordinals)
    known = present & np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return by_ordinal[np.where(present, ordinals, 0)] & known, known


def relevance(reading: Reading, score: ir.Bm25, ordinals: Ordinals) -> Scores:
    """The relevance of the text of each entity; NaN where it does not match at all."""
    query = reading.value(score.query)
    by_ordinal = np.zeros(max(reading.image(score.property.owner).extent, 1), dtype=np.float64)
    if query is not None:
        index = reading.text_index(score.property)
        by_ordinal[index.ordinals] = index.bm25(str(query))
    scores = by_ordinal[np.where(ordinals >= 0, ordinals, 0)]
    return np.where((ordinals >= 0) & (scores > 0), scores, np.nan)


def distances(reading: Reading, nearest: ir.Nearest, ordinals: Ordinals) -> Scores:
    """The Euclidean distance of each entity's vector to the query; NaN where it has none."""
    query = reading.value(nearest.query)
    if nearest.needs_embedding and isinstance(query, str):
        raise EmbedderError(
            "no embedder is configured, so a text cannot be compared with a vector",
            hint="pass the query vector itself",
        )
    if query is None or not isinstance(query, tuple):
        return np.full(len(ordinals), np.nan)
    wanted, place = np.unique(ordinals, return_inverse=True)
    vectors: Any = reading.image(nearest.property.owner).take(nearest.property.prop.name, wanted)
    known = np.asarray(pc.is_valid(vectors).to_numpy(zero_copy_only=False), dtype=np.bool_)
    result = np.full(len(wanted), np.nan)
    if known.any():
        dense = vectors.filter(pa.array(known)).flatten()
        rows = np.asarray(dense.to_numpy(zero_copy_only=False), dtype=np.float64).reshape(
            int(known.sum()), -1
        )
        target = np.array(query, dtype=np.float32).astype(np.float64)
        result[known] = np.sqrt(((rows - target) ** 2).sum(axis=1))
    return result[place.reshape(-1)]


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """A fused ranking of the rows: the score, and the place in each arm that breaks ties."""

    scores: Scores
    first: NDArray[np.int64]
    second: NDArray[np.int64]


def fuse(reading: Reading, rrf: ir.Rrf, frame: Frame) -> Fused:
    """Reciprocal rank fusion; NaN for entities that neither arm ranks."""
    ordinals = frame[rrf.variable]
    nodes, place = np.unique(ordinals, return_inverse=True)
    ids = reading.image(rrf.first.property.owner).take("id", nodes)
    k = reading.value(rrf.k)
    constant = k if isinstance(k, int) else RRF_K_DEFAULT
    first, second = (_ranks(reading, arm, nodes, ids) for arm in (rrf.first, rrf.second))
    scores = np.zeros(len(nodes), dtype=np.float64)
    for ranks in (first, second):
        scores += np.where(ranks < UNRANKED, 1.0 / (constant + ranks + 1), 0.0)
    scores[(first == UNRANKED) & (second == UNRANKED)] = np.nan
    rows = place.reshape(-1)
    return Fused(scores[rows], first[rows], second[rows])


def _ranks(reading: Reading, arm: ir.Nearest | ir.Bm25, nodes: Ordinals, ids: Any) -> NDArray[np.int64]:
    """The place of each entity in one arm, best first, from 0."""
    if isinstance(arm, ir.Nearest):
        keys, depth = distances(reading, arm, nodes), reading.rank_depth
    else:
        keys, depth = -relevance(reading, arm, nodes), None
    ranked = np.flatnonzero(~np.isnan(keys))
    order = pc.sort_indices(
        pa.table({"key": keys[ranked], "id": ids.take(pa.array(ranked))}),
        sort_keys=[("key", "ascending"), ("id", "ascending")],
    )
    best = ranked[np.asarray(order)][:depth]
    ranks = np.full(len(nodes), UNRANKED, dtype=np.int64)
    ranks[best] = np.arange(len(best))
    return ranks
