"""The committed side of a write: tables at the versions the write was prepared against, every read
recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from omnigraph.core.ids import TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.gathered import MutationStaging
    from omnigraph.planning.filters import FilterText
    from omnigraph.storage.handles import SnapshotHandle


class CommittedView:
    """`CommittedState` over the snapshot of one write. What it reads becomes part of the write's read set."""

    def __init__(self, session: GraphSession, staging: MutationStaging) -> None:
        self._session = session
        self._staging = staging

    def handle(self, table_key: TableKey) -> SnapshotHandle | None:
        """The table at the captured version; None when the branch shows no such table."""
        entry = self._staging.snapshot.entries.get(table_key)
        return None if entry is None else self._session.open_entry(entry)

    def addresses(self, table_key: TableKey, ids: pa.StringArray) -> NDArray[np.uint64]:
        """Where the rows with these ids are; `ABSENT` where there is none."""
        self._staging.record_read(table_key)
        handle = self.handle(table_key)
        if handle is None:
            return np.full(len(ids), ABSENT, np.uint64)
        return self._session.keys.addresses(self._session.root.identity, self._session.storage, handle, ids)

    def existing(self, table_key: TableKey, ids: pa.StringArray) -> NDArray[np.bool_]:
        """See `CommittedState`."""
        return self.addresses(table_key, ids) != ABSENT

    def read(self, table_key: TableKey, columns: Sequence[str], where: FilterText | None) -> pa.Table:
        """See `CommittedState`."""
        self._staging.record_read(table_key)
        handle = self.handle(table_key)
        if handle is None:
            return pa.table({name: pa.array([], pa.string()) for name in columns})
        return self._session.storage.read(handle, columns=list(columns), filter=where)
