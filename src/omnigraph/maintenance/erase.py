"""Erase: an entity is forgotten, with everything that was ever written of it.

Every branch deletes it like any other entity, with its edges. Then the files that held it are written anew,
and so are the indexes of these tables. The older states of the tables go, by the way cleanups go: after that
no file holds a value of it. Whatever stops it, the next run finds the rest by looking into the files.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Final

from omnigraph.core.bounds import lift_bounds
from omnigraph.core.errors import (
    EntityNotFound,
    ExpectedVersionMismatch,
    ResourceBusy,
    SnapshotNotFound,
    SubjectTagged,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import BranchName, new_ulid, show_branch
from omnigraph.engine.evolve.adopt import adopt_schema
from omnigraph.engine.write.mutate import run_mutation
from omnigraph.engine.write.requests import MutationRequest, time_of
from omnigraph.maintenance.cleanup import Look, only_cleanup, refuse_unsettled
from omnigraph.maintenance.cleanup_marks import Forgotten
from omnigraph.maintenance.cleanup_sweep import noted_files
from omnigraph.maintenance.erase_report import ErasedBranch, EraseReceipt
from omnigraph.maintenance.erase_rewrite import rewrite_files
from omnigraph.maintenance.forgetting import EVERYTHING, clear_caches, reclaim_forgotten
from omnigraph.maintenance.pins import live_pins
from omnigraph.maintenance.stored_files import VERSIONS, location_of, part_of
from omnigraph.maintenance.traces import live_rows, subject_of, traces, type_at
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.lineage import possible_bases
from omnigraph.planning.ir import DeleteOp, MutationPlan, OneOf
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.storage.layout import CACHE, MANIFEST
from omnigraph.storage.manifest_files import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.ids import Branch, CommitId
    from omnigraph.engine.evolve.rows import BulkWork
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup_plan import CleanupPlan, StagedLoads
    from omnigraph.maintenance.stored_files import Line
    from omnigraph.maintenance.traces import Subject
    from omnigraph.manifest.lineage import Lineage
    from omnigraph.manifest.state import Snapshot
    from omnigraph.planning.keys import EntityKey

ERASING: Final = "the erasure"
OPERATION: Final = "erase"
PASSES_MAX: Final = 3
"""How often all of it is done while others write the subject anew or show older states of it."""
ATTEMPTS: Final = 5
STAND_IN: Final = "erased-"
"""What the names of branches begin with that show states in common without the subject."""


@dataclass(slots=True)
class _Done:
    """What an erasure has done so far."""

    touched: frozenset[str] = frozenset()
    """The tables whose files held the subject, by location."""
    since: dict[Line, int] = field(default_factory=dict["Line", int])
    """By line of these tables: the first version without the subject."""
    branches: dict[Branch, ErasedBranch] = field(default_factory=dict["Branch", ErasedBranch])
    tags: list[str] = field(default_factory=list[str])
    states: int = 0
    files: int = 0
    bytes: int = 0
    left: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def forgotten(self) -> Forgotten:
        """What no state may show any more."""
        return Forgotten(self.touched, dict(self.since))


@dataclass(frozen=True, slots=True)
class Erasure:
    """One call: what it works with."""

    session: GraphSession
    loads: StagedLoads
    cancel: Cancellation
    actor: str | None = None
    tags: bool = False
    """Whether tags of older states may go."""
    course: WriteCourse = field(default_factory=lambda: WriteCourse(ERASING))
    bulk: BulkWork | None = None
    """Rewrites what is too large for this process."""
    merge: Callable[[Branch, Branch], None] | None = None
    """Merges the first branch into the second one."""

    def run(self, type_name: str, given: EntityKey, *, dry_run: bool = False) -> EraseReceipt:
        """Forget an entity, or with `dry_run` say what that would take.

        Raises `TypeNotFound`; `EntityNotFound` when no file of the graph holds it; `SubjectTagged` when a tag
        names an older state and tags may not go; `ResourceBusy` while somebody clones or cleans the graph;
        and as a cleanup does. Cost: the columns that name it of every data file of these tables, the
        fragments that hold it and the indexes of these tables on every branch, a cleanup.
        """
        if dry_run:
            return self._foretold(type_name, given)
        with only_cleanup(self.session):
            refuse_unsettled(self.session)
            subject, held = self._found(type_name, given)
            self._refuse_pinned()
            self._refuse_tagged(subject, held)
            self.cancel.raise_if_requested()
            lift_bounds()  # from here on it stops at its own places only
            return self._erased(subject, held)

    # --- what is there ------------------------------------------------------------------------------------

    def _heads(self) -> dict[Branch, Snapshot]:
        manifest = self.session.manifest
        return {branch: manifest.current(branch) for branch in (None, *manifest.branches())}

    def _found(
        self, type_name: str, given: EntityKey, *, dry_run: bool = False
    ) -> tuple[Subject, dict[str, int]]:
        subject = subject_of(self.session, self._heads(), type_name, given)
        held = traces(self.session, subject)
        if not held:
            if not dry_run:
                # An erasure that was stopped near its end: what it released goes, caches go.
                if noted_files(self.session):
                    self._reclaim(_Done())
                self._clear_caches()
            raise EntityNotFound(f"no file of the graph holds a {subject.type_name} with id '{subject.id}'")
        return subject, held

    def _tagged(self, held: Mapping[str, int]) -> list[str]:
        """The tags that name states with one of the tables that are touched."""
        touched = _touched(held)
        manifest = self.session.manifest
        return [
            name
            for name, (branch, version) in sorted(manifest.tags.places().items())
            if any(
                entry.location in touched for entry in manifest.at_version(branch, version).entries.values()
            )
        ]

    def _refuse_tagged(self, subject: Subject, held: Mapping[str, int]) -> None:
        tagged = [] if self.tags else self._tagged(held)
        if tagged:
            raise SubjectTagged(type_name=subject.type_name, entity_id=subject.id, tags=tagged)

    def _refuse_pinned(self) -> None:
        pins, _ = live_pins(self.session)
        if pins:
            raise ResourceBusy(
                f"a {pins[0].purpose} of this graph is under way and would keep what is to be erased",
                hint="try again when it has ended",
            )

    def _foretold(self, type_name: str, given: EntityKey) -> EraseReceipt:
        if not self.session.read_only:
            refuse_unsettled(self.session)
        subject, held = self._found(type_name, given, dry_run=True)
        look = Look(self.session, EVERYTHING, dry_run=True, forgotten=Forgotten(_touched(held)))
        going = look.plan(self.loads).going()
        branches = [
            ErasedBranch(show_branch(branch), *live_rows(self.session, subject, snapshot))
            for branch, snapshot in self._heads().items()
        ]
        return EraseReceipt(
            type_name=subject.type_name,
            id=subject.id,
            dry_run=True,
            branches=tuple(branches),
            files_held=len(held),
            states_removed=sum(map(_is_state, going)),
            files_removed=0,
            bytes_removed=0,
            tags_removed=tuple(self._tagged(held)),
        )

    # --- what is done -------------------------------------------------------------------------------------

    def _erased(self, subject: Subject, held: Mapping[str, int]) -> EraseReceipt:
        done, files = _Done(_touched(held)), dict(held)
        for _ in range(PASSES_MAX):
            done.since.clear()
            for branch in self._heads():
                self._erase_on(branch, subject, files, done)
            self._keep_bases(subject, files, done)
            failpoint(Window.ERASE_PRE_RECLAIM)
            self._remove_tags(files, done)
            self._clear_caches()
            plan = self._reclaim(done)
            failpoint(Window.ERASE_POST_RECLAIM)
            files = traces(self.session, subject)
            done.left = {
                name: plan.fates[name].why if name in plan.fates else "written meanwhile" for name in files
            } | self._clear_caches()
            if not files or not self._may_still_go(files):
                break
        return EraseReceipt(
            type_name=subject.type_name,
            id=subject.id,
            dry_run=False,
            branches=tuple(done.branches.values()),
            files_held=len(held),
            states_removed=done.states,
            files_removed=done.files,
            bytes_removed=done.bytes,
            tags_removed=tuple(done.tags),
            left=tuple(sorted(done.left.items())),
        )

    def _may_still_go(self, files: Mapping[str, int]) -> bool:
        """Whether a branch is read from one of these files: somebody wrote or branched meanwhile."""
        return any(
            name in files
            for snapshot in self._heads().values()
            for entry in snapshot.entries.values()
            for fragment in self.session.storage.fragments(self.session.open_entry(entry))
            for name in fragment.files
        )

    def _erase_on(
        self,
        branch: Branch,
        subject: Subject,
        files: Mapping[str, int],
        done: _Done,
    ) -> None:
        """Delete the subject on a branch and write what held it anew, unless others have done so for it."""
        self.cancel.raise_if_requested()
        before = done.branches.get(branch, ErasedBranch(show_branch(branch), 0, 0))
        rows, edges, commit = self._delete_on(branch, subject)
        failpoint(Window.ERASE_POST_DELETE)
        shown = self.session.manifest.current(branch)
        due = {entry.location for entry in shown.entries.values() if done.forgotten.has(entry)}
        after = rewrite_files(
            self.session, branch, due, files, actor=self.actor, course=self.course, bulk=self.bulk
        )
        for entry in after.entries.values():
            if entry.location in due:
                done.since.setdefault((entry.location, entry.branch), entry.version)
        failpoint(Window.ERASE_POST_REWRITE)
        made = [*before.commits, *([] if commit is None else [commit])]
        made += [after.head] if after.head != shown.head else []
        done.branches[branch] = ErasedBranch(
            show_branch(branch), before.rows + rows, before.edges + edges, tuple(made)
        )

    # --- what branches have in common ----------------------------------------------------------------------

    def _keep_bases(self, subject: Subject, files: Mapping[str, int], done: _Done) -> None:
        """Let branches be merged later on, although the states they have in common go.

        Such a state lives on without the subject, as a branch of its own, and is merged into all that grew
        out of it. They have deleted the subject themselves: no row of theirs changes.
        """
        for _ in range(PASSES_MAX):
            lineage = self.session.commits.ancestry()
            lost = self._lost_bases(lineage, done.forgotten)
            if not lost or self.merge is None:
                return
            stand_ins: dict[CommitId, Branch] = {}
            for base in lost:
                stand_in = self._stand_in(base, done)
                self._erase_on(stand_in, subject, files, done)
                self._merge_newest(stand_ins, stand_in, lineage, base.head)
                stand_ins[base.head] = stand_in
            for branch, shown in self._heads().items():
                if not _is_stand_in(branch):
                    self._merge_newest(stand_ins, branch, lineage, shown.head)
        raise ResourceBusy("branches kept moving while the subject was erased", hint="try again later")

    def _lost_bases(self, lineage: Lineage, forgotten: Forgotten) -> list[Snapshot]:
        """The states that go although a merge of two branches would be based on one; the oldest first."""
        heads = [shown.head for branch, shown in self._heads().items() if not _is_stand_in(branch)]
        pairs = combinations(heads, 2)
        found: list[Snapshot] = []
        for commit_id in {base for pair in pairs for base in possible_bases(lineage, *pair)}:
            with suppress(SnapshotNotFound):  # lost before
                base = self.session.manifest.at_commit(commit_id)
                if forgotten.is_in(base):
                    found.append(base)
        return sorted(found, key=lambda each: len(lineage.distances(each.head)))

    def _merge_newest(
        self, stand_ins: Mapping[CommitId, Branch], branch: Branch, lineage: Lineage, head: CommitId
    ) -> None:
        """Merge the stand-ins of what a branch grew out of into it, but for those that others contain."""
        behind = lineage.distances(head)
        mine = [commit_id for commit_id in stand_ins if commit_id in behind]
        passed = {each for one in mine for each in lineage.distances(one) if each != one}
        for commit_id in mine:
            if commit_id not in passed and self.merge is not None:
                self.merge(stand_ins[commit_id], branch)

    def _stand_in(self, base: Snapshot, done: _Done) -> Branch:
        """A branch that shows a former state, but for what this call did to it; nobody else writes to it."""
        if _is_stand_in(base.branch) and self._has_only_erased(base, done):
            return base.branch
        name = BranchName(f"{STAND_IN}{new_ulid().lower()}")
        with self.session.lease.hold() as hold:
            BranchStore(self.session.manifest).create(name, base.branch, at=base, fence=hold.check)
        return name

    def _has_only_erased(self, base: Snapshot, done: _Done) -> bool:
        """Whether the branch of a state shows it but for what this call did."""
        made = set(done.branches[base.branch].commits) if base.branch in done.branches else set[str]()
        commit = self.session.manifest.current(base.branch).commit
        while commit.id in made and commit.parent is not None:
            commit = self.session.commits.show(commit.parent)
        return commit.id == base.head

    # --- the parts of it -----------------------------------------------------------------------------------

    def _delete_on(self, branch: Branch, subject: Subject) -> tuple[int, int, str | None]:
        """Delete the subject with its edges; how many rows went, and the commit."""
        session = self.session
        adopt_schema(session, branch)
        for attempt in range(1, ATTEMPTS + 1):
            snapshot = session.manifest.current(branch)
            own = type_at(session, snapshot, subject.own)
            if own is None:
                return 0, 0, None
            statement = DeleteOp(own, OneOf("id", (subject.id,)))
            request = MutationRequest(
                MutationPlan(OPERATION, (), (statement,)),
                ({},),
                branch,
                snapshot.schema_hash,
                time_of(session.clock),
                self.course,
                actor=self.actor,
                operation=OPERATION,
            )
            try:
                result = run_mutation(session, request)
            except ExpectedVersionMismatch:
                if attempt == ATTEMPTS:
                    raise
                continue
            counts = (result.affected_nodes, result.affected_edges)
            rows, edges = counts if own.kind.value == "node" else (counts[1], 0)
            return rows, edges, None if result.commit is None else result.commit.id
        raise ResourceBusy("the branch kept moving", hint="try again later")

    def _remove_tags(self, files: Mapping[str, int], done: _Done) -> None:
        for name in self._tagged(files) if self.tags else ():
            with self.session.lease.hold() as hold:
                self.session.manifest.tags.delete(name, hold.check)
            done.tags.append(name)

    def _reclaim(self, done: _Done) -> CleanupPlan:
        """Remove the states that show what is forgotten, and every file that only they need."""
        gone = reclaim_forgotten(self.session, done.forgotten, self.loads, self.cancel)
        done.states += sum(map(_is_state, gone.removed))
        done.files += len(gone.removed)
        done.bytes += gone.bytes
        return gone.plan

    def _clear_caches(self) -> dict[str, str]:
        """Remove the cache files; what stays, and why."""
        names = clear_caches(self.session)
        return {f"{CACHE}/{name}": "a cache file that could not be removed" for name in names}


def _is_stand_in(branch: Branch) -> bool:
    return branch is not None and branch.startswith(STAND_IN)


def _touched(held: Mapping[str, int]) -> frozenset[str]:
    """The tables whose files hold the subject."""
    found = (location_of(name) for name in held)
    return frozenset(location for location in found if location is not None)


def _is_state(name: str) -> bool:
    part = part_of(name)
    return (
        part is not None
        and part.kind == VERSIONS
        and part.line[0] == MANIFEST
        and version_of(name.rpartition("/")[2]) is not None
    )
