"""The fills of a planned change: those the caller gives, and the defaults of required properties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.catalog.plan import AddProperty
from omnigraph.core.errors import BadRequest, MigrationUnsupported
from omnigraph.core.ids import TableKey
from omnigraph.planning.fills import Fill, compile_fill, fill_label

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from omnigraph.catalog.plan import SchemaPlan
    from omnigraph.catalog.schema import Catalog


def fill_texts(texts: Sequence[str]) -> dict[str, str]:
    """The expression of each fill by its `Type.property`. Raises QuerySyntaxError, and BadRequest for two."""
    found: dict[str, str] = {}
    for text in texts:
        label, expression = fill_label(text)
        if label in found:
            raise BadRequest(f"'{label}' is filled twice", hint="give one fill for each property")
        found[label] = expression
    return found


def planned_fills(
    accepted: Catalog, plan: SchemaPlan, texts: Sequence[str], now: dt.datetime
) -> dict[TableKey, list[Fill]]:
    """What every table gets, by its new key. Raises the typed error of a value that does not fit."""
    fills = [compile_fill(text, plan.desired, now) for text in texts]
    fills += [
        Fill(step.type_name, step.property_name, "@default", step.backfill.value)
        for step in plan.steps
        if isinstance(step, AddProperty) and step.backfill is not None
    ]
    known = {prop.property_id for each in accepted.tables() for prop in each.properties}
    by_table: dict[TableKey, list[Fill]] = {}
    for fill in fills:
        owner = plan.desired.nodes.get(fill.type_name) or plan.desired.edges[fill.type_name]
        new = [name for name in fill.sources if owner.property_named(name).property_id not in known]
        if new:
            raise MigrationUnsupported(
                f"'{fill.label}' cannot be filled from '{new[0]}', which is added by the same change",
                hint="fill it from a property that the rows have already",
            )
        by_table.setdefault(TableKey(owner.table_key), []).append(fill)
    return by_table
