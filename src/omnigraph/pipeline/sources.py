"""Where records come from: files, directories, patterns, standard input; cut into pieces tasks can read."""

import codecs
import glob
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa

from omnigraph.core.errors import BadRequest, IoFailure, LoadFormatError, ResourceLimit
from omnigraph.core.limits import MIB
from omnigraph.pipeline.convert import shown_text
from omnigraph.pipeline.plan import SourceFormat, Split
from omnigraph.pipeline.records import RECORD_BYTES_MAX

SPLIT_BYTES_MAX: Final = 64 * MIB
"""Bytes of one split of a file that can be cut."""
SPLIT_BYTES_MIN: Final = 8 * MIB
"""A smaller piece is not worth a task of its own."""
SPLITS_PER_CORE: Final = 2
CHUNK_BYTES: Final = 8 * MIB
"""Bytes parsed at a time."""
PARQUET_ROWS: Final = 65_536
"""Rows of a Parquet file read at a time; fewer when they are long."""
PARQUET_BUFFER_BYTES: Final = 1 * MIB
"""Bytes of a column read ahead: without it a whole column of a row group is."""
_TAIL_BYTES: Final = 4096
_OPEN_QUOTE: Final = "a quote is opened and never closed"
_QUOTE: Final = b'"'
_BETWEEN_CELLS: Final = np.frombuffer(b",\r\n", np.uint8)
TEXT_BYTES_PER_ROW: Final = 96
TEXT_PER_PACKED_BYTE: Final = 8
"""Guesses, used for sizing only."""

_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_FORMATS: Final = {
    ".jsonl": SourceFormat.JSON_LINES,
    ".ndjson": SourceFormat.JSON_LINES,
    ".json": SourceFormat.JSON_LINES,
    ".csv": SourceFormat.CSV,
    ".parquet": SourceFormat.PARQUET,
}


STREAM_NAME: Final = "<stream>"
_OPEN_FILES: Final = ("/dev/fd/", "/dev/stdin", "/proc/")
"""Names that mean another file in another process."""


def spool(stream: BinaryIO, path: Path) -> Path:
    """Copy a stream that can be read once into a file that can be split and read again.

    Raises BadRequest for a stream of text.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as target:
        while block := stream.read(CHUNK_BYTES):
            if not isinstance(block, bytes):
                raise BadRequest(
                    "the stream gives text, a load reads bytes",
                    hint="open the file in binary mode, or encode the text: io.BytesIO(text.encode())",
                )
            target.write(block)
    return path


def stream_name(stream: BinaryIO) -> str:
    """How messages call a stream: `<stdin>`, or the name of the file behind it."""
    name = getattr(stream, "name", None)
    return name if isinstance(name, str) else STREAM_NAME


def read_once(path: Path) -> bool:
    """Whether the bytes come once only, or for this process only: a pipe, a device, an open file."""
    return not path.is_file() or str(path.absolute()).startswith(_OPEN_FILES)


def spool_pipes(files: Sequence[Path], directory: Path) -> list[Path]:
    """The files, each pipe among them copied to a file of the same name: a load may read its input twice."""
    spooled: list[Path] = []
    for number, path in enumerate(files):
        if read_once(path):
            with reading(str(path)), path.open("rb") as stream:
                spooled.append(spool(stream, directory / f"pipe-{number}" / path.name))
        else:
            spooled.append(path)
    return spooled


def expand(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files a list of files, directories and patterns names, sorted within each entry.

    Raises IoFailure for a name that matches nothing: an input somebody forgot is not an empty input.
    """
    files: list[Path] = []
    for source in sources:
        text = os.fspath(source)
        path = Path(text)
        if path.is_dir():
            found = sorted(each for each in path.rglob("*") if each.is_file() and _wanted(each, path))
        elif path.exists():
            found = [path]
        else:
            matches = glob.iglob(text, recursive=True)  # noqa: PTH207 - a pattern may be absolute
            found = sorted(Path(each) for each in matches if Path(each).is_file())
        if not found:
            raise IoFailure(f"no input file at '{text}'")
        files += found
    return files


def _wanted(path: Path, below: Path) -> bool:
    """Not what is hidden: an export or a Spark job that was killed leaves its files in a hidden directory."""
    hidden = any(part.startswith((".", "_")) for part in path.relative_to(below).parts)
    return not hidden and format_of(path) is not None


