"""The upkeep of a graph: indexes and the layout of tables. Part of `Graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.branches import writable_branch
from omnigraph.api.bulk import SparkWhenLarge
from omnigraph.api.exports import Exports
from omnigraph.core.bounds import current_bounds
from omnigraph.core.permission import Action, Question
from omnigraph.engine.write.entering import entering_write
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from omnigraph.core.bounds import CallLimits
    from omnigraph.core.ids import Branch
    from omnigraph.maintenance.cleanup_report import CleanupReport
    from omnigraph.maintenance.erase_report import EraseReceipt
    from omnigraph.maintenance.index_report import IndexesReport
    from omnigraph.maintenance.indices import IndexesEnsured
    from omnigraph.maintenance.optimize import OptimizeReport
    from omnigraph.maintenance.repair import RepairReport
    from omnigraph.maintenance.stats import StatsReport
    from omnigraph.planning.keys import EntityKey


_UPKEEP: Final = Question(Action.ADMIN)


@text_checked_methods
class Upkeep(Exports):
    """The methods of `Graph` that keep it fast and change no row."""

    def ensure_indices(
        self, *, branch: str = "main", actor: str | None = None, **_limits: Unpack[CallLimits]
    ) -> IndexesEnsured:
        """Build the declared indexes that do not exist yet, in one commit; nothing when all exist."""
        from omnigraph.maintenance.indices import BUILD, ensure_indices  # noqa: PLC0415  a reader never needs it

        target = writable_branch(branch)
        with WriteCourse(BUILD) as course:
            entering_write(self._session, actor, _UPKEEP, heal=False)
            return ensure_indices(self._session, target, actor=actor, course=course)

    def optimize(
        self,
        *,
        branch: str = "main",
        types: Sequence[str] | None = None,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> OptimizeReport:
        """Write small fragments as few, drop deleted rows from the files, and bring every index up to date.

        ```python
        report = graph.optimize()
        ```

        No row changes, and one commit shows all of it; a second call finds nothing to do. Writes go on beside
        it: they wait for the commit only, and what they write meanwhile stays. `types` limits it to some
        types. The light form of this runs after writes by itself; this one also rewrites what is large, on
        Spark above the bounds for one process. Raises `TypeNotFound`, and `ResourceBusy` when others rewrote
        the same tables again and again.
        """
        from omnigraph.maintenance.optimize import OPTIMIZING, optimize  # noqa: PLC0415  a reader never needs it

        target = writable_branch(branch)
        with WriteCourse(OPTIMIZING) as course:
            entering_write(self._session, actor, _UPKEEP)
            bulk = SparkWhenLarge("optimize")
            return optimize(self._session, target, types=types, actor=actor, course=course, bulk=bulk)

    def repair(
        self,
        *,
        branch: str = "main",
        confirm: bool = False,
        force: bool = False,
        restore: bool = False,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> RepairReport:
        """Look at tables that somebody moved without publishing, and with `confirm` put them in order.

        ```python
        report = graph.repair()
        ```

        Nothing is changed without `confirm`. Confirmed, what only rewrote rows as they were is published;
        `force` publishes everything else as well, `restore` gives those tables back what the branch shows.
        Raises `BadRequest`, and `RecoveryRequired` while an interrupted write waits for an open.
        """
        from omnigraph.maintenance.repair import REPAIRING, repair  # noqa: PLC0415  a reader never needs it

        target = writable_branch(branch)
        with WriteCourse(REPAIRING) as course:
            entering_write(self._session, actor, _UPKEEP)
            return repair(self._session, target, confirm=confirm, force=force, restore=restore, course=course)

    def cleanup(
        self,
        *,
        keep: int | None = None,
        older_than: timedelta | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> CleanupReport:
        """Remove states that nobody wants any more, and every file that only they are read from.

        ```python
        report = graph.cleanup(keep=3, older_than=timedelta(days=7), dry_run=True)
        ```

        Every branch keeps its newest `keep` states, and those it showed within the time `older_than`; with
        both given a state goes only if both let it. Heads, tags, what merges are based on and what is being
        cloned always stay. So do files that nothing names while they are young: they may belong to a write
        under way. Raises `BadRequest` without a bound, `RecoveryRequired` while an interrupted write waits,
        `DriftError`, and `StoragePermanent` when a branch cannot be read: then nothing is removed.
        """
        from omnigraph.maintenance.cleanup import cleanup  # noqa: PLC0415  a reader never needs it
        from omnigraph.maintenance.cleanup_report import Retention  # noqa: PLC0415
        from omnigraph.pipeline.load.abandoned import JournaledLoads  # noqa: PLC0415

        age = None if older_than is None else int(older_than.total_seconds())
        retention = Retention(keep, age)
        self._session.check_open()
        if not dry_run or not self._session.read_only:
            entering_write(self._session, actor, _UPKEEP)
        return cleanup(
            self._session,
            retention,
            JournaledLoads(self._session),
            dry_run=dry_run,
            cancel=current_bounds().cancel,
        )

    def erase(
        self,
        type_name: str,
        entity_id: EntityKey,
        *,
        tags: bool = False,
        dry_run: bool = False,
        actor: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> EraseReceipt:
        """Forget an entity: on every branch, in every older state, and in every file of the graph.

        ```python
        receipt = graph.erase("Person", "ada", dry_run=True)
        ```

        Its edges go with it. The files that held it are written anew, and so are the indexes of its tables;
        the older states of these tables can be read no more. A tag that names one of them refuses it, unless
        `tags` lets such tags go. The receipt says what went, what was left and what lies outside the graph.
        Raises `TypeNotFound`, `EntityNotFound` when no file holds it, `SubjectTagged`, `ResourceBusy` while
        the graph is cloned or cleaned, and as `cleanup` does. Stopped, it is run again.
        """
        from omnigraph.maintenance.erase import ERASING, Erasure  # noqa: PLC0415  rarely used
        from omnigraph.pipeline.load.abandoned import JournaledLoads  # noqa: PLC0415

        session = self._session
        session.check_open()
        with WriteCourse(ERASING) as course:
            if not dry_run or not session.read_only:
                entering_write(session, actor, _UPKEEP)
            erasure = Erasure(
                session,
                JournaledLoads(session),
                current_bounds().cancel,
                actor=actor,
                tags=tags,
                course=course,
                bulk=SparkWhenLarge("erase"),
                merge=lambda source, target: self._merge_erased(source, target, actor),
            )
            return erasure.run(type_name, entity_id, dry_run=dry_run)

    def _merge_erased(self, source: Branch, target: Branch, actor: str | None) -> None:
        from omnigraph.branching.merge import branch_merge  # noqa: PLC0415  rarely used

        branch_merge(self._session, source=source, target=target, actor=actor, permitted=True)

    def indexes(
        self,
        *,
        branch: str | None = None,
        at: str | None = None,
        types: Sequence[str] | None = None,
        **_limits: Unpack[CallLimits],
    ) -> IndexesReport:
        """Which indexes are declared and built on which columns, what they cover, and what they take.

        ```python
        partial = [each for each in graph.indexes() if each.uncovered]
        ```

        At the head of a branch (`main` unless named), or at the commit or tag `at`. Cost: metadata only.
        Raises `TypeNotFound`.
        """
        from omnigraph.maintenance.index_report import index_report  # noqa: PLC0415  rarely used

        return index_report(self._session, self._state(branch, at), types)

    def stats(
        self, *, branch: str | None = None, at: str | None = None, **_limits: Unpack[CallLimits]
    ) -> StatsReport:
        """How many rows, bytes, fragments, versions and index segments each table has on each branch.

        ```python
        most = max(each.fragments for each in graph.stats(branch="main").branches[0].tables)
        ```

        Every branch unless one is named, or the state of the commit or tag `at`; and what the files of the
        whole graph take. Cost: one listing and metadata; no row is read.
        """
        from omnigraph.maintenance.stats import graph_stats  # noqa: PLC0415  rarely used

        if branch is None and at is None:
            self._session.begin_read()
            return graph_stats(self._session, list(self._session.manifest.readable().values()))
        return graph_stats(self._session, [self._state(branch, at)])
