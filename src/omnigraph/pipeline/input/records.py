"""Strict JSON lines to Arrow tables per type: pure over bytes, shared by Spark tasks and the local engine.

Lines are grouped by their type without parsing them, each group is parsed by Arrow with the type's explicit
schema, and only a group that Arrow refuses is read record by record, to name line, record and reason.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from omnigraph.arrays.keys import string_array
from omnigraph.arrays.text_buffers import large_bounds, text_bytes
from omnigraph.catalog.schema import Catalog, EdgeType, Property, TableType
from omnigraph.catalog.types import FLOAT_KINDS
from omnigraph.pipeline.input.convert import TEMPORAL_KINDS, Converted, convert, wire_type
from omnigraph.pipeline.input.ends import EdgeKeys, ids_of_texts
from omnigraph.pipeline.input.mended import BEGINNING, mended
from omnigraph.pipeline.input.record_rules import (
    ExactRows,
    RecordRefused,
    checked,
    decode,
    resolve,
    type_of_record,
)
from omnigraph.pipeline.problems import Problem, ProblemLog, over_limit

RECORD_BYTES_MAX: Final = 33_554_432
RECORD_STRUCTURE_MAX: Final = 131_072
_ODD_LINES_BEFORE_READING_ALL: Final = 64
_EXACT_LINES: Final = 64
"""Lines that are read one by one when one of them needs it."""
_HEAD_BYTES_MAX: Final = 256
_HEAD: Final = re.compile(rb'\{"(type|edge)": ?"([^"\\]+)"')
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""A string, or what begins as one and does not end. Every byte is looked at once, also of a damaged line."""
_NULL_ID: Final = re.compile(rb'"(?:id|\\u0069d|i\\u0064|\\u0069\\u0064)"\s*:\s*null')
_WORD: Final = 8
_STRUCTURE: Final = b"{}[],:"

Lines = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ParsedRows:
    """Records of one type in stored types, before ids. All columns have the same length."""

    type: TableType
    lines: Lines
    """The line of each record, counted from 0 at the start of the split."""
    ids: pa.StringArray
    """The explicit ids; null where none was given."""
    sources: pa.StringArray | None
    targets: pa.StringArray | None
    columns: dict[str, pa.Array]
    absent: dict[str, NDArray[np.bool_]]
    """Where a property was not mentioned (null does not count); filled only on request."""

    @property
    def rows(self) -> int:
        """How many records."""
        return len(self.lines)


def _together(parts: list[ParsedRows]) -> list[ParsedRows]:
    """The records of each type in one piece."""
    by_type: dict[str, list[ParsedRows]] = {}
    for part in parts:
        by_type.setdefault(part.type.table_key, []).append(part)
    return [same[0] if len(same) == 1 else _concatenated(same) for same in by_type.values()]


def _concatenated(parts: list[ParsedRows]) -> ParsedRows:
    first = parts[0]
    told = all(part.absent for part in parts)
    return ParsedRows(
        type=first.type,
        lines=np.concatenate([part.lines for part in parts]),
        ids=pa.concat_arrays([part.ids for part in parts]),
        sources=_ends_together([part.sources for part in parts]),
        targets=_ends_together([part.targets for part in parts]),
        columns={name: pa.concat_arrays([part.columns[name] for part in parts]) for name in first.columns},
        absent={n: np.concatenate([part.absent[n] for part in parts]) for n in first.absent} if told else {},
    )


def _structure(line: bytes) -> int:
    """How many bytes of a line could be structure of JSON."""
    return sum(line.count(byte) for byte in _STRUCTURE)


def _ends_together(parts: list[pa.StringArray | None]) -> pa.StringArray | None:
    """The ends of edges in one piece; None for nodes, which have none."""
    given = [part for part in parts if part is not None]
    return pa.concat_arrays(given) if given else None


