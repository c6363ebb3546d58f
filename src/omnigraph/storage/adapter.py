"""The contract of text objects: what every store of a graph's control files keeps."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from omnigraph.core.errors import StorageNotFound, StoragePermanent
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MIB

CHUNK_BYTES: Final = 8 * MIB
"""What is in memory of an object that is read or written piece by piece."""

TEMPORARY: Final = re.compile(r"#\d+$")
"""The ending of the names that a local write uses until it is whole."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a store tells of an object without reading it."""

    size: int
    modified_us: int
    """By the clock of the store, in microseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class VersionedText:
    """A text object and the token that names exactly this content for `write_text_if_match`."""

    text: str
    token: str


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A text that has no name yet."""

    name: str
    text: str
    place: str = ""


class StorageAdapter(ABC):
    """All text objects of one graph root.

    Every method raises the storage errors of `core.errors`, decided by type; a failure is never mistaken for
    absence. Thread-safe.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @abstractmethod
    def read_text_if_exists(self, name: str) -> str | None:
        """The text, or None when there is no such object. One request: nothing can change in between."""

    @abstractmethod
    def write_text(self, name: str, text: str) -> None:
        """Create or replace the object; durable on return."""

    def prepare_text(self, name: str, text: str) -> PreparedText:
        """Begin a `write_text`: the content is durable where the store can do that, but nobody sees it."""
        return PreparedText(name, text)

    def place_text(self, prepared: PreparedText) -> None:
        """End a `write_text`: the object appears whole under its name, durably."""
        self.write_text(prepared.name, prepared.text)

    def discard_text(self, prepared: PreparedText) -> None:  # noqa: B027  nothing was written by default
        """Drop a prepared text that will not be placed."""

    def unfinished(self, name: str, *, age_s_min: float) -> tuple[PreparedText, ...]:  # noqa: ARG002
        """Prepared texts directly below, at least `age_s_min` old and still without a name, for
        `discard_text`.

        Their writers died, or are still waiting: `place_text` writes a text again that was dropped meanwhile.
        A store that takes a text whole has none.
        """
        return ()

    @abstractmethod
    def write_text_if_absent(self, name: str, text: str) -> bool:
        """Create the object; False, and nothing written, when it exists. One of many creators wins."""

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """The whole object. Raises StorageNotFound when there is none."""

    @abstractmethod
    def read_chunks(self, name: str) -> Iterator[bytes]:
        """The object piece by piece. Raises StorageNotFound when there is none."""

    @abstractmethod
    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> int:
        """Create or replace the object piece by piece; its bytes. It appears whole or not at all.

        Durable on an object store; a local file is left to the caller's round of syncs.
        """

    @abstractmethod
    def sizes(self, name: str = "") -> dict[str, int]:
        """Every object at any depth below, by its name from the root, with its bytes. Cost: one listing."""

    @abstractmethod
    def stored(self) -> dict[str, StoredObject]:
        """Every object of the root, by its name; also those without a final name yet. Cost: one listing."""

    @abstractmethod
    def remove(self, names: Sequence[str]) -> None:
        """Remove objects that `stored` named, durably; absent ones are fine."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether an object has this name or objects exist below it; denied access is an error, not "no"."""

    @abstractmethod
    def rename_text(self, source: str, target: str) -> None:
        """Give the object another name, replacing what had it.

        On object stores this is a copy and a delete: after a crash both may exist.
        """

    @abstractmethod
    def delete(self, name: str, *, durable: bool = False) -> None:
        """Remove the object; absent is fine. `durable`: it stays away after a power cut too."""

    @abstractmethod
    def list_dir(self, name: str) -> list[str]:
        """Names of the objects directly below, without the path; unordered; empty when nothing is there."""

    @abstractmethod
    def read_text_versioned(self, name: str) -> VersionedText | None:
        """The text with its token, or None when there is no such object."""

    @abstractmethod
    def write_text_if_match(self, name: str, text: str, token: str) -> str | None:
        """Replace the object only if it is still what `token` names; the new token, else None."""

    @abstractmethod
    def delete_prefix(self, name: str) -> None:
        """Remove everything below the name, and nothing beside it; absent is fine."""

    @abstractmethod
    def identity(self, name: str) -> str | None:
        """A token for exactly this incarnation of the object; None when it does not exist. One request."""

    def identities(self, names: tuple[str, ...]) -> tuple[object, ...]:
        """One token per name, as `identity` gives it, only to be compared with those of an earlier call.

        Every read asks this first, so a store may answer in whatever form is cheapest.
        """
        return tuple(self.identity(name) for name in names)

    def read_text(self, name: str) -> str:
        """The text. Raises StorageNotFound when there is no such object."""
        text = self.read_text_if_exists(name)
        if text is None:
            raise StorageNotFound(f"{self.address(name)}: the object does not exist")
        return text

    def address(self, name: str) -> str:
        """The full name, for messages."""
        return f"{self.uri}/{name}"

    def _checked(self, name: str) -> str:
        """The name without outer slashes. Raises StoragePermanent for a name nobody may use."""
        trimmed = name.strip("/")
        parts = trimmed.split("/")
        if not trimmed or any(part in {"", ".", ".."} for part in parts) or "\0" in trimmed:
            raise StoragePermanent(f"{self.address(name)}: the name is not allowed")
        if any(TEMPORARY.search(part) for part in parts):
            raise StoragePermanent(f"{self.address(name)}: names ending in '#' and digits are reserved")
        return trimmed