def compression_of(path: Path) -> str | None:
    """How the file is compressed, by its name."""
    return _COMPRESSIONS.get(path.suffix.lower())


def format_of(path: Path) -> SourceFormat | None:
    """The format a file name announces; None for an unknown ending."""
    name = path.with_suffix("") if compression_of(path) else path
    return _FORMATS.get(name.suffix.lower())


def plan_splits(
    files: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    format_: SourceFormat | None = None,
    type_name: str | None = None,
    split_bytes: int | None = None,
) -> list[Split]:
    """Cut files into splits in input order. A file without a known ending is JSON lines.

    CSV and Parquet files hold one type: `type_name`, or the part of the file name before its first dot.
    `names` are what messages call the files; without them it is their paths.
    """
    splits: list[Split] = []
    if split_bytes is None:
        split_bytes = _even_split(sum(path.stat().st_size for path in files), os.cpu_count() or 1)
    for path, name in zip(files, names or [str(path) for path in files], strict=True):
        kind = format_ or format_of(path) or SourceFormat.JSON_LINES
        compression = compression_of(path)
        one_type = None
        if kind is not SourceFormat.JSON_LINES:
            one_type = type_name or path.name.split(".", 1)[0]
        elif type_name is not None:
            raise BadRequest(f"'{name}' is JSON lines: its records name their types themselves")
        for start, end in _ranges(path, name, kind, compression, split_bytes):
            splits.append(
                Split(
                    number=len(splits),
                    path=str(path.absolute()),
                    name=name,
                    format=kind,
                    start=start,
                    end=end,
                    compression=compression,
                    type_name=one_type,
                )
            )
    return splits


