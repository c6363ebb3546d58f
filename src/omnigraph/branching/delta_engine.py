"""Who computes the delta of one table: this process, or what a higher room brings for large ones."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol

from omnigraph.branching.changes import compare_fragments, table_delta
from omnigraph.engine.session import OVERLAP_THREADS

if TYPE_CHECKING:
    from omnigraph.branching.changes import TableDelta, Unshared
    from omnigraph.core.settings import Settings
    from omnigraph.engine.session import GraphSession
    from omnigraph.storage.handles import SnapshotHandle

LOCAL: Final = "local"
TABLES_AT_ONCE: Final = max(2, min(OVERLAP_THREADS, os.cpu_count() or 1))
"""How many tables a merge works on at once; more than there are processors would only take turns."""


class BulkDeltas(Protocol):
    """Computes deltas that are too large for this process. It gives what `table_delta` gives."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def delta(
        self,
        session: GraphSession,
        old: SnapshotHandle | None,
        new: SnapshotHandle | None,
        unshared: Unshared,
    ) -> TableDelta:
        """The delta of two versions of a table, which differ at most where `unshared` says."""
        ...


class Deltas:
    """The deltas of one operation; remembers who computed them.

    `bulk` gets those above the bounds of the settings; without one everything is computed here.
    """

    def __init__(self, session: GraphSession, bulk: BulkDeltas | None = None) -> None:
        self._session = session
        self._bulk = bulk
        self.engine = LOCAL

    def between(self, old: SnapshotHandle | None, new: SnapshotHandle | None) -> TableDelta:
        """What changed between two versions of a table. Thread-safe. Cost: as `table_delta`."""
        storage = self._session.storage
        unshared = compare_fragments(storage, old, new)
        views = any(each is not None and each.view is not None for each in (old, new))
        # The tasks elsewhere know tables as they are stored.
        if self._bulk is None or views or not is_large(unshared, self._session.settings):
            return table_delta(storage, old, new, unshared)
        self.engine = self._bulk.name
        return self._bulk.delta(self._session, old, new, unshared)


def is_large(unshared: Unshared, settings: Settings) -> bool:
    """Whether a delta is above one of the bounds for work in this process."""
    return (
        unshared.rows > settings.bulk_rows_in_process_max
        or unshared.bytes > settings.bulk_bytes_in_process_max
    )
