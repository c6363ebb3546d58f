from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypedDict

import pyarrow as pa

from .dataset import LanceDataset, LanceSchema, Session

class _DeletionFacts(TypedDict):
    read_version: int
    id: int
    file_type: str
    num_deleted_rows: int
    base_id: int | None

class DeletionFile:
    def asdict(self) -> _DeletionFacts: ...

class DataFile:
    _path: str
    @property
    def path(self) -> str: ...
    @property
    def fields(self) -> list[int]: ...
    @property
    def file_size_bytes(self) -> int | None: ...
    @property
    def base_id(self) -> int | None: ...

class FragmentMetadata:
    id: int
    files: list[DataFile]
    physical_rows: int
    deletion_file: DeletionFile | None
    overlays: list[object]
    @staticmethod
    def from_json(json_data: str) -> FragmentMetadata: ...
    def to_json(self) -> dict[str, Any]: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_deletions(self) -> int: ...

class LanceFragment:
    @property
    def fragment_id(self) -> int: ...
    @property
    def metadata(self) -> FragmentMetadata: ...
    def count_rows(self) -> int: ...
    def delete_rows(self, offsets: Iterable[int]) -> FragmentMetadata | None: ...
    def to_table(self, columns: Sequence[str] | None = None) -> pa.Table: ...
    def merge_columns(
        self,
        value_func: Callable[[pa.RecordBatch], pa.RecordBatch],
        columns: list[str] | None = None,
        batch_size: int | None = None,
    ) -> tuple[FragmentMetadata, LanceSchema]: ...

def write_fragments(
    data: pa.Table | pa.RecordBatchReader,
    dataset_uri: str | LanceDataset,
    schema: pa.Schema | None = None,
    *,
    mode: Literal["append", "overwrite"] = "append",
    max_rows_per_file: int = 1048576,
    data_storage_version: str | None = None,
    storage_options: dict[str, str] | None = None,
    session: Session | None = None,
) -> list[FragmentMetadata]: ...
