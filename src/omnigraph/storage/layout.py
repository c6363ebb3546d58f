"""Where everything of a graph lives: the names below the graph root."""

import os
from dataclasses import field
from functools import cached_property
from typing import Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from omnigraph.core.errors import StorageConfiguration
from omnigraph.core.ids import Branch, TableKey, fnv1a64
from omnigraph.core.late_dataclass import dataclass

MANIFEST: Final = "__manifest"
COMMITS: Final = "_graph_commits.lance"
COMMIT_ACTORS: Final = "_graph_commit_actors.lance"
COMMIT_RECOVERIES: Final = "_graph_commit_recoveries.lance"
RECOVERY: Final = "__recovery"
LOADS: Final = "__loads"
SCHEMAS: Final = "__schemas"
CACHE: Final = "__cache"
CHECKSUMS: Final = "__checksums"
LEASE: Final = "__lease"
PINS: Final = "__pins"
CLONE: Final = "__clone.json"
CLEANUP: Final = "__cleanup.json"
SCHEMA_SOURCE: Final = "_schema.pg"
SCHEMA_IR: Final = "_schema.ir.json"
SCHEMA_STATE: Final = "__schema_state.json"
STAGING_SUFFIX: Final = ".staging"

_ENTITY_DIRECTORIES: Final = {"node": "nodes", "edge": "edges"}
TABLE_DIRECTORIES: Final = frozenset(_ENTITY_DIRECTORIES.values())


def canonical_uri(uri: str | os.PathLike[str]) -> str:
    """One spelling per graph root: local paths absolute with symbolic links resolved, no trailing slash.

    What a `file://` address has percent-encoded is decoded. Object-store addresses are compared as text.
    """
    text = os.fspath(uri)
    scheme = urlsplit(text).scheme
    if scheme == "file":
        text = os.fsdecode(unquote_to_bytes(os.fsencode(text.removeprefix("file://"))))
    elif "://" in text:
        return text.rstrip("/")
    if not text:
        raise StorageConfiguration("the address of a graph cannot be empty")
    try:
        return os.path.realpath(text)
    except ValueError as error:  # a null byte, or half of a surrogate pair
        raise StorageConfiguration(f"{text!r} is not the name of a directory") from error


def table_location(table_key: TableKey, incarnation: int = 1) -> str:
    """The graph-relative dataset path of a type.

    `incarnation` above 1 is for a name whose first path is taken (the owner was renamed or dropped).
    """
    entity, _, name = table_key.partition(":")
    hashed = name if incarnation == 1 else f"{name}#{incarnation}"
    return f"{_ENTITY_DIRECTORIES[entity]}/{fnv1a64(hashed):016x}"


def location_below_any_root(path: str) -> str:
    """The graph-relative part of a table's place that was written as a full address, wherever the graph lay.

    A place that is relative already stays as it is.
    """
    parts = path.rsplit("/", 2)
    return f"{parts[1]}/{parts[2]}" if len(parts) == 3 and parts[1] in TABLE_DIRECTORIES else path


def is_inside(name: str) -> bool:
    """Whether a graph-relative name stays below the root, whoever wrote it into a file of the graph."""
    return not name.startswith("/") and "\0" not in name and ".." not in name.split("/")


def load_record_name(operation_id: str) -> str:
    """The graph-relative name of the record a resumable load keeps."""
    return f"{LOADS}/{operation_id}.json"


def schema_name(schema_hash: str) -> str:
    """The graph-relative name of a compiled schema kept by its hash."""
    return f"{SCHEMAS}/{schema_hash}.json"


def branch_directory(location: str, branch: Branch) -> str:
    """Where Lance keeps a branch of the dataset at `location`; main is the dataset itself."""
    return location if branch is None else f"{location}/tree/{branch}"


def branch_reference(location: str, branch: str) -> str:
    """The object that makes a branch of the dataset at `location` exist."""
    return f"{location}/_refs/branches/{quote(branch, safe='')}.json"


def tag_reference(location: str, tag: str) -> str:
    """The object that makes a tag of the dataset at `location` exist."""
    return f"{location}/_refs/tags/{quote(tag, safe='')}.json"


@dataclass(frozen=True)
class GraphRoot:
    """The address of one graph and how to reach it."""

    uri: str
    storage_options: dict[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", canonical_uri(self.uri))

    @cached_property
    def is_local(self) -> bool:
        """Whether the graph is a directory of this machine."""
        return "://" not in self.uri

    @property
    def identity(self) -> str:
        """What all handles of one process agree on for this graph."""
        return self.uri

    def dataset_uri(self, location: str, branch: Branch = None) -> str:
        """The address Lance opens for a branch of the dataset at a graph-relative location."""
        return f"{self.uri}/{branch_directory(location, branch)}"

    def local_path(self, name: str) -> str:
        """The file-system path of a graph-relative name; only for local graphs."""
        return f"{self.uri}/{name}"
