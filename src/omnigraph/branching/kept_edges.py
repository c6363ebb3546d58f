"""A node that a merge keeps keeps its edges.

One side deleted a node, and its edges with it; the other side changed the node. When the choice is to keep
the node, the deletion of those edges is refused together with the deletion it followed from. Which deletions
of edges followed from the node and which were meant for themselves cannot be told apart afterwards; keeping
an edge loses nothing. An edge whose other end goes away, or that is a conflict of its own, is left to that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from omnigraph.arrays.addresses import ABSENT
from omnigraph.arrays.keys import is_in, string_array
from omnigraph.branching.changes import NO_IDS, NO_ROWS, RowSet
from omnigraph.branching.merge_plan import ConflictKind, RowChanges, TableAction
from omnigraph.branching.merge_step import MergeStep
from omnigraph.branching.settling import Settled
from omnigraph.core.ids import edge_table_key, node_table_key
from omnigraph.core.limits import CONFLICT_EDGES_SHOWN_MAX
from omnigraph.engine.write.validate import PROBED_VALUES_MAX
from omnigraph.planning.filters import filter_text, has_text, some

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnigraph.arrays.types import Mask
    from omnigraph.branching.merge_plan import MergeConflict
    from omnigraph.catalog.schema import EdgeType
    from omnigraph.core.ids import TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot
    from omnigraph.storage.handles import SnapshotHandle

Planned = tuple[MergeStep, Settled]
_NOTHING_OPEN: Final = Settled(RowChanges())


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """Nodes that one side deleted and the other changed, by table."""

    deleted_there: Mapping[TableKey, pa.StringArray]
    """By the source."""
    deleted_here: Mapping[TableKey, pa.StringArray]
    """By the target."""


@dataclass(frozen=True, slots=True, eq=False)
class _Edges:
    """Edges with their ends, of one table version."""

    rows: RowSet
    sources: pa.StringArray
    targets: pa.StringArray

    def touching(self, edge: EdgeType, nodes: Mapping[TableKey, pa.StringArray]) -> Mask:
        """Which of them have one of these nodes as an end."""
        found = np.zeros(len(self.rows), np.bool_)
        for ids, node in ((self.sources, edge.source), (self.targets, edge.target)):
            wanted = nodes.get(node_table_key(node))
            if wanted is not None:
                found |= is_in(ids, wanted)
        return found

    def at(self, mask: Mask) -> _Edges:
        chosen = pa.array(np.flatnonzero(mask))
        return _Edges(self.rows.at(mask), self.sources.take(chosen), self.targets.take(chosen))


def keep_edges(
    session: GraphSession, source: Snapshot, target: Snapshot, planned: Sequence[Planned]
) -> list[Planned]:
    """The plan in which every node that a choice keeps has the edges it would have had without the deletion.

    Conflicts that are still open name the edges that will follow the choice; the plan does not delete those.
    Cost: nothing unless a node was deleted on one side and changed on the other.
    """
    if not any(settled.has_deletions for _, settled in planned):
        return list(planned)
    tables = {step.table_key: (step, settled) for step, settled in planned}
    chosen = _Nodes(
        _some({key: settled.stays for key, (_, settled) in tables.items()}),
        _some({key: settled.returns for key, (_, settled) in tables.items()}),
    )
    undecided = _Nodes(*_undecided(tables))
    tied: dict[tuple[TableKey, str], list[tuple[TableKey, str]]] = {}
    for edge in session.catalog_of(target).edges.values():
        here = _Table(session, edge, source, target, tables)
        if here.step is None:
            continue
        if chosen.deleted_there or chosen.deleted_here:
            tables[here.key] = here.keeping(chosen)
        if undecided.deleted_there or undecided.deleted_here:
            following = here.tie(undecided, tied)
            if here.key in tables:
                tables[here.key] = _without(tables[here.key], following)
    return [(step, _naming(settled, tied)) for _, (step, settled) in sorted(tables.items())]


def _undecided(
    tables: Mapping[TableKey, Planned],
) -> tuple[dict[TableKey, pa.StringArray], dict[TableKey, pa.StringArray]]:
    there: dict[TableKey, pa.StringArray] = {}
    here: dict[TableKey, pa.StringArray] = {}
    for key, (_, settled) in tables.items():
        open_ = [each.row_id for each in settled.conflicts if each.kind is ConflictKind.DELETE_VS_UPDATE]
        if open_:
            ids = pa.array(open_, pa.string())
            gone_there = is_in(ids, settled.deleted_there)
            there[key] = ids.filter(pa.array(gone_there))
            here[key] = ids.filter(pa.array(~gone_there))
    return _some(there), _some(here)


def _some(nodes: Mapping[TableKey, pa.StringArray]) -> dict[TableKey, pa.StringArray]:
    return {key: ids for key, ids in nodes.items() if len(ids)}


class _Table:
    """One edge table between the two sides."""

    def __init__(
        self,
        session: GraphSession,
        edge: EdgeType,
        source: Snapshot,
        target: Snapshot,
        tables: Mapping[TableKey, Planned],
    ) -> None:
        self.key = edge_table_key(edge.name)
        self._session = session
        self._edge = edge
        self._target = target
        self._tables = tables
        self.step, self._settled = tables.get(self.key) or (
            _untouched(session, self.key, source, target),
            _NOTHING_OPEN,
        )

    def keeping(self, nodes: _Nodes) -> Planned:
        """The step without the deletions, and with the rows, that belong to nodes which stay."""
        step, settled = self._present(), self._settled
        going, coming = self._deleted_there(nodes), self._deleted_here(nodes)
        kept = going.at(self._has_both_ends(going))
        back = coming.at(self._has_both_ends(coming))
        if not len(kept.rows) and not len(back.rows):
            return step, settled
        changes = step.changes
        stays = ~is_in(changes.deletes.ids, kept.rows.ids)
        appends = RowSet(
            pa.concat_arrays([changes.appends.ids, back.rows.ids]),
            np.concatenate([changes.appends.addresses, back.rows.addresses]),
        )
        changed = replace(changes, appends=appends.sorted(), deletes=changes.deletes.at(stays))
        # Rows are written one by one now: the target's table is no longer the source's.
        return replace(step, action=TableAction.REWRITE, changes=changed), settled

    def tie(
        self, nodes: _Nodes, tied: dict[tuple[TableKey, str], list[tuple[TableKey, str]]]
    ) -> pa.StringArray:
        """Note the edges that follow the choice about each node; the ids of those that may go."""
        going = self._deleted_there(nodes)
        for found, ids in (
            (going, nodes.deleted_there),
            (self._deleted_here(nodes), nodes.deleted_here),
        ):
            for ends, node in ((found.sources, self._edge.source), (found.targets, self._edge.target)):
                key = node_table_key(node)
                wanted = is_in(ends, ids[key]) if key in ids else np.zeros(len(ends), np.bool_)
                at = np.flatnonzero(wanted)
                for end, row in zip(
                    ends.take(pa.array(at)).to_pylist(),
                    found.rows.ids.take(pa.array(at)).to_pylist(),
                    strict=True,
                ):
                    of_node = tied.setdefault((key, end), [])
                    if (self.key, row) not in of_node:
                        of_node.append((self.key, row))
        return going.rows.ids

    def _present(self) -> MergeStep:
        if self.step is None:
            raise AssertionError  # asked for by nobody: see `keep_edges`
        return self.step

    def _deleted_there(self, nodes: _Nodes) -> _Edges:
        """Edges of the target that the source deleted, at nodes that it deleted as well."""
        step = self._present()
        if step.target_handle is None or not nodes.deleted_there or not len(step.changes.deletes):
            return _NO_EDGES
        edges = _with_ends(self._session, step.target_handle, step.changes.deletes)
        own = is_in(edges.rows.ids, self._settled.collided)
        return edges.at(edges.touching(self._edge, nodes.deleted_there) & ~own)

    def _deleted_here(self, nodes: _Nodes) -> _Edges:
        """Edges of the source that the target deleted, at nodes that it deleted as well."""
        step = self._present()
        sides = [
            (column, nodes.deleted_here[key])
            for column, node in (("src", self._edge.source), ("dst", self._edge.target))
            if (key := node_table_key(node)) in nodes.deleted_here
        ]
        if not sides:
            return _NO_EDGES
        session, storage = self._session, self._session.storage
        small = all(len(ids) <= PROBED_VALUES_MAX for _, ids in sides)
        where = some([has_text(column, ids.to_pylist()) for column, ids in sides]) if small else None
        found = storage.read(
            step.source_handle,
            columns=["id", "src", "dst"],
            filter=None if where is None else filter_text(where),
            with_row_address=True,
        )
        ids = string_array(found.column("id"))
        edges = _Edges(
            RowSet(ids, found.column("_rowaddr").to_numpy()),
            string_array(found.column("src")),
            string_array(found.column("dst")),
        )
        here = is_in(ids, step.changes.appends.ids) | is_in(ids, self._settled.collided)
        if step.target_handle is not None:
            here |= session.keys.addresses(session.root.identity, storage, step.target_handle, ids) != ABSENT
        return edges.at(edges.touching(self._edge, nodes.deleted_here) & ~here)

    def _has_both_ends(self, edges: _Edges) -> Mask:
        """Which of them connect nodes that the merged graph has."""
        both = np.ones(len(edges.rows), np.bool_)
        for ids, node in ((edges.sources, self._edge.source), (edges.targets, self._edge.target)):
            both &= self._survives(node_table_key(node), ids)
        return both

    def _survives(self, key: TableKey, ids: pa.StringArray) -> Mask:
        entry, session = self._target.entries.get(key), self._session
        there = np.zeros(len(ids), np.bool_)
        if entry is not None:
            handle = session.open_entry(entry)
            there = session.keys.addresses(session.root.identity, session.storage, handle, ids) != ABSENT
        planned = self._tables.get(key)
        if planned is None:
            return there
        changes = planned[0].changes
        return (there & ~is_in(ids, changes.deletes.ids)) | is_in(ids, changes.appends.ids)


_NO_EDGES: Final = _Edges(NO_ROWS, NO_IDS, NO_IDS)


def _without(planned: Planned, following: pa.StringArray) -> Planned:
    """The step without deletions that a choice has yet to decide about."""
    step, settled = planned
    stays = ~is_in(step.changes.deletes.ids, following)
    return replace(step, changes=replace(step.changes, deletes=step.changes.deletes.at(stays))), settled


def _with_ends(session: GraphSession, handle: SnapshotHandle, rows: RowSet) -> _Edges:
    ends = session.storage.take(handle, rows.addresses, ["src", "dst"])
    return _Edges(rows, string_array(ends.column("src")), string_array(ends.column("dst")))


def _untouched(session: GraphSession, key: TableKey, source: Snapshot, target: Snapshot) -> MergeStep | None:
    """A step that changes nothing yet: the source left the table as it was."""
    theirs, ours = source.entries.get(key), target.entries.get(key)
    if theirs is None or ours is None:
        return None
    return MergeStep(
        key,
        TableAction.NOTHING,
        theirs,
        ours,
        session.open_entry(theirs),
        session.open_entry(ours),
        RowChanges(),
    )


def _naming(settled: Settled, tied: Mapping[tuple[TableKey, str], Sequence[tuple[TableKey, str]]]) -> Settled:
    """The open conflicts with the edges that follow each choice."""
    if not tied or not settled.conflicts:
        return settled

    def named(conflict: MergeConflict) -> MergeConflict:
        edges = tied.get((conflict.table_key, conflict.row_id or ""), ())
        if not edges:
            return conflict
        word = "edge follows" if len(edges) == 1 else "edges follow"
        return replace(
            conflict,
            message=f"{conflict.message}; {len(edges)} {word} the choice",
            edges=tuple(edges[:CONFLICT_EDGES_SHOWN_MAX]),
        )

    return replace(settled, conflicts=tuple(named(each) for each in settled.conflicts))
