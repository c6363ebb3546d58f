"""Index work and folding after writes, when a table has gathered enough of it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from omnigraph.core.errors import ResourceBusy
from omnigraph.core.limits import BULK_INDEX_ROWS_MIN, UNCOVERED_FRAGMENTS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot, TableEntry

BULK_OPERATIONS: Final = frozenset({"load"})
BESIDE_OTHERS_EVERY: Final = 8
"""While other processes write as well, a table above the bound is tried again after this many writes."""
FOLLOWED_SHARE: Final = 4
"""Read structures of a table follow a load of less than one row in so many; after others they are made."""
FREE_QUEUE_WAIT_S: Final = 0.0
"""The reconciler takes a queue that is free and leaves a busy table to a later write."""


class Reconciler:
    """Builds and extends indexes and folds fragments after writes, when enough of a table is not covered.

    Below the bound a write costs one count of fragments. Thread-safe; one per process is enough.
    """

    def __init__(self, uncovered_max: int = UNCOVERED_FRAGMENTS_MAX, tables_kept_max: int = 4096) -> None:
        self._uncovered_max = uncovered_max
        self._tables_kept_max = tables_kept_max
        self._covered: OrderedDict[tuple[str, str, Branch], int] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(
        self, session: GraphSession, snapshot: Snapshot, tables: Sequence[TableKey], *, always: bool = False
    ) -> None:
        """Reconcile the tables a write touched, if that is worthwhile now.

        `always`: whatever the bound, and waiting for other writers. A merge that rewrote tables asks for it.
        """
        due = list(tables) if always else [key for key in tables if self._is_due(session, snapshot, key)]
        if not due:
            return
        # Most writes find nothing due, and never load what builds.
        from omnigraph.maintenance.indices import IndexWork, ensure_indices  # noqa: PLC0415

        wait_s_max = None if always else FREE_QUEUE_WAIT_S
        try:
            ensure_indices(
                session,
                snapshot.branch,
                tables=due,
                work=IndexWork.EXTENDED if always else IndexWork.FOLDED,
                queue_wait_s_max=wait_s_max,
            )
        except ResourceBusy:
            return  # another write of these tables is running, and it will ask again
        except Exception:
            # A build that fails is not tried at every write, but once the bound is reached anew.
            for entry in (snapshot.entries[key] for key in due):
                self._note(session, entry, session.open_entry(entry).fragment_count)
            raise
        current = session.manifest.current(snapshot.branch)
        written = [key for key in due if _is_mostly_loaded(snapshot, key)]
        if written:
            from omnigraph.maintenance.read_structures import make_ready  # noqa: PLC0415  as above

            make_ready(session, current, written)
        for key in due:
            if key in current.entries:
                self._look(session, current, key)

    def _is_due(self, session: GraphSession, snapshot: Snapshot, key: TableKey) -> bool:
        entry = snapshot.entries.get(key)
        if entry is None or entry.row_count == 0:
            return False
        if snapshot.branch is not None and entry.branch is None:
            return False
        if _rows_of_bulk_load(snapshot, key) >= BULK_INDEX_ROWS_MIN:
            return True
        place = (session.root.identity, entry.location, entry.branch)
        fragments = session.open_entry(entry).fragment_count
        with self._lock:
            known = self._covered.get(place, 0)
        if fragments - known < self._uncovered_max:
            return False
        excess = fragments - self._look(session, snapshot, key) - self._uncovered_max
        # Beside other processes, all of which count the same fragments, it is the affair of one: that whose
        # write reached the bound. Should it fail, that of another one, some writes later.
        return excess >= 0 and (not session.disturbed or excess % BESIDE_OTHERS_EVERY == 0)

    def _look(self, session: GraphSession, snapshot: Snapshot, key: TableKey) -> int:
        """How many fragments the least complete index covers; what cannot be covered counts as covered."""
        from omnigraph.maintenance.indices import is_buildable, kept_plans  # noqa: PLC0415  as above

        entry = snapshot.entries[key]
        handle = session.open_entry(entry)
        existing = {each.role: each for each in session.storage.index_coverage(handle)}
        covered = handle.fragment_count
        table_type = session.catalog_of(snapshot).type_of(key)
        for plan, there in kept_plans(session, table_type, handle.row_count, existing):
            count = 0 if there is None else len(there.covered)
            if count < covered and is_buildable(session, handle, plan, there):
                covered = count
        self._note(session, entry, covered)
        return covered

    def _note(self, session: GraphSession, entry: TableEntry, covered: int) -> None:
        place = (session.root.identity, entry.location, entry.branch)
        with self._lock:
            self._covered[place] = covered
            self._covered.move_to_end(place)
            while len(self._covered) > self._tables_kept_max:
                self._covered.popitem(last=False)


def _rows_of_bulk_load(snapshot: Snapshot, key: TableKey) -> int:
    commit = snapshot.commit
    return sum(commit.summary.get(key, {}).values()) if commit.operation in BULK_OPERATIONS else 0


def _is_mostly_loaded(snapshot: Snapshot, key: TableKey) -> bool:
    """Whether a load wrote so much of a table that following it costs as much as reading it."""
    return _rows_of_bulk_load(snapshot, key) * FOLLOWED_SHARE >= snapshot.entries[key].row_count


reconcile: Final = Reconciler()
"""The reconciler of this process."""
