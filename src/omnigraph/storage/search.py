"""Searches the table format answers from its own indexes, at one version of a table.

Rows of fragments an index does not cover are searched too, by reading them; rows that are deleted are not
found. What an index finds is given as row addresses.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from omnigraph.arrays.addresses import addresses_in
from omnigraph.core.events import StorageCall, TableRead, emit, listening
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import SnapshotHandle, lance_dataset
from omnigraph.storage.version_files import circumstances

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from lance import LanceDataset
    from lance.dataset import ScanStatistics
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class VectorProbe:
    """A question to a vector index."""

    column: str
    query: "NDArray[np.float32]"
    count: int
    """How many rows are wanted."""
    probes: int
    """How many partitions are searched."""
    only: "NDArray[np.uint64] | None" = None
    """Row addresses of the candidates; None: every row."""


class ScanReport:
    """What a scan read, told once it ended to whoever listens in the context of the caller."""

    def __init__(self, handle: SnapshotHandle) -> None:
        self._handle = handle
        self._parts: list[ScanStatistics] = []

    def options(self) -> dict[str, Any]:
        """The scanner options that make the scan report itself; none when nobody listens."""
        return {"scan_stats_callback": self._parts.append} if listening() else {}

    def tell(self) -> None:
        """Tell what was read since the last call. The substrate reports from threads of its own."""
        for part in self._parts:
            emit(TableRead(self._handle.table_key, int(part.requests), int(part.bytes_read)))
        self._parts.clear()

    @contextmanager
    def of_take(self, dataset: "LanceDataset") -> Generator[None]:
        """Tell what a take read, which has no report of its own: by the counters of the open table."""
        if not listening():
            yield
            return
        before = dataset.io_stats_snapshot()
        yield
        after = dataset.io_stats_snapshot()
        requests, size = after.read_iops - before.read_iops, after.read_bytes - before.read_bytes
        emit(TableRead(self._handle.table_key, int(requests), int(size)))


class TableSearch:
    """Searches of table versions of one graph. Thread-safety: any method from any thread."""

    def __init__(self, pool: DatasetPool) -> None:
        self._pool = pool

    def nearest(self, handle: SnapshotHandle, probe: VectorProbe) -> "tuple[NDArray[np.uint64], pa.Array]":
        """Addresses and vectors of the rows nearest to a vector as an index finds them, best first."""
        from lance.dataset import serialize_row_addrs  # noqa: PLC0415

        only: dict[str, Any] = {}
        if probe.only is not None:
            only = {"row_addr_allowlist": serialize_row_addrs(probe.only.tolist()), "prefilter": True}
        nearest = {
            "column": probe.column,
            "q": probe.query,
            "k": probe.count,
            "nprobes": probe.probes,
            "metric": "l2",
        }
        columns = [probe.column, "_distance"]
        found = self._search(handle, "nearest", nearest=nearest, columns=columns, **only)
        return addresses_in(found), found.column(probe.column).combine_chunks()

    def matches(
        self, handle: SnapshotHandle, column: str, text: str, *, every_token: bool = False
    ) -> "NDArray[np.uint64]":
        """Addresses of the rows whose text holds a token of `text`, or every one of them; unordered.

        There must be a full-text index on the column; without one the substrate refuses.
        """
        from lance.query import FullTextOperator, MatchQuery  # noqa: PLC0415

        operator = FullTextOperator.AND if every_token else FullTextOperator.OR
        query = MatchQuery(text, column, operator=operator)
        found = self._search(
            handle, "full_text", full_text_query=query, columns=[], disable_scoring_autoprojection=True
        )
        return addresses_in(found)

    def partitions(self, handle: SnapshotHandle, name: str) -> int:
        """Into how many parts a vector index divides its rows: the most of its segments.

        Cost: the metadata of the index.
        """
        # Lance is told to leave the centroids out; otherwise it warns on stderr that it will do so one day.
        os.environ.setdefault("LANCE_INCLUDE_VECTOR_CENTROIDS", "false")
        with substrate(lambda: circumstances(self._pool, handle)):
            found = lance_dataset(handle).stats.index_stats(name)
        return max((int(part.get("num_partitions", 1)) for part in found.get("indices", ())), default=1)

    def _search(self, handle: SnapshotHandle, kind: str, **options: Any) -> "pa.Table":
        dataset = lance_dataset(handle)
        emit(StorageCall(kind, str(dataset.uri)))
        report = ScanReport(handle)
        with substrate(lambda: circumstances(self._pool, handle)):
            scanner = dataset.scanner(with_row_address=True, **options, **report.options())
            found = scanner.to_table()
        report.tell()
        return found
