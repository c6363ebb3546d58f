"""What a merge does to one table, with both versions at hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnigraph.branching.merge_plan import TableAction

if TYPE_CHECKING:
    from omnigraph.branching.merge_plan import RowChanges
    from omnigraph.branching.rows_in_memory import HeldRows
    from omnigraph.core.ids import TableKey
    from omnigraph.manifest.state import TableEntry
    from omnigraph.storage.handles import SnapshotHandle


@dataclass(frozen=True, slots=True)
class MergeStep:
    """What happens to one table."""

    table_key: TableKey
    action: TableAction
    source: TableEntry
    target: TableEntry | None
    source_handle: SnapshotHandle
    target_handle: SnapshotHandle | None
    changes: RowChanges
    held: HeldRows | None = None
    """Rows of the source that are in memory already; they may be all that are written, some or none."""

    @property
    def writes_rows(self) -> bool:
        """Whether the step moves the HEAD of the target's table."""
        return self.action in {TableAction.ADOPT, TableAction.REWRITE} and not self.changes.empty
