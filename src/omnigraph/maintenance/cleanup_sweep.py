"""Removing what a cleanup has planned, so that whatever stops it leaves nothing that points nowhere.

What points at files goes before the files: states of the manifest, then versions of tables, then what they
were read from. A note of those files is written first: the next cleanup finds them by it, whatever their age.
States and versions go while nobody writes, a few at a time; before each few everything that may have come to
need one of them is looked at again. Nothing can come to need a file whose versions are all gone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from omnigraph.core.errors import (
    Cancelled,
    DeadlineExceeded,
    LeaseLost,
    OmnigraphError,
    RecoveryRequired,
    ResourceBusy,
    StoragePrecondition,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.formats import CLEANUP_FORMAT
from omnigraph.core.ids import BranchName, TableKey, new_ulid
from omnigraph.core.limits import CLEANUP_BATCH_FILES
from omnigraph.core.progress import Steps
from omnigraph.maintenance.stored_files import VERSIONS, location_of, part_of
from omnigraph.manifest.forks import ForkStatus, classify_fork
from omnigraph.recovery.drift import refuse_drift
from omnigraph.recovery.file_checks import FileChecks
from omnigraph.storage.layout import CLEANUP, LOADS, MANIFEST, branch_directory, branch_reference
from omnigraph.storage.manifest_files import HINT, hint_text, hinted_version, version_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup_marks import Marker, Marks
    from omnigraph.maintenance.cleanup_plan import CleanupPlan, Fork, StagedLoads

OTHERS: Final = ""
"""Stands for the place of objects beside the datasets."""
_OUTCOME: Final = "the next one goes on from there"


def noted_files(session: GraphSession) -> frozenset[str]:
    """What a cleanup that was stopped had yet to remove; nothing points at any of it."""
    text = session.adapter.read_text_if_exists(CLEANUP)
    if text is None:
        return frozenset()
    try:
        return frozenset(map(str, cast("dict[str, Any]", json.loads(text))["files"]))
    except (ValueError, TypeError, KeyError):
        return frozenset()


class Sweep:
    """One run. The caller keeps other cleanups away."""

    def __init__(
        self,
        session: GraphSession,
        marker: Marker,
        marks: Marks,
        plan: CleanupPlan,
        loads: StagedLoads,
        *,
        now_us: int,
        cancel: Cancellation,
    ) -> None:
        self._session = session
        self._marker = marker
        self._marks = marks
        self._plan = plan
        self._loads = loads
        self._now_us = now_us
        self._cancel = cancel
        self._run = new_ulid()
        self._kept: set[str] = set()
        """What came to be needed since the plan."""
        self._going = plan.going()
        self._steps = Steps("cleanup", "remove", len(self._going), "files")
        self.removed: set[str] = set()
        self.failed: dict[str, OmnigraphError] = {}
        """Datasets of which something had to stay, by location."""

    def run(self) -> None:
        """All of it. A dataset that fails keeps the rest of its files; the others go on."""
        states, versions, rest = self._parted()
        if not self._going:
            return
        if states:
            staying = {name for name, fate in self._plan.fates.items() if not fate.goes}
            FileChecks(self._session.recovery).carry(self._session.recovery, staying, staying)
        with self._session.lease.alone():
            self._look_again()
            refuse_drift(self._session.recovery, self._marks.heads)
            self._note(rest)
            self._write_hints([*states, *versions])
        failpoint(Window.CLEANUP_POST_NOTE_PRE_STATES)
        self._remove_pointers(states, Window.CLEANUP_STATES_GC)
        self._remove_forks()
        for location, names in _by_location(versions).items():
            with self._isolated(location):
                self._remove_pointers(names, Window.CLEANUP_TABLE_GC)
        failpoint(Window.CLEANUP_POST_VERSIONS_PRE_FILES)
        self._remove_loads()
        self._remove_files(rest)
        failpoint(Window.CLEANUP_POST_FILES_PRE_END)
        self._note([name for name in rest if name not in self.removed and name not in self._kept])

    def _parted(self) -> tuple[list[str], list[str], list[str]]:
        """States, versions of other datasets, and everything else; oldest versions first."""
        orphans = {each.line for each in self._plan.forks}
        states: list[tuple[str, int, str]] = []
        versions: list[tuple[str, int, str]] = []
        rest: list[str] = []
        for name in self._going:
            part = part_of(name)
            if self._is_of_fork(name) or (part is not None and part.line in orphans):
                continue  # goes with its fork
            if name.startswith(f"{LOADS}/"):
                continue  # goes with its load
            number = version_of(name.rpartition("/")[2]) if part and part.kind == VERSIONS else None
            if part is None or number is None:
                rest.append(name)
                continue
            found = states if part.line[0] == MANIFEST else versions
            found.append((branch_directory(*part.line), number, name))
        return [name for *_, name in sorted(states)], [name for *_, name in sorted(versions)], rest

    def _is_of_fork(self, name: str) -> bool:
        return any(name == branch_reference(each.line[0], each.line[1] or "") for each in self._plan.forks)

    # --- what may have come to be needed ----------------------------------------------------------------

    def _look_again(self) -> None:
        """Mark what appeared since the last look; this thread is alone in the lease."""
        waiting = self._session.sidecars.list()
        if waiting:
            raise RecoveryRequired(
                "an interrupted write has to be settled first",
                waiting[0].removesuffix(".json"),
                hint="reopen the graph read-write, which settles it, then run the cleanup again",
            )
        marks = self._marker.mark(self._now_us, unless_same_as=self._marks)
        self._marks = marks
        self._kept |= marks.files.keys()
        for location, error in marks.failed.items():
            self.failed.setdefault(location, error)

    def _may_go(self, name: str) -> bool:
        return name not in self._kept and (location_of(name) or OTHERS) not in self.failed

    # --- pointers ---------------------------------------------------------------------------------------

    def _remove_pointers(self, names: Sequence[str], window: Window) -> None:
        for batch in _batches(names):
            self._breathe()
            with self._session.lease.alone() as hold:
                self._look_again()
                failpoint(window)
                hold.check()
                self._remove([name for name in batch if self._may_go(name)])

    def _write_hints(self, names: Sequence[str]) -> None:
        """Let every hint name the newest version: a search from one that lags behind would end at a gap."""
        if not self._session.root.is_local:
            return
        for directory in sorted({name.rpartition("/")[0] for name in names}):
            file = f"{directory}/{HINT}"
            hinted = hinted_version(self._session.adapter.read_text_if_exists(file))
            there = self._session.adapter.list_dir(directory)  # nothing, where the branch is gone
            newest = max((version_of(each) or 0 for each in there), default=0)
            if hinted is not None and newest and hinted != newest:
                self._session.adapter.write_text(file, hint_text(newest))

    def _remove_forks(self) -> None:
        keys = {
            entry.location: key
            for shown in self._marks.heads.values()
            for key, entry in shown.entries.items()
        }
        for fork in self._plan.forks:
            self._breathe()
            location, branch = fork.line
            with self._isolated(location):
                failpoint(Window.CLEANUP_RECONCILE_FORK)
                self._remove_fork(fork, keys.get(location), BranchName(branch or ""))

    def _remove_fork(self, fork: Fork, key: TableKey | None, branch: BranchName) -> None:
        session, location = self._session, fork.line[0]
        queues = [] if key is None else [(key, branch)]
        with session.queues.acquire_many(queues), session.lease.alone() as hold:
            self._look_again()
            gone = self._is_orphan(fork, key, branch)
            if gone:
                hold.check()
                try:
                    session.storage.delete_branch(location, branch)
                except StoragePrecondition:
                    gone = False  # one that grew out of it was not removed
        below = f"{branch_directory(location, branch)}/"
        own = [name for name in self._going if name.startswith(below)]
        if gone:
            self._count([*own, branch_reference(location, branch)])
        else:  # the next cleanup tries again; until then it keeps what it is read from
            numbers = [version_of(name.rpartition("/")[2]) for name in own]
            self._kept |= self._marker.used_by((fork.line, each) for each in numbers if each is not None)

    def _is_orphan(self, fork: Fork, key: TableKey | None, branch: BranchName) -> bool:
        """Whether certainly nothing shows a fork that nothing showed before."""
        if any(line == fork.line for line, _ in self._marks.versions):
            return False
        manifest, listed = self._session.manifest, self._session.storage.list_branches(fork.line[0])
        known = key is None or classify_fork(manifest, key, branch) is ForkStatus.ORPHAN
        return known and listed.get(branch) == fork.chain

    # --- files ------------------------------------------------------------------------------------------

    def _remove_loads(self) -> None:
        for load in self._plan.loads:
            self._breathe()
            with self._isolated(OTHERS):
                if self._loads.discard(load):
                    own = [f"{LOADS}/{load}/", f"{LOADS}/{load}."]
                    self._count([n for n in self._going if any(n.startswith(each) for each in own)])
                else:
                    self._kept |= self._loads.files().get(load, frozenset())

    def _remove_files(self, names: Sequence[str]) -> None:
        for location, some in _by_location(names).items():
            with self._isolated(location):
                for batch in _batches(some):
                    self._breathe()
                    self._remove([name for name in batch if self._may_go(name)])

    def _remove(self, names: Sequence[str]) -> None:
        if names:
            self._session.adapter.remove(names)
            self._count(names)

    def _count(self, names: Sequence[str]) -> None:
        self.removed |= set(names)
        self._steps.advance(len(names))

    def _note(self, names: Sequence[str]) -> None:
        """Say what nothing points at any more, or soon. Readers of an object store know by it that states
        went: a version after theirs may be missing although there are newer ones.
        """
        members = {"format": CLEANUP_FORMAT, "run": self._run, "files": list(names)}
        self._session.adapter.write_text(CLEANUP, json.dumps(members))

    def _breathe(self) -> None:
        if self._cancel.requested:
            self._cancel.raise_if_overdue(_OUTCOME)
            raise Cancelled(f"the cleanup was stopped; {_OUTCOME}")

    @contextmanager
    def _isolated(self, location: str) -> Generator[None]:
        """Keep a failure with the dataset it belongs to; one that concerns everything goes on up."""
        try:
            yield
        except (RecoveryRequired, Cancelled, DeadlineExceeded, LeaseLost, ResourceBusy):
            raise
        except OmnigraphError as error:
            self.failed.setdefault(location, error)


def _batches(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[at : at + CLEANUP_BATCH_FILES] for at in range(0, len(names), CLEANUP_BATCH_FILES)]


def _by_location(names: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[location_of(name) or OTHERS].append(name)
    return found
