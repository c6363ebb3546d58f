"""Edges that inserts name by their ends, where the type is unique by them: one look-up for a whole query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.catalog.canonical import unique_tuples
from omnigraph.core.ids import TableKey
from omnigraph.engine.write.validate import PROBED_VALUES_MAX
from omnigraph.planning.filters import every, filter_text, has_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from omnigraph.catalog.schema import EdgeType
    from omnigraph.engine.write.committed import CommittedView


class KnownEdges:
    """Which edge of one type has given ends: committed ones, those that are staged for the same commit, and
    those that the query inserted before.

    Cost: one read of the edges between the ends that the statements name.
    """

    def __init__(
        self,
        edge: EdgeType,
        identity: tuple[str, ...],
        ends: Mapping[str, Sequence[str]],
        view: CommittedView,
        staged: pa.Table | None,
    ) -> None:
        self._edge = edge
        self._identity = identity
        probes = [
            has_text(column, texts) for column, texts in ends.items() if len(set(texts)) <= PROBED_VALUES_MAX
        ]
        where = filter_text(every(probes)) if probes else None
        found = view.read(TableKey(edge.table_key), ["id", *identity], where)
        self._ids: dict[str | None, str] = {}
        for rows in (found, staged):
            if rows is not None:
                self._ids.update(zip(self._names(rows), rows.column("id").to_pylist(), strict=True))

    def _names(self, rows: pa.Table) -> list[str | None]:
        return unique_tuples(rows, self._identity, self._edge).to_pylist()

    def of(self, row: pa.Table) -> str | None:
        """The id of the edge that a new row means; None where it is a new one, or a member is null."""
        name = self._names(row)[0]
        return None if name is None else self._ids.get(name)

    def add(self, row: pa.Table, entity_id: str) -> None:
        """From here on the row is there."""
        self._ids[self._names(row)[0]] = entity_id
