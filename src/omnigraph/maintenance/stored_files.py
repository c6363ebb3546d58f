"""The objects of a graph, by the places they have in its datasets."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from omnigraph.core.ids import Branch, BranchName
from omnigraph.storage.layout import (
    COMMIT_ACTORS,
    COMMIT_RECOVERIES,
    COMMITS,
    MANIFEST,
    TABLE_DIRECTORIES,
)
from omnigraph.storage.manifest_files import version_of

Line = tuple[str, Branch]
"""A location and a Lance branch of the dataset there."""

VERSIONS: Final = "_versions"
INDICES: Final = "_indices"
_PARTS: Final = frozenset({VERSIONS, "data", "_deletions", "_transactions"})
_CONTROL: Final = frozenset({MANIFEST, COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES})


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of which dataset an object is."""

    line: Line
    kind: str
    """`_versions`, `data`, `_deletions`, `_transactions` or `_indices`."""


def location_of(name: str) -> str | None:
    """The dataset an object lies in; None when it is part of none."""
    first, _, rest = name.partition("/")
    if first in _CONTROL:
        return first if rest else None
    second, inside, _ = rest.partition("/")
    return f"{first}/{second}" if first in TABLE_DIRECTORIES and inside else None


def part_of(name: str) -> Part | None:
    """Which part of a dataset an object is; None for references and for what Lance does not write.

    Read from the right: the name of a branch may have steps, and each of them may be called like a part.
    """
    location = location_of(name)
    steps = name.split("/")
    if len(steps) > 2 and steps[-2] in _PARTS:
        kind, above = steps[-2], "/".join(steps[:-2])
    elif len(steps) > 3 and steps[-3] == INDICES:
        kind, above = INDICES, "/".join(steps[:-3])
    else:
        return None
    if location is None or len(above) < len(location):
        return None
    branch = above.removeprefix(location).removeprefix("/tree/")
    if not branch:
        return Part((location, None), kind)
    return Part((location, BranchName(branch)), kind) if above == f"{location}/tree/{branch}" else None


class StoredFiles:
    """Versions and index files among the objects of a graph."""

    def __init__(self, names: Iterable[str]) -> None:
        self.versions: dict[str, dict[int, str]] = defaultdict(dict)
        """By the directory of a branch: the numbers and the files that make them exist."""
        self.index_files: dict[str, list[str]] = defaultdict(list)
        """By the directory of an index."""
        for name in names:
            directory, _, file = name.rpartition(f"/{VERSIONS}/")
            version = version_of(file) if directory else None
            if version is not None:
                self.versions[directory][version] = name
            above, found, below = name.partition(f"/{INDICES}/")
            if found:
                self.index_files[f"{above}/{INDICES}/{below.partition('/')[0]}"].append(name)
