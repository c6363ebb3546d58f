"""Planning a merge: which tables, which rows, which conflicts. Reads only; preview and merge share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from omnigraph.arrays.keys import is_in
from omnigraph.branching.agreement import agreed
from omnigraph.branching.ancestry import merge_bases
from omnigraph.branching.delta_engine import LOCAL, TABLES_AT_ONCE, Deltas
from omnigraph.branching.equality import rows_differ
from omnigraph.branching.kept_edges import keep_edges
from omnigraph.branching.merge_advice import advice
from omnigraph.branching.merge_plan import (
    MergeConflict,
    TableAction,
    adopt,
    classify_table,
    same_state,
    three_way,
)
from omnigraph.branching.merge_step import MergeStep
from omnigraph.branching.merge_validation import TableRows, Verdict, check_merged
from omnigraph.branching.property_merge import Sides, divide, going_together, with_properties
from omnigraph.branching.settling import UNRESOLVED, Resolution, Settled, settle
from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core.errors import BadRequest, InternalError, TypeNotFound
from omnigraph.core.progress import Steps
from omnigraph.engine.readable import seen_as
from omnigraph.language.diagnostics import near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from omnigraph.arrays.types import Addresses, Mask
    from omnigraph.branching.delta_engine import BulkDeltas
    from omnigraph.branching.merge_plan import RowMerge
    from omnigraph.branching.merge_report import ConflictList
    from omnigraph.branching.rows_in_memory import HeldRows
    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.storage.handles import SnapshotHandle


class MergeOutcome(StrEnum):
    """How the graph moved. It does not say which path each table took."""

    ALREADY_UP_TO_DATE = "already_up_to_date"
    FAST_FORWARD = "fast_forward"
    MERGED = "merged"
    CONFLICTS = "conflicts"
    """It would not move: what a preview says while something stands against the merge."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """A merge, decided and not begun: captured states, steps, and what stands against it."""

    outcome: MergeOutcome
    base: Snapshot
    source: Snapshot
    target: Snapshot
    target_identity: str
    schema_hash: str
    steps: tuple[MergeStep, ...] = ()
    conflicts: tuple[MergeConflict, ...] = ()
    conflicts_total: int = 0
    engine: str = LOCAL
    """Who computed the deltas."""
    read_set: Mapping[TableKey, int] = field(default_factory=dict["TableKey", int])
    resolved: Mapping[TableKey, Mapping[str, int]] = field(
        default_factory=dict["TableKey", "Mapping[str, int]"]
    )

    @property
    def advice(self) -> str:
        """What can be done about the conflicts; empty when there are none."""
        kinds = [each.kind for each in self.conflicts]
        return advice(kinds, chosen=bool(self.resolved)) if kinds else ""

    @property
    def stats(self) -> dict[str, dict[str, int]]:
        """Rows inserted, updated and deleted on the target, per table that changes."""
        return {step.table_key: step.changes.counts for step in self.steps if not step.changes.empty}

    @property
    def summary(self) -> dict[str, dict[str, int]]:
        """What the commit records per table: `stats`, and how often each side won a conflict."""
        found = self.stats
        for key, counts in self.resolved.items():
            chosen = {f"resolved_{side}": count for side, count in counts.items()}
            found[key] = {**found.get(key, {}), **chosen}
        return found


def plan_merge(
    session: GraphSession,
    source: Branch,
    target: Branch,
    resolution: Resolution | ConflictList = UNRESOLVED,
    bulk: BulkDeltas | None = None,
) -> MergePlan:
    """Plan the merge of one branch's head into another's. Cost: follows what both sides changed."""
    target_identity = session.branch_identity(target)
    theirs, ours = session.manifest.current(source), session.manifest.current(target)
    bases = merge_bases(session, theirs, ours)
    base = bases[0]
    if base.head == theirs.head:
        return MergePlan(
            MergeOutcome.ALREADY_UP_TO_DATE, base, theirs, ours, target_identity, ours.schema_hash
        )
    outcome = MergeOutcome.FAST_FORWARD if base.head == ours.head else MergeOutcome.MERGED
    return plan_between(
        session,
        outcome,
        bases=bases,
        source=theirs,
        target=ours,
        identity=target_identity,
        resolution=resolution.for_heads(theirs.head, ours.head),
        bulk=bulk,
    )


def plan_between(
    session: GraphSession,
    outcome: MergeOutcome,
    *,
    bases: Sequence[Snapshot],
    source: Snapshot,
    target: Snapshot,
    identity: str,
    resolution: Resolution = UNRESOLVED,
    rows_only: bool = False,
    bulk: BulkDeltas | None = None,
) -> MergePlan:
    """Plan what turns `target` into the merge of `target` and `source`; both grew out of each of `bases`.

    `rows_only`: write rows also where showing another version would do (a revert goes back in time, which a
    shown version never does).
    """
    catalog = session.catalog_of(target)
    seen = [seen_as(session, each, catalog, target.schema_hash) for each in (source, *bases)]
    theirs, *origins_of = (each.snapshot for each in seen)
    _refuse_unknown_types(resolution, {*theirs.entries, *target.entries})
    touched = _touched(origins_of, theirs, target, rows_only=rows_only, other=frozenset(seen[0].columns))
    deltas = Deltas(session, bulk)

    def opened(entry: TableEntry) -> SnapshotHandle:
        owner = next((each for each in seen if each.snapshot.entries.get(entry.table_key) is entry), None)
        return session.open_entry(entry) if owner is None else owner.open(session, entry)

    def plan_table(key: TableKey) -> tuple[MergeStep, Settled]:
        action, origins = touched[key]
        return _plan_table(session, opened, deltas, action, key, origins, theirs, target, resolution)

    compared = Steps("merge", "compare", len(touched), "tables")
    planned = session.share(compared.counting(plan_table), list(touched), threads=TABLES_AT_ONCE)
    _refuse_unused_entries(resolution, planned)
    planned = keep_edges(session, theirs, target, planned)
    steps = [step for step, _ in planned]
    conflicts = [conflict for _, settled in planned for conflict in settled.conflicts]
    resolved = {step.table_key: settled.resolved for step, settled in planned if settled.resolved}
    verdict = Verdict() if conflicts else _checked(session, target.schema_hash, source, target, steps)
    return MergePlan(
        outcome=outcome,
        base=bases[0],
        source=source,
        target=target,
        target_identity=identity,
        schema_hash=target.schema_hash,
        steps=tuple(steps),
        conflicts=tuple(conflicts) or tuple(verdict.conflicts),
        conflicts_total=len(conflicts) or verdict.total,
        engine=deltas.engine,
        read_set=verdict.read_set,
        resolved=resolved,
    )


def _checked(
    session: GraphSession, schema_hash: str, source: Snapshot, target: Snapshot, steps: Sequence[MergeStep]
) -> Verdict:
    """What stands against the merged rows."""
    one_schema = source.schema_hash == target.schema_hash
    catalog = session.schemas.catalog(schema_hash)
    change = None if one_schema else catalog_change(session.catalog_of(source), catalog)
    lacking = {} if change is None else {each.new_key: each.newly_required for each in change.kept}
    rows = {
        each.table_key: TableRows(
            each.changes,
            each.source_handle,
            each.target_handle,
            each.held,
            adopted=one_schema and each.action is not TableAction.REWRITE,
            lacking=lacking.get(each.table_key, frozenset()),
        )
        for each in steps
    }
    return check_merged(session, catalog, target, rows)


def _touched(
    bases: Sequence[Snapshot],
    source: Snapshot,
    target: Snapshot,
    *,
    rows_only: bool,
    other: frozenset[TableKey],
) -> dict[TableKey, tuple[TableAction, Sequence[TableEntry | None]]]:
    """What each table of the target needs, where it needs anything, and its different states in the bases.

    `other`: tables of the source with other columns than the target's; their versions cannot be shown.
    """
    touched: dict[TableKey, tuple[TableAction, Sequence[TableEntry | None]]] = {}
    for key in sorted({*source.entries, *target.entries, *(key for base in bases for key in base.entries)}):
        origins = _distinct([base.entries.get(key) for base in bases])
        theirs, ours = source.entries.get(key), target.entries.get(key)
        for origin in origins:
            _refuse_dropped(key, origin, theirs, ours)
        action = classify_table(origins[0], theirs, ours, target.branch)
        if len(origins) > 1 and ours is not None and not same_state(theirs, ours):
            # Some base saw either side as it is: only its rows can tell whether all of them agree.
            action = TableAction.REWRITE
        by_rows = rows_only or key in other
        if by_rows and ours is not None and action in {TableAction.SWITCH, TableAction.FORK}:
            action = TableAction.ADOPT
        if action is not TableAction.NOTHING:
            touched[key] = action, origins
    return touched


def _plan_table(
    session: GraphSession,
    opened: Callable[[TableEntry], SnapshotHandle],
    deltas: Deltas,
    action: TableAction,
    key: TableKey,
    origins: Sequence[TableEntry | None],
    source: Snapshot,
    target: Snapshot,
    resolution: Resolution,
) -> tuple[MergeStep, Settled]:
    source_entry, target_entry = source.entries[key], target.entries.get(key)
    theirs = opened(source_entry)
    ours = None if target_entry is None else session.open_entry(target_entry)
    bases = [None if origin is None else opened(origin) for origin in origins]
    merges = [_merge_rows(session, deltas, action, base, theirs, ours) for base in bases]
    merge, held = agreed([merge for merge, _ in merges]), merges[0][1]
    sides = Sides(session.storage, theirs, ours, bases)
    types = [
        catalog.type_of(key)
        for catalog in map(session.catalog_of, (source, target))
        if key in catalog.table_keys()
    ]
    collided = merge.collisions.ids
    divided = divide(
        sides,
        merge.collisions,
        together=[group for each in types for group in going_together(each)],
        whole=np.full(len(collided), any(each.merges_whole for each in types))
        | is_in(collided, resolution.whole_rows(key)),
    )
    settled = with_properties(sides, settle(key, merge, divided, resolution))
    return MergeStep(key, action, source_entry, target_entry, theirs, ours, settled.changes, held), settled


def _distinct(entries: Sequence[TableEntry | None]) -> list[TableEntry | None]:
    found: list[TableEntry | None] = []
    for entry in entries:
        if not any(same_state(entry, each) for each in found):
            found.append(entry)
    return found


def _merge_rows(
    session: GraphSession,
    deltas: Deltas,
    action: TableAction,
    base: SnapshotHandle | None,
    source: SnapshotHandle,
    target: SnapshotHandle | None,
) -> tuple[RowMerge, HeldRows | None]:
    """The merge of the rows from one base, and the rows of the source that were read for it."""
    theirs = deltas.between(base, source)
    if action is not TableAction.REWRITE or target is None:
        return adopt(theirs), theirs.held
    ours = deltas.between(base, target)

    def differ(source_at: Addresses, target_at: Addresses) -> Mask:
        return rows_differ(session.storage, source, source_at, target, target_at)

    return three_way(theirs, ours, differ), theirs.held


def _refuse_unknown_types(resolution: Resolution, known: AbstractSet[TableKey]) -> None:
    """A choice for a type that does not exist would silently choose nothing."""
    names = sorted({key.partition(":")[2] for key in known})
    for key in resolution.tables or ():
        name = key.partition(":")[2]
        if name not in names:
            raise TypeNotFound(name, candidates=near_names(name, names))


def _refuse_unused_entries(resolution: Resolution, planned: Sequence[tuple[MergeStep, Settled]]) -> None:
    """A conflict list must name conflicts of this merge, whoever edited it."""
    answered = {entry for _, settled in planned for entry in settled.answered}
    for entry in resolution.entries or ():
        if entry not in answered:
            table_key, row_id, kind = entry
            raise BadRequest(
                f"the conflict list names a {kind} of {table_key} {row_id}, which this merge does not have",
                hint="write the list anew with a preview of the merge",
            )


def _refuse_dropped(
    key: TableKey, base: TableEntry | None, source: TableEntry | None, target: TableEntry | None
) -> None:
    """Types are dropped and renamed only while main is alone, so no side can have lost a table."""
    if base is not None and (source is None or target is None):
        raise InternalError(f"'{key}' is a table of the merge base and not of both branches")
