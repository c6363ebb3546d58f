"""Values of expressions over working rows: properties fetched late, search conditions, scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.schema import NodeType
from omnigraph.catalog.types import FLOAT_KINDS
from omnigraph.engine.read.arithmetic import computed
from omnigraph.engine.read.compare import Column, Constant, Values, as_array, compare
from omnigraph.engine.read.paths import path_values
from omnigraph.engine.search.evaluate import Scores, distances, fuse, relevance, search_hits, search_matches
from omnigraph.language.query_tree import Operator
from omnigraph.planning import ir, mentions
from omnigraph.planning.steps import constant_test

if TYPE_CHECKING:
    from omnigraph.arrays.types import Mask
    from omnigraph.engine.read.frame import Frame
    from omnigraph.engine.read.reading import Reading


def condition_holds(reading: Reading, condition: ir.Condition, frame: Frame) -> Mask:
    """The rows for which a condition of the match is true."""
    match condition:
        case ir.Comparison():
            constant = constant_test(condition)
            if constant is not None:
                reference, test = constant
                return reading.holds(reference.owner, test, frame[reference.variable])
            if _compares_nodes(condition):
                return _nodes_compared(condition, frame)
            left = operand_values(reading, condition.left, frame)
            right = operand_values(reading, condition.right, frame)
            return compare(left, condition.op, right, frame.rows)
        case ir.NullCheck():
            values = as_array(operand_values(reading, condition.operand, frame), frame.rows)
            mask = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
            return ~mask if condition.negated else mask
        case ir.SearchTest():
            if condition.wanted:
                return search_hits(reading, condition.search, frame)
            hit, known = search_matches(reading, condition.search, frame)
            return ~hit & known
        case ir.Either() | ir.Both():
            combine = np.logical_or if isinstance(condition, ir.Either) else np.logical_and
            return combine.reduce([condition_holds(reading, part, frame) for part in condition.parts])
        case _:
            assert_never(condition)


def _compares_nodes(condition: ir.Comparison) -> bool:
    """Whether it asks if two nodes of a type have the same key: then they are the same node."""
    left, right = condition.left, condition.right
    return (
        condition.op in {Operator.EQ, Operator.NE}
        and isinstance(left, ir.PropertyRef)
        and isinstance(right, ir.PropertyRef)
        and isinstance(left.owner, NodeType)
        and left.owner.table_key == right.owner.table_key
        and left.prop.name == right.prop.name
        and left.owner.key == (left.prop.name,)
        and left.type.kind not in FLOAT_KINDS
    )


def _nodes_compared(condition: ir.Comparison, frame: Frame) -> Mask:
    """The answer without looking at a value: no key is null, and none is there twice."""
    left, right = (
        frame[name] for side in (condition.left, condition.right) for name in mentions.variables_of(side)
    )
    same: Mask = left == right
    return (same if condition.op is Operator.EQ else ~same) & (left >= 0) & (right >= 0)


def operand_values(reading: Reading, operand: ir.Operand, frame: Frame) -> Values:
    """The values of an expression, one per row or one for all rows."""
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
        case ir.PathRef():
            return Column(path_values(reading, operand, frame[operand.variable]), operand.type)
        case ir.Search():
            hit, known = search_matches(reading, operand, frame)
            return Column(pa.array(hit, mask=~known), ir.BOOL)
        case ir.Nearest():
            return _scores_column(distances(reading, operand, frame[operand.property.variable]))
        case ir.Bm25():
            return _scores_column(relevance(reading, operand, frame[operand.property.variable]))
        case ir.Rrf():
            return _scores_column(fuse(reading, operand, frame).scores[frame[operand.variable]])
        case ir.Arithmetic():
            left, right = (operand_values(reading, part, frame) for part in (operand.left, operand.right))
            return computed(operand, left, right)
        case ir.Aggregate():
            raise AssertionError(operand)  # of groups, not of rows
        case _:
            assert_never(operand)


def _scores_column(scores: Scores) -> Column:
    return Column(pa.array(scores, mask=np.isnan(scores)), ir.F64)
