"""The branch a load goes to. A missing one is made from the base, and only when everything is proven.

Until then the load is planned, staged and checked against the state of the base that the branch will show. So
a load that is refused, or dies on the way, leaves no branch. Only a death between the making and Phase A
does: it shows the base, and the same load goes on with it.
"""

from dataclasses import replace

from omnigraph.core.bounds import lift_bounds
from omnigraph.core.errors import BranchExists, OmnigraphError, ReadSetConflict, SnapshotNotFound
from omnigraph.core.events import Warned, emit
from omnigraph.core.ids import Branch, normalize_branch, show_branch
from omnigraph.engine.session import GraphSession
from omnigraph.engine.write.ground import ReadSetMoved
from omnigraph.manifest.branches import BranchStore
from omnigraph.manifest.state import Snapshot


class TargetBranch:
    """The branch of one load, whether it exists already or not."""

    def __init__(self, session: GraphSession, branch: Branch, base: str | None) -> None:
        self._session = session
        self._branch = branch
        self._base = base
        self._missing = False
        self._made: tuple[str, Snapshot] | None = None
        """What this load made: the identity of the branch, and what it showed at first."""

    @property
    def made(self) -> bool:
        """Whether this load made the branch."""
        return self._made is not None

    def snapshot(self) -> Snapshot:
        """What the branch shows, or will show once it is made.

        Raises BranchNotFound without a base, and what is wrong with the name of a branch that must be made.
        """
        manifest, branch = self._session.manifest, self._branch
        self._missing = not manifest.branch_exists(branch)
        if not self._missing:
            return manifest.current(branch)
        if self._base is None or branch is None:
            raise manifest.unknown_branch(show_branch(branch))
        BranchStore(manifest).refuse_taken(branch)
        return replace(manifest.current(normalize_branch(self._base)), branch=branch)

    def make(self, snapshot: Snapshot) -> None:
        """Make the branch where it is missing, to show `snapshot`, however far the base has moved since.

        Raises ReadSetMoved when another writer made it first, or when that state of the base is gone.
        """
        session, branch = self._session, self._branch
        if not self._missing or branch is None:
            return
        base = None if self._base is None else normalize_branch(self._base)
        try:
            with session.lease.hold() as hold:
                made = BranchStore(session.manifest).create(branch, base, at=snapshot, fence=hold.check)
                self._made = (session.branch_identity(branch), made)
        except (BranchExists, SnapshotNotFound) as error:
            raise ReadSetMoved(ReadSetConflict("branch", message=error.message)) from error
        self._missing = False

    def take_back(self) -> None:
        """Remove the branch this load made, unless somebody has used it since. Never fails the caller."""
        session, branch = self._session, self._branch
        if self._made is None or branch is None:
            return
        lift_bounds()
        identity, shown = self._made
        queues = [(key, branch) for key in shown.entries]
        try:
            with session.queues.acquire_many(queues), session.lease.hold() as hold:
                # A pending write of a dead process may be on this branch; recovery needs it then.
                if session.manifest.branch_exists(branch) and not session.sidecars.list():
                    head = session.manifest.head(branch)
                    if (head.token, head.version) == (identity, shown.manifest_version):
                        session.manifest.delete_branch(branch, hold.check)
                        self._made = None
        except OmnigraphError as error:
            emit(Warned(f"the branch '{branch}' that a failed load made is still there", error.message))
