"""The rules that more than one row decides, and the one sentence for each that is broken. Pure.

Uniqueness, endpoints and cardinality are checked by two drivers. Mutations and merges have their rows in
memory and look committed ones up (`validate`); loads compare key columns in bulk (`pipeline/checks/passes`).
Both ask the predicates of this module and say what they find in its words. Rules about single rows are in
`values`.
"""

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.key_segments import KeySegment
from omnigraph.arrays.keys import hash_keys
from omnigraph.arrays.types import Mask
from omnigraph.catalog.canonical import spelled
from omnigraph.catalog.schema import EdgeType, NodeType, Property, TableType
from omnigraph.core.errors import Violation
from omnigraph.core.late_dataclass import dataclass

Positions = NDArray[np.int64]

HASHED_ROWS_MIN: Final = 10_000
"""From so many texts on they are compared by a hash of our own, which then is several times as fast."""

SIDES: Final = {"src": ("from", "source"), "dst": ("to", "target")}
"""How a column with the ends of edges is called: as a member of a record, and in a sentence."""


# --- predicates ------------------------------------------------------------------------------------------


def are_among(values: pa.StringArray, among: pa.StringArray) -> Mask:
    """Which of the texts are among others."""
    if len(values) == 0 or len(among) == 0:
        return np.zeros(len(values), np.bool_)
    if len(values) + len(among) < HASHED_ROWS_MIN:
        return np.asarray(pc.is_in(values, value_set=among).to_numpy(zero_copy_only=False), np.bool_)
    named, _ = KeySegment(among, np.arange(len(among), dtype=np.uint64)).find(values, hash_keys(values))
    return np.asarray(named, np.bool_)


def count_each(wanted: pa.StringArray, values: pa.StringArray) -> NDArray[np.int64]:
    """How often each wanted text occurs among the values."""
    at = pc.index_in(values, value_set=wanted)
    found = np.asarray(at.drop_null().to_numpy(zero_copy_only=False), np.int64)
    return np.bincount(found, minlength=len(wanted)).astype(np.int64)


def tuple_codes(texts: Sequence[pa.StringArray]) -> Positions:
    """One number per row, equal exactly for rows with equal tuples; -1 for a tuple with a null member."""
    codes, exempt = _text_codes(texts[0])
    for text in texts[1:]:
        member, missing = _text_codes(text)
        # Re-numbering after each member keeps the product below 2**63 for any number of members.
        joined = pa.array(codes * (int(member.max(initial=0)) + 1) + member)
        codes = np.asarray(joined.dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)
        exempt |= missing
    return np.where(exempt, -1, codes) if exempt.any() else codes


def _text_codes(text: pa.StringArray) -> tuple[Positions, Mask]:
    """A number per distinct text, and which texts are null."""
    missing = np.asarray(text.is_null().to_numpy(zero_copy_only=False), np.bool_)
    filled = pc.fill_null(text, "") if text.null_count else text
    return np.asarray(filled.dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64), missing


@dataclass(frozen=True, slots=True)
class SharedTuples:
    """New rows whose unique tuple another row has as well."""

    rows: Positions
    """All of them, by rank."""
    heads: Positions
    """The first row of each tuple, by rank."""
    others: Positions
    """For each head the next new row with its tuple; -1 where there is none."""
    holders: Positions
    """For each head the committed row with its tuple; -1 where there is none."""


def shared_tuples(codes: Positions, held: Positions, ranks: Positions) -> SharedTuples:
    """The new rows that may not stand beside each other, or beside a committed row.

    `codes` are those of `tuple_codes`, `held` names the committed row that has the tuple of each row and
    stays as it is, or -1. Cost: one pass; only what is broken is sorted.
    """
    tuples = codes >= 0
    counts = np.bincount(codes[tuples], minlength=1)
    broken_codes = counts > 1
    broken_codes[codes[tuples & (held >= 0)]] = True
    at = np.flatnonzero(tuples & broken_codes[codes]) if broken_codes.any() else np.empty(0, np.int64)
    if len(at) == 0:
        return SharedTuples(at, at, at, at)
    at = at[np.argsort(ranks[at], kind="stable")]
    grouped = at[np.argsort(codes[at], kind="stable")]
    starts = np.flatnonzero(np.r_[True, np.diff(codes[grouped]) != 0])
    sizes = np.diff(np.r_[starts, len(grouped)])
    heads = grouped[starts]
    others = np.where(sizes > 1, grouped[np.minimum(starts + 1, len(grouped) - 1)], -1)
    places = np.where(held[grouped] >= 0, np.arange(len(grouped)), len(grouped))
    first_held = np.minimum.reduceat(places, starts)
    holders = np.r_[held[grouped], -1][first_held]
    by_rank = np.argsort(ranks[heads], kind="stable")
    return SharedTuples(at, heads[by_rank], others[by_rank], holders[by_rank])


def is_bounded(table_type: TableType) -> bool:
    """Whether the number of edges of a source is bounded."""
    return isinstance(table_type, EdgeType) and (table_type.card_min > 0 or table_type.card_max is not None)


def out_of_bounds(edge: EdgeType, counts: NDArray[np.int64]) -> Mask:
    """Which numbers of edges of one source the type does not allow."""
    outside = counts < edge.card_min
    return outside if edge.card_max is None else outside | (counts > edge.card_max)


