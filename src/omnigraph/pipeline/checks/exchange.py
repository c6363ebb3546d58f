"""Key columns on their way from the tasks that see the rows to the tasks that compare them.

A *fact file* holds a few columns of many rows, cut into partitions by the hash of the first column: rows with
equal keys are in the same partition of every file. Files are named by their writer, so a retried task leaves
a file that nobody reads, never a row twice.

The files lie in a directory that every task sees, or, when there is none because the graph is in an object
store and the tasks are elsewhere, as objects below the graph's root.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from omnigraph.arrays.keys import hash_keys, string_array
from omnigraph.core.errors import InternalError
from omnigraph.core.ids import new_ulid
from omnigraph.core.limits import MIB
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.objects import ObjectAdapter, open_adapter

FACTS_BYTES_MAX: Final = 16 * MIB
"""Arrow bytes of key facts a task holds: writing them sorts a copy."""

FactFiles = dict[str, list[str]]
"""Files per space. A space is a name such as `id/node:Person`."""


def partition_of(keys: pa.StringArray, partitions: int) -> NDArray[np.int64]:
    """The partition of each key. Null keys go to partition 0."""
    if partitions == 1:
        return np.zeros(len(keys), np.int64)
    filled = keys.fill_null("") if keys.null_count else keys
    return (hash_keys(string_array(filled)) % np.uint64(partitions)).astype(np.int64)


IN_STORE: Final = "store:"
"""The beginning of the place of fact files that are objects of the graph's own store."""


@functools.lru_cache(maxsize=4)
def _objects(uri: str, options: tuple[tuple[str, str], ...]) -> ObjectAdapter:
    adapter = open_adapter(uri, dict(options))
    if not isinstance(adapter, ObjectAdapter):
        raise InternalError(f"{uri} is not in an object store")
    return adapter


def _store_of(root: GraphRoot) -> ObjectAdapter:
    return _objects(root.uri, tuple(sorted(root.storage_options.items())))


@dataclass(slots=True)
class FactWriter:
    """Writes fact files at one place. One writer per task; the names say which."""

    root: GraphRoot
    directory: str
    partitions: int
    _tables: dict[str, list[pa.Table]] = field(default_factory=dict[str, list[pa.Table]])
    files: FactFiles = field(default_factory=FactFiles)

    def add(self, space: str, table: pa.Table) -> None:
        """Add rows to a space; the first column is the key."""
        if table.num_rows:
            self._tables.setdefault(space, []).append(table)

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return sum(int(table.nbytes) for tables in self._tables.values() for table in tables)

    def flush_when_full(self) -> None:
        """Write what was added once it is more than memory should hold."""
        if self.nbytes > FACTS_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Write what was added since the last flush: one file per space."""
        for space, tables in self._tables.items():
            whole = pa.concat_tables(tables, promote_options="default")
            path = f"{self.directory}/{space.replace('/', '~').replace(':', '.')}/{new_ulid()}.arrow"
            parts = _partitioned(whole, self.partitions)
            if path.startswith(IN_STORE):
                _write_objects(self.root, path, whole.schema, parts)
            else:
                # Not its parents: when they are gone the load was stopped, and nothing may come back.
                Path(path).parent.mkdir(exist_ok=True)
                with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
                    for part in parts:
                        writer.write_batch(part)
            self.files.setdefault(space, []).append(path)
        self._tables.clear()


def _write_objects(root: GraphRoot, path: str, schema: pa.Schema, parts: Iterable[pa.RecordBatch]) -> None:
    """One object per partition; a part of an object cannot be mapped into memory."""
    for number, part in enumerate(parts):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(part)
        _store_of(root).write_bytes(f"{path.removeprefix(IN_STORE)}/{number}", sink.getvalue().to_pybytes())


def _partitioned(table: pa.Table, partitions: int) -> Iterator[pa.RecordBatch]:
    """One record batch per partition, so that a reader gets its partition without reading the others."""
    where = partition_of(string_array(table.column(0)), partitions)
    if partitions > 1:
        # Numbers of 16 bits are sorted by counting.
        narrow = where.astype(np.uint16) if partitions <= 1 << 16 else where
        table = table.take(pa.array(np.argsort(narrow, kind="stable")))
    sizes = np.bincount(where, minlength=partitions)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    table = table.combine_chunks()
    for begin, size in zip(starts[:-1].tolist(), sizes.tolist(), strict=True):
        part = table.slice(begin, size).combine_chunks().to_batches()
        yield part[0] if part else _empty(table.schema)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


def read_facts(
    root: GraphRoot, files: Mapping[str, Sequence[str]], space: str, partition: int
) -> pa.Table | None:
    """The rows of one partition of a space; None when nobody wrote any."""
    tables: list[pa.Table] = []
    for path in files.get(space, ()):
        if path.startswith(IN_STORE):
            content = _store_of(root).read_bytes(f"{path.removeprefix(IN_STORE)}/{partition}")
            tables.append(pa.ipc.open_stream(pa.py_buffer(content)).read_all())
            continue
        with pa.memory_map(path) as source:
            batch = pa.ipc.open_file(source).get_batch(partition)
            tables.append(pa.Table.from_batches([batch]))
    if not tables:
        return None
    # A column that one writer had no value for is of type null there.
    return pa.concat_tables(tables, promote_options="default").combine_chunks()


def merged(parts: Iterable[FactFiles]) -> FactFiles:
    """All files of several writers."""
    whole: FactFiles = {}
    for part in parts:
        for space, paths in part.items():
            whole.setdefault(space, []).extend(paths)
    return whole
