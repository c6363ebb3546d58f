"""Aggregates over working rows that are made and forgotten block by block.

Every step of a match treats each working row by itself, so the rows a match begins with may be taken in
blocks: memory follows the block and the number of groups, not the rows that are aggregated. Groups are
numbered by codes of the whole table, so that the sums of all blocks meet in one array.

The last hop need not be made at all when nothing of its end but counts and sums is wanted
(`planning.steps.folded_hop`): the entries of a node lie together in the index, so its sum is that of a span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.weights import summed, times
from omnigraph.catalog.types import arrow_type
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.edges.traverse import Incidence, Neighbours, expand, expand_edges, spans
from omnigraph.engine.read.access import decide, incidence, neighbours
from omnigraph.engine.read.compare import as_array
from omnigraph.engine.read.distinct import DistinctCounts
from omnigraph.engine.read.flow import Flow, Mode
from omnigraph.engine.read.frame import FEW_ROWS, SINGLE, Frame
from omnigraph.engine.read.limits import ORDINAL_BYTES, PAIR_ORDINALS
from omnigraph.engine.read.operands import operand_values
from omnigraph.engine.read.pieces import SEARCHES, fetches_of, pieces
from omnigraph.engine.read.project import DENSE_CODES_MAX, aggregate_whole, finished_groups
from omnigraph.engine.read.sums import Sums, numbers_of
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir
from omnigraph.planning.steps import Expand, Scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from omnigraph.engine.read.encoded import Codes
    from omnigraph.engine.read.match import Matcher
    from omnigraph.engine.read.prepared import Prepared
    from omnigraph.engine.read.reading import Reading

    Codings = NDArray[np.int64]
    Weights = NDArray[np.int64] | None

BLOCK_ROWS: Final = 1 << 16
"""Rows a match begins with that are taken at a time."""
EXTREME_PARTS_MAX: Final = 64
"""Tables of least or greatest values that are kept before they are joined to one."""

_SUMMED: Final = frozenset({Function.SUM, Function.AVG})


def aggregate_columns(matcher: Matcher, prepared: Prepared, done: int, frame: Frame) -> list[Any]:
    """The result columns of an aggregate query whose first `done` steps gave the frame."""
    reading, plan = matcher.reading, prepared.plan
    groups = _Groups.of(reading, plan)
    if groups is None:
        return aggregate_whole(
            reading, prepared, matcher.run(prepared.steps[done:], frame, prepared.needed[done:])
        )
    if prepared.terms and not done:
        return _counted_by_terms(matcher, prepared, groups)
    totals = [_total(reading, aggregate, groups) for aggregate in prepared.aggregates]
    steps, needed = prepared.steps, prepared.weighed or prepared.needed
    if frame is SINGLE and done < len(steps) and isinstance(steps[done], Scan):
        frame = matcher.run(steps[done : done + 1], frame, needed[done : done + 1])
        done += 1
    folded = reading.accesses.folded
    if folded is not None and not needed[-1].intersection(folded.binds):
        folded = None  # it multiplies, and nothing else
    last = len(steps) if folded is None else len(steps) - 1
    mode = Mode.ROWS if prepared.weighed is None else Mode.COUNTS
    for rows in Flow(matcher, steps[done:last], needed[done:last], mode).frames(frame):
        if folded is not None:
            for block in _blocks(rows):
                reaching, entries, lengths = _folded(reading, folded, block, needed[last])
                groups.count(reaching, times(reaching.weights, lengths))
                for total in totals:
                    total.add_spans(groups.codes, reaching, entries, lengths)
            continue
        for piece in _pieces(reading, prepared.aggregates, rows):
            groups.count(piece, piece.weights)
            for total in totals:
                total.add(groups.codes, piece)
    present = groups.present()
    results = [total.result(present) for total in totals]
    return finished_groups(reading, prepared, groups.columns(present), results, len(present))


def _counted_by_terms(matcher: Matcher, prepared: Prepared, groups: _Groups) -> list[Any]:
    """As `aggregate_columns`, where the rows of groups are those of matches that are added and taken away."""
    reading = matcher.reading
    rows = np.zeros(groups.width, np.int64)
    for sign, _, term in prepared.terms:
        reading.accesses = decide(reading, term)
        assert term.weighed is not None  # noqa: S101 - only rows that weigh are counted so
        counted = groups.afresh()
        for frame in Flow(matcher, term.steps, term.weighed, Mode.COUNTS).frames(SINGLE):
            counted.count(frame, frame.weights)
        rows += sign * counted.rows
    groups.rows = rows
    present = groups.present()
    results = [pa.array(rows[present], pa.int64())] * len(prepared.aggregates)
    return finished_groups(reading, prepared, groups.columns(present), results, len(present))


def _blocks(frame: Frame) -> Iterator[Frame]:
    if frame.rows <= BLOCK_ROWS:
        yield frame
        return
    for begin in range(0, frame.rows, BLOCK_ROWS):
        yield frame.part(slice(begin, begin + BLOCK_ROWS))


def _pieces(reading: Reading, aggregates: Iterable[ir.Aggregate], frame: Frame) -> Iterator[Frame]:
    """The rows in pieces whose arguments fit the limits; all at once where a search gives an argument."""
    arguments = [each.argument for each in aggregates if not isinstance(each.argument, ir.NodeRef)]
    if frame.rows <= FEW_ROWS or any(isinstance(argument, SEARCHES) for argument in arguments):
        yield frame
        return
    reading.limits.held_bytes = frame.rows * ORDINAL_BYTES * len(frame.columns)
    for part in pieces(reading, frame.rows, fetches_of(reading, arguments, frame)):
        yield frame.part(part)


# Groups --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Key:
    """One column of the group key: a property by its codes, or a node by its ordinal."""

    expression: ir.PropertyRef | ir.NodeRef
    width: int
    codes: Codes | None

    def of(self, frame: Frame) -> Codings:
        ordinals = frame[self.expression.variable]
        if self.codes is not None:
            return self.codes.codes[ordinals].astype(np.int64)
        return np.where(ordinals < 0, self.width - 1, ordinals)

    def values(self, reading: Reading, codes: Codings) -> Any:
        match self.expression:
            case ir.PropertyRef(owner=owner, prop=prop):
                column, image = prop.name, reading.image(owner)
            case ir.NodeRef(node=node):
                column, image = "id", reading.image(node)
        if self.codes is not None:
            return image.take(column, self.codes.samples[codes])
        return image.take(column, np.where(codes == self.width - 1, -1, codes))


class _Groups:
    """The group of every row, by one number over all columns of the key."""

    def __init__(self, reading: Reading, keys: Sequence[_Key], width: int) -> None:
        self._reading = reading
        self._keys = keys
        self.width = width
        self.rows = np.zeros(width, np.int64)
        """How many rows each group has."""
        self.codes: Codings = np.zeros(0, np.int64)
        """The groups of the rows counted last."""

    @staticmethod
    def of(reading: Reading, plan: ir.ReadPlan) -> _Groups | None:
        """None when the values of the key have no codes, or their combinations are too many."""
        keys: list[_Key] = []
        width = 1
        for index in plan.grouping:
            expression = plan.columns[index].expression
            if isinstance(expression, ir.NodeRef):
                key = _Key(expression, reading.image(expression.node).extent + 1, None)
            elif isinstance(expression, ir.PropertyRef) and expression.type.is_scalar:
                codes = reading.codes(expression)
                key = _Key(expression, codes.width, codes)
            else:
                return None
            keys.append(key)
            width *= key.width
            if width > DENSE_CODES_MAX:
                return None
        return _Groups(reading, keys, width)

    def count(self, frame: Frame, lengths: Weights) -> None:
        """Number the rows, each standing for `lengths` of them."""
        codes = np.zeros(frame.rows, np.int64)
        for number, key in enumerate(self._keys):
            codes = codes * key.width + key.of(frame) if number else key.of(frame)
        self.codes = codes
        self.rows += summed(codes, lengths, self.width)

    def afresh(self) -> _Groups:
        """The same groups without rows."""
        return _Groups(self._reading, self._keys, self.width)

    def present(self) -> Codings:
        """The groups that have rows; without a key the one group there always is."""
        return np.flatnonzero(self.rows) if self._keys else np.zeros(1, np.int64)

    def columns(self, present: Codings) -> list[Any]:
        """The values of the key, one array a column."""
        columns: list[Any] = []
        for key in reversed(self._keys):
            present, mine = np.divmod(present, key.width)
            columns.append(key.values(self._reading, mine))
        return columns[::-1]


# Totals --------------------------------------------------------------------------------------------------


def _total(
    reading: Reading, aggregate: ir.Aggregate, groups: _Groups
) -> _Count | _Sum | _Extreme | DistinctCounts:
    if aggregate.distinct:
        return DistinctCounts(reading, aggregate, groups.width)
    if aggregate.function is Function.COUNT:
        return _Count(reading, aggregate, groups.width)
    if aggregate.function in _SUMMED:
        return _Sum(reading, aggregate, groups.width)
    return _Extreme(reading, aggregate, groups.width)


def _segments(values: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The sums of consecutive spans of integers, none of them empty."""
    if not len(lengths):
        return np.zeros(0, np.int64)
    sums = np.cumsum(values, dtype=np.int64)[np.cumsum(lengths) - 1]
    sums[1:] -= sums[:-1].copy()
    return sums


