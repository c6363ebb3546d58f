"""Nodes that updates name by their key: one look-up for the statements of a whole query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.catalog.schema import NodeType
from omnigraph.catalog.types import INTEGER_BOUNDS, ScalarKind
from omnigraph.engine.write.validate import PROBED_VALUES_MAX
from omnigraph.language.query_tree import Operator
from omnigraph.planning.filters import Test, filter_text, has_text
from omnigraph.planning.predicate import normalize

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from omnigraph.planning.ir import UpdateOp
    from omnigraph.planning.values import Value
    from omnigraph.storage.handles import SnapshotHandle
    from omnigraph.storage.tables import TableStorage

_KINDS: Final = frozenset({ScalarKind.STRING, *INTEGER_BOUNDS})
"""Keys whose id is the plain text of their value."""


def named_id(op: UpdateOp, params: Mapping[str, Value], now: dt.datetime) -> str | None:
    """The id of the one node that an update can mean; None where its condition is anything but its key.

    None for a type with blobs, too: those of many rows are not held at once.
    """
    node = op.type
    if not isinstance(node, NodeType) or len(node.key) != 1 or node.blob_columns:
        return None
    condition = normalize(op.predicate, node, params, now)
    if not isinstance(condition, Test) or condition.op is not Operator.EQ:
        return None
    return str(condition.value) if condition.column == node.key[0] and condition.kind in _KINDS else None


class KnownRows:
    """The committed rows of one type that the updates of a query name by key.

    Cost: one read per `PROBED_VALUES_MAX` of them.
    """

    def __init__(self, storage: TableStorage, handle: SnapshotHandle, ids: Iterable[str | None]) -> None:
        self._storage = storage
        self._handle = handle
        self._waiting = sorted({each for each in ids if each is not None})
        self._tables: list[pa.Table] = []
        self._places: dict[str, tuple[int, int]] = {}

    def of(self, entity_id: str, columns: list[str]) -> pa.Table:
        """The row with this id and its address, or none."""
        while entity_id not in self._places and self._waiting:
            self._read_next(columns)
        table, row = self._places.get(entity_id, (0, 0))
        return self._tables[table].slice(row, 1 if entity_id in self._places else 0)

    def _read_next(self, columns: list[str]) -> None:
        some, self._waiting = self._waiting[:PROBED_VALUES_MAX], self._waiting[PROBED_VALUES_MAX:]
        where = filter_text(has_text("id", some))
        found = self._storage.read(self._handle, columns=columns, filter=where, with_row_address=True)
        number = len(self._tables)
        self._tables.append(found.combine_chunks())
        for row, name in enumerate(found.column("id").to_pylist()):
            self._places[name] = (number, row)
