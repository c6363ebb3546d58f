"""The upkeep of a graph: indexes and the layout of tables. Part of `Graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnigraph.api.arguments import text_checked_methods
from omnigraph.api.branches import writable_branch
from omnigraph.api.exports import Exports
from omnigraph.engine.write.entering import entering_write
from omnigraph.recovery.outcome import WriteCourse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.maintenance.indices import ColumnReport, IndexesEnsured
    from omnigraph.maintenance.optimize import OptimizeReport
    from omnigraph.maintenance.repair import RepairReport


@text_checked_methods
class Upkeep(Exports):
    """The methods of `Graph` that keep it fast and change no row."""

    def ensure_indices(self, *, branch: str = "main", actor: str | None = None) -> IndexesEnsured:
        """Build the declared indexes that do not exist yet, in one commit; nothing when all exist."""
        from omnigraph.maintenance.indices import BUILD, ensure_indices  # noqa: PLC0415  a reader never needs it

        target = writable_branch(branch)
        with WriteCourse(BUILD) as course:
            entering_write(self._session, actor, heal=False)
            return ensure_indices(self._session, target, actor=actor, course=course)

    def optimize(
        self, *, branch: str = "main", types: Sequence[str] | None = None, actor: str | None = None
    ) -> OptimizeReport:
        """Write small fragments as few, drop deleted rows from the files, and bring every index up to date.

        ```python
        report = graph.optimize()
        ```

        No row changes, and one commit shows all of it; a second call finds nothing to do. Writes go on beside
        it: they wait for the commit only. `types` limits it to some types. The light form of this runs after
        writes by itself; this one also rewrites what is large. Raises `TypeNotFound`, and `ResourceBusy` when
        other writers moved the tables again and again.
        """
        from omnigraph.maintenance.optimize import OPTIMIZING, optimize  # noqa: PLC0415  a reader never needs it

        target = writable_branch(branch)
        with WriteCourse(OPTIMIZING) as course:
            entering_write(self._session, actor)
            return optimize(self._session, target, types=types, actor=actor, course=course)

    def repair(
        self, *, branch: str = "main", confirm: bool = False, force: bool = False, restore: bool = False
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
            entering_write(self._session)
            return repair(self._session, target, confirm=confirm, force=force, restore=restore, course=course)

    def index_report(
        self, *, branch: str = "main", types: Sequence[str] | None = None
    ) -> tuple[ColumnReport, ...]:
        """Which indexes exist on which columns, and whether comparisons use them."""
        from omnigraph.maintenance.indices import index_report  # noqa: PLC0415  rarely used

        return index_report(self._session, self._state(branch, None), types)