class _Count:
    """How many values there are in each group."""

    def __init__(self, reading: Reading, aggregate: ir.Aggregate, width: int) -> None:
        self._reading = reading
        self._aggregate = aggregate
        self._counts = np.zeros(width, np.int64)

    def add(self, codes: Codings, frame: Frame) -> None:
        argument, weights = self._aggregate.argument, frame.weights
        if isinstance(argument, ir.NodeRef):
            ordinals = frame.columns.get(argument.variable)  # not there when it is never null
            known = None if ordinals is None or not len(ordinals) or ordinals.min() >= 0 else ordinals >= 0
        else:
            _, known = numbers_of(self._reading, argument, frame)
        if known is not None:
            codes, weights = codes[known], None if weights is None else weights[known]
        self._counts += summed(codes, weights, len(self._counts))

    def add_spans(
        self, codes: Codings, frame: Frame, entries: Mapping[str, NDArray[Any]], lengths: NDArray[np.int64]
    ) -> None:
        argument = self._aggregate.argument
        assert isinstance(argument, ir.NodeRef | ir.PropertyRef)  # noqa: S101 - `folded_hop` saw to it
        if argument.variable in entries:
            weights = lengths
            if isinstance(argument, ir.PropertyRef):
                known = _gather(self._reading, argument, entries[argument.variable])[1]
                weights = lengths if known is None else _segments(known, lengths)
        else:
            weights = lengths
            ordinals = frame.columns.get(argument.variable)  # not there when it is never null
            if ordinals is not None and isinstance(argument, ir.PropertyRef):
                known = _gather(self._reading, argument, ordinals)[1]
                weights = lengths if known is None else lengths * known
            elif ordinals is not None and len(ordinals) and ordinals.min() < 0:
                weights = lengths * (ordinals >= 0)
        self._counts += summed(codes, times(frame.weights, weights), len(self._counts))

    def result(self, present: Codings) -> Any:
        return pa.array(self._counts[present], arrow_type(self._aggregate.type))


