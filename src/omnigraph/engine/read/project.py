"""From working rows to result rows: projection, grouping, distinct, order, limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.catalog.types import arrow_type
from omnigraph.engine.read.compare import as_array
from omnigraph.engine.read.distinct import DistinctCounts
from omnigraph.engine.read.frame import FEW_ROWS, Frame, distinct_rows, entities_of, first_places
from omnigraph.engine.read.groups import GroupValues
from omnigraph.engine.read.limits import ORDINAL_BYTES
from omnigraph.engine.read.operands import operand_values
from omnigraph.engine.read.paths import path_values
from omnigraph.engine.read.pieces import PIECE_ROWS, hold_fetches, hold_values
from omnigraph.engine.read.sums import Sums, numbers_of
from omnigraph.engine.search.evaluate import fuse, ranked_rows
from omnigraph.language.query_tree import Function
from omnigraph.planning import ir, mentions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from omnigraph.arrays.types import Ordinals
    from omnigraph.engine.read.prepared import Prepared, References
    from omnigraph.engine.read.reading import Reading
    from omnigraph.engine.tables.images import TableImage

SortColumns = list[tuple[pa.Array, str]]

DENSE_CODES_MAX = 1 << 22
"""Up to this many codes are renumbered through a table; beyond that by sorting."""
_EXTREMES = {Function.MIN: "min", Function.MAX: "max"}


def result_columns(reading: Reading, prepared: Prepared, frame: Frame) -> list[Any]:
    """The result columns of a query over the working rows of its match.

    A column is an array; or a list of Python values, when few rows need nothing but to be shown.
    """
    plan = prepared.plan
    if frame.rows <= FEW_ROWS and prepared.references is not None:
        return shown(reading, prepared, prepared.references, frame)
    _fuse_columns(reading, plan, frame)
    if plan.ranking is None and not plan.order and not plan.distinct:
        return _unordered(reading, prepared, frame)
    _claim(reading, prepared, frame.rows)
    ranking: SortColumns = []
    if plan.ranking is not None:
        depth = None if plan.limit is None else plan.offset + plan.limit
        rows, keys = ranked_rows(reading, plan.ranking, frame, depth)
        frame, ranking = frame.take(rows), [(pa.array(values), way) for values, way in keys]
    if plan.distinct:
        frame = _distinct_entities(plan, frame)
        columns = [_column(reading, prepared, index, frame) for index in range(len(plan.columns))]
        columns, keep = _distinct(plan, columns)
        if not plan.order:
            return _cut(prepared, columns, None)
        keys = _column_keys(plan, columns) + _column_ties(columns)
        return _cut(prepared, columns, _sorted(keys, len(keep), _first(plan), reading.limits.check))
    return _ordered(reading, prepared, frame, ranking)


def _ordered(reading: Reading, prepared: Prepared, frame: Frame, ranking: SortColumns) -> list[Any]:
    """The rows in order, cut to the limit. What is not needed to order is fetched for those that stay."""
    plan = prepared.plan
    known: dict[int, Any] = {}
    keys = ranking.copy()
    for key in plan.order:
        assert not isinstance(key.expression, ir.Aggregate)  # noqa: S101 - not an aggregate query
        expression = key.expression
        if isinstance(expression, ir.ColumnRef):
            index, expression = expression.index, plan.columns[expression.index].expression
            if not isinstance(expression, ir.PropertyRef):
                known[index] = _column(reading, prepared, index, frame)
                keys.append((known[index], _way(key)))
                continue
        if isinstance(expression, ir.PathRef):
            keys.append((path_values(reading, expression, frame[expression.variable]), _way(key)))
            continue
        image, ordinals = reading.image(expression.owner), frame[expression.variable]
        text = expression.type.is_string
        keys.append((_sort_values(reading, image, expression.prop.name, ordinals, text=text), _way(key)))
    keys += _tie_columns(reading, plan, frame)
    order = _sorted(keys, frame.rows, _first(plan), reading.limits.check)
    order = order[plan.offset : None if plan.limit is None else plan.offset + plan.limit]
    frame, rows = frame.take(order), pa.array(order)
    return [
        known[index].take(rows) if index in known else _column(reading, prepared, index, frame)
        for index in range(len(plan.columns))
    ]


def _first(plan: ir.ReadPlan) -> int | None:
    """How many rows of the order are needed; None: all."""
    return None if plan.limit is None else plan.offset + plan.limit


def _fuse_columns(reading: Reading, plan: ir.ReadPlan, frame: Frame) -> None:
    """Fuse what is shown of fused rankings among all rows, before an order or a limit takes any away."""
    for column in plan.columns:
        if isinstance(column.expression, ir.Rrf) and column.expression != plan.ranking:
            fuse(reading, column.expression, frame)


def _unordered(reading: Reading, prepared: Prepared, frame: Frame) -> list[Any]:
    """The rows as they come: what a limit cuts off is never looked at."""
    plan = prepared.plan
    if plan.offset or plan.limit is not None:
        end = frame.rows if plan.limit is None else min(plan.offset + plan.limit, frame.rows)
        frame = frame.take(np.arange(plan.offset, max(end, plan.offset), dtype=np.int64))
    _claim(reading, prepared, frame.rows)
    return [_column(reading, prepared, index, frame) for index in range(len(plan.columns))]


def _claim(reading: Reading, prepared: Prepared, rows: int) -> None:
    """Refuse a result beyond the memory limit before its values are fetched."""
    reading.limits.step, reading.limits.held_bytes = None, 0
    reading.limits.claim_values(rows * sum(map(_value_bytes, prepared.kinds)))


def _value_bytes(kind: pa.DataType) -> int:
    """What a value of a column takes at least; of texts and lists of any length, where they lie."""
    if pa.types.is_fixed_size_list(kind):
        return kind.list_size * _value_bytes(kind.value_type)
    try:
        return max(kind.bit_width // 8, 1)
    except ValueError:
        return ORDINAL_BYTES


def shown(
    reading: Reading, prepared: Prepared, references: References, nodes: list[int] | Frame
) -> list[list[Any]]:
    """Few working rows as columns of Python values. A list stands for the one variable that is returned."""
    plan = prepared.plan
    if isinstance(nodes, list):
        ordinals = few_wanted(plan, nodes)
        if len(ordinals) == 1:
            columns = [column for _, _, column in references]
            return [[value] for value in reading.image(references[0][1]).row(columns, ordinals[0])]
        return [reading.image(owner).pick(column, ordinals) for _, owner, column in references]
    return [
        reading.image(owner).pick(column, few_wanted(plan, nodes[variable].tolist()))
        for variable, owner, column in references
    ]


def few_wanted(plan: ir.ReadPlan, ordinals: list[int]) -> list[int]:
    """Those of few rows that a plan shows, in their order."""
    if plan.distinct:
        ordinals = list(dict.fromkeys(ordinals))
    if plan.offset or plan.limit is not None:
        ordinals = ordinals[plan.offset : None if plan.limit is None else plan.offset + plan.limit]
    return ordinals


def _cut(prepared: Prepared, columns: list[Any], order: NDArray[np.int64] | None) -> list[Any]:
    plan = prepared.plan
    end = None if plan.limit is None else plan.offset + plan.limit
    if order is not None:
        chosen = pa.array(order[plan.offset : end])
        columns = [column.take(chosen) for column in columns]
    elif plan.offset or end is not None:
        length = None if plan.limit is None else plan.limit
        columns = [column.slice(plan.offset, length) for column in columns]
    return columns


def _column(reading: Reading, prepared: Prepared, index: int, frame: Frame) -> Any:
    expression = prepared.plan.columns[index].expression
    assert not isinstance(expression, ir.Aggregate)  # noqa: S101 - not an aggregate query
    hold_values(reading, expression, frame)
    if isinstance(expression, ir.PropertyRef):
        return reading.image(expression.owner).take(expression.prop.name, frame[expression.variable])
    values = as_array(operand_values(reading, expression, frame), frame.rows)
    kind = prepared.kinds[index]
    return values if values.type == kind else values.cast(kind)


def _distinct_entities(plan: ir.ReadPlan, frame: Frame) -> Frame:
    """One working row for each combination of the entities that are returned: equal ones give equal rows."""
    mentioned = frozenset[str]().union(*(mentions.variables_of(column.expression) for column in plan.columns))
    if len(mentioned) == 1:
        first = first_places(frame[next(iter(mentioned))])
        return frame if len(first) == frame.rows else frame.take(first)
    first, _ = distinct_rows([frame[name] for name in sorted(mentioned)], frame.rows)
    return frame if len(first) == frame.rows else frame.take(np.sort(first))


def _distinct(plan: ir.ReadPlan, columns: list[Any]) -> tuple[list[Any], Any]:
    if len(columns) == 1 and isinstance(plan.columns[0].expression, ir.NodeRef):
        return columns, columns[0]  # each node has its own id
    codes = _group_codes(columns)
    _, first = np.unique(codes, return_index=True)
    keep = pa.array(np.sort(first))
    return [column.take(keep) for column in columns], keep


def _group_codes(columns: list[Any]) -> NDArray[np.int64]:
    """One number per row; equal exactly where all columns are equal, null being equal to null."""
    rows = len(columns[0])
    codes = np.zeros(rows, dtype=np.int64)
    for column in columns:
        mine = _codes(column)
        width = int(mine.max()) + 1 if rows else 1
        # Renumbered after each column, so that the product of two never overflows.
        _, codes = np.unique(codes * width + mine, return_inverse=True)
        codes = codes.reshape(-1).astype(np.int64)
    return codes


def _codes(column: pa.Array) -> NDArray[np.int64]:
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        # Lists have no dictionary form: number the elements, then compare the lists as byte strings.
        flat = _codes(pc.list_flatten(column))
        lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), dtype=np.int64)
        ends = np.cumsum(lengths)
        raw = flat.tobytes()
        parts = [raw[(e - n) * 8 : e * 8] for e, n in zip(ends.tolist(), lengths.tolist(), strict=True)]
        known = np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), dtype=np.bool_)
        return _codes(pa.array(parts, pa.binary(), mask=~known))
    if pa.types.is_floating(kind):
        column = pc.add(column, pa.scalar(0.0, kind))  # both zeros are one value
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _column_keys(plan: ir.ReadPlan, columns: list[Any]) -> SortColumns:
    """What distinct rows are ordered by: columns of theirs."""
    keys: SortColumns = []
    for key in plan.order:
        assert isinstance(key.expression, ir.ColumnRef)  # noqa: S101 - nothing else is accepted with distinct
        keys.append((columns[key.expression.index], _way(key)))
    return keys


def _way(key: ir.SortKey) -> str:
    return "descending" if key.descending else "ascending"


def _sort_values(reading: Reading, image: TableImage, column: str, ordinals: Ordinals, *, text: bool) -> Any:
    """What rows sort by: the values of a column or, where rows share texts, numbers in their order.

    A text repeated for each of its rows takes any amount of memory, and outgrows an array.
    """
    if not text or len(ordinals) <= image.extent:
        if len(ordinals) > FEW_ROWS:
            hold_fetches(reading, len(ordinals), [(image, column, ordinals)])
        return image.take(column, ordinals)
    entities = entities_of(ordinals, image.extent)
    hold_fetches(reading, len(entities), [(image, column, entities)])
    values = image.take(column, entities)
    known = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
    ranks = np.zeros(image.extent + 1, dtype=np.int64)  # 0, below every rank, is null
    ranks[entities] = np.where(known, np.asarray(pc.rank(values, tiebreaker="dense")).astype(np.int64), 0)
    return pa.array(ranks[ordinals])


def _tie_columns(reading: Reading, plan: ir.ReadPlan, frame: Frame) -> SortColumns:
    owners = _owners(plan.match)
    return [
        (
            _sort_values(reading, reading.image(owners[variable]), "id", frame[variable], text=True),
            "ascending",
        )
        for variable in plan.ties
        if variable in frame
    ]


def _column_ties(columns: list[Any]) -> SortColumns:
    """What breaks ties between result rows that stand for no entities: their columns. No two are equal."""
    return [(_list_keys(c) if pa.types.is_nested(c.type) else c, "ascending") for c in columns]


def _list_keys(column: pa.Array) -> pa.Array:
    """Byte strings that sort as the lists do: element by element, a list before its continuations."""
    flat = pc.list_flatten(column)
    if pa.types.is_boolean(flat.type):
        flat = flat.cast(pa.int8())
    elif pa.types.is_floating(flat.type):
        flat = pc.add(flat, pa.scalar(0.0, flat.type))  # both zeros are one value
    ranks = np.asarray(pc.rank(flat, tiebreaker="dense"), dtype=">u8")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), dtype=np.int64)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]) * ranks.itemsize
    known = pc.is_valid(column).buffers()[1] if column.null_count else None
    buffers = [known, pa.py_buffer(ends), pa.py_buffer(ranks)]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def _owners(block: ir.Block) -> dict[str, Any]:
    owners: dict[str, Any] = {}
    for inner in block.walk():
        owners |= {node.name: node.type for node in inner.nodes}
        owners |= dict(inner.edges)
    return owners


def _sorted(
    columns: SortColumns, rows: int, first: int | None = None, check: Callable[[], None] = lambda: None
) -> NDArray[np.int64]:
    """Row positions in order, the first or all; null sorts below every value, whatever the direction."""
    check()
    table: dict[str, Any] = {}
    keys: list[tuple[str, str]] = []
    for number, (values, way) in enumerate(columns):
        if values.null_count:
            table[f"v{number}"] = pc.is_valid(values).cast(pa.int8())
            keys.append((f"v{number}", way))
        plain = values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values
        table[f"k{number}"] = plain
        keys.append((f"k{number}", way))
    if not keys:
        return np.arange(rows, dtype=np.int64)
    rows_sorted = pa.table(table)
    if first is None or first > PIECE_ROWS // 4 or rows <= PIECE_ROWS:
        return np.asarray(pc.sort_indices(rows_sorted, sort_keys=keys), dtype=np.int64)
    # Each piece gives its first rows, in the order they had: the sort of all keeps ties as they were.
    found: list[NDArray[np.int64]] = []
    for begin in range(0, rows, PIECE_ROWS):
        check()
        order = pc.sort_indices(rows_sorted.slice(begin, PIECE_ROWS), sort_keys=keys)
        found.append(np.sort(np.asarray(order.slice(0, first), dtype=np.int64)) + begin)
    kept = np.concatenate(found)
    order = pc.sort_indices(rows_sorted.take(pa.array(kept)), sort_keys=keys)
    return kept[np.asarray(order, dtype=np.int64)][:first]


def aggregate_whole(reading: Reading, prepared: Prepared, frame: Frame) -> list[Any]:
    """The result columns of an aggregate query over all its working rows at once, whatever its key is."""
    plan = prepared.plan
    if plan.grouping:
        codes, groups = _grouped(reading, prepared, frame)
        # Assigned backwards, so that the first row of each group stays.
        first = np.zeros(groups, dtype=np.int64)
        first[codes[::-1]] = np.arange(frame.rows - 1, -1, -1, dtype=np.int64)
        heads = [_column(reading, prepared, index, frame.take(first)) for index in plan.grouping]
    else:
        codes, groups, heads = np.zeros(frame.rows, dtype=np.int64), 1, []
    results = [_aggregate(reading, each, frame, codes, groups) for each in prepared.aggregates]
    return finished_groups(reading, prepared, heads, results, groups)


def finished_groups(
    reading: Reading, prepared: Prepared, heads: list[Any], results: list[Any], groups: int
) -> list[Any]:
    """The result columns from those of the group key and the aggregates, one value a group."""
    if prepared.places is not None:
        found = [*heads, *results]
        return _cut(prepared, [found[place] for place in prepared.places], None)
    plan = prepared.plan
    keys = {plan.columns[at].expression: head for at, head in zip(plan.grouping, heads, strict=True)}
    summed = dict(zip(prepared.aggregates, results, strict=True))
    known = GroupValues(reading, {**keys, **summed}, groups)
    mask = known.hold(plan.having)
    if mask is not None:
        kept = pa.array(np.flatnonzero(mask))
        groups = len(kept)
        known = GroupValues(
            reading, {each: values.take(kept) for each, values in known.known.items()}, groups
        )
    columns = [known.column(column.expression) for column in plan.columns]
    return _ordered_groups(prepared, columns, known.known, groups)


def _ordered_groups(
    prepared: Prepared, columns: list[Any], order: Mapping[ir.Operand, Any], groups: int
) -> list[Any]:
    """The groups in the order of the query, cut to its limit. `order` has what is not a result column."""
    plan = prepared.plan
    if not plan.order:
        return _cut(prepared, columns, None)
    wanted: SortColumns = []
    for key in plan.order:
        match key.expression:
            case ir.ColumnRef():
                values = columns[key.expression.index]
            case ir.Aggregate():
                values = order[key.expression]
            case ir.PropertyRef() | ir.PathRef():
                raise AssertionError(key)
            case _:
                assert_never(key.expression)
        wanted.append((values, _way(key)))
    return _cut(prepared, columns, _sorted(wanted + _column_ties(columns), groups))


def _grouped(reading: Reading, prepared: Prepared, frame: Frame) -> tuple[NDArray[np.int64], int]:
    """The group of each row, numbered from 0 without gaps, and how many there are."""
    codes: NDArray[np.int64] = np.zeros(frame.rows, dtype=np.int64)
    groups = 1
    for index in prepared.plan.grouping:
        expression = prepared.plan.columns[index].expression
        if isinstance(expression, ir.PropertyRef) and expression.type.is_scalar:
            known = reading.codes(expression)
            mine, width = known.codes[frame[expression.variable]].astype(np.int64), known.width
        else:
            mine = _codes(_column(reading, prepared, index, frame))
            width = int(mine.max()) + 1 if frame.rows else 1
        codes, groups = _dense(codes * width + mine, groups * width)
    return codes, groups


def _dense(codes: NDArray[np.int64], width: int) -> tuple[NDArray[np.int64], int]:
    """The same groups numbered without gaps, in the order of their codes."""
    if width > max(DENSE_CODES_MAX, len(codes)):
        found, dense = np.unique(codes, return_inverse=True)
        return dense.reshape(-1).astype(np.int64), len(found)
    used = np.zeros(width, dtype=np.bool_)
    used[codes] = True
    number = np.cumsum(used) - 1
    groups = int(used.sum())
    return (codes if groups == width else number[codes]), groups


def _aggregate(
    reading: Reading, aggregate: ir.Aggregate, frame: Frame, codes: NDArray[np.int64], groups: int
) -> Any:
    """One value a group. Everything but a count is null over no values."""
    reading.limits.check()
    kind = arrow_type(aggregate.type)
    if aggregate.distinct:
        counts = DistinctCounts(reading, aggregate, groups)
        counts.add(codes, frame)
        return counts.result(np.arange(groups, dtype=np.int64))
    if aggregate.function is Function.COUNT and isinstance(aggregate.argument, ir.NodeRef):
        present = frame[aggregate.argument.variable] >= 0
        return pa.array(np.bincount(codes[present], minlength=groups), kind)
    hold_values(reading, aggregate.argument, frame)
    if aggregate.function in {Function.SUM, Function.AVG}:
        sums = Sums(aggregate, groups)
        sums.add(codes, *numbers_of(reading, aggregate.argument, frame))
        return sums.result(np.arange(groups, dtype=np.int64))
    values = as_array(operand_values(reading, aggregate.argument, frame), frame.rows)
    if aggregate.function is Function.COUNT:
        known = np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
        return pa.array(np.bincount(codes[known], minlength=groups), kind)
    table = pa.table({"group": codes, "value": values})
    name = _EXTREMES[aggregate.function]
    done = table.group_by("group").aggregate([("value", name)])
    place = np.full(groups, -1, dtype=np.int64)
    place[np.asarray(done.column("group").to_numpy())] = np.arange(done.num_rows)
    missing = place < 0
    result = done.column(f"value_{name}").combine_chunks()
    if isinstance(result, pa.ChunkedArray):
        result = pa.concat_arrays(result.chunks) if result.num_chunks else pa.array([], result.type)
    return result.take(pa.array(place, mask=missing if missing.any() else None)).cast(kind)
