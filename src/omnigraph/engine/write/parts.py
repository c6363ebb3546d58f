"""What a writer hands to the write protocol: what it intends, and what each table gets.

A table gets one commit or several (its parts, in turn), or it is only shown at another version.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from omnigraph.core.errors import InternalError
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.write.records import entry_after
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from omnigraph.arrays.types import Addresses
    from omnigraph.core.failpoints import Window
    from omnigraph.core.ids import Branch, CommitId, OperationId, TableKey
    from omnigraph.manifest.commit_record import RequestKey, TableSummary
    from omnigraph.manifest.state import TableEntry
    from omnigraph.storage.handles import SnapshotHandle, StagedHandle


# --- the intent ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """What the sidecar, the commit record and the messages of a write say about it."""

    kind: WriterKind
    """Also decides how recovery judges the write, and so what must be durable when."""
    operation: str
    operation_id: OperationId
    commit_id: CommitId
    actor: str | None = None
    if_commit: CommitId | None = None
    """The head the caller based the write on; another head refuses it."""
    merged_parent: CommitId | None = None
    schema_hash: str | None = None
    """The schema the branch follows afterwards; None keeps the one it follows."""
    summary: TableSummary = field(default_factory=dict[str, "Mapping[str, int]"])
    requests: int = 1
    """How many calls the write carries."""
    keys: tuple[RequestKey, ...] = ()
    """The keys of those calls; none of them may be in the history of the branch when the write lands."""

    def changes_accepted_schema(self, branch: Branch) -> bool:
        """Whether the write holds the lock of schema changes: on a branch it only adopts one."""
        return self.kind is WriterKind.SCHEMA_APPLY and branch is None


# --- the tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedPart:
    """One commit of a table whose files exist."""

    staged: StagedHandle
    hidden: Addresses | None = None
    """Addresses of the rows it hides, needed behind another part: it is rebased onto what that one made."""
    before: Window | None = None
    after: Window | None = None


@dataclass(frozen=True, slots=True)
class LaterPart:
    """One commit of a table whose files can only be written once the fork or the commit before it exists."""

    stage: Callable[[SnapshotHandle], StagedHandle | None]
    """Gets the table as it is then; None: there is nothing to commit."""
    before: Window | None = None
    after: Window | None = None


Part: TypeAlias = StagedPart | LaterPart


@dataclass(frozen=True, slots=True)
class KeyChange:
    """What the key index of a table learns from a commit."""

    ids: pa.StringArray
    """Of the written rows, in the order of writing."""
    hidden: Addresses
    """Of the rows that the commit hides, in the version it was staged against."""


@dataclass(frozen=True, slots=True)
class TableWrite:
    """A table that gets commits: the entry they were staged against, and the parts in turn.

    A branch that only inherits the table gets its own reference before the first of them.
    """

    entry: TableEntry
    handle: SnapshotHandle
    parts: tuple[Part, ...]
    keys: KeyChange | None = None
    """None: the key index is left to find out by itself."""

    @property
    def files(self) -> list[str]:
        """Local files that are staged and may not be on the device yet."""
        return [path for part in self.parts if isinstance(part, StagedPart) for path in part.staged.files]

    @property
    def is_announced(self) -> bool:
        """Whether `coming` is known before the commits are made."""
        return len(self.parts) == 1 and isinstance(self.parts[0], StagedPart)

    def coming(self) -> TableEntry:
        """The entry the only commit will make."""
        part = self.parts[0]
        if not isinstance(part, StagedPart):
            raise InternalError(f"what '{self.entry.table_key}' will show is not known before its commit")
        staged = part.staged
        return entry_after(
            self.entry, staged.transaction_uuid, rows_added=staged.rows, rows_removed=staged.rows_removed
        )


@dataclass(frozen=True, slots=True)
class Switch:
    """A table that is only shown at another version: no rows are written."""

    entry: TableEntry
    """What is to be shown."""
    forks: bool = False
    """Whether the branch gets its own reference at that version."""
    found: SnapshotHandle | None = None
    """The version, where it is there and was never shown: its new files get checksums and are synced."""


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that the write makes, with no rows."""

    table_key: TableKey
    location: str
    make: Callable[[], SnapshotHandle]
    """Called in Phase B, when the intent is durable."""


@dataclass(frozen=True, slots=True)
class Reshape:
    """What a change of the schema does beside the commits of tables."""

    created: tuple[NewTable, ...] = ()
    renamed: Mapping[TableKey, TableKey] = field(default_factory=dict["TableKey", "TableKey"])
    """The same table under another key: old to new."""
    dropped: frozenset[TableKey] = frozenset()
    """Tables that the branch shows no longer."""
    stage_schema: Callable[[], None] | None = None
    """Writes the schema beside the accepted one, once every table has moved; from then on a write that dies
    is completed.
    """
    place_schema: Callable[[], None] | None = None
    """Makes it the accepted one, once it is published."""

    @property
    def hidden(self) -> frozenset[TableKey]:
        """The keys under which the branch shows nothing afterwards."""
        return self.dropped | frozenset(self.renamed)


@dataclass(frozen=True, slots=True)
class Windows:
    """The crash windows of one kind of writer; those around single commits are with the parts."""

    post_sidecar: Window | None = None
    pre_fork: Window | None = None
    post_fork: Window | None = None
    between_tables: Window | None = None
    pre_confirm: Window | None = None
    pre_publish: Window | None = None
    post_create: Window | None = None
    pre_schema: Window | None = None
    post_schema: Window | None = None
    post_publish: Window | None = None