@dataclass(slots=True)
class ChunkParser:
    """Parses chunks of one split. `order_base` is the order of the split's first line."""

    catalog: Catalog
    order_base: int
    presence: bool
    """Whether absent and null must be told apart for every type; types with defaults always are."""
    log: ProblemLog
    embeds: bool = False
    """Whether they are told apart for types with vectors that can be made from a text, too."""
    refused: list[int] = field(default_factory=list[int])
    """Lines whose record was refused, in no particular order."""
    refused_of: dict[str, int] = field(default_factory=dict[str, int])
    """How many of them named a type that is known, per table."""
    _schemas: dict[tuple[str, bool, bool], pa.Schema] = field(
        default_factory=dict[tuple[str, bool, bool], pa.Schema]
    )

    def parse(self, data: bytes, first_line: int) -> tuple[list[ParsedRows], int, int]:
        """Parse whole lines; returns the rows per type, the number of lines and the number of records."""
        chunk = _Chunk.of(data)
        numbers = np.arange(first_line, first_line + len(chunk.starts), dtype=np.int64)
        parsed: list[ParsedRows] = []
        records = 0
        for group in self._groups(chunk, numbers):
            records += len(group.lines)
            parsed += [rows for rows in self._parse_group(group) if rows.rows]
        return parsed, len(chunk.starts), records

    # --- grouping --------------------------------------------------------------------------------

    def _groups(self, chunk: "_Chunk", numbers: Lines) -> Iterator["_Group"]:
        """Lines that begin with the type, grouped without parsing; all others after looking into each."""
        remaining = chunk.framed & ~self._over_limits(chunk, numbers)
        refused_whole = chunk.framed & ~remaining
        odd = ~chunk.framed
        odd_seen = 0
        while odd_seen < _ODD_LINES_BEFORE_READING_ALL:
            left = np.flatnonzero(remaining)
            if not len(left):
                break
            start = int(chunk.starts[left[0]])
            head = _HEAD.match(chunk.data, start, start + _HEAD_BYTES_MAX)
            if head is None:
                remaining[left[0]] = False
                odd[left[0]] = True
                odd_seen += 1
                continue
            same = np.zeros(len(remaining), np.bool_)
            same[left] = chunk.begin_with(head[0], chunk.starts[left])
            remaining &= ~same
            yield _Group(head[1].decode(), head[2], chunk.select(same), numbers[same])
        odd |= remaining
        if refused_whole.any():
            yield _Group("", b"", b"", numbers[refused_whole])
        if odd.any():
            yield from self._odd_groups(chunk, odd, numbers)

    def _odd_groups(self, chunk: "_Chunk", odd: NDArray[np.bool_], numbers: Lines) -> Iterator["_Group"]:
        """Lines whose type is not their first member, or that are no record at all."""
        grouped: dict[tuple[str, bytes], tuple[list[bytes], list[int]]] = {}
        for at in np.flatnonzero(odd).tolist():
            line = chunk.line(at).strip(b" \t\r\n")
            if not line:
                continue
            number = int(numbers[at])
            if self._line_over_limits(line, number):
                yield _Group("", b"", b"", np.array([number], np.int64))
                continue
            if line.startswith(BEGINNING):
                line = mended(line, self.catalog) or line
            member, name = _peek(line)
            lines, places = grouped.setdefault((member, name), ([], []))
            lines.append(line)
            places.append(number)
        for (member, name), (lines, places) in grouped.items():
            yield _Group(member, name, b"\n".join(lines) + b"\n", np.array(places, np.int64))

    def _over_limits(self, chunk: "_Chunk", numbers: Lines) -> NDArray[np.bool_]:
        over = np.zeros(len(chunk.starts), np.bool_)
        # A line with fewer bytes than the limit cannot have more structure than it.
        for at in np.flatnonzero(chunk.framed & (chunk.ends - chunk.starts > RECORD_STRUCTURE_MAX)).tolist():
            over[at] = self._line_over_limits(chunk.line(at), int(numbers[at]))
        return over

    def _line_over_limits(self, line: bytes, number: int) -> bool:
        if len(line) > RECORD_BYTES_MAX:
            self._refuse_size(number, "record_bytes", len(line), RECORD_BYTES_MAX)
            return True
        # Texts are cut out only where they could make the difference.
        if len(line) > RECORD_STRUCTURE_MAX and _structure(line) > RECORD_STRUCTURE_MAX:
            structure = _structure(_STRING.sub(b"", line))
            if structure > RECORD_STRUCTURE_MAX:
                self._refuse_size(number, "record_structure", structure, RECORD_STRUCTURE_MAX)
                return True
        return False

    def _refuse_size(self, line: int, resource: str, actual: int, limit: int) -> None:
        self.refused.append(line)
        self.log.add_one(over_limit(self.order_base + line, resource, actual, limit))

    # --- parsing ---------------------------------------------------------------------------------

    def _parse_group(self, group: "_Group") -> list[ParsedRows]:
        if not group.data:
            return []
        if not group.member:
            return self._exact(group)
        try:
            table_type = resolve(group.member, group.name.decode("utf-8", "replace"), self.catalog)
        except RecordRefused:
            return self._exact(group)
        rows = self._fast(group, table_type)
        if rows is not None:
            return [rows]
        if len(group.lines) <= _EXACT_LINES:
            return self._exact(group)
        # The exact parser is a hundred times slower: cut until it gets little more than what needs it.
        pieces = group.pieces(max(_EXACT_LINES, len(group.lines) // 8))
        return _together([rows for piece in pieces for rows in self._parse_group(piece)])

    def _fast(self, group: "_Group", table_type: TableType) -> ParsedRows | None:
        """The rows of a group by Arrow, or None when the exact parser must look at it."""
        presence = self.presence or bool(table_type.defaults) or (self.embeds and bool(table_type.embeds))
        wire = None if presence and b"\\" in group.data else self._columnar(group, table_type)
        if wire is None:
            return None
        absent = _absent(group.data, wire, table_type) if presence else {}
        return self._converted(table_type, group.lines, wire, absent)

    def _columnar(self, group: "_Group", table_type: TableType) -> "_Wire | None":
        """Parse with Arrow; None when it refuses, or took something the record rules forbid."""
        if not group.data.isascii():
            try:
                group.data.decode("utf-8")
            except UnicodeDecodeError:
                return None
        has_temporal = any(prop.type.kind in TEMPORAL_KINDS for prop in table_type.properties)
        keys = (
            EdgeKeys.of(table_type, self.catalog)
            if isinstance(table_type, EdgeType)
            else EdgeKeys(None, None)
        )
        for ends in (False, True) if keys.typed else (False,):
            for numbers in (False, True) if has_temporal else (False,):
                schema = self._schema(table_type, keys, temporal_numbers=numbers, end_numbers=ends)
                table = _read_json(group.data, schema)
                if table is not None:
                    return _wire(table, table_type, keys, group)
        return None

    def _schema(
        self, table_type: TableType, keys: EdgeKeys, *, temporal_numbers: bool, end_numbers: bool
    ) -> pa.Schema:
        named = (table_type.table_key, temporal_numbers, end_numbers)
        cached = self._schemas.get(named)
        if cached is not None:
            return cached
        inner = [pa.field("id", pa.string())]
        inner += [
            pa.field(prop.name, wire_type(prop.type, temporal_numbers=temporal_numbers))
            for prop in table_type.properties
        ]
        if isinstance(table_type, EdgeType):
            outer = [pa.field("edge", pa.string())]
            for name, key in (("from", keys.source), ("to", keys.target)):
                if key is not None and end_numbers:
                    outer.append(pa.field(name, wire_type(key.type, temporal_numbers=True)))
                else:
                    outer.append(pa.field(name, pa.string()))
        else:
            outer = [pa.field("type", pa.string())]
        schema = pa.schema([*outer, pa.field("data", pa.struct(inner))])
        self._schemas[named] = schema
        return schema

    def _exact(self, group: "_Group") -> list[ParsedRows]:
        """Read record by record: keep the good ones, name what is wrong with the others."""
        by_type: dict[str, ExactRows] = {}
        for line, number in zip(group.data.split(b"\n"), group.lines.tolist(), strict=False):
            table_type: TableType | None = None
            try:
                record = decode(line)
                table_type = type_of_record(record, self.catalog)
                checked(record, table_type, self.catalog)
            except RecordRefused as refusal:
                self._refuse(number, str(refusal), "format", table_type, refusal.property, refusal.hint)
                continue
            by_type.setdefault(table_type.table_key, ExactRows(table_type)).add(number, record)
        parsed: list[ParsedRows] = []
        for rows in by_type.values():
            absent = {name: ~np.array(flags, np.bool_) for name, flags in rows.present.items()}
            lines = np.array(rows.lines, np.int64)
            parsed.append(self._converted(rows.type, lines, _Wire.of_exact(rows, self.catalog), absent))
        return parsed

    def _converted(
        self, table_type: TableType, lines: Lines, wire: "_Wire", absent: dict[str, NDArray[np.bool_]]
    ) -> ParsedRows:
        columns: dict[str, pa.Array] = {}
        bad = np.zeros(len(lines), np.bool_)
        for prop in table_type.properties:
            converted = wire.stored(prop.name, prop)
            columns[prop.name] = converted.column
            for refusal in converted.refusals:
                fresh = refusal.rows[~bad[refusal.rows]]
                for row in fresh.tolist():
                    message = f"{table_type.name}.{refusal.describe(row)}"
                    self._refuse(int(lines[row]), message, refusal.kind, table_type, prop.name)
                bad[refusal.rows] = True
        rows = ParsedRows(table_type, lines, wire.ids, wire.sources, wire.targets, columns, absent)
        return keep(rows, ~bad) if bad.any() else rows

    def _refuse(
        self,
        line: int,
        message: str,
        kind: str,
        table_type: TableType | None = None,
        property_name: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.refused.append(line)
        if table_type is not None:
            key = table_type.table_key
            self.refused_of[key] = self.refused_of.get(key, 0) + 1
        problem = Problem(
            kind=kind,
            order=self.order_base + line,
            message=message,
            entity_kind=None if table_type is None else table_type.kind.value,
            type_name=None if table_type is None else table_type.name,
            property=property_name,
            hint=hint,
        )
        self.log.add_one(problem)


def keep(rows: ParsedRows, mask: NDArray[np.bool_]) -> ParsedRows:
    """The rows at which the mask is true."""
    chosen = pa.array(mask)
    return ParsedRows(
        rows.type,
        rows.lines[mask],
        rows.ids.filter(chosen),
        None if rows.sources is None else rows.sources.filter(chosen),
        None if rows.targets is None else rows.targets.filter(chosen),
        {name: column.filter(chosen) for name, column in rows.columns.items()},
        {name: flags[mask] for name, flags in rows.absent.items()},
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Lines of one type. An empty `member` means the type could not be told."""

    member: str
    name: bytes
    data: bytes
    lines: Lines

    def pieces(self, lines_max: int) -> Iterator["_Group"]:
        """The same lines in groups of at most `lines_max`."""
        ends = np.flatnonzero(np.frombuffer(self.data, np.uint8) == 10) + 1
        begin = 0
        for start in range(0, len(self.lines), lines_max):
            lines = self.lines[start : start + lines_max]
            end = int(ends[start + len(lines) - 1])
            yield _Group(self.member, self.name, self.data[begin:end], lines)
            begin = end


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Bytes and the bounds of their lines; `framed` marks lines that begin with `{` and end with `}`."""

    data: bytes
    codes: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    framed: NDArray[np.bool_]

    @classmethod
    def of(cls, data: bytes) -> "_Chunk":
        if not data.endswith(b"\n"):
            data += b"\n"
        codes = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(codes == 10)
        starts = np.concatenate([[0], ends[:-1] + 1])
        # The byte before the newline, or before CRLF. An empty line looks at the newline before it.
        last = np.maximum(ends - 1, 0)
        last = np.where((codes[last] == 13) & (ends > starts), np.maximum(last - 1, 0), last)
        framed = (codes[starts] == 123) & (codes[last] == 125) & (last > starts)
        return cls(data, codes, starts, ends, framed)

    def line(self, at: int) -> bytes:
        return self.data[self.starts[at] : self.ends[at]]

    def begin_with(self, head: bytes, starts: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the lines begin with `head`, which has no newline; eight bytes at a time."""
        same = starts + len(head) <= len(self.codes)
        if len(self.codes) < max(len(head), _WORD) or len(head) < _WORD:
            for at, byte in enumerate(head):
                same &= self.codes[np.minimum(starts + at, len(self.codes) - 1)] == byte
            return same
        places = starts if same.all() else np.where(same, starts, 0)
        windows: NDArray[np.uint64] = np.ndarray(
            (len(self.codes) - _WORD + 1,), np.uint64, self.codes.data, 0, (1,)
        )
        for at in (*range(0, len(head) - _WORD, _WORD), len(head) - _WORD):
            word = np.frombuffer(head, np.uint64, 1, at)[0]
            same &= windows[places + at] == word
        return same

    def select(self, mask: NDArray[np.bool_]) -> bytes:
        if mask.all():
            return self.data
        offsets = np.concatenate([self.starts, [len(self.data)]])
        buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(self.data)]
        lines = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self.starts), buffers)
        chosen = lines.filter(pa.array(mask))
        bounds = large_bounds(chosen)
        return bytes(text_bytes(chosen)[bounds[0] : bounds[-1]])


@dataclass(frozen=True, slots=True)
class _Wire:
    """Parsed JSON values per column. A temporal column of the exact parser has texts and numbers."""

    ids: pa.StringArray
    sources: pa.StringArray | None
    targets: pa.StringArray | None
    columns: dict[str, pa.Array | list[Any]]

    @classmethod
    def of_exact(cls, rows: ExactRows, catalog: Catalog) -> "_Wire":
        sources = targets = None
        if isinstance(rows.type, EdgeType):
            keys = EdgeKeys.of(rows.type, catalog)
            sources = ids_of_texts(pa.array(map(str, rows.sources), pa.string()), keys.source)
            targets = ids_of_texts(pa.array(map(str, rows.targets), pa.string()), keys.target)
        return cls(pa.array(rows.ids, pa.string()), sources, targets, dict(rows.values))

    def stored(self, name: str, prop: Any) -> Converted:
        values = self.columns[name]
        if not isinstance(values, list):
            return convert(values, prop)
        if prop.type.kind in FLOAT_KINDS:
            # Arrow takes an integer for a float only when the float holds it exactly.
            values = [_as_floats(value) for value in values]
        if prop.type.kind not in TEMPORAL_KINDS:
            return convert(pa.array(values, wire_type(prop.type)), prop)
        return _mixed_temporal(values, prop)


def _as_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [float(element) for element in cast("list[Any]", value)]
    return None if value is None else float(value)


def _mixed_temporal(values: list[Any], prop: Any) -> Converted:
    """Texts and numbers in one column: each form by its own rule, then the two are laid together."""
    if prop.type.is_list:
        numeric = [bool(v) and all(isinstance(e, int) for e in v) for v in values]
        mixed = [
            bool(v) and not n and any(isinstance(e, int) for e in v)
            for v, n in zip(values, numeric, strict=True)
        ]
        values = [_all_text(v, prop) if m else v for v, m in zip(values, mixed, strict=True)]
    else:
        numeric = [isinstance(value, int) for value in values]
    texts = pa.array([None if n else v for v, n in zip(values, numeric, strict=True)], wire_type(prop.type))
    numbers = pa.array(
        [v if n else None for v, n in zip(values, numeric, strict=True)],
        wire_type(prop.type, temporal_numbers=True),
    )
    from_texts, from_numbers = convert(texts, prop), convert(numbers, prop)
    column = pc.if_else(pa.array(numeric), from_numbers.column, from_texts.column)
    return Converted(column, (*from_texts.refusals, *from_numbers.refusals))


def _all_text(values: list[Any], prop: Any) -> list[str]:
    """One list with texts and numbers: the numbers spelled as the dates they mean."""
    spelled: list[str] = []
    for value in values:
        if isinstance(value, str):
            spelled.append(value)
            continue
        unit = "D" if prop.type.kind.value == "Date" else "ms"
        text = str(np.datetime64(value, unit))
        spelled.append(text if unit == "D" else text + "Z")
    return spelled


def _read_json(data: bytes, schema: pa.Schema) -> pa.Table | None:
    try:
        return pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _wire(table: pa.Table, table_type: TableType, keys: EdgeKeys, group: _Group) -> _Wire | None:
    """The columns of a parsed group, unless records and lines do not correspond one to one.

    Every line begins with `{` and ends with `}`, so no record spans two lines; equal counts then mean one
    record per line.
    """
    if table.num_rows != len(group.lines):
        return None
    batch = table.combine_chunks()
    data = batch.column("data").combine_chunks() if table.num_rows else None
    if not isinstance(data, pa.StructArray) or (data.null_count and b"null" in group.data):
        return None  # an absent `data` is fine, a null one is not, and Arrow does not tell which
    edge = isinstance(table_type, EdgeType)
    sources = _end(batch.column("from"), keys.source) if edge else None
    targets = _end(batch.column("to"), keys.target) if edge else None
    if edge and (sources is None or targets is None or sources.null_count or targets.null_count):
        return None
    fields = dict(zip([f.name for f in data.type], data.flatten(), strict=True))
    ids = string_array(fields.pop("id"))
    if ids.null_count and _has_null_id(group.data):
        return None  # an id may be left out, but is never null
    return _Wire(ids, sources, targets, dict(fields))


def _end(column: pa.ChunkedArray, key: Property | None) -> pa.StringArray:
    return ids_of_texts(string_array(column.cast(pa.string())), key)


def _has_null_id(data: bytes) -> bool:
    """Whether an id is spelled as null. A search for plain bytes is far cheaper than the expression."""
    named = b'"id"' in data or b"\\u006" in data
    return named and b"null" in data and _NULL_ID.search(data) is not None


def _absent(data: bytes, wire: _Wire, table_type: TableType) -> dict[str, NDArray[np.bool_]]:
    """Where a property is not mentioned. `data` has no backslash, so a name is spelled in one way only."""
    lines: pa.Array | None = None
    absent: dict[str, NDArray[np.bool_]] = {}
    for prop in table_type.properties:
        # Asked of the Arrow parser's rows only, whose columns are arrays; lists come from the exact one.
        column = cast("pa.Array", wire.columns[prop.name])
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), np.bool_)
        if missing.any():
            if lines is None:
                lines = pa.array(data.split(b"\n")[: len(missing)], pa.binary()).cast(pa.string())
            spelled = pc.match_substring_regex(lines, rf'"{re.escape(prop.name)}"\s*:\s*null')
            missing &= ~np.asarray(spelled.to_numpy(zero_copy_only=False), np.bool_)
        absent[prop.name] = missing
    return absent


def _peek(line: bytes) -> tuple[str, bytes]:
    """Which member names the type and how; ("", b"") when the line must be explained by the exact parser."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return "", b""
    if isinstance(record, dict):
        for member in ("type", "edge"):
            name = cast("dict[str, Any]", record).get(member)
            if isinstance(name, str):
                return member, name.encode()
    return "", b""