# --- sentences -------------------------------------------------------------------------------------------


def missing_value(table_type: TableType, name: str, entity_id: str | None = None) -> Violation:
    """A property, or an end of an edge, that must have a value has none."""
    message = f"{table_type.name}.{name} must have a value"
    return _violation(table_type, "required", message, entity_id, name)


def shared_value(
    table_type: TableType,
    group: Sequence[str],
    values: Sequence[str],
    holders: Sequence[str | None],
    entity_id: str | None,
) -> Violation:
    """Two rows have the values (canonical texts) of a unique group. A row without an id is a new one."""
    known = [f"'{each}'" for each in sorted(each for each in holders if each is not None)]
    new = len(holders) - len(known)
    owners = "two new rows" if new == 2 else " and ".join([*known, *["a new row"] * new])
    message = f"{_tuple(table_type, group, values)} is held by {owners}"
    return _violation(table_type, "unique", message, entity_id, ", ".join(group))


def repeated_tuple(
    table_type: TableType, group: Sequence[str], values: Sequence[str], entity_id: str | None
) -> Violation:
    """Several records of one input have the values (canonical texts) that name an entity."""
    message = f"{_tuple(table_type, group, values)} occurs more than once in the input"
    return _violation(table_type, "unique", message, entity_id, ", ".join(group))


def repeated_key(node: NodeType, entity_id: str, times: int) -> Violation:
    """Several records of one input have the key of this id."""
    names = node.key[0] if len(node.key) == 1 else f"({', '.join(node.key)})"
    values = [entity_id] if len(node.key) == 1 else json.loads(entity_id)
    message = f"{node.name}.{names}: {_shown(node, node.key, values)} occurs {times} times in the input"
    return _violation(node, "unique", message, entity_id, ", ".join(node.key))


def misfit(table_type: TableType, prop: Property, value: object, entity_id: str) -> Violation:
    """A number that the type of a property cannot hold."""
    message = f"{table_type.name}.{prop.name}: {value} does not fit {prop.type.text()}"
    return _violation(table_type, "type", message, entity_id, prop.name)


def uncomputed(table_type: TableType, prop: Property, expression: str, entity_id: str) -> Violation:
    """An expression that has no result for a row, though every number in it is there."""
    reason = "a division by zero, or too great a number"
    message = f"{table_type.name}.{prop.name}: {expression} has no result ({reason})"
    return _violation(table_type, "type", message, entity_id, prop.name)


def wrong_id(node: NodeType, entity_id: str, key: str) -> Violation:
    """The id of a row is not the text of its key."""
    message = f"{node.name} '{entity_id}': its key is '{key}', which is not its id"
    return _violation(node, "key", message, entity_id, ", ".join(node.key))


def missing_end(edge: EdgeType, column: str, end: str, entity_id: str | None) -> Violation:
    """A new or changed edge names a node that will not be there."""
    member, side = SIDES[column]
    message = f"{edge.name}: no {_node_at(edge, column)} with id '{end}' ({side})"
    return _violation(edge, "endpoint", message, entity_id, member)


def lost_end(edge: EdgeType, column: str, end: str, entity_id: str, *, write: str) -> Violation:
    """An edge that the write leaves alone loses a node that the write deletes."""
    member, side = SIDES[column]
    message = f"{edge.name} '{entity_id}': the {write} deletes {_node_at(edge, column)} '{end}' ({side})"
    return _violation(edge, "endpoint", message, entity_id, member)


def wrong_count(edge: EdgeType, source: str, count: int) -> Violation:
    """A source would have more or fewer edges than the type allows."""
    above = edge.card_max is not None and count > edge.card_max
    bound = f"at most {edge.card_max}" if above else f"at least {edge.card_min}"
    edges = "edge" if count == 1 else "edges"
    message = f"{edge.name}: source '{source}' would have {count} {edges} ({bound})"
    return _violation(edge, "cardinality", message, source)


def _node_at(edge: EdgeType, column: str) -> str:
    return edge.source if column == "src" else edge.target


def _tuple(table_type: TableType, group: Sequence[str], values: Sequence[str]) -> str:
    """The names and values of a unique group; the source of an edge stands before its target."""
    given = dict(zip(group, values, strict=True))
    names = [*(end for end in ("src", "dst") if end in given), *(n for n in group if n not in {"src", "dst"})]
    shown = names[0] if len(names) == 1 else f"({', '.join(names)})"
    return f"{table_type.name}.{shown}: {_shown(table_type, names, [given[name] for name in names])}"


def _shown(table_type: TableType, group: Sequence[str], values: Sequence[str]) -> str:
    """Values of a tuple as whoever wrote them would write them."""
    written = [f"'{_spelled(table_type, name, text)}'" for name, text in zip(group, values, strict=True)]
    return written[0] if len(written) == 1 else f"({', '.join(written)})"


def _spelled(table_type: TableType, name: str, text: str) -> str:
    prop = table_type.get(name)
    return text if prop is None else spelled(text, prop.type)


def _violation(
    table_type: TableType, rule: str, message: str, entity_id: str | None, prop: str | None = None
) -> Violation:
    return Violation(
        rule=rule,
        entity_kind=table_type.kind.value,
        type_name=table_type.name,
        entity_id=entity_id,
        property=prop,
        message=message,
    )
