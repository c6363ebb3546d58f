"""CSV text as records: the line each begins on, the columns of those that fit, the text of the others.

Arrow reads the cells, but says neither on which line of the file a record stands nor how long it is. So
records are told apart here first, by the rules Arrow has, and handed over in whole ones.
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.core.errors import InternalError, LoadFormatError, ResourceLimit
from omnigraph.core.load_options import ColumnForm
from omnigraph.pipeline.input.records import RECORD_BYTES_MAX
from omnigraph.pipeline.input.sources import CHUNK_BYTES, reading
from omnigraph.pipeline.input.utf8 import IN_UTF8
from omnigraph.pipeline.plan import Split

OPEN_QUOTE: Final = "a quote is opened and never closed"
_QUOTE: Final = b'"'
_LF: Final = ord("\n")
_CR: Final = ord("\r")
_LINE_ENDS: Final = b"\r\n"
_COMMA: Final = b","

Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RefusedText:
    """A record that has no columns: why, and what stands there."""

    line: int
    message: str
    text: bytes
    limit: int | None = None
    """The size a record may have, where that is why."""
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a source of one type, in order."""

    table: pa.Table
    """Of CSV every cell as text; the reader of columns knows what the type wants."""
    lines: Places
    """The line of the file on which each row of the table begins, counted from 0; a file without lines
    counts its rows.
    """
    refused: tuple[RefusedText, ...] = ()
    bytes: int = 0


def read_csv(split: Split) -> Iterator[Piece]:
    """The records of a CSV file, in pieces.

    A record with the wrong number of cells, with bytes that are not UTF-8 or with too many bytes is refused.
    Raises LoadFormatError for a quote that is never closed: where records end is not known then. Memory:
    a few chunks, and the largest record.
    """
    with reading(split.name):
        yield from _pieces(split)


def _pieces(split: Split) -> Iterator[Piece]:
    form = split.columns
    delimiter = _COMMA if form.delimiter is None else form.delimiter.encode()
    names: list[str] | None = None if form.names is None else list(form.names)
    if names is not None:
        yield Piece(_schema(names).empty_table(), np.empty(0, np.int64))
    held, line, quotes, ran_over = b"", 0, 0, None
    with pa.input_stream(split.path, compression=split.compression) as stream:
        block = stream.read(CHUNK_BYTES).removeprefix(codecs.BOM_UTF8)
        while True:
            quotes += block.count(_QUOTE)
            data = held + block
            found = records_of(data, final=not block, delimiter=delimiter)
            if ran_over is None and found.ran_over is not None:
                ran_over = line + found.ran_over
            if names is None and len(found.starts):
                names = _header(found.text(0), delimiter)
                found = found.without_first()
                yield Piece(_schema(names).empty_table(), np.empty(0, np.int64))
            if names is not None and len(found.starts):
                yield _piece(found, names, line, form)
            held, line = data[found.end :], line + found.lines_passed
            if len(held) > 2 * RECORD_BYTES_MAX:
                raise ResourceLimit(
                    resource="record_bytes",
                    limit=RECORD_BYTES_MAX,
                    actual=len(held),
                    hint=f"{split.name}:{line + 1}: a cell that begins with a quote ends with one",
                )
            if not block:
                break
            block = stream.read(CHUNK_BYTES)
    if held:
        raise LoadFormatError(line=line + 1, file=split.name, message=OPEN_QUOTE)
    if ran_over is not None and quotes % 2:
        raise LoadFormatError(line=ran_over + 1, file=split.name, message=OPEN_QUOTE)


