"""Cleanup: states that nobody wants any more go, with every file that only they are read from.

It marks and sweeps by itself; the table format's own cleanup knows neither the branches of a graph nor what a
manifest shows. Everything is looked at without stopping anybody.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from omnigraph.core.bounds import lift_bounds
from omnigraph.core.cancel import NEVER
from omnigraph.core.errors import BranchNotFound, ResourceBusy
from omnigraph.core.events import Warned, emit
from omnigraph.maintenance.cleanup_marks import LOOKS_MAX, Marker, Marks
from omnigraph.maintenance.cleanup_plan import CleanupPlan, Planner
from omnigraph.maintenance.cleanup_report import CleanedDataset, CleanupReport
from omnigraph.maintenance.cleanup_sweep import Sweep, noted_files
from omnigraph.maintenance.optimize import require_settled
from omnigraph.maintenance.stored_files import VERSIONS, StoredFiles, location_of, part_of
from omnigraph.recovery.drift import refuse_drift
from omnigraph.recovery.process_lock import FileLock, ObjectLock
from omnigraph.storage.layout import CLEANUP

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup_marks import Forgotten
    from omnigraph.maintenance.cleanup_plan import StagedLoads
    from omnigraph.maintenance.cleanup_report import Fate, Retention
    from omnigraph.recovery.process_lock import ProcessLock
    from omnigraph.storage.adapter import StoredObject

OTHERS: Final = "others"
"""The row of a report for objects beside the datasets."""


def cleanup(
    session: GraphSession,
    retention: Retention,
    loads: StagedLoads,
    *,
    dry_run: bool = False,
    cancel: Cancellation = NEVER,
) -> CleanupReport:
    """Remove what the retention lets go; in a dry run only say what that is.

    Raises `RecoveryRequired` for a pending write, `DriftError` for a drifted table, `ResourceBusy` while
    another cleanup is at work, and what the reading of a branch, tag or pin gave: then nothing was removed.
    One that was stopped is finished by the next one. Cost: a listing, an open for each state and version that
    stays, and one for each that goes while young files may be theirs. Writers wait for some hundred removals
    at a time.
    """
    if dry_run:
        if not session.read_only:
            refuse_unsettled(session)
        look = Look(session, retention, dry_run=dry_run)
        return report_of(retention, look.plan(loads), look.marks, dry_run=True)
    with only_cleanup(session):
        refuse_unsettled(session)
        look = Look(session, retention, dry_run=dry_run)
        plan = look.plan(loads)
        cancel.raise_if_requested()
        lift_bounds()  # the sweep stops at its own places only
        sweep = look.sweep(plan, loads, cancel)
    done = {
        name: fate if not fate.goes or name in sweep.removed else replace(fate, goes=False, why="left")
        for name, fate in plan.fates.items()
    }
    look.marks.failed |= sweep.failed
    return report_of(retention, replace(plan, fates=done), look.marks, dry_run=False)


def refuse_unsettled(session: GraphSession) -> None:
    """Raise while a write waits for recovery, or while a table is not where its branch shows it."""
    require_settled(session)
    # Alone: a table that a thread of this process is about to publish has not drifted.
    with session.lease.alone():
        refuse_drift(session.recovery, session.manifest.readable())


@contextmanager
def only_cleanup(session: GraphSession) -> Generator[None]:
    """Keep other cleanups away. Raises `ResourceBusy` while one is at work."""
    name = f"{CLEANUP}.lock"
    lock: ProcessLock
    if session.root.is_local:
        lock = FileLock(session.root.local_path(name))
    else:
        lock = ObjectLock(session.adapter, name, session.clock)
    held = lock.acquire(0.0)
    if held is None:
        raise ResourceBusy("another cleanup of this graph is at work")
    try:
        yield
    finally:
        held.release()


class Look:
    """One look at a graph: what is there, and what of it stays."""

    def __init__(
        self,
        session: GraphSession,
        retention: Retention,
        *,
        dry_run: bool,
        forgotten: Forgotten | None = None,
    ) -> None:
        """`forgotten`: as in `Marker`."""
        self._session = session
        self.now_us = session.clock.now_us()
        # The listing comes first: what appears after it is in no plan.
        self.stored: Mapping[str, StoredObject] = session.adapter.stored()
        if not dry_run:
            _complete_commits(session)
        self.marker = Marker(session, retention, StoredFiles(self.stored), forgotten)
        self.marks = self.marker.mark(self.now_us)

    def plan(self, loads: StagedLoads) -> CleanupPlan:
        """What goes of it."""
        self._warn_of_clock()
        noted = noted_files(self._session)
        planner = Planner(self._session, self.stored, self.marks, loads, noted=noted, now_us=self.now_us)
        return planner.plan(self.marker)

    def sweep(self, plan: CleanupPlan, loads: StagedLoads, cancel: Cancellation) -> Sweep:
        """Remove what goes. The caller keeps other cleanups away."""
        sweep = Sweep(self._session, self.marker, self.marks, plan, loads, now_us=self.now_us, cancel=cancel)
        sweep.run()
        return sweep

    def _warn_of_clock(self) -> None:
        ahead = [name for name, found in self.stored.items() if found.modified_us > self.now_us + _SKEW_US]
        if ahead:
            emit(
                Warned(
                    "the clock of this machine is behind the times of files; what is not referenced stays",
                    f"{len(ahead)} files, such as {min(ahead)}",
                )
            )


def _complete_commits(session: GraphSession) -> None:
    """A state goes only if its commit is known without it. A branch may be deleted beside this."""
    for _ in range(LOOKS_MAX):
        with suppress(BranchNotFound):
            return session.commits.complete()
    return session.commits.complete()


_SKEW_US: Final = 60 * 1_000_000


def report_of(retention: Retention, plan: CleanupPlan, marks: Marks, *, dry_run: bool) -> CleanupReport:
    """What a plan says, by dataset and by object."""
    names = {entry.location: key for shown in marks.heads.values() for key, entry in shown.entries.items()}
    going: dict[str, list[Fate]] = defaultdict(list)
    for location in (*names, *marks.failed):
        going[location] = []
    for fate in plan.fates.values():
        if fate.goes:
            going[location_of(fate.name) or OTHERS].append(fate)
    datasets = [
        CleanedDataset(
            name=names.get(location, location),
            files=len(fates),
            bytes=sum(each.bytes for each in fates),
            versions=sum(_is_version(each.name) for each in fates),
            error=str(marks.failed[location]) if location in marks.failed else None,
        )
        for location, fates in going.items()
    ]
    datasets.sort(key=lambda each: each.name)
    return CleanupReport(retention, dry_run, tuple(datasets), tuple(plan.fates.values()))


def _is_version(name: str) -> bool:
    part = part_of(name)
    return part is not None and part.kind == VERSIONS and name.endswith(".manifest")
