"""The rules that a schema adds to a table that exists. Pure: two types in, rules out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from omnigraph.catalog.diff import added_constraints
from omnigraph.catalog.schema import ConstraintKind, EdgeType, NodeType
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.write.rules import is_bounded

if TYPE_CHECKING:
    from collections.abc import Collection

    from omnigraph.catalog.schema import Property, TableType
    from omnigraph.catalog.table_changes import TableChange


@dataclass(frozen=True, slots=True)
class NewRules:
    """What the rows of one table must keep that they did not have to keep before."""

    values: TableType
    """The type with those properties and rules only that single rows have to be asked about."""
    unique: tuple[tuple[str, ...], ...]
    key: tuple[str, ...]
    """The properties that the id of every row must be made of; () when the key is as it was."""
    counts_edges: bool

    @property
    def value_columns(self) -> list[str]:
        """What is read for the rules about single rows; none when there are none."""
        names = [*(prop.name for prop in self.values.properties), *self.key]
        return ["id", *dict.fromkeys(names)] if names else []

    @property
    def columns(self) -> list[str]:
        """Every column that is read."""
        grouped = ["id", *(name for group in self.unique for name in group)] if self.unique else []
        counted = ["src"] if self.counts_edges else []
        return list(dict.fromkeys([*self.value_columns, *grouped, *counted]))


def new_rules(change: TableChange, filled: Collection[str] = ()) -> NewRules:
    """What a change asks of rows. `filled` are added properties that get values; the others are null."""
    before, after = change.before, change.after
    old = {prop.property_id: prop for prop in before.properties}
    empty = {prop.name for prop in after.properties if prop.property_id not in old} - set(filled)
    added = [each for each in added_constraints(before, after) if not empty.issuperset(each.properties)]
    bounded = [each for each in added if each.range is not None or each.check is not None]
    named = {name for each in bounded for name in each.properties}
    asked = tuple(
        prop
        for prop in after.properties
        if prop.name in named or _is_stricter(old.get(prop.property_id), prop, filled)
    )
    keyed = any(each.kind is ConstraintKind.KEY for each in added) and isinstance(after, NodeType)
    unique = {each.properties for each in added if each.kind is ConstraintKind.UNIQUE}
    return NewRules(
        values=replace(after, properties=asked, constraints=tuple(bounded)),
        unique=tuple(sorted(unique & set(after.unique))),
        key=after.key if keyed else (),
        counts_edges=_counts_edges(before, after),
    )


def _is_stricter(old: Property | None, new: Property, filled: Collection[str]) -> bool:
    """Whether a value that was allowed, or one that a fill gives, may not be."""
    if old is None:
        return new.name in filled
    if new.required and old.nullable:
        return True
    allowed, before = new.enum_values, old.enum_values
    return allowed is not None and (before is None or not set(before) <= set(allowed))


def _counts_edges(before: TableType, after: TableType) -> bool:
    if not (isinstance(before, EdgeType) and isinstance(after, EdgeType) and is_bounded(after)):
        return False
    fewer = after.card_max is not None and (before.card_max is None or after.card_max < before.card_max)
    return fewer or after.card_min > before.card_min