def _even_split(total: int, cores: int) -> int:
    """Bytes of a split such that every core works until the end: whole rounds of splits of one size."""
    share = -(-total // (SPLITS_PER_CORE * cores))
    rounds = -(-total // (cores * min(SPLIT_BYTES_MAX, max(SPLIT_BYTES_MIN, share))))
    return max(SPLIT_BYTES_MIN, -(-total // max(1, rounds * cores)))


def _ranges(
    path: Path, name: str, kind: SourceFormat, compression: str | None, split_bytes: int
) -> list[tuple[int, int | None]]:
    size = path.stat().st_size
    if kind is SourceFormat.PARQUET:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only for Parquet sources

        with reading(name):
            groups = pq.ParquetFile(path).metadata.num_row_groups
        per_split = max(1, groups * split_bytes // max(size, 1))
        count = -(-groups // per_split)
        return [(groups * at // count, groups * (at + 1) // count) for at in range(count)]
    if compression is not None or kind is SourceFormat.CSV or size <= split_bytes:
        return [(0, None)]
    count = -(-size // split_bytes)
    return [(size * at // count, size * (at + 1) // count) for at in range(count)]


def input_bytes(splits: Sequence[Split]) -> int:
    """Bytes of all files, as stored."""
    return sum(Path(path).stat().st_size for path in {split.path for split in splits})


def text_bytes(splits: Sequence[Split]) -> int:
    """About how many bytes the records have as plain text: their number and their keys follow that, not how
    well a file is packed.
    """
    return sum(_text_bytes(split) for split in {split.path: split for split in splits}.values())


def _text_bytes(split: Split) -> int:
    if split.format is SourceFormat.PARQUET:
        import pyarrow.parquet as pq  # noqa: PLC0415 - only for Parquet sources

        with reading(split.name):
            return int(pq.read_metadata(split.path).num_rows) * TEXT_BYTES_PER_ROW
    return Path(split.path).stat().st_size * (1 if split.compression is None else TEXT_PER_PACKED_BYTE)


def read_chunks(split: Split, chunk_bytes: int = CHUNK_BYTES) -> Iterator[bytes]:
    """The split's lines, as chunks that end with a whole line. Memory: about two chunks.

    A byte order mark before the first line of a file belongs to the encoding and is passed over.
    """
    chunks = _chunks(split, chunk_bytes)
    with reading(split.name):
        if split.start == 0:
            yield from (first.removeprefix(codecs.BOM_UTF8) for first in islice(chunks, 1))
        yield from chunks


@contextmanager
def reading(name: str) -> Generator[None]:
    """Failures of the libraries that read a file become errors that name it: LoadFormatError, IoFailure."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise LoadFormatError(line=None, file=name, message=shown_text(str(error))) from error
    except OSError as error:
        if error.errno is not None:
            raise IoFailure(f"'{name}' cannot be read: {error.strerror}") from error
        # A library that unpacks gives no number of the system.
        raise LoadFormatError(line=None, file=name, message=shown_text(str(error))) from error


def _chunks(split: Split, chunk_bytes: int) -> Iterator[bytes]:
    if split.compression is not None:
        with pa.input_stream(split.path, compression=split.compression) as stream:
            yield from _whole_lines(stream.read, chunk_bytes, limit=None)
        return
    with Path(split.path).open("rb") as file:
        skipped = 0
        if split.start > 0:
            # The line that begins before this split belongs to the one before.
            file.seek(split.start - 1)
            skipped = len(file.readline())
        begin = max(split.start - 1, 0) + skipped if split.start > 0 else 0
        limit = None if split.end is None else split.end - begin
        if limit is None or limit > 0:
            yield from _whole_lines(file.read, chunk_bytes, limit=limit)


def _whole_lines(read: Callable[[int], bytes], chunk_bytes: int, *, limit: int | None) -> Iterator[bytes]:
    """Chunks of whole lines; with `limit`, of the lines that begin within that many bytes."""
    held = b""
    passed = 0
    while True:
        block = read(chunk_bytes)
        data = held + block
        if limit is not None and passed + len(data) >= limit:
            # The last line that begins before the limit ends at the first newline at or behind `limit - 1`.
            cut = data.find(b"\n", max(limit - passed - 1, 0))
            if cut >= 0:
                yield data[: cut + 1]
                return
        if not block:
            if data:
                yield data
            return
        end = data.rfind(b"\n") + 1
        if limit is not None:
            end = min(end, data.rfind(b"\n", 0, max(limit - passed, 0)) + 1)
        if end > 0:
            yield data[:end]
            passed += end
        held = data[end:]
        if len(held) > 2 * RECORD_BYTES_MAX:
            raise ResourceLimit(resource="record_bytes", limit=RECORD_BYTES_MAX, actual=len(held))


def read_tables(split: Split) -> Iterator[pa.Table]:
    """The rows of a CSV or Parquet split, in pieces."""
    tables = _parquet_tables(split) if split.format is SourceFormat.PARQUET else _csv_tables(split)
    with reading(split.name):
        yield from tables


def _parquet_tables(split: Split) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only for Parquet sources

    file = pq.ParquetFile(split.path, buffer_size=PARQUET_BUFFER_BYTES)
    groups = list(range(split.start, split.end if split.end is not None else file.metadata.num_row_groups))
    shapes = [file.metadata.row_group(number) for number in groups]
    row_bytes = max((shape.total_byte_size // max(shape.num_rows, 1) for shape in shapes), default=0)
    rows = min(PARQUET_ROWS, max(1, CHUNK_BYTES // max(row_bytes, 1)))
    # Nested columns of all the groups that a reader is given are partly decoded at once: few at a time.
    for some in _runs(dict(zip(groups, (shape.num_rows for shape in shapes), strict=True)), rows):
        for batch in file.iter_batches(rows, row_groups=some, use_threads=False):
            yield pa.Table.from_batches([batch])


def _runs(groups: Mapping[int, int], rows_max: int) -> Iterator[list[int]]:
    """Row groups in order, as many together as have no more rows than asked for; a larger one alone."""
    run: list[int] = []
    rows = 0
    for group, count in groups.items():
        if run and rows + count > rows_max:
            yield run
            run, rows = [], 0
        run.append(group)
        rows += count
    if run:
        yield run


def _csv_tables(split: Split) -> Iterator[pa.Table]:
    """Every cell as text; the reader of columns knows what the type wants."""
    with pa.input_stream(split.path, compression=split.compression) as stream:
        head = stream.read(CHUNK_BYTES)
        first_line = head.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n")
        unended = b"\n" not in first_line and b"\r" not in first_line and not stream.read(1)
    if unended:  # Arrow does not take a header without an end for one
        if has_open_quote([head]):
            raise LoadFormatError(line=1, file=split.name, message=_OPEN_QUOTE)
        return
    names = csv_header(head)
    passed = 0
    # A record fits two blocks. One that does not is read again in blocks of the largest record there may be.
    for block_bytes in (CHUNK_BYTES, RECORD_BYTES_MAX) if names else ():
        rows = 0
        try:
            for table in _csv_blocks(split, names, block_bytes):
                rows += table.num_rows
                fresh = table.slice(max(0, table.num_rows - (rows - passed)))
                passed = max(passed, rows)
                if fresh.num_rows:
                    yield fresh
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise
            continue
        return
    if names:
        message = f"a record has more than {RECORD_BYTES_MAX:,} bytes"
        raise LoadFormatError(line=passed + 1, file=split.name, message=message)


def _csv_blocks(split: Split, names: Sequence[str], block_bytes: int) -> Iterator[pa.Table]:
    import pyarrow.csv as pc  # noqa: PLC0415 - only for CSV sources

    options = pc.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        strings_can_be_null=True,
        null_values=[""],
        quoted_strings_can_be_null=False,
    )
    last: Any = None
    rows = 0
    with pa.input_stream(split.path, compression=split.compression) as stream:
        seen = _QuotesSeen(stream)
        reader = pc.open_csv(
            pa.PythonFile(seen, mode="r"),
            read_options=pc.ReadOptions(use_threads=False, block_size=block_bytes),
            parse_options=pc.ParseOptions(newlines_in_values=True),
            convert_options=options,
        )
        for batch in reader:
            if batch.num_rows:
                last = batch.column(batch.num_columns - 1)[batch.num_rows - 1].as_py()
                rows += batch.num_rows
            yield pa.Table.from_batches([batch])
    # Arrow ends an open quote where the file ends, with all lines up to there as one cell.
    if seen.may_be_open(last) and has_open_quote(_csv_bytes(split)):
        raise LoadFormatError(line=rows, file=split.name, message=_OPEN_QUOTE)


class _QuotesSeen:
    """A stream that counts the quotes it hands out, and keeps the last bytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._quotes = 0
        self._tail = b""
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._stream.read(size)
        self._quotes += data.count(_QUOTE)
        self._tail = (self._tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        return data

    def close(self) -> None:
        self.closed = True

    def may_be_open(self, last: str | None) -> bool:
        """Whether a quote may be open at the end of the text, whose last cell is `last`.

        Then the cell stands there as it would without a closing quote, or the quotes make no pairs. Both are
        rare in sound text.
        """
        raw = _QUOTE + (last or "").encode().replace(_QUOTE, _QUOTE * 2)
        return self._quotes % 2 == 1 or (last is not None and self._tail.endswith(raw[-_TAIL_BYTES:]))


def _csv_bytes(split: Split) -> Iterator[bytes]:
    with pa.input_stream(split.path, compression=split.compression) as stream:
        while block := stream.read(CHUNK_BYTES):
            yield block


def has_open_quote(blocks: Iterable[bytes]) -> bool:
    """Whether a quoted cell of CSV text is never closed. A quote opens only where a cell begins.

    The text ends inside of it, or it runs over line ends up to a quote that was meant to open another cell
    and has text behind it. Cost: a step for each quote, so ask only about text that may be cut off.
    """
    quoted, opened_on, closed_at, passed, lines, before = False, 0, -2, 0, 0, b"\n"
    for each in blocks:
        block = each if passed else each.removeprefix(codecs.BOM_UTF8)
        codes = np.frombuffer(before + block + b"\n", np.uint8)
        at = np.flatnonzero(codes[1:-1] == _QUOTE[0])
        ends = np.flatnonzero(codes[1:-1] == ord("\n"))
        begins = np.isin(codes[at], _BETWEEN_CELLS)
        goes_on = ~np.isin(codes[at + 2], (*_BETWEEN_CELLS, _QUOTE[0]))
        line_of = np.searchsorted(ends, at) + lines
        for place, line, begins_cell, text_behind in zip(
            (at + passed).tolist(), line_of.tolist(), begins.tolist(), goes_on.tolist(), strict=True
        ):
            if not quoted:
                # A quote right behind one that closes makes both of them one quote of the text.
                again = place == closed_at + 1
                quoted, opened_on = begins_cell or again, opened_on if again else line
            elif text_behind and line > opened_on:
                return True
            else:
                quoted, closed_at = False, place
        passed, lines, before = passed + len(block), lines + len(ends), block[-1:] or before
    return quoted


def csv_header(head: bytes) -> list[str]:
    """The column names of a CSV file from its first bytes; blank lines before them are passed over."""
    import csv  # noqa: PLC0415 - only for CSV sources
    import io  # noqa: PLC0415

    text = io.StringIO(head.decode("utf-8-sig", "replace"), newline="")
    return next((cells for cells in csv.reader(text) if cells), [])
