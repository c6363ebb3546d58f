"""Clones: a graph copied into another place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from omnigraph.api.arguments import limited, text_checked
from omnigraph.core.bounds import current_bounds
from omnigraph.core.errors import BadRequest
from omnigraph.engine.session import GraphSession, connect_storage, open_session
from omnigraph.maintenance.clone import clone_graph
from omnigraph.maintenance.clone_plan import CloneRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.settings import Settings
    from omnigraph.maintenance.clone import CloneReport


@limited
@text_checked
def clone(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    branches: Sequence[str] | None = None,
    at: str | None = None,
    heads_only: bool = False,
    settings: Settings | None = None,
    storage_options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    **_limits: Unpack[CallLimits],
) -> CloneReport:
    """Copy one moment of a graph into another place, as `Graph.clone` does.

    ```python
    report = omnigraph.clone("people.omni", "s3://backups/people")
    ```

    What dead writers left in the source is left alone. The source is only written to for the pin that keeps a
    cleanup away; where it takes none, a warning says so. `storage_options` are those of the source and,
    without `target_options`, of the target. Raises `GraphNotFound`, `CloneTarget`.
    """
    session = open_session(
        os.fspath(source), read_only=True, settings=settings, storage_options=storage_options
    )
    try:
        return clone_session(
            session,
            target,
            branches=branches,
            at=at,
            heads_only=heads_only,
            storage_options=target_options,
            pins=True,
        )
    finally:
        session.close()


def clone_session(
    session: GraphSession,
    target: str | os.PathLike[str],
    *,
    branches: Sequence[str] | None,
    at: str | None,
    heads_only: bool,
    storage_options: Mapping[str, str] | None,
    pins: bool,
) -> CloneReport:
    """Clone an open graph."""
    from omnigraph.branching.references import resolve_reference  # noqa: PLC0415  few clones name a commit

    if isinstance(branches, str):
        raise BadRequest("branches is a list of names")
    session.begin_read()
    record = None if at is None else resolve_reference(session, at).commit
    request = CloneRequest(None if branches is None else tuple(branches), record, heads_only)
    options = session.root.storage_options if storage_options is None else storage_options
    root, settings, adapter = connect_storage(
        os.fspath(target), settings=session.settings, storage_options=options
    )
    place = GraphSession(root, settings=settings, adapter=adapter, clock=session.clock)
    try:
        return clone_graph(session, place, request, pins=pins, cancel=current_bounds().cancel)
    finally:
        place.close()
