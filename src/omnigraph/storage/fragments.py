"""The task side of a bulk write: fragments written far from the process that will commit them."""

import contextlib
import functools
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from omnigraph.core.ids import Branch, TableKey
from omnigraph.core.settings import Durability, Settings
from omnigraph.storage.checksums import sum_file
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.handles import Fragment, SnapshotHandle, Stamp
from omnigraph.storage.layout import GraphRoot, is_inside
from omnigraph.storage.objects import open_adapter
from omnigraph.storage.tables import TableStorage
from omnigraph.storage.version_files import describe_staged


def open_tables(root: GraphRoot, settings: Settings, occasion: str) -> TableStorage:
    """The tables of a graph in this process, opened once per occasion: a task never inherits a handle.

    `occasion` names the load or the read. A worker outlives both, and a graph may be made anew at the same
    place between two of them; what was open for one is never used for the next.
    """
    return _open_tables(root.uri, tuple(sorted(root.storage_options.items())), settings.durability, occasion)


@functools.lru_cache(maxsize=4)
def _open_tables(
    uri: str, options: tuple[tuple[str, str], ...], durability: Durability, _occasion: str
) -> TableStorage:
    root = GraphRoot(uri, dict(options))
    settings = Settings(durability=durability)
    adapter = open_adapter(root.uri, root.storage_options, durability=DurabilityMode(durability))
    return TableStorage(root, settings, adapter)


def open_pinned(
    store: TableStorage, table_key: TableKey, location: str, branch: Branch, version: int
) -> SnapshotHandle:
    """A table at the version a load was planned against."""
    return store.open_version(table_key, location, branch, version)


def write_uncommitted_fragments(
    root: GraphRoot,
    store: TableStorage,
    handle: SnapshotHandle,
    data: Any,
    *,
    operation_id: str,
    replaces_all: bool,
) -> tuple[Fragment, ...]:
    """Write rows below the table's directory and make them durable; no HEAD moves and nobody refers to them.

    `replaces_all`: the rows will be the whole content of the table. `data` is a table or a reader.
    """
    stamp = Stamp(operation_id, handle.table_key)
    if replaces_all:
        staged = store.stage_overwrite(handle, data, stamp)
    else:
        staged = store.stage_append(handle, data, stamp)
    # Before the sync, while it is certain that the bytes are in memory.
    described = [_with_sums(root, each) for each in describe_staged(root, handle, staged)]
    store.make_durable([staged])
    return tuple(described)


def _with_sums(root: GraphRoot, fragment: Fragment) -> Fragment:
    if not root.is_local:
        return fragment
    return replace(fragment, crcs=tuple(sum_file(root.local_path(name), name).crc for name in fragment.files))


def remove_fragments(root: GraphRoot, fragments: Iterable[Fragment]) -> None:
    """Delete the files of fragments that no commit will name; what cannot be deleted is left to reclaiming.

    So is everything in an object store, where a deletion costs as much as a write.
    """
    if not root.is_local:
        return
    for fragment in fragments:
        for name in filter(is_inside, fragment.files):
            with contextlib.suppress(OSError):
                Path(root.local_path(name)).unlink(missing_ok=True)
