"""Where records come from: files, directories, patterns, standard input; cut into pieces tasks can read."""

import codecs
import glob
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final, cast

import pyarrow as pa

from omnigraph.core.errors import BadRequest, IoFailure, LoadFormatError, ResourceLimit
from omnigraph.core.limits import MIB
from omnigraph.core.load_options import ColumnForm, SourceFormat
from omnigraph.pipeline.input.convert import shown_text
from omnigraph.pipeline.input.records import RECORD_BYTES_MAX
from omnigraph.pipeline.plan import Split

SPLIT_BYTES_MAX: Final = 64 * MIB
"""Bytes of one split of a file that can be cut."""
SPLIT_BYTES_MIN: Final = 8 * MIB
"""A smaller piece is not worth a task of its own."""
SPLITS_PER_CORE: Final = 2
CHUNK_BYTES: Final = 4 * MIB
"""Bytes parsed at a time."""
PARQUET_ROWS: Final = 65_536
"""Rows of a Parquet file read at a time; fewer when they are long."""
PARQUET_BUFFER_BYTES: Final = 1 * MIB
"""Bytes of a column read ahead: without it a whole column of a row group is."""
TEXT_BYTES_PER_ROW: Final = 96
TEXT_PER_PACKED_BYTE: Final = 8
"""Guesses, used for sizing only."""

_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_NOT_READ: Final = frozenset({".bz2", ".xz", ".lzma", ".lz4", ".br", ".snappy", ".sz", ".zip", ".7z", ".z"})
"""Ends of packed files nothing here unpacks."""
_FORMATS: Final = {
    ".jsonl": SourceFormat.JSON_LINES,
    ".ndjson": SourceFormat.JSON_LINES,
    ".json": SourceFormat.JSON_LINES,
    ".csv": SourceFormat.CSV,
    ".tsv": SourceFormat.CSV,
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
        while block := cast("bytes | str", stream.read(CHUNK_BYTES)):
            if isinstance(block, str):
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

    Raises IoFailure for a name that matches nothing, and for a link to nothing: an input somebody forgot is
    not an empty input. Raises BadRequest for data in a directory that is packed in a way nothing here reads.
    """
    files: list[Path] = []
    for source in sources:
        text = os.fspath(source)
        path = Path(text)
        if path.is_dir():
            found = _files_below(path)
        elif path.exists():
            found = [path]
        else:
            matches = glob.iglob(text, recursive=True)  # noqa: PTH207 - a pattern may be absolute
            found = _readable(sorted(Path(each) for each in matches))
        if not found:
            raise IoFailure(f"no input file at '{text}'")
        files += found
    return files


def _files_below(directory: Path) -> list[Path]:
    """The files of a directory that their names call data, sorted."""
    seen = [each for each in sorted(directory.rglob("*")) if not _hidden(each, directory)]
    packed = [
        str(each) for each in seen if each.suffix.lower() in _NOT_READ and format_of(each.with_suffix(""))
    ]
    if packed:
        raise BadRequest(
            f"{_first(packed)}: a load reads gzip and zstd only",
            hint="unpack it, pack it anew, or move it away: it is not left out silently",
        )
    return _readable([each for each in seen if format_of(each) is not None])


def _hidden(path: Path, below: Path) -> bool:
    """An export or a Spark job that was killed leaves its files in a hidden directory."""
    return any(part.startswith((".", "_")) for part in path.relative_to(below).parts)


def _readable(paths: Sequence[Path]) -> list[Path]:
    """The files among them. Raises IoFailure for a link to nothing."""
    broken = [str(each) for each in paths if each.is_symlink() and not each.exists()]
    if broken:
        raise IoFailure(f"{_first(broken)}: a link to nothing", hint="repair the link, or remove it")
    return [each for each in paths if each.is_file()]


def _first(names: Sequence[str]) -> str:
    """The first name of several, and how many follow."""
    return f"'{names[0]}'" + (f" and {len(names) - 1} more" if len(names) > 1 else "")


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
    columns: ColumnForm | None = None,
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
            raise BadRequest(
                f"'{name}' is JSON lines: its records name their types themselves",
                hint="a file of one type says so by its ending (.csv, .tsv, .parquet) or by --format",
            )
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
                    columns=_form_of(path, columns or ColumnForm()),
                )
            )
    return splits


def _form_of(path: Path, form: ColumnForm) -> ColumnForm:
    """The form with the delimiter that the name of the file announces, where none was given."""
    if form.delimiter is not None:
        return form
    name = path.with_suffix("") if compression_of(path) else path
    return replace(form, delimiter="\t") if name.suffix.lower() == ".tsv" else form


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


def stored_bytes(splits: Sequence[Split]) -> list[int]:
    """The bytes of its file that each split stands for; those of one file are taken to be alike."""
    pieces = Counter(split.path for split in splits)
    sizes = {path: Path(path).stat().st_size // count for path, count in pieces.items()}
    return [sizes[split.path] for split in splits]


def expected_bytes(split: Split) -> int | None:
    """About how many bytes a reader of the split will have read at its end; None where nobody can tell."""
    if split.format is SourceFormat.PARQUET:
        return None  # its rows take other bytes in memory than in the file
    if split.end is not None:
        return split.end - split.start
    return _text_bytes(split) - split.start


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
    """The rows of a Parquet split, in pieces."""
    with reading(split.name):
        yield from _parquet_tables(split)


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