# --- where records are ---


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a text that begins with one. Blank lines are none."""

    data: bytes
    starts: Places
    ends: Places
    """Behind the last byte of each, without its line end."""
    lines: Places
    """The line on which each begins, counted from 0."""
    end: int
    """Behind the last whole record."""
    lines_passed: int
    ran_over: int | None
    """The line of a quote that runs over line ends up to one with text behind it: probably left open."""

    def text(self, at: int) -> bytes:
        """One record as it stands in the file."""
        return self.data[self.starts[at] : self.ends[at]]

    def without_first(self) -> "Records":
        """All records but the first."""
        return Records(
            self.data,
            self.starts[1:],
            self.ends[1:],
            self.lines[1:],
            self.end,
            self.lines_passed,
            self.ran_over,
        )


def records_of(data: bytes, *, final: bool, delimiter: bytes = _COMMA) -> Records:
    """The whole records of a text; `final` when it ends here, so that its last one needs no line end.

    Cost: a few passes over the bytes; a step for each quote only where quotes stand in odd places.
    """
    codes = np.frombuffer(data, np.uint8)
    line_ends = _line_ends(data, codes, final=final)
    opens, closes, ran_over = _quoted(codes, line_ends, delimiter)
    ends = line_ends[np.searchsorted(opens, line_ends) == np.searchsorted(closes, line_ends)]
    end = int(ends[-1]) + 1 if len(ends) else 0
    cuts = ends
    if final and end < len(data) and len(opens) == len(closes):
        end = len(data)
        ends, cuts = np.append(ends, end), np.append(cuts, end)
    starts = np.concatenate([np.zeros(min(len(cuts), 1), np.int64), cuts[:-1] + 1])
    padded = np.append(codes, np.uint8(0))
    # The byte before the first one is the padding, which is no line end.
    ends = ends - ((padded[ends - 1] == _CR) & (padded[ends] == _LF))
    filled = ends > starts
    return Records(
        data,
        starts[filled],
        ends[filled],
        np.searchsorted(line_ends, starts[filled]),
        end,
        int(np.searchsorted(line_ends, end)),
        ran_over,
    )


def _line_ends(data: bytes, codes: NDArray[np.uint8], *, final: bool) -> Places:
    """The last byte of every line end: LF, CR LF, or CR alone."""
    feeds = np.flatnonzero(codes == _LF)
    if b"\r" not in data:
        return feeds
    returns = np.flatnonzero(codes == _CR)
    if not final and returns[-1] == len(codes) - 1:
        returns = returns[:-1]  # a LF may follow
    behind = np.append(codes, np.uint8(0))[returns + 1]
    return np.sort(np.concatenate([feeds, returns[behind != _LF]]))


def _quoted(
    codes: NDArray[np.uint8], line_ends: Places, delimiter: bytes
) -> tuple[Places, Places, int | None]:
    """Where quoted text opens and closes, and the line of a quote that was probably left open.

    A quote opens only where a cell begins. A doubled one closes and opens again, with nothing between.
    """
    at = np.flatnonzero(codes == _QUOTE[0])
    opens, closes = at[::2], at[1::2]
    padded = np.append(codes, np.uint8(_LF))
    between = np.frombuffer(delimiter + _LINE_ENDS, np.uint8)
    begins = np.isin(padded[at - 1], between)
    goes_on = ~np.isin(padded[at + 1], np.append(between, np.uint8(_QUOTE[0])))
    again = np.append(np.zeros(1, np.bool_), np.diff(at) == 1)
    if np.all((begins | again)[::2]) and not np.any(goes_on[1::2]):
        return opens, closes, None
    return _quoted_step_by_step(at, begins, goes_on, np.searchsorted(line_ends, at))


def _quoted_step_by_step(
    at: Places, begins: NDArray[np.bool_], goes_on: NDArray[np.bool_], line_of: Places
) -> tuple[Places, Places, int | None]:
    opens: list[int] = []
    closes: list[int] = []
    ran_over: int | None = None
    quoted, opened_on = False, 0
    for place, line, begins_cell, text_behind in zip(
        at.tolist(), line_of.tolist(), begins.tolist(), goes_on.tolist(), strict=True
    ):
        if quoted:
            closes.append(place)
            quoted = False
            if text_behind and line > opened_on and ran_over is None:
                ran_over = opened_on
            continue
        again = bool(closes) and place == closes[-1] + 1
        if again or begins_cell:
            opens.append(place)
            quoted, opened_on = True, opened_on if again else line
    return np.array(opens, np.int64), np.array(closes, np.int64), ran_over


# --- what they hold ---


def _header(text: bytes, delimiter: bytes) -> list[str]:
    if len(text) > RECORD_BYTES_MAX:
        raise ResourceLimit(resource="record_bytes", limit=RECORD_BYTES_MAX, actual=len(text))
    cells = _parsed(text + b"\n", None, ColumnForm(delimiter.decode()))[0].to_pylist()[0]
    return ["" if cell is None else cell for cell in cells.values()]


def _schema(names: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, pa.string()) for name in names])


def _piece(found: Records, names: Sequence[str], first_line: int, form: ColumnForm) -> Piece:
    """The records as columns; those that cannot be, as texts."""
    lines = found.lines + first_line
    refused = [*_too_long(found, lines), *_not_utf8(found, lines)]
    kept = ~np.isin(lines, [each.line for each in refused])
    where = np.flatnonzero(kept)
    if len(where) == len(lines):
        text = found.data[found.starts[0] : found.end]
    else:
        text = b"".join(found.text(at) + b"\n" for at in where.tolist())
    table, misshapen = _parsed(text, names, form)
    fits = np.ones(len(where), np.bool_)
    for at, cells in misshapen:
        fits[at] = False
        number = int(where[at])
        message = _wrong_count(cells, len(names), form)
        hint = None if form.names is None else _EVERY_COLUMN
        refused.append(RefusedText(int(lines[number]), message, found.text(number), hint=hint))
    if int(fits.sum()) != table.num_rows:
        raise InternalError(f"{len(where)} CSV records were read as {table.num_rows}")
    refused.sort(key=lambda each: each.line)
    return Piece(table, lines[where[fits]], tuple(refused), int(found.end - found.starts[0]))


_EVERY_COLUMN: Final = (
    "--columns (columns=) names every column of the file; --ignore-extra (ignore_extra=) passes over those"
    " that the type does not have"
)


def _wrong_count(cells: int, expected: int, form: ColumnForm) -> str:
    fields = f"{cells} {'field' if cells == 1 else 'fields'}"
    known = f"the header has {expected}" if form.names is None else f"{expected} columns are named"
    between = _DELIMITERS.get(form.delimiter or ",", f"a '{form.delimiter}'")
    return f"the record has {fields}, {known}; {between} within a field needs quotes around it"


_DELIMITERS: Final = {",": "a comma", "\t": "a tab", ";": "a semicolon", " ": "a space"}


def _too_long(found: Records, lines: Places) -> Iterator[RefusedText]:
    for at in np.flatnonzero(found.ends - found.starts > RECORD_BYTES_MAX).tolist():
        yield RefusedText(int(lines[at]), "", found.text(at), limit=RECORD_BYTES_MAX)


def _not_utf8(found: Records, lines: Places) -> Iterator[RefusedText]:
    """Records are looked at one by one only when one of them is wrong."""
    text = found.data[found.starts[0] : found.end]
    if text.isascii() or _is_utf8(text):
        return
    for at, line in enumerate(lines.tolist()):
        record = found.text(at)
        if len(record) <= RECORD_BYTES_MAX and not _is_utf8(record):
            yield RefusedText(line, "the record is not valid UTF-8", record, hint=IN_UTF8)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parsed(
    text: bytes, names: Sequence[str] | None, form: ColumnForm
) -> tuple[pa.Table, list[tuple[int, int]]]:
    """The cells, and of each record with another number of them its place and how many it has.

    Without names it is one record, with as many cells as it has.
    """
    import pyarrow.csv as pc  # noqa: PLC0415 - only for CSV sources

    misshapen: list[tuple[int, int]] = []

    def note(row: pc.InvalidRow) -> Literal["skip"]:
        misshapen.append(((row.number or 1) - 1, row.actual_columns))
        return "skip"

    if names is not None and not text:
        return _schema(names).empty_table(), misshapen
    if text.startswith(codecs.BOM_UTF8):
        text = b"\n" + text  # here it is a character of the first cell, and only the first bytes are skipped
    delimiter = form.delimiter or ","
    # By number: a header may have a name twice, which is for others to refuse.
    numbered = [f"f{at}" for at in range(text.count(delimiter.encode()) + 1 if names is None else len(names))]
    table = pc.read_csv(
        pa.BufferReader(text),
        read_options=pc.ReadOptions(
            use_threads=False,
            block_size=len(text) + 1,
            column_names=None if names is None else numbered,
            autogenerate_column_names=names is None,
        ),
        parse_options=pc.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note),
        convert_options=pc.ConvertOptions(
            column_types=dict.fromkeys(numbered, pa.string()),
            strings_can_be_null=True,
            null_values=["", *form.nulls],
            quoted_strings_can_be_null=False,
        ),
    )
    return (table if names is None else table.rename_columns(list(names))), misshapen
