"""What a change of the schema does to tables. Pure: two catalogs in, changes out, matched by identity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.core.ids import TableKey
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from omnigraph.catalog.schema import Catalog, TableType


@dataclass(frozen=True, slots=True, eq=False)
class ColumnMap:
    """The columns of a table by other names: what a change makes of them, or what a reader asks for."""

    schema: pa.Schema
    """Every column there will be, in order."""
    sources: Mapping[str, str]
    """The name a column has now, by the name it will have. A column not named here is new and null."""
    written: tuple[str, ...] = ()
    """Columns whose values are written when the change is made: widened ones, and new ones that are filled.
    A reader sees the first cast and the second null.
    """


@dataclass(frozen=True, slots=True)
class TableChange:
    """One table that stays: its type before and after."""

    before: TableType
    after: TableType

    @property
    def key(self) -> TableKey:
        """The key the branch shows it under until the change is published."""
        return TableKey(self.before.table_key)

    @property
    def new_key(self) -> TableKey:
        """The key it is shown under afterwards."""
        return TableKey(self.after.table_key)

    @property
    def columns(self) -> ColumnMap | None:
        """What becomes of its columns; None when nothing does."""
        wanted = self.after.arrow_schema
        names = {prop.property_id: prop.name for prop in self.before.properties}
        own = {prop.name: prop.property_id for prop in self.after.properties}
        sources = {
            name: name if name not in own else names[own[name]]
            for name in wanted.names
            if name not in own or own[name] in names
        }
        before = self.before.arrow_schema
        same = len(sources) == len(wanted) and all(new == old for new, old in sources.items())
        if same and wanted.equals(before):
            return None
        widened = (new for new, old in sources.items() if wanted.field(new).type != before.field(old).type)
        return ColumnMap(wanted, sources, tuple(widened))

    @property
    def newly_required(self) -> frozenset[str]:
        """The properties that rows of before may have no value for, and must have one afterwards."""
        sure = {prop.property_id for prop in self.before.properties if prop.required}
        return frozenset(
            prop.name for prop in self.after.properties if prop.required and prop.property_id not in sure
        )


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """The tables of a branch that goes from one schema to another."""

    kept: tuple[TableChange, ...]
    added: tuple[TableType, ...]
    dropped: tuple[TableType, ...]

    @property
    def renamed(self) -> dict[TableKey, TableKey]:
        """Tables that are shown under another key: old to new."""
        return {each.key: each.new_key for each in self.kept if each.key != each.new_key}


def catalog_change(before: Catalog, after: Catalog) -> CatalogChange:
    """What it takes to go from one schema to another. A type that was dropped and declared again is new."""
    old = {(each.kind, each.type_id): each for each in before.tables()}
    new = {(each.kind, each.type_id): each for each in after.tables()}
    return CatalogChange(
        kept=tuple(TableChange(old[identity], each) for identity, each in new.items() if identity in old),
        added=tuple(each for identity, each in new.items() if identity not in old),
        dropped=tuple(each for identity, each in old.items() if identity not in new),
    )
