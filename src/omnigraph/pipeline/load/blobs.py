"""External blobs of a load: judged with the other values of a record, read when its rows are staged.

Between the two only addresses travel, so that memory is bounded whatever the size of the blobs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.catalog.blobs import stored_content, stored_reference
from omnigraph.catalog.schema import TableType
from omnigraph.core.errors import BlobPolicyError, BlobSourceError, OmnigraphError, ResourceLimit
from omnigraph.core.limits import EXTERNAL_BLOB_BATCH_BYTES_MAX
from omnigraph.core.load_options import LoadMode
from omnigraph.engine.entities.blob_columns import asked_addresses
from omnigraph.pipeline.plan import LoadPlan

if TYPE_CHECKING:
    from omnigraph.core.blob_uris import BlobUri
    from omnigraph.storage.blob_sources import BlobSources


@dataclass(frozen=True, slots=True)
class BlobFinding:
    """Rows of one property whose address is refused, with the refusal of each."""

    rule: str
    property: str
    rows: NDArray[np.int64]
    refusals: dict[int, OmnigraphError]

    def describe(self, row: int) -> str:
        """The sentence for one row."""
        return f"{self.property}: {self.refusals[row].message}"

    def limit(self, row: int) -> tuple[str, int, int] | None:
        """The ceiling that one row exceeds: its name, the limit, the amount."""
        detail = self.refusals[row].details.get("resource_limit")
        return None if detail is None else (detail["resource"], detail["limit"], detail["actual"])


class ExternalBlobs:
    """The external blobs of one task."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._by_reference = plan.mode is LoadMode.OVERWRITE

    @cached_property
    def _sources(self) -> "BlobSources":
        from omnigraph.storage.blob_sources import BlobSources  # noqa: PLC0415  few loads have addresses

        return BlobSources(self._plan.settings.blob_sources, self._plan.root)

    def findings(self, table: pa.Table, table_type: TableType) -> list[BlobFinding]:
        """What is wrong with the addresses in rows of a type. Reads no blob, but asks for each source."""
        found: list[BlobFinding] = []
        for name in table_type.blob_columns:
            asked = asked_addresses(table.column(name))
            if not asked:
                continue
            refused: dict[int, OmnigraphError] = {}
            allowed: dict[int, BlobUri] = {}
            for row, text in asked.items():
                try:
                    allowed[row] = self._sources.allowed(text)
                except (BlobPolicyError, ResourceLimit) as error:
                    refused[row] = error
            sizes = self._sources.sizes(allowed.values())
            for row, uri in allowed.items():
                outcome = sizes[uri]
                if not isinstance(outcome, int):
                    refused[row] = outcome
            found += _by_rule(name, refused)
        return found

    def pieces(self, table: pa.Table, table_type: TableType) -> Iterator[pa.Table]:
        """The rows as they are stored, a few at a time. Every address was found to be right.

        Raises BlobSourceError when a source is gone meanwhile.
        """
        asked = {name: asked_addresses(table.column(name)) for name in table_type.blob_columns}
        addresses = {
            name: {row: self._sources.allowed(text) for row, text in cells.items()}
            for name, cells in asked.items()
            if cells
        }
        if not addresses:
            yield table
            return
        weights = np.zeros(table.num_rows, np.int64)
        if not self._by_reference:
            for cells in addresses.values():
                weights[list(cells)] += self._weights(cells.values())
        for begin, end in _cuts(weights):
            piece = table.slice(begin, end - begin)
            for name, cells in addresses.items():
                chosen = {row - begin: uri for row, uri in cells.items() if begin <= row < end}
                piece = self._filled(piece, name, chosen)
            yield piece

    def _weights(self, uris: Iterable["BlobUri"]) -> list[int]:
        """The bytes of each; a source that went away since it was judged weighs nothing and fails below."""
        wanted = list(uris)
        sizes = self._sources.sizes(wanted)
        return [size if isinstance(size := sizes[uri], int) else 0 for uri in wanted]

    def _filled(self, piece: pa.Table, name: str, cells: dict[int, "BlobUri"]) -> pa.Table:
        """The rows with the addresses of one column replaced by what is stored for them."""
        if not cells:
            return piece
        values = piece.column(name).to_pylist()
        contents = {} if self._by_reference else self._sources.contents(cells.values())
        for row, uri in cells.items():
            values[row] = stored_reference(str(uri)) if self._by_reference else stored_content(contents[uri])
        field = piece.schema.field(name)
        return piece.set_column(piece.schema.get_field_index(name), field, pa.array(values, field.type))


def _by_rule(name: str, refused: dict[int, OmnigraphError]) -> Iterator[BlobFinding]:
    for rule, kind in _RULES.items():
        rows = sorted(row for row, error in refused.items() if isinstance(error, kind))
        if rows:
            yield BlobFinding(rule, name, np.array(rows, np.int64), {row: refused[row] for row in rows})


_RULES: Final = {
    "resource_limit": ResourceLimit,
    "blob_policy": BlobPolicyError,
    "blob_source": BlobSourceError,
}


def _cuts(weights: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges of rows that weigh no more than a batch, unless one row alone does."""
    ends = np.cumsum(weights)
    begin = 0
    while begin < len(weights):
        before = int(ends[begin - 1]) if begin else 0
        end = int(np.searchsorted(ends, before + EXTERNAL_BLOB_BATCH_BYTES_MAX, side="right"))
        yield begin, max(end, begin + 1)
        begin = max(end, begin + 1)
