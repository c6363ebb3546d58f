"""The files that make versions of a Lance dataset exist: their names and the little we read of them.

A file ends with a footer that says where the manifest message begins: a protocol-buffer message behind its
length.
"""

import json
import os
import struct
from collections.abc import Callable, Iterator
from typing import Final

from omnigraph.core.ids import Branch
from omnigraph.storage.layout import branch_directory
from omnigraph.storage.varints import as_varint, read_varint

MANIFEST_MAGIC: Final = b"LANC"
"""The last bytes of every complete manifest file."""

HINT: Final = "latest_version_hint.json"
"""The file beside the versions that names the newest one. Lance writes it on local disks."""

_VERSION_NAME_TOP: Final = 2**64 - 1


def manifest_name(version: int) -> str:
    """The file of a version below `_versions`: inverted numbers, so that the newest sorts first.

    A version that was made beside the others has a number with the highest bit, and a name of its own kind.
    """
    if version > _VERSION_NAME_TOP // 2:
        return f"d{version}.manifest"
    return f"{_VERSION_NAME_TOP - version:020d}.manifest"


def version_of(name: str) -> int | None:
    """The version a file below `_versions` belongs to; None for other files."""
    digits, _, suffix = name.partition(".")
    if suffix != "manifest" or len(digits) != 20 or not digits.isdigit():
        return None
    return _VERSION_NAME_TOP - int(digits)


def hint_text(version: int) -> str:
    """What a hint says, as Lance writes it."""
    return json.dumps({"version": version}, separators=(",", ":"))


def hinted_version(text: str | bytes | None) -> int | None:
    """The version a hint names; None when it says nothing that can be understood."""
    try:
        version = None if text is None else json.loads(text)["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, int) else None


def is_whole_manifest(path: str) -> bool:
    """Whether a local version file is complete, as far as its last bytes tell."""
    return _last_bytes(path) == MANIFEST_MAGIC


def is_torn_manifest(path: str) -> bool:
    """Whether a local version file is cut off. One with a flipped bit at its end is not: it was whole."""
    end = _last_bytes(path)
    return end != MANIFEST_MAGIC and not is_one_bit_away(end, MANIFEST_MAGIC)


def _last_bytes(path: str) -> bytes:
    if os.path.getsize(path) <= len(MANIFEST_MAGIC):
        return b""
    with open(path, "rb") as file:
        file.seek(-len(MANIFEST_MAGIC), os.SEEK_END)
        return file.read()


def is_one_bit_away(found: bytes, expected: bytes) -> bool:
    """Whether bytes are what they should be but for one bit: damage, and nothing that was cut off."""
    return len(found) == len(expected) and (
        (int.from_bytes(found) ^ int.from_bytes(expected)).bit_count() == 1
    )


def manifest_object(location: str, branch: Branch, version: int) -> str:
    """The graph-relative name of the object that makes a version of a dataset exist."""
    return f"{branch_directory(location, branch)}/_versions/{manifest_name(version)}"


_FOOTER: Final = struct.Struct("<QHH4s")
"""Where the message begins, two numbers of the format, the magic."""
_LENGTH: Final = struct.Struct("<I")


def manifest_message(file: bytes) -> bytes | None:
    """The manifest message inside a version's file; None when the file is not whole."""
    if len(file) < _FOOTER.size:
        return None
    start, _, _, magic = _FOOTER.unpack_from(file, len(file) - _FOOTER.size)
    if magic != MANIFEST_MAGIC or start + _LENGTH.size > len(file):
        return None
    (size,) = _LENGTH.unpack_from(file, start)
    message = file[start + _LENGTH.size : start + _LENGTH.size + size]
    return message if len(message) == size else None


def transaction_properties(file: bytes) -> dict[str, str] | None:
    """The properties of the commit that made a version, from the version's file alone.

    None when the file is not whole, or was written without its transaction. Read here, not by Lance: opening
    a version costs ten times as much, and a damaged one may end the process.
    """
    message = manifest_message(file)
    if message is None:
        return None
    try:
        start = next((value for tag, value in _members(message) if tag == _TRANSACTION), None)
        if not isinstance(start, int) or start + _LENGTH.size > len(file):
            return None
        (size,) = _LENGTH.unpack_from(file, start)
        transaction = file[start + _LENGTH.size : start + _LENGTH.size + size]
        found: dict[str, str] = {}
        for tag, entry in _members(transaction):
            if tag == _PROPERTIES and isinstance(entry, bytes):
                pair = dict(_members(entry))
                key, value = pair.get(_KEY, b""), pair.get(_VALUE, b"")
                if isinstance(key, bytes) and isinstance(value, bytes):
                    found[key.decode()] = value.decode()
    except (IndexError, ValueError):
        return None
    return found


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TRANSACTION: Final = 23 << 3 | _VARINT
"""Where the transaction begins in the file."""
_PROPERTIES: Final = 4 << 3 | _BYTES
"""The properties of a transaction message, one entry each."""
_KEY: Final = 1 << 3 | _BYTES
_VALUE: Final = 2 << 3 | _BYTES
_BASES: Final = 18 << 3 | _BYTES
"""The bases of a manifest message."""
_PATH: Final = 4 << 3 | _BYTES
"""The address of one of them."""


def with_base_paths(message: bytes, moved: Callable[[str], str]) -> bytes:
    """A manifest message with other addresses of its bases; all else stays byte for byte.

    Raises ValueError for what is no such message. Cost: a step per fragment of the version.
    """

    def path(text: bytes) -> bytes:
        return moved(text.decode()).encode()

    try:
        return _replaced(message, _BASES, lambda base: _replaced(base, _PATH, path))
    except IndexError as error:
        raise ValueError("the manifest message is cut off") from error


def _replaced(message: bytes, wanted: int, change: Callable[[bytes], bytes]) -> bytes:
    """The message with `change` applied to every member of this tag, which must hold bytes."""
    parts: list[bytes] = []
    copied = at = 0
    end = len(message)
    while at < end:
        start = at
        # Most numbers have one byte; a call for each of them would take as long as Lance takes to open it.
        tag = message[at]
        tag, at = (tag, at + 1) if tag < 0x80 else read_varint(message, at)
        kind = tag & 7
        if kind == _BYTES:
            size = message[at]
            size, at = (size, at + 1) if size < 0x80 else read_varint(message, at)
            if tag == wanted:
                member = change(message[at : at + size])
                parts += message[copied:start], as_varint(tag), as_varint(len(member)), member
                copied = at + size
            at += size
        elif kind == _VARINT:
            _, at = read_varint(message, at)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"the manifest message has a member of the unknown kind {kind}")
    if at > end:
        raise ValueError("the manifest message is cut off")
    parts.append(message[copied:])
    return b"".join(parts)


def _members(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The tags of a message with their numbers or bytes; fixed numbers are passed over."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = read_varint(message, at)
            if at + size > len(message):
                raise ValueError("the message is cut off")
            yield tag, message[at : at + size]
            at += size
        elif kind == _VARINT:
            value, at = read_varint(message, at)
            yield tag, value
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"the message has a member of the unknown kind {kind}")
