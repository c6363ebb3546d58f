"""Columns of one type, from CSV, Parquet or a DataFrame, to stored types.

Column names are `id`, `from` and `to` (or `src` and `dst`) for the identity of a row, and property names. A
value is taken when it means the same in the property's type; otherwise the record is refused and named.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from omnigraph.arrays.keys import string_array
from omnigraph.catalog.canonical import canonical_text
from omnigraph.catalog.schema import Catalog, EdgeType, Property, TableType
from omnigraph.catalog.types import FLOAT_KINDS, INTEGER_BOUNDS, PropertyType, ScalarKind, arrow_type
from omnigraph.core.errors import BadRequest, LoadFormatError
from omnigraph.core.load_options import ColumnForm
from omnigraph.engine.entities.blob_columns import stored_contents
from omnigraph.pipeline.input.convert import (
    TEMPORAL_KINDS,
    Converted,
    Refusal,
    convert,
    expectation,
    misfits,
    refused_by,
)
from omnigraph.pipeline.input.csv_cells import from_cells
from omnigraph.pipeline.input.csv_records import RefusedText
from omnigraph.pipeline.input.ends import EdgeKeys, ids_of_texts
from omnigraph.pipeline.input.headers import without_columns
from omnigraph.pipeline.input.record_rules import RESERVED_NAMES, meant, unknown_field
from omnigraph.pipeline.input.records import ParsedRows, keep
from omnigraph.pipeline.input.utf8 import is_text, not_utf8
from omnigraph.pipeline.problems import Problem, ProblemLog, over_limit

MARK: Final = "?"
"""Begins the name of a column that says which rows have the member of the rest of the name."""
_EXTRA_HINT: Final = (
    "--rename FILE=PROPERTY (rename=) maps a column, --ignore-extra (ignore_extra=) passes it over"
)
_LIKE_NULL: Final = frozenset(
    {
        "",
        "\\n",
        "null",
        "none",
        "nil",
        "na",
        "n/a",
        "#n/a",
        "nan",
        "nat",
        "<na>",
        "-",
        "--",
        "?",
        ".",
        "unknown",
    }
)
"""Cells, in lower case, that often mean null."""
_SOURCE_NAMES = ("from", "src")
_TARGET_NAMES = ("to", "dst")


def type_to_replace(catalog: Catalog, name: str) -> TableType:
    """The node or edge type an overwrite empties. Raises LoadFormatError."""
    return type_named(
        catalog, name, hint="replace_types (--replace-type) and frames name types of the schema"
    )


def meant_columns(table: pa.Table, form: ColumnForm, table_type: TableType, *, marked: bool) -> pa.Table:
    """The columns by the names they mean, without those that are passed over."""
    renamed = dict(form.rename)
    if renamed:
        table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
    if not form.ignore_extra:
        return table
    return table.select([name for name in table.column_names if _is_known(name, table_type, marked=marked)])


def _is_known(name: str, table_type: TableType, *, marked: bool) -> bool:
    ends = isinstance(table_type, EdgeType) and name in {*_SOURCE_NAMES, *_TARGET_NAMES}
    return name == "id" or ends or (marked and name.startswith(MARK)) or table_type.get(name) is not None


_NAMED_LIKE_ITS_TYPE: Final = (
    "a file of one type, and a frame, is named like its type; of a file --type (type_name=) can say it"
)


def type_named(catalog: Catalog, name: str, *, hint: str = _NAMED_LIKE_ITS_TYPE) -> TableType:
    """The node or edge type a one-type source holds. Raises LoadFormatError."""
    found = catalog.node(name) or catalog.edge(name)
    if found is None:
        near = meant(name, (*catalog.nodes, *catalog.edges))
        message = f"unknown type '{name}'{near}"
        raise LoadFormatError(line=None, message=message, hint=hint)
    return found


@dataclass(slots=True)
class ColumnReader:
    """Converts tables of one type. `order_base` is the order of line 0 of the split."""

    catalog: Catalog
    type_name: str
    order_base: int
    log: ProblemLog
    cells_are_text: bool = False
    """CSV: every column holds text, whatever the property is."""
    form: ColumnForm = field(default_factory=ColumnForm)
    marked: bool = False
    """Whether columns of marks may stand beside others. Without one, a column is given for all rows."""
    refused: list[int] = field(default_factory=list[int])

    def parse(self, table: pa.Table, lines: NDArray[np.int64]) -> ParsedRows:
        """The rows in stored types; rows with a value that does not fit are refused."""
        table_type = type_named(self.catalog, self.type_name)
        table = self._meant(table, table_type)
        self._check_names(table, table_type)
        bad = np.zeros(table.num_rows, np.bool_)
        columns: dict[str, pa.Array] = {}
        absent: dict[str, NDArray[np.bool_]] = {}
        for prop in table_type.properties:
            given = prop.name in table.column_names
            absent[prop.name] = self._absent(table, prop.name)
            if not given:
                columns[prop.name] = pa.nulls(table.num_rows, arrow_type(prop.type))
                continue
            column = self._texts(_flat(table.column(prop.name)), table_type, prop.name, lines, bad)
            converted = (
                from_cells(string_array(column), prop) if self.cells_are_text else stored_column(column, prop)
            )
            columns[prop.name] = converted.column
            self._note(converted.refusals, table_type, prop.name, lines, bad, column)
        ends: list[pa.StringArray | None] = [None, None]
        if isinstance(table_type, EdgeType):
            keys = EdgeKeys.of(table_type, self.catalog)
            ends = [
                self._end(table, table_type, names, key, lines, bad)
                for names, key in ((_SOURCE_NAMES, keys.source), (_TARGET_NAMES, keys.target))
            ]
        ids = self._ids(table, table_type, lines, bad)
        rows = ParsedRows(table_type, lines, ids, ends[0], ends[1], columns, absent)
        return keep(rows, ~bad) if bad.any() else rows

    def refuse(self, record: RefusedText) -> None:
        """Note a record that has no columns."""
        table_type = type_named(self.catalog, self.type_name)
        self.refused.append(record.line)
        order = self.order_base + record.line
        if record.limit is not None:
            problem = over_limit(order, "record_bytes", len(record.text), record.limit)
        else:
            problem = Problem(kind="format", order=order, message=record.message, hint=record.hint)
        kind, name = table_type.kind.value, table_type.name
        self.log.add_one(replace(problem, entity_kind=kind, type_name=name))

    def _absent(self, table: pa.Table, name: str) -> NDArray[np.bool_]:
        if self.marked and MARK + name in table.column_names:
            return ~np.asarray(table.column(MARK + name).to_numpy(), np.bool_)
        return np.full(table.num_rows, name not in table.column_names)

    def _meant(self, table: pa.Table, table_type: TableType) -> pa.Table:
        """The columns by the names they mean, without those that are passed over. Raises BadRequest."""
        renamed = dict(self.form.rename)
        unknown = [name for name in renamed if name not in table.column_names]
        if unknown:
            raise BadRequest(
                f"there is no column '{unknown[0]}' to rename",
                hint=f"the columns are {', '.join(table.column_names)}",
            )
        for name in renamed.values():
            if not self._is_known(name, table_type):
                raise BadRequest(f"a column cannot be renamed: {unknown_field(name, table_type)}")
        known = [name for name in table.column_names if self._is_known(renamed.get(name, name), table_type)]
        if table.column_names and not known and self.cells_are_text and self.form.names is None:
            raise without_columns(
                table.column_names, table_type, lambda name: self._is_known(name, table_type)
            )
        return meant_columns(table, self.form, table_type, marked=self.marked)

    def _is_known(self, name: str, table_type: TableType) -> bool:
        return _is_known(name, table_type, marked=self.marked)

    def _check_names(self, table: pa.Table, table_type: TableType) -> None:
        seen: set[str] = set()
        for name in table.column_names:
            if name in seen:
                raise BadRequest(f"the column '{name}' of {table_type.name} occurs twice")
            seen.add(name)
            if self._is_known(name, table_type):
                continue
            if name in RESERVED_NAMES:
                raise BadRequest(f"'{name}' is a reserved name")
            raise BadRequest(unknown_field(name, table_type), hint=_EXTRA_HINT)

    def _ids(self, table: pa.Table, table_type: TableType, lines: Any, bad: Any) -> pa.StringArray:
        if "id" not in table.column_names:
            return pa.nulls(table.num_rows, pa.string())
        column = self._texts(_flat(table.column("id")), table_type, "id", lines, bad)
        return _text_column(column, "id")

    def _texts(self, column: pa.Array, table_type: TableType, name: str, lines: Any, bad: Any) -> pa.Array:
        """The column without texts that are not UTF-8, whose records are refused. CSV was read as UTF-8."""
        wrong = None if self.cells_are_text else not_utf8(column)
        if wrong is None:
            return column
        refusal = Refusal(
            "format", np.flatnonzero(wrong), lambda _row: f"{name}: the text is not valid UTF-8"
        )
        self._note((refusal,), table_type, name, lines, bad)
        return column.take(pa.array(np.arange(len(column)), mask=wrong))

    def _end(
        self,
        table: pa.Table,
        edge: EdgeType,
        names: tuple[str, str],
        key: Property | None,
        lines: Any,
        bad: Any,
    ) -> pa.StringArray:
        given = [name for name in names if name in table.column_names]
        if len(given) != 1:
            raise BadRequest(f"{edge.name} needs exactly one of the columns '{names[0]}' and '{names[1]}'")
        column = self._texts(_flat(table.column(given[0])), edge, names[0], lines, bad)
        if key is None or _is_text_or_nothing(column.type):
            column = ids_of_texts(_text_column(column, given[0]), key)
        else:
            converted = stored_column(column, replace(key, name=given[0]))
            self._note(converted.refusals, edge, names[0], lines, bad)
            column = canonical_text(converted.column, key.type)
        missing = ~bad & np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        if missing.any():
            refusal = Refusal("format", np.flatnonzero(missing), lambda _row: f"{names[0]} must have a value")
            self._note((refusal,), edge, names[0], lines, bad)
        return column

    def _note(
        self,
        refusals: tuple[Refusal, ...],
        table_type: TableType,
        name: str,
        lines: Any,
        bad: Any,
        column: pa.Array | None = None,
    ) -> None:
        for refusal in refusals:
            fresh = refusal.rows[~bad[refusal.rows]]
            self.refused += lines[fresh].tolist()
            problems = (
                Problem(
                    kind=refusal.kind,
                    order=self.order_base + int(lines[row]),
                    message=f"{table_type.name}.{refusal.describe(row)}",
                    entity_kind=table_type.kind.value,
                    type_name=table_type.name,
                    property=name,
                    hint=None if column is None else self._null_hint(column, row),
                )
                for row in fresh.tolist()
            )
            self.log.add(refusal.kind, problems, len(fresh))
            bad[refusal.rows] = True

    def _null_hint(self, column: pa.Array, row: int) -> str | None:
        """Files of other programs have words for null."""
        if not (self.cells_are_text and is_text(column.type)):
            return None
        cell = column[row].as_py()
        meant = cell is not None and cell.strip().lower() in _LIKE_NULL
        return f"where this means null, say so: --null '{cell}' (nulls=)" if meant else None


def without_marks(table: pa.Table) -> pa.Table:
    """The columns as the caller gave them."""
    return table.select([name for name in table.column_names if not name.startswith(MARK)])


def _flat(column: pa.ChunkedArray) -> pa.Array:
    flat = column.combine_chunks()
    return flat.dictionary_decode() if isinstance(flat, pa.DictionaryArray) else flat


def _is_text_or_nothing(type_: pa.DataType) -> bool:
    return is_text(type_) or pa.types.is_null(type_)


def _text_column(column: pa.Array, name: str) -> pa.StringArray:
    """Ids and endpoints. Whole numbers are their own canonical text."""
    type_ = column.type
    if pa.types.is_null(type_):
        return pa.nulls(len(column), pa.string())
    if not (is_text(type_) or pa.types.is_integer(type_)):
        raise BadRequest(f"the column '{name}' holds {type_}, expected text", hint=_whole_numbers_hint(type_))
    return column.cast(pa.string())


def stored_column(column: pa.Array, prop: Property) -> Converted:
    """One column in the property's stored type. Raises BadRequest when the column's type can never fit."""
    target = arrow_type(prop.type)
    if pa.types.is_null(column.type):
        return Converted(pa.nulls(len(column), target))
    if pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.string())
    if prop.type.is_blob and (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return Converted(stored_contents(column.cast(target)))
    if prop.type.is_list or prop.type.is_vector:
        return _stored_list(column, prop)
    return _stored_scalar(column, prop)


def _stored_scalar(column: pa.Array, prop: Property) -> Converted:
    kind = prop.type.kind
    if pa.types.is_string(column.type) and (kind in INTEGER_BOUNDS or kind in FLOAT_KINDS):
        # As in JSON lines, a text is no number; each row that has one is refused by itself.
        texts = np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        return Converted(pa.nulls(len(column), arrow_type(prop.type)), misfits(column, prop, texts))
    if kind in INTEGER_BOUNDS:
        return _whole_numbers(column, prop)
    if kind in FLOAT_KINDS and _is_number(column.type):
        if pa.types.is_decimal(column.type):
            # By way of the text: what Arrow casts directly is not always the nearest number.
            column = column.cast(pa.string())
        return convert(column.cast(pa.float64(), safe=False), prop)
    if kind is ScalarKind.DATE and pa.types.is_timestamp(column.type):
        return _days(column, prop)
    if kind is ScalarKind.DATE and pa.types.is_date(column.type):
        return convert(column, prop)
    if kind is ScalarKind.DATETIME and pa.types.is_timestamp(column.type):
        return convert(column, prop)
    if kind in {ScalarKind.DATE, ScalarKind.DATETIME} and pa.types.is_integer(column.type):
        return convert(column, prop)
    fits = pa.types.is_boolean if kind is ScalarKind.BOOL else pa.types.is_string
    if not fits(column.type):
        raise BadRequest(f"the column '{prop.name}' holds {column.type}, expected {expectation(prop.type)}")
    return convert(column, prop)


def _days(column: pa.Array, prop: Property) -> Converted:
    """Moments as days, where each is a midnight: pandas has no other type for a day."""
    day = pc.floor_temporal(column, unit="day")
    bad = np.asarray(pc.fill_null(pc.not_equal(day, column), False).to_numpy(zero_copy_only=False), np.bool_)
    converted = convert(pc.if_else(pa.array(bad), pa.scalar(None, day.type), day).cast(pa.date32()), prop)
    return Converted(converted.column, (*misfits(column, prop, bad), *converted.refusals))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _whole_numbers(column: pa.Array, prop: Property) -> Converted:
    """Integers within the bounds of the type; a decimal or a float only when it is whole.

    U64 travels as a decimal, and pandas makes floats of integers beside a null.
    """
    target = arrow_type(prop.type)
    if not _is_number(column.type):
        raise BadRequest(f"the column '{prop.name}' holds {column.type}, expected {expectation(prop.type)}")
    try:
        return Converted(column.cast(target))
    except pa.ArrowInvalid:
        bad = refused_by(lambda numbers: numbers.cast(target), column)
        nulled = pc.if_else(pa.array(bad), pa.scalar(None, column.type), column)
        return Converted(nulled.cast(target), misfits(column, prop, bad))


def _whole_numbers_hint(given: pa.DataType) -> str | None:
    """For floats where whole numbers belong: 3.0 is no integer, but pandas makes it of one beside a null."""
    if not pa.types.is_floating(given):
        return None
    return "cast the column to whole numbers; pandas keeps them beside nulls with the dtype 'Int64'"


def _stored_list(column: pa.Array, prop: Property) -> Converted:
    if not (
        pa.types.is_list(column.type)
        or pa.types.is_large_list(column.type)
        or pa.types.is_fixed_size_list(column.type)
    ):
        raise BadRequest(f"the column '{prop.name}' holds {column.type}, expected a list")
    element = column.type.value_type
    kind = prop.type.kind
    if prop.type.is_vector or kind in FLOAT_KINDS:
        if not _is_number(element):
            raise BadRequest(f"the column '{prop.name}' holds {column.type}, expected numbers")
        if pa.types.is_decimal(element):
            column = column.cast(pa.list_(pa.string()))
        return convert(column.cast(pa.list_(pa.float64()), safe=False), prop)
    if pa.types.is_large_string(element) or pa.types.is_string_view(element):
        element = pa.string()
    moments = kind in TEMPORAL_KINDS and (pa.types.is_integer(element) or pa.types.is_string(element))
    if kind is ScalarKind.DATE:
        moments = moments or pa.types.is_date(element)
    elif kind is ScalarKind.DATETIME:
        moments = moments or pa.types.is_timestamp(element)
    # U64 travels as a decimal: Spark has no type for it.
    whole = kind in INTEGER_BOUNDS and (pa.types.is_integer(element) or pa.types.is_decimal(element))
    if not (moments or whole or element.equals(arrow_type(PropertyType(kind)))):
        raise BadRequest(f"the column '{prop.name}' holds {column.type}, expected a list of {kind.value}")
    return convert(column.cast(pa.list_(element)), prop)
