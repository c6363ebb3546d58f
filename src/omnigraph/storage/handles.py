"""The opaque values that travel between the storage room and everyone above it."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.errors import InternalError
from omnigraph.core.ids import Branch, TableKey
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.checksums import FileSum

if TYPE_CHECKING:
    import pyarrow as pa
    from lance import LanceDataset
    from lance.fragment import LanceFragment

    from omnigraph.catalog.table_changes import ColumnMap


OPERATION_ID: Final = "omnigraph.operation_id"
TABLE_KEY: Final = "omnigraph.table_key"
RECOVERY_OF: Final = "omnigraph.recovery_of"
RESTORE_TO: Final = "omnigraph.restore_to"


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who makes a commit: written into the transaction, read back by recovery to prove ownership."""

    operation_id: str
    table_key: TableKey
    transaction_uuid: str = ""
    """The id of the transaction, when the maker chose it already; else whoever stages draws one."""

    @property
    def properties(self) -> dict[str, str]:
        """The transaction properties of a commit with this stamp."""
        return {OPERATION_ID: self.operation_id, TABLE_KEY: self.table_key}


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """What a table version says about the commit that made it."""

    uuid: str
    properties: Mapping[str, str]
    operation: str


NO_NUMBER: Final = -1
"""The number of a fragment that no commit has numbered, or that the version at hand does not have."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """Rows of a table that were written together, and which of their files a version shows.

    The one form of a fragment above Lance: of a table version, of what a task wrote and nobody points at yet,
    and of what a cache remembers. It can be pickled, and written as JSON. Two versions share rows where
    `files` and `deletions` are equal.
    """

    id: int
    """Its number in the version; `NO_NUMBER` where it has none."""
    files: tuple[str, ...]
    """Data files, as seen from the graph root: equal names are equal bytes."""
    physical_rows: int
    deletions: str | None = None
    """The deletion file, as seen from the graph root; None when every row lives."""
    deleted_rows: int = 0
    bytes: int = field(default=0, compare=False)
    """Size of the data files as stored; 0 where nobody recorded it."""
    metadata: str = field(default="", compare=False, repr=False)
    """What Lance needs to commit a fragment that nobody points at yet, as JSON; else empty."""
    crcs: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The checksums of the files, where whoever wrote them took them."""

    @property
    def live_rows(self) -> int:
        """Rows that are not deleted."""
        return self.physical_rows - self.deleted_rows

    def holds_rows_of(self, other: "Fragment") -> bool:
        """Whether both were written as one, whatever was deleted since."""
        return self.files == other.files and self.physical_rows == other.physical_rows

    def gone(self) -> "Fragment":
        """The fragment as a version without it shows it: every row is deleted."""
        return Fragment(NO_NUMBER, self.files, self.physical_rows, None, self.physical_rows)

    @classmethod
    def from_members(cls, members: Mapping[str, Any]) -> "Fragment":
        """The fragment that JSON members describe."""
        known: dict[str, Any] = {
            **members,
            "files": tuple(members["files"]),
            "crcs": tuple(members.get("crcs", ())),
        }
        return cls(**known)


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotHandle:
    """One table at one version. What Lance knows about it stays inside the storage room."""

    table_key: TableKey
    location: str
    branch: Branch
    version: int
    _dataset: "LanceDataset"
    _files: tuple[str, ...] = ()
    _asked: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    """What was asked before; a version does not change."""
    view: "ColumnMap | None" = None
    """The columns as the reader knows them; None: as they are stored, which costs nothing."""
    transaction_uuid: str = ""
    """The commit that made the version, as the manifest names it; empty where the opener did not know."""
    sums: tuple[FileSum, ...] = ()
    """The checksums of new files that are known already."""

    @property
    def row_count(self) -> int:
        """Live rows. Cost: metadata only, remembered by the handle."""
        if "rows" not in self._asked:
            self._asked["rows"] = int(self._dataset.count_rows())
        return self._asked["rows"]

    @property
    def schema(self) -> "pa.Schema":
        """The Arrow schema of the table at this version, or of the type it is seen as."""
        if "schema" not in self._asked:
            self._asked["schema"] = self._dataset.schema if self.view is None else self.view.schema
        return self._asked["schema"]

    @property
    def fragment_count(self) -> int:
        """Fragments of this version. Cost: metadata only."""
        return self._dataset._ds.count_fragments()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  the list itself is made per fragment

    def column_identity(self, column: str) -> str:
        """Names what is stored, not how it is called: a column that was dropped and came back is another.

        Equal in all versions that show the same stored values of one data file under any name.
        """
        if "columns" not in self._asked:
            numbered = zip(self._dataset.schema, self._dataset.lance_schema.fields(), strict=True)
            # A number may come back when no file was ever written with it; then its type tells.
            self._asked["columns"] = {each.name: f"{number.id()}:{each.type}" for each, number in numbered}
        if self.view is None:
            return self._asked["columns"][column]
        # A value that is cast, or that no file has, is another one than what is stored.
        source, kind = self.view.sources.get(column), self.view.schema.field(column).type
        stored = "null" if source is None else self._asked["columns"][source]
        return f"{stored} as {kind}"

    @property
    def fragment_ids(self) -> tuple[int, ...]:
        """The numbers of the fragments of this version, in row order. Cost: metadata only."""
        return tuple(self._dataset.fragment_ids())

    @property
    def new_files(self) -> tuple[str, ...]:
        """Local files that the commits behind this handle made and that may not be on the device yet."""
        return self._files

    def __repr__(self) -> str:
        return f"SnapshotHandle({self.table_key!r}, branch={self.branch!r}, version={self.version})"


@dataclass(frozen=True, slots=True, eq=False)
class StagedHandle:
    """Files of one table that nobody points at, and the commit that would make its HEAD point at them."""

    table_key: TableKey
    primitive: str
    base_version: int
    transaction_uuid: str
    rows: int
    """Rows written (0 for deletes and index builds)."""
    rows_removed: int
    """Rows of the base version that the commit hides: replaced or deleted."""
    bytes: int
    files: tuple[str, ...]
    """Every new file, to be synced before the commit counts; empty on object stores."""
    _work: Any
    sums: tuple[FileSum, ...] = ()
    """The checksums of those files that were taken where they were written."""

    def __repr__(self) -> str:
        return f"StagedHandle({self.table_key!r}, {self.primitive}, base_version={self.base_version})"


def lance_dataset(handle: SnapshotHandle) -> "LanceDataset":
    """The Lance dataset behind a handle. Only for the storage room."""
    return handle._dataset  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def lance_fragment(handle: SnapshotHandle, number: int) -> "LanceFragment":
    """One fragment of the version behind a handle. Only for the storage room."""
    found = lance_dataset(handle).get_fragment(number)
    if found is None:
        raise InternalError(f"version {handle.version} of {handle.table_key} has no fragment {number}")
    return found


def staged_work(staged: StagedHandle) -> Any:
    """The prepared transaction behind a staged handle. Only for the storage room."""
    return staged._work  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