class _Sum:
    """The sum or the average of each group."""

    def __init__(self, reading: Reading, aggregate: ir.Aggregate, width: int) -> None:
        self._reading = reading
        self._argument = aggregate.argument
        self._width = width
        self._sums = Sums(aggregate, width)
        self.result = self._sums.result

    def add(self, codes: Codings, frame: Frame) -> None:
        values, known = numbers_of(self._reading, self._argument, frame)
        weights = frame.weights
        if weights is None:
            self._sums.add(codes, values, known)
            return
        if known is not None:
            codes, values, weights = codes[known], values[known], weights[known]
        self._sums.add_totals(codes, _multiplied(values, weights))
        self._sums.count(summed(codes, weights, self._width))

    def add_spans(
        self, codes: Codings, frame: Frame, entries: Mapping[str, NDArray[Any]], lengths: NDArray[np.int64]
    ) -> None:
        argument = self._argument
        assert isinstance(argument, ir.PropertyRef)  # noqa: S101 - `folded_hop` saw to it
        if argument.variable in entries:
            values, known = _gather(self._reading, argument, entries[argument.variable])
            counts = lengths if known is None else _segments(known, lengths)
            if known is not None:
                values = np.where(known, values, 0)
            totals = _segments(values, lengths)
        else:
            values, known = _gather(self._reading, argument, frame[argument.variable])
            counts = lengths if known is None else lengths * known
            totals = values.astype(np.int64) * counts
        weights = frame.weights
        if weights is not None:
            totals, counts = _multiplied(totals, weights), times(weights, counts)
        self._sums.add_totals(codes, totals)
        self._sums.count(summed(codes, counts, self._width))


