"""What no state may show any more goes: older states, the files that only they need, and caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from omnigraph.engine.tables.cache_work import BACKGROUND
from omnigraph.maintenance.cleanup import Look
from omnigraph.maintenance.cleanup_report import Retention

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup_marks import Forgotten
    from omnigraph.maintenance.cleanup_plan import CleanupPlan, StagedLoads

EVERYTHING: Final = Retention(keep=2**62)
"""Age takes nothing: what goes is what is forgotten."""


@dataclass(frozen=True, slots=True)
class Forgetting:
    """What one sweep removed."""

    look: Look
    plan: CleanupPlan
    removed: AbstractSet[str]

    @property
    def bytes(self) -> int:
        """The bytes of what was removed."""
        return sum(self.plan.fates[name].bytes for name in self.removed if name in self.plan.fates)


def reclaim_forgotten(
    session: GraphSession, forgotten: Forgotten, loads: StagedLoads, cancel: Cancellation
) -> Forgetting:
    """Remove the states that show what is forgotten, and every file that only they need.

    The caller keeps cleanups away. Raises as a cleanup does, and what stopped the sweep of a dataset.
    """
    look = Look(session, EVERYTHING, dry_run=False, forgotten=forgotten)
    plan = look.plan(loads)
    sweep = look.sweep(plan, loads, cancel)
    for error in sweep.failed.values():
        raise error
    return Forgetting(look, plan, sweep.removed)


def clear_caches(session: GraphSession) -> list[str]:
    """Remove every cache file, and what this process would write into one; the names of those that stay.

    They hold values of columns, too.
    """
    BACKGROUND.drain(session.root.identity)
    session.keys.forget(session.root.identity)
    return session.cache_files.clear()
