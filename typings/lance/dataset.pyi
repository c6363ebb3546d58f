from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, TypeAlias, TypedDict

import pyarrow as pa

from .fragment import FragmentMetadata, LanceFragment
from .lance.indices import IndexDescription
from .query import FullTextQuery

_Reference: TypeAlias = int | str | tuple[str | None, int | None]

class Session:
    def __init__(
        self, index_cache_size_bytes: int | None = None, metadata_cache_size_bytes: int | None = None
    ) -> None: ...

class _Field:
    def id(self) -> int: ...
    def children(self) -> list[_Field]: ...

class LanceSchema:
    @staticmethod
    def from_pyarrow(schema: pa.Schema) -> LanceSchema: ...
    def fields(self) -> list[_Field]: ...
    def to_pyarrow(self) -> pa.Schema: ...

class DatasetBasePath:
    @property
    def path(self) -> str: ...

class IOStats:
    read_iops: int
    read_bytes: int

class ScanStatistics:
    requests: int
    bytes_read: int

class IndexFile:
    @property
    def path(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...

class Index:
    uuid: str
    name: str
    fields: list[int]
    dataset_version: int
    fragment_ids: set[int]
    index_version: int
    files: list[IndexFile] | None
    def __init__(
        self,
        uuid: str,
        name: str,
        fields: list[int],
        dataset_version: int,
        fragment_ids: set[int],
        index_version: int,
    ) -> None: ...

class LanceOperation:
    class BaseOperation: ...

    class Append(BaseOperation):
        fragments: Iterable[FragmentMetadata]
        def __init__(self, fragments: Iterable[FragmentMetadata]) -> None: ...

    class Overwrite(BaseOperation):
        new_schema: LanceSchema | pa.Schema
        fragments: Iterable[FragmentMetadata]
        def __init__(
            self, new_schema: LanceSchema | pa.Schema, fragments: Iterable[FragmentMetadata]
        ) -> None: ...

    class Delete(BaseOperation):
        def __init__(
            self,
            updated_fragments: Iterable[FragmentMetadata],
            deleted_fragment_ids: Iterable[int],
            predicate: str,
        ) -> None: ...

    class Update(BaseOperation):
        def __init__(
            self,
            removed_fragment_ids: list[int] = ...,
            updated_fragments: list[FragmentMetadata] = ...,
            new_fragments: list[FragmentMetadata] = ...,
            *,
            fields_for_preserving_frag_bitmap: list[int] = ...,
            update_mode: str = "",
        ) -> None: ...

    class Merge(BaseOperation):
        def __init__(
            self,
            fragments: Iterable[FragmentMetadata],
            schema: LanceSchema,
            preserves_nullability: bool = False,
        ) -> None: ...

    class Project(BaseOperation):
        def __init__(self, schema: LanceSchema, preserves_nullability: bool = False) -> None: ...

    class RewriteGroup:
        def __init__(
            self, old_fragments: Iterable[FragmentMetadata], new_fragments: Iterable[FragmentMetadata]
        ) -> None: ...

    class RewrittenIndex: ...

    class Rewrite(BaseOperation):
        def __init__(
            self,
            groups: Iterable[LanceOperation.RewriteGroup],
            rewritten_indices: Iterable[LanceOperation.RewrittenIndex],
        ) -> None: ...

    class CreateIndex(BaseOperation):
        new_indices: list[Index]
        removed_indices: list[Index]
        def __init__(self, new_indices: list[Index], removed_indices: list[Index]) -> None: ...

    class Restore(BaseOperation):
        def __init__(self, version: int) -> None: ...

class Transaction:
    read_version: int
    operation: LanceOperation.BaseOperation
    uuid: str
    transaction_properties: dict[str, str] | None
    def __init__(
        self,
        read_version: int,
        operation: LanceOperation.BaseOperation,
        uuid: str = ...,
        transaction_properties: dict[str, str] | None = None,
    ) -> None: ...

class _Tag(TypedDict):
    branch: str | None
    version: int

class Tags:
    def list(self) -> dict[str, _Tag]: ...
    def create(self, tag: str, reference: _Reference | None = None) -> None: ...
    def delete(self, tag: str) -> None: ...

class DatasetOptimizer:
    def optimize_indices(self, **kwargs: Any) -> None: ...

class LanceStats:
    def index_stats(self, index_name: str) -> dict[str, Any]: ...

class _Dataset:
    def count_fragments(self) -> int: ...

class LanceScanner:
    @property
    def projected_schema(self) -> pa.Schema: ...
    def to_batches(self) -> Iterator[pa.RecordBatch]: ...
    def to_reader(self) -> pa.RecordBatchReader: ...
    def to_table(self) -> pa.Table: ...

class LanceDataset:
    _ds: _Dataset
    def __init__(
        self,
        uri: str,
        version: int | None = None,
        *,
        storage_options: dict[str, str] | None = None,
        serialized_manifest: bytes | None = None,
        session: Session | None = None,
    ) -> None: ...
    @staticmethod
    def commit(
        base_uri: str | LanceDataset,
        operation: LanceOperation.BaseOperation | Transaction,
        *,
        storage_options: dict[str, str] | None = None,
        enable_stable_row_ids: bool | None = None,
        detached: bool | None = False,
        max_retries: int = 20,
    ) -> LanceDataset: ...
    @property
    def data_storage_version(self) -> str: ...
    @property
    def lance_schema(self) -> LanceSchema: ...
    @property
    def max_field_id(self) -> int: ...
    @property
    def latest_version(self) -> int: ...
    @property
    def optimize(self) -> DatasetOptimizer: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def stats(self) -> LanceStats: ...
    @property
    def tags(self) -> Tags: ...
    @property
    def uri(self) -> str: ...
    @property
    def version(self) -> int: ...
    def base_paths(self) -> dict[int, DatasetBasePath]: ...
    def config(self) -> dict[str, str]: ...
    def count_rows(self, filter: str | None = None) -> int: ...
    def create_branch(
        self, branch: str, reference: _Reference | None = None, storage_options: dict[str, str] | None = None
    ) -> LanceDataset: ...
    def create_index(
        self, column: str, index_type: str, name: str | None = None, *, replace: bool = False, **kwargs: Any
    ) -> LanceDataset: ...
    def create_index_uncommitted(
        self,
        column: str,
        index_type: str,
        name: str | None = None,
        *,
        replace: bool = False,
        fragment_ids: list[int] | None = None,
        **kwargs: Any,
    ) -> Index: ...
    def delete(self, predicate: str) -> object: ...
    def describe_indices(self) -> list[IndexDescription]: ...
    def fragment_ids(self) -> AbstractSet[int]: ...
    def get_fragment(self, fragment_id: int) -> LanceFragment | None: ...
    def get_fragments(self) -> list[LanceFragment]: ...
    def io_stats_snapshot(self) -> IOStats: ...
    def merge_existing_index_segments(self, segments: list[Index]) -> Index: ...
    def read_transaction(self, version: int) -> Transaction | None: ...
    def scanner(
        self,
        columns: list[str] | None = None,
        filter: str | None = None,
        limit: int | None = None,
        *,
        nearest: dict[str, Any] | None = None,
        batch_size: int | None = None,
        scan_in_order: bool | None = None,
        fragments: Iterable[LanceFragment] | None = None,
        full_text_query: FullTextQuery | None = None,
        prefilter: bool | None = None,
        with_row_address: bool | None = None,
        blob_handling: Literal["all_binary", "blobs_descriptions", "all_descriptions"] | None = None,
        scan_stats_callback: Callable[[ScanStatistics], None] | None = None,
        disable_scoring_autoprojection: bool | None = None,
        row_addr_allowlist: bytes | None = None,
    ) -> LanceScanner: ...
    def to_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        batch_size: int | None = None,
        with_row_address: bool | None = None,
    ) -> Iterator[pa.RecordBatch]: ...
    def to_table(
        self,
        columns: list[str] | None = None,
        filter: str | None = None,
        *,
        with_row_address: bool | None = None,
    ) -> pa.Table: ...
    def update_config(self, values: dict[str, str | None]) -> dict[str, str]: ...
    def _take_rows(self, row_ids: list[int] | pa.Array, columns: Sequence[str] | None = None) -> pa.Table: ...

def serialize_row_addrs(addrs: Iterable[int]) -> bytes: ...
