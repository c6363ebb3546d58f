"""What a query answers: columns in projection order, read as Arrow, as Python rows or as JSON."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, cast, overload

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from omnigraph.arrays.few import few_array
from omnigraph.arrays.text_buffers import text_bounds, text_bytes
from omnigraph.engine.entities.lines import flat_array, is_list, json_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TEXT: Final = pa.string()
_NUMBERS: Final = frozenset({pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()})
FEW_VALUES: Final = 3
"""Up to this many values are converted one by one: looking at their type would take longer."""

_SAID_AS_THEY_ARE: Final = frozenset(
    {_TEXT, pa.bool_(), *(kind for kind in _NUMBERS if not pa.types.is_floating(kind))}
)
"""Types whose Python values JSON says without a change."""
HTML_ROWS_MAX: Final = 50
"""Rows a notebook shows; the rest is counted."""


class Rows:
    """The result of one read query, at one commit. Nothing changes it.

    ```python
    rows[0], rows[-3:], rows["friend.name"], len(rows), list(rows)
    ```

    A number gives one row, a slice some, a name the values of a column. Two columns may carry the same name;
    rows and `rows[name]` then keep the later one.
    """

    __slots__ = ("_columns", "_names", "branch", "commit_id", "query_name", "schema", "snapshot")

    def __init__(
        self,
        columns: Sequence[pa.Array | list[Any]],
        schema: pa.Schema,
        query_name: str,
        branch: str | None,
        snapshot: str | None,
        commit_id: str,
        names: Sequence[str] | None = None,
    ) -> None:
        # A column is an array, or the Python values an array would give: few rows never become Arrow unless
        # somebody asks for it.
        self._columns = columns
        self._names: Final = schema.names if names is None else names
        self.schema: Final = schema
        self.query_name: Final = query_name
        self.branch: Final = branch
        """The branch that was read; None when a commit was named instead."""
        self.snapshot: Final = snapshot
        self.commit_id: Final = commit_id
        """The head commit of what was read: the precondition of a conditional write."""

    @property
    def arrays(self) -> tuple[pa.Array, ...]:
        """One array per column, in projection order."""
        arrays = [
            few_array(column, kind) if isinstance(column, list) else column
            for column, kind in zip(self._columns, self.schema.types, strict=True)
        ]
        self._columns = found = tuple(arrays)
        return found

    @property
    def table(self) -> pa.Table:
        """The result as an Arrow table. Cost: no value is copied."""
        return pa.Table.from_arrays(self.arrays, schema=self.schema)

    @property
    def columns(self) -> tuple[str, ...]:
        """Column names in projection order."""
        return tuple(self._names)

    def __len__(self) -> int:
        return len(self._columns[0])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.to_dicts())

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | slice | str) -> dict[str, Any] | list[Any]:
        """One row, the rows of a slice, or the values of a column. Raises IndexError, KeyError."""
        if isinstance(index, str):
            return self._values(index)
        columns = cast("Sequence[Any]", self._columns)
        if isinstance(index, slice):
            return _row_dicts(self._names, [column[index] for column in columns])
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no row {index} in a result of {len(self)}")
        place = index % len(self)
        return _row_dicts(self._names, [column[place : place + 1] for column in columns])[0]

    def _values(self, name: str) -> list[Any]:
        for mine, column in zip(reversed(self._names), reversed(self._columns), strict=True):
            if mine == name:
                return list(column) if isinstance(column, list) else python_values(column)
        raise KeyError(f"there is no column '{name}'; the columns are {', '.join(self._names)}")

    def to_arrow(self) -> pa.Table:
        """The result as an Arrow table."""
        return self.table

    def to_pandas(self) -> Any:
        """The result as a pandas DataFrame. Whole numbers and booleans have the nullable types of pandas
        (`Int64`, `boolean`, …), so that a null changes no value.
        """
        import pandas as pd  # noqa: PLC0415  only this needs it

        types = {
            pa.int32(): pd.Int32Dtype(),
            pa.int64(): pd.Int64Dtype(),
            pa.uint32(): pd.UInt32Dtype(),
            pa.uint64(): pd.UInt64Dtype(),
            pa.bool_(): pd.BooleanDtype(),
        }
        return self.table.to_pandas(types_mapper=types.get)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary per row, with Python dates and date-times."""
        return _row_dicts(self._names, self._columns)

    def json_rows(self, start: int = 0, stop: int | None = None) -> list[dict[str, Any]]:
        """One dictionary per row, or per row of a range, holding only what JSON can say."""
        names = self.columns
        values = self._plain_values() if stop is None else None
        if values is None:
            table = self.table if stop is None else self.table.slice(start, stop - start)
            values = [json_values(column) for column in table.columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def _plain_values(self) -> Sequence[list[Any]] | None:
        """The columns, when they are Python values and each of them is what JSON says of it."""
        for column, kind in zip(self._columns, self.schema.types, strict=True):
            if not isinstance(column, list) or kind not in _SAID_AS_THEY_ARE:
                return None
        return cast("Sequence[list[Any]]", self._columns)

    def head(self) -> dict[str, Any]:
        """The answer of the command line and of the service, without the rows."""
        # Exactly one of the two says what was read.
        branch = self.branch if self.snapshot is None else None
        target = {"branch": branch, "snapshot": self.snapshot}
        return {
            "query_name": self.query_name,
            "target": target,
            "row_count": len(self),
            "columns": list(self.columns),
            "graph_commit_id": self.commit_id,
        }

    def envelope(self) -> dict[str, Any]:
        """The answer of the command line and of the service."""
        said = self.head()
        commit = said.pop("graph_commit_id")
        return {**said, "rows": self.json_rows(), "graph_commit_id": commit}

    def __repr__(self) -> str:
        return f"Rows({len(self)} x {', '.join(self.columns)})"

    def _repr_html_(self) -> str:
        from omnigraph.core import html  # noqa: PLC0415  only a notebook needs it

        shown = self.table.slice(0, HTML_ROWS_MAX)
        cells = zip(*(json_values(column) for column in shown.columns), strict=True)
        return html.table(self.columns, cells, more=len(self) - HTML_ROWS_MAX).html()


def _row_dicts(names: Sequence[str], columns: Sequence[pa.Array | list[Any]]) -> list[dict[str, Any]]:
    values = [column if isinstance(column, list) else python_values(column) for column in columns]
    # Rows of one or two columns are most of what is asked for, and zipping names costs more than they do.
    if len(names) == 1:
        (name,) = names
        return [{name: value} for value in values[0]]
    if len(names) == 2:
        one, two = names
        return [{one: first, two: second} for first, second in zip(*values, strict=True)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def python_values(array: Any) -> list[Any]:
    """The values of a column as Python objects.

    Numbers and plain text without nulls, which most answers consist of, are made in one go: an Arrow scalar
    per value costs more than finding the rows.
    """
    if len(array) <= FEW_VALUES or array.null_count:
        return array.to_pylist()
    kind = array.type
    if kind in _NUMBERS:
        return array.to_numpy().tolist()
    if kind == _TEXT:
        ends = text_bounds(array).tolist()
        first = ends[0]
        text = bytes(text_bytes(array)[first : ends[-1]])
        if text.isascii():
            whole = text.decode("ascii")
            return [whole[a - first : b - first] for a, b in pairwise(ends)]
    return array.to_pylist()


def json_values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """A column as JSON values: ISO dates, UTC date-times with milliseconds, exact numbers.

    Text, finite numbers and booleans are themselves in JSON. How anything else is said is decided in `lines`.
    """
    flat = flat_array(column)
    kind = flat.type
    if is_list(kind):
        elements = json_values(pc.list_flatten(flat))
        ends = np.cumsum(pc.fill_null(pc.list_value_length(flat), 0)).tolist()
        lists = [elements[a:b] for a, b in pairwise((0, *ends))]
        if flat.null_count:
            valid = flat.is_valid().to_pylist()
            lists = [each if there else None for each, there in zip(lists, valid, strict=True)]
        return lists
    if pa.types.is_floating(kind):
        values = python_values(flat.cast(pa.float64()))
        unsayable = np.flatnonzero(pc.invert(pc.fill_null(pc.is_finite(flat), True)))
        texts = orjson.loads(json_array(flat.take(unsayable)))
        for place, text in zip(unsayable.tolist(), texts, strict=True):
            values[place] = text
        return values
    if kind in _NUMBERS or kind == _TEXT or pa.types.is_boolean(kind):
        return python_values(flat)
    return orjson.loads(json_array(flat))
