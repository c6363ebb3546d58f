"""A wanted change of the schema, and its plan on the schema of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.catalog.diff import plan_schema
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.evolve.planned_fills import fill_texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.catalog.plan import SchemaPlan
    from omnigraph.catalog.schema import Catalog
    from omnigraph.engine.session import GraphSession


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """What a caller asks for."""

    source: str | bytes
    file: str | None = None
    actor: str | None = None
    dry_run: bool = False
    allow_data_loss: bool = False
    fills: tuple[str, ...] = ()
    """`Type.property = expression`: what rows that exist get in an added property."""

    def plan(self, session: GraphSession, accepted: Catalog) -> tuple[SchemaPlan, tuple[str, ...]]:
        """What it changes, and the fills that it needs. Raises the errors of schema texts and of fills.

        A caller whose change became the schema although it seemed to fail sends the same request again: then
        nothing is left to change, and what the fills name has its values.
        """
        labels = fill_texts(self.fills)
        if labels and _added_last(session, accepted).issuperset(labels):
            plan = self._planned(accepted, {})
            if plan.is_empty:
                return plan, ()
        return self._planned(accepted, labels), self.fills

    def _planned(self, accepted: Catalog, fills: Mapping[str, str]) -> SchemaPlan:
        return plan_schema(
            accepted, self.source, file=self.file, allow_data_loss=self.allow_data_loss, fills=fills
        )


def _added_last(session: GraphSession, accepted: Catalog) -> set[str]:
    """The properties, as `Type.property`, that came with the accepted schema."""
    if accepted.parent is None:
        return set()
    before = session.schemas.catalog(accepted.parent)
    known = {prop.property_id for each in before.tables() for prop in each.properties}
    return {
        f"{each.name}.{prop.name}"
        for each in accepted.tables()
        for prop in each.properties
        if prop.property_id not in known
    }