def _multiplied(values: NDArray[Any], weights: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each integer as often as its row counts. Raises SumOverflow when a product does not fit I64."""
    whole = values.astype(np.int64)
    times(np.abs(whole), weights)
    return whole * weights


class _Extreme:
    """The least or the greatest value of each group, of any type that is ordered."""

    def __init__(self, reading: Reading, aggregate: ir.Aggregate, width: int) -> None:
        self._reading = reading
        self._aggregate = aggregate
        self._name = "min" if aggregate.function is Function.MIN else "max"
        self._width = width
        self._parts: list[pa.Table] = []
        self._rows = 0
        """The rows of all parts."""

    def add(self, codes: Codings, frame: Frame) -> None:
        values = as_array(operand_values(self._reading, self._aggregate.argument, frame), frame.rows)
        part = self._reduced(pa.table({"group": codes, "value": values}))
        self._parts.append(part)
        self._rows += part.num_rows
        if self._rows > 2 * self._width and len(self._parts) > EXTREME_PARTS_MAX:
            # At most one row a group is left: what is kept follows the groups, not the pieces.
            self._parts = [self._reduced(pa.concat_tables(self._parts))]
            self._rows = self._parts[0].num_rows

    def add_spans(self, *_: object) -> None:
        raise AssertionError(self._name)  # `folded_hop` leaves these alone

    def _reduced(self, table: pa.Table) -> pa.Table:
        done = table.group_by("group").aggregate([("value", self._name)])
        return done.select(["group", f"value_{self._name}"]).rename_columns(["group", "value"])

    def result(self, present: Codings) -> Any:
        kind = arrow_type(self._aggregate.type)
        if not self._parts:
            return pa.nulls(len(present), kind)
        done = self._reduced(pa.concat_tables(self._parts))
        place = np.full(self._width, -1, np.int64)
        place[done.column("group").to_numpy()] = np.arange(done.num_rows)
        chosen = place[present]
        values = done.column("value").combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
        return values.take(pa.array(chosen, mask=chosen < 0)).cast(kind)


def _gather(
    reading: Reading, reference: ir.PropertyRef, ordinals: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    numbers = reading.image(reference.owner).numbers(reference.prop.name)
    assert numbers is not None  # noqa: S101 - the caller asked for a number property
    return numbers.gather(ordinals)


# The last hop --------------------------------------------------------------------------------------------


def _folded(
    reading: Reading, step: Expand, frame: Frame, needed: frozenset[str]
) -> tuple[Frame, Mapping[str, NDArray[Any]], NDArray[np.int64]]:
    """The rows that reach anything, what they reach, one after the other, and how much each reaches."""
    limits = reading.limits
    limits.step, limits.width = step, PAIR_ORDINALS
    limits.held_bytes = frame.rows * ORDINAL_BYTES * len(frame.columns)
    limits.check()
    with reading.measured(step) as done:
        entries, lengths = _entries(reading, step, frame)
        done(len(entries[step.end]))
    rows = frame.among(needed - set(step.binds))
    if lengths.all():
        return rows, entries, lengths
    reaching = np.flatnonzero(lengths)
    return rows.take(reaching), entries, lengths[reaching]


def _entries(
    reading: Reading, step: Expand, frame: Frame
) -> tuple[Mapping[str, NDArray[Any]], NDArray[np.int64]]:
    nodes, claim = frame[step.start], reading.limits.claim
    if not frame.rows:
        return dict.fromkeys(step.binds, nodes), np.zeros(0, np.int64)
    if step.edge_variable is None:
        near = neighbours(reading, step, frame.rows)
        if isinstance(near, Neighbours):
            lengths, where = spans(near.offsets, nodes, claim)
            return {step.end: near.tails[where]}, lengths
        rows, found = expand(near, nodes, claim)
        return {step.end: found}, np.bincount(rows, minlength=frame.rows)
    edges = incidence(reading, step, frame.rows)
    if isinstance(edges, Incidence):
        lengths, where = spans(edges.offsets, nodes, claim)
        return {step.end: edges.tails[where], step.edge_variable: edges.edges[where]}, lengths
    rows, found, numbers = expand_edges(edges, nodes, claim)
    return {step.end: found, step.edge_variable: numbers}, np.bincount(rows, minlength=frame.rows)
