"""The metadata of very many commits, made up in a minute instead of being committed for hours.

What is true afterwards as it would be after so many one-row commits: the numbers of versions; a file of each
version, transaction and state in its directory; a record of each commit, added by a process of its own; the
fragments that the upkeep after writes would have left. Not true is what the older versions hold: nothing in
reads and writes may ask them.
"""

import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import omnigraph
from omnigraph.core.ids import CommitId, TableKey, new_ulid
from omnigraph.core.limits import SMALL_FRAGMENTS_MAX
from omnigraph.maintenance.indices import IndexWork, ensure_indices
from omnigraph.manifest.changes import CommitIntent, SubTableUpdate
from omnigraph.manifest.publisher import ManifestBatchPublisher
from omnigraph.storage.layout import COMMITS, MANIFEST
from omnigraph.storage.manifest_files import HINT, hint_text, manifest_message, manifest_name
from omnigraph.storage.varints import as_varint, read_varint

VERSION = 3 << 3
"""The tag of the number of a version in its message."""
FOOTER = struct.Struct("<QHH4s")
RECORDS_AT_ONCE = 2_048
LINKS_MAX = 30_000
PERSON, KNOWS = TableKey("node:Person"), TableKey("edge:Knows")


def made_old(graph: omnigraph.Graph, rows: int, commits: int) -> None:
    """Let a graph of persons who know each other look as if so many commits had brought a row each.

    `rows`: those it has. Whoever has it open opens it anew.
    """
    _add_fragments(graph, rows, commits)
    root, session = Path(graph.uri), graph.session
    entries = {key: graph.snapshot().entries[key] for key in (PERSON, KNOWS)}
    changes = []
    for key, entry in entries.items():
        _renumber(root / entry.location, entry.version, commits)
        found = session.storage.transaction_of(entry.location, None, entry.version)
        uuid = "" if found is None else found.uuid
        changes.append(SubTableUpdate(key, commits, None, entry.row_count, uuid))
    _renumber(root / COMMITS, _add_records(graph, commits), commits)
    _renumber(root / MANIFEST, session.manifest.head(None).version, commits)
    with omnigraph.open(graph.uri, settings=session.settings) as again:
        intent = CommitIntent(CommitId(new_ulid()), "optimize")
        ManifestBatchPublisher(again.session.manifest).publish(None, changes, {}, intent)


def _add_fragments(graph: omnigraph.Graph, rows: int, commits: int) -> None:
    """One fewer of each size than are folded, the largest first; then their indexes."""
    graph.session.after_publish = None
    size = SMALL_FRAGMENTS_MAX
    while size * SMALL_FRAGMENTS_MAX <= commits:
        size *= SMALL_FRAGMENTS_MAX
    first = rows
    while size:
        for _ in range(min(SMALL_FRAGMENTS_MAX - 1, max(0, commits - first) // size)):
            names = [f"p{number}" for number in range(first, first + size)]
            before = [f"p{number - 1}" for number in range(first, first + size)]
            graph.load_frames({"Person": pa.table({"name": names})}, mode="append", engine="local")
            graph.load_frames(
                {"Knows": pa.table({"from": names, "to": before})}, mode="append", engine="local"
            )
            first += size
        size = size // SMALL_FRAGMENTS_MAX if size > 1 else 0
    ensure_indices(graph.session, None, work=IndexWork.EXTENDED)


def _renumber(dataset: Path, newest: int, number: int) -> None:
    """Give the newest version another number, and files to all the numbers before it."""
    versions, transactions = dataset / "_versions", dataset / "_transactions"
    file = (versions / manifest_name(newest)).read_bytes()
    between = range(newest + 1, number)
    _fill(file, [versions / manifest_name(each) for each in between])
    _fill(b"made up", [transactions / f"{each}-made-up.txn" for each in between])
    (versions / manifest_name(number)).write_bytes(_numbered(file, number))
    (versions / HINT).write_text(hint_text(number))


def _fill(content: bytes, names: list[Path]) -> None:
    """Files of one content, which share it as far as a file system lets them."""
    for first in range(0, len(names), LINKS_MAX):
        names[first].write_bytes(content)
        for name in names[first + 1 : first + LINKS_MAX]:
            os.link(names[first], name)


def _numbered(file: bytes, number: int) -> bytes:
    """The file of a version with another number in its message."""
    message = manifest_message(file)
    if message is None:
        raise ValueError("the version is not whole")
    start, major, minor, magic = FOOTER.unpack(file[-FOOTER.size :])
    at = 0
    while at < len(message):
        begun = at
        tag, at = read_varint(message, at)
        if tag & 7 == 2:
            size, at = read_varint(message, at)
            at += size
        elif tag & 7 == 0:
            _, at = read_varint(message, at)
        else:
            at += 8 if tag & 7 == 1 else 4
        if tag == VERSION:
            message = message[:begun] + as_varint(VERSION) + as_varint(number) + message[at:]
            break
    return file[:start] + struct.pack("<I", len(message)) + message + FOOTER.pack(start, major, minor, magic)


def _add_records(graph: omnigraph.Graph, commits: int) -> int:
    """Ancestors of the first commit, one after the other; the newest version of the table they are in."""
    graph.commits.list()
    projection: Any = graph.session.commits._commits
    like = projection.read().sort_by("graph_commit_id").slice(0, 1)
    for first in range(0, commits, RECORDS_AT_ONCE):
        numbers = range(first, min(first + RECORDS_AT_ONCE, commits))
        rows = pa.concat_tables([like] * len(numbers))
        ids = pa.array([f"{number:026d}" for number in numbers])
        parents = pa.array([f"{number - 1:026d}" if number else None for number in numbers], pa.string())
        texts = pc.replace_substring(rows["metadata"], like["graph_commit_id"][0].as_py(), "made up")
        rows = rows.set_column(0, rows.schema.field(0), ids)
        rows = rows.set_column(4, rows.schema.field(4), parents)
        projection.add(rows.set_column(8, rows.schema.field(8), texts))
    return projection._dataset.open_head(None).version
