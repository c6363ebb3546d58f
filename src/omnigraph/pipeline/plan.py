"""What a load is going to do, as small frozen values that travel to tasks: no handle, client or context."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omnigraph.catalog.schema import Catalog, TableType
from omnigraph.core.ids import Branch, TableKey
from omnigraph.core.load_options import ColumnForm, LoadMode, OnDuplicate, SourceFormat
from omnigraph.core.settings import Settings
from omnigraph.pipeline.problems import PROBLEMS_KEPT_PER_KIND_MAX
from omnigraph.storage.layout import GraphRoot

if TYPE_CHECKING:
    from omnigraph.engine.search.embedding import Embedder


@dataclass(frozen=True, slots=True)
class Split:
    """One piece of one source file. Every line belongs to the split in which it begins."""

    number: int
    path: str
    name: str
    """How messages call the file."""
    format: SourceFormat
    start: int = 0
    end: int | None = None
    """Bytes of the file, or row groups of a Parquet file; None reads to the end."""
    compression: str | None = None
    type_name: str | None = None
    """The one type of a CSV or Parquet source."""
    columns: ColumnForm = field(default_factory=ColumnForm)
    """How the columns of a CSV or Parquet source are read."""
    marked: bool = False
    """Whether marks beside the columns tell which rows have a member at all (`columns.MARK`)."""


@dataclass(frozen=True, slots=True)
class TableTarget:
    """Where one table is read and where its new files go."""

    table_key: TableKey
    location: str
    branch: Branch
    version: int
    rows: int


@dataclass(frozen=True)
class LoadPlan:
    """Everything a task of one load needs."""

    root: GraphRoot
    settings: Settings
    catalog: Catalog
    mode: LoadMode
    operation_id: str
    targets: Mapping[TableKey, TableTarget]
    exchange: str
    """The directory of the fact files, seen by every task."""
    partitions: int
    replaced_types: frozenset[str] = field(default_factory=frozenset[str])
    """Table keys an overwrite replaces even without a record."""
    on_duplicate: OnDuplicate | None = None
    problems_kept: int = PROBLEMS_KEPT_PER_KIND_MAX
    """Problems of one kind a task describes; with rejects, far more than a report shows."""
    embedder: "Embedder | None" = None
    """Who makes the vectors that records leave out; None also where no type has any."""

    @property
    def keeps_one(self) -> bool:
        """Whether one of several records of the same entity is kept, instead of refusing them all."""
        return self.on_duplicate in {OnDuplicate.FIRST, OnDuplicate.LAST}

    def target(self, table_type: TableType) -> TableTarget:
        """The pinned table of a type."""
        return self.targets[TableKey(table_type.table_key)]


# Names of the spaces facts live in. Input facts first, committed facts with a leading `c`.


def id_space(table_key: str) -> str:
    """Ids the input names: id, order, then what pass one hands on."""
    return f"id/{table_key}"


def unique_space(table_key: str, group: int) -> str:
    """Unique tuples of the input: tuple, order, id."""
    return f"unique/{table_key}/{group}"


def end_space(table_key: str, side: str) -> str:
    """Node ids that edges of the input refer to: node id, order, edge id."""
    return f"end/{table_key}/{side}"


def committed_id_space(table_key: str) -> str:
    """Ids of committed rows: id, address, then what pass one hands on."""
    return f"cid/{table_key}"


def committed_unique_space(table_key: str, group: int) -> str:
    """Unique tuples of committed rows: tuple, id."""
    return f"cunique/{table_key}/{group}"


def committed_end_space(table_key: str, side: str) -> str:
    """Node ids that committed edges refer to: node id, edge id."""
    return f"cend/{table_key}/{side}"


def freed_unique_space(table_key: str, group: int) -> str:
    """Tuples of committed rows that this load replaces: tuple, id."""
    return f"funique/{table_key}/{group}"


def freed_source_space(table_key: str) -> str:
    """Former sources of committed edges that this load replaces: source, order of the replacing record."""
    return f"fsource/{table_key}"
