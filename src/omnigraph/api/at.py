"""A graph as it was at one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.core.late_dataclass import dataclass

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from omnigraph.api.graph import Graph
    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.ids import CommitId
    from omnigraph.engine.entities.blob_cells import Blob
    from omnigraph.engine.entities.lookup import Entity
    from omnigraph.engine.read.explain import Explanation
    from omnigraph.engine.read.result import Rows
    from omnigraph.planning.keys import EntityKey


@text_checked_methods
@dataclass(frozen=True, slots=True)
class GraphAt:
    """The reading side of a graph, pinned to one commit. Made by `Graph.at`."""

    graph: Graph
    commit_id: CommitId

    def query(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Rows:
        """Run a read query at this commit. As `Graph.query`."""
        return self.graph.query(source, params, name=name, at=self.commit_id)

    def explain(
        self,
        source: str | os.PathLike[str],
        params: Mapping[str, Any] | None = None,
        *,
        analyze: bool = False,
        name: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Explanation:
        """How a read query would be answered at this commit. As `Graph.explain`."""
        return self.graph.explain(source, params, analyze=analyze, name=name, at=self.commit_id)

    def entity(self, type_name: str, entity_id: EntityKey, **_limits: Unpack[CallLimits]) -> Entity:
        """One node or edge as it was at this commit. As `Graph.entity`."""
        return self.graph.entity(type_name, entity_id, at=self.commit_id)

    def blob(
        self,
        type_name: str,
        entity_id: EntityKey,
        property_name: str,
        *,
        kind: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Blob:
        """One blob as it was at this commit. As `Graph.blob`."""
        return self.graph.blob(type_name, entity_id, property_name, kind=kind, at=self.commit_id)

    def export(self, *, types: Sequence[str] | None = None, **_limits: Unpack[CallLimits]) -> str:
        """The state of this commit as JSON lines. As `Graph.export`."""
        return self.graph.export(at=self.commit_id, types=types)

    def frames(
        self,
        type_name: str,
        *,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Any:
        """One type at this commit as a Spark DataFrame. As `Graph.frames`."""
        return self.graph.frames(type_name, at=self.commit_id, columns=columns, where=where)
