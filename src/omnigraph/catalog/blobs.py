"""The cell of a blob property as it is stored.

A cell holds the bytes themselves. Only what cannot be told from bytes otherwise carries a mark in front: a
reference to an external object, and bytes that happen to begin with the mark.
"""

import binascii
from typing import Final

from omnigraph.core.late_dataclass import dataclass

MARK: Final = b"\x00omnigraph-blob\x00"
CONTENT: Final = MARK + b"c"
REFERENCE: Final = MARK + b"r"
ASKED: Final = MARK + b"a"
"""An address of the input that nobody has looked at yet. Never stored."""
PREFIX: Final = "base64:"
"""How a text begins that supplies bytes; every other text is an address."""


@dataclass(frozen=True, slots=True)
class BlobReference:
    """A blob that is kept elsewhere. Nothing of this package follows it."""

    uri: str


def stored_content(content: bytes) -> bytes:
    """The cell that holds these bytes."""
    return CONTENT + content if content.startswith(MARK) else content


def stored_reference(uri: str) -> bytes:
    """The cell that holds a reference."""
    return REFERENCE + uri.encode()


def blob_value(stored: bytes) -> bytes | BlobReference:
    """What a stored cell means. Raises ValueError for a mark nobody knows."""
    if not stored.startswith(MARK):
        return stored
    kind, rest = stored[: len(CONTENT)], stored[len(CONTENT) :]
    if kind == CONTENT:
        return rest
    if kind == REFERENCE:
        return BlobReference(rest.decode())
    raise ValueError(f"a blob cell with the unknown mark {kind[len(MARK) :]!r}")


def decode_base64(text: str) -> bytes | None:
    """The bytes of standard, padded base64; None when it is anything else."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None
