"""Finding files that a full disk cut short.

Measured: when the last buffer of a data or deletion file does not fit, the substrate reports success and
leaves a truncated file. Publishing it would destroy the table, so every new local file is looked at before
it is used.
"""

import errno
import os
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import OmnigraphError
from omnigraph.storage.failures import os_failure

if TYPE_CHECKING:
    from lance.fragment import DataFile, FragmentMetadata


_ARROW_END: Final = b"ARROW1"
_ROARING: Final = 12346
_ROARING_WITH_RUNS: Final = 12347
_ARRAY_VALUES_MAX: Final = 4096
_OFFSETS_FROM_CONTAINERS: Final = 4


def require_whole(paths: Iterable[str], sizes: dict[str, int]) -> None:
    """Raise the error of a full disk for the first local file that is shorter than it was written.

    `sizes` has the bytes of the files whose size the substrate tells. Cost: one stat per data file, one
    short read per deletion file.
    """
    for path in paths:
        if path.startswith("/") and not is_whole(path, sizes.get(path)):
            raise _cut_short(path)


def file_name(file: "DataFile") -> str:
    """The name of a data file (Lance's metadata of it).

    Lance's `path` property makes a new class at every use: on many fragments more costly than a commit.
    """
    return file._path  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def written_sizes(fragments: "Iterable[FragmentMetadata]", directory: str) -> dict[str, int]:
    """The sizes of the data files of new fragments, by path below the directory of their dataset."""
    return {
        f"{directory}/data/{file_name(file)}": file.file_size_bytes
        for fragment in fragments
        for file in fragment.files
        if file.file_size_bytes
    }


def _cut_short(path: str) -> OmnigraphError:
    return os_failure(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path), path)


def is_whole(path: str, size: int | None = None) -> bool:
    """Whether a local file has all its bytes: `size` of them, or as its own form tells."""
    try:
        found = os.stat(path).st_size
        if size:
            return found == size
        if path.endswith(".arrow"):
            return _ends_with(path, found, _ARROW_END)
        if path.endswith(".bin"):
            with open(path, "rb") as file:
                return roaring_length(file.read()) == found
    except OSError as error:
        raise os_failure(error, path) from error
    return True


def _ends_with(path: str, size: int, end: bytes) -> bool:
    if size < len(end):
        return False
    with open(path, "rb") as file:
        file.seek(size - len(end))
        return file.read() == end


def roaring_length(data: bytes) -> int | None:
    """The bytes a serialised 32-bit roaring bitmap must have, from its header; None when the header is cut
    off.
    """
    try:
        (cookie,) = struct.unpack_from("<I", data, 0)
        if cookie & 0xFFFF == _ROARING_WITH_RUNS:
            containers = (cookie >> 16) + 1
            at = 4
            runs = data[at : at + (containers + 7) // 8]
            if len(runs) < (containers + 7) // 8:
                return None
            at += len(runs)
            has_offsets = containers >= _OFFSETS_FROM_CONTAINERS
        elif cookie == _ROARING:
            (containers,) = struct.unpack_from("<I", data, 4)
            at, runs, has_offsets = 8, b"", True
        else:
            return None
        counts = [struct.unpack_from("<H", data, at + 4 * n + 2)[0] + 1 for n in range(containers)]
        at += 4 * containers + (4 * containers if has_offsets else 0)
        for number, count in enumerate(counts):
            if runs and runs[number // 8] >> (number % 8) & 1:
                (spans,) = struct.unpack_from("<H", data, at)
                at += 2 + 4 * spans
            else:
                at += 2 * count if count <= _ARRAY_VALUES_MAX else 8192
    except struct.error:
        return None
    return at
