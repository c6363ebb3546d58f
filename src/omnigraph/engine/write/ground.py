"""What a write was prepared on, and whether that still holds once nobody can come between."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from omnigraph.core.errors import ExpectedVersionMismatch, PreconditionFailed, ReadSetConflict
from omnigraph.core.ids import show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.manifest.migrations import refuse_newer_format
from omnigraph.recovery.drift import drift_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from omnigraph.core.ids import Branch, TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.parts import Switch, TableWrite, WriteIntent
    from omnigraph.manifest.commit_record import RequestKey
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.manifest.store import Head
    from omnigraph.recovery.queues import QueueKey


class ReadSetMoved(Exception):  # noqa: N818  control flow between the commit and the loop that owns the attempt
    """A write depends on something that moved; nothing has happened and the whole write may run again."""

    def __init__(self, cause: ExpectedVersionMismatch | ReadSetConflict) -> None:
        super().__init__(cause.message)
        self.cause = cause

    def given_up(self, attempts: int) -> ExpectedVersionMismatch | ReadSetConflict:
        """What the caller gets when the last of these attempts was lost as well."""
        self.cause.details["attempts"] = attempts
        self.cause.hint = (
            f"the write was prepared {attempts} times and something it reads was changed every time;"
            " send it again when less is written"
        )
        return self.cause


class WhenMoved(StrEnum):
    """What becomes of a write when a table it depends on shows another version than it was prepared on."""

    REFUSE = "refuse"
    """It fails with `ExpectedVersionMismatch`."""
    REFUSE_OTHER_ROWS = "refuse_other_rows"
    """It fails, unless upkeep alone moved the table: what was read still holds, only not where it was."""
    PREPARE_AGAIN = "prepare_again"
    """`ReadSetMoved` tells its owner to run all of it again."""


@dataclass(frozen=True, slots=True)
class Ground:
    """The state a write was prepared on. The write lands only where this still holds."""

    snapshot: Snapshot
    branch_identity: str
    """What tells the branch from a later one of the same name."""
    when_moved: WhenMoved
    reads: frozenset[TableKey] = frozenset()
    """Tables whose rows decided about the write; it may write them as well."""
    restage: Callable[[TableWrite, TableEntry], TableWrite | None] | None = None
    """Takes a table that is only written to a newer pin, or leaves it out; None: `when_moved` decides about
    those as well.
    """

    @property
    def branch(self) -> Branch:
        """The graph branch the write publishes to."""
        return self.snapshot.branch


def queue_keys(branch: Branch, tables: Iterable[TableKey]) -> list[QueueKey]:
    """The queues a write holds from before its last look at the pins until its sidecar is gone.

    The tables it only read belong to them: if one could move after the check and before the publish, the
    publish would refuse a write whose tables have moved already. The lease keeps other processes out in the
    same way. A writer that dies lets both go, so its sidecar names what it read, for recovery to compare.
    """
    return [(key, branch) for key in sorted(set(tables))]


def check_authority(
    session: GraphSession, ground: Ground, head: Head, intent: WriteIntent, what: str
) -> None:
    """Refuse a write whose ground is gone: the format, the caller's condition, the branch, the schema."""
    current = head.snapshot
    # Again, now that nothing can come between: no table may move for a publish that will be refused.
    refuse_newer_format(head.stamp)
    if not intent.changes_accepted_schema(ground.branch):
        session.manifest.refuse_during_schema_apply()
    if_commit = intent.if_commit
    if if_commit is not None and not session.commits.shows_rows_of(current.commit, if_commit):
        raise PreconditionFailed(expected=if_commit, actual=current.head)
    if (head.token or "") != ground.branch_identity:
        raise ReadSetConflict(
            "branch",
            message=f"{show_branch(ground.branch)} was created anew while {what} was prepared;"
            " re-read and retry",
        )
    if current.schema_hash != ground.snapshot.schema_hash:
        raise ReadSetConflict(
            "schema", message=f"the schema changed while {what} was prepared; re-read and retry"
        )


def check_keys(session: GraphSession, ground: Ground, current: Snapshot, keys: Iterable[RequestKey]) -> None:
    """Refuse a write whose request another one has carried out since it was prepared; it is prepared again
    and answered by that commit.
    """
    if current is ground.snapshot:
        return
    for each in keys:
        if session.request_keys.find(current, each.actor, each.key) is not None:
            message = f"a request with the idempotency key '{each.key}' landed meanwhile"
            raise ReadSetMoved(ReadSetConflict("idempotency_key", message=message))


def check_pins(session: GraphSession, ground: Ground, current: Snapshot, touched: Iterable[TableKey]) -> None:
    """Compare every table the write touches with what it was prepared on; the first in key order decides."""
    for key in sorted(touched):
        seen, pin = ground.snapshot.pin(key), current.pin(key)
        if seen == pin or (ground.restage is not None and key not in ground.reads):
            continue
        mismatch = ExpectedVersionMismatch(table_key=key, expected=seen, actual=pin)
        match ground.when_moved:
            case WhenMoved.REFUSE:
                raise mismatch
            case WhenMoved.REFUSE_OTHER_ROWS:
                if not session.commits.shows_rows_of(current.commit, ground.snapshot.head):
                    raise mismatch
                raise ReadSetMoved(mismatch)
            case WhenMoved.PREPARE_AGAIN:
                raise ReadSetMoved(mismatch)
            case _:
                assert_never(ground.when_moved)


def check_switches(session: GraphSession, switches: Mapping[TableKey, Switch]) -> None:
    """Refuse to show a version that a cleanup removed since the write was prepared: nobody showed it then."""
    for key, switch in sorted(switches.items()):
        entry = switch.entry
        if not session.storage.has_version(entry.location, entry.branch, entry.version):
            raise ReadSetConflict(
                "source",
                message=f"version {entry.version} of '{key}' was removed by a cleanup meanwhile;"
                " re-read and retry",
            )


def settled_on(
    session: GraphSession, ground: Ground, current: Snapshot, tables: Mapping[TableKey, TableWrite]
) -> dict[TableKey, TableWrite]:
    """The written tables against the pins of now. Raises when the HEAD of one is not its pin."""
    settled: dict[TableKey, TableWrite] = {}
    for key in sorted(tables):
        table = tables[key]
        entry = current.entries.get(key)
        if entry is None:
            raise ReadSetConflict("schema", message=f"'{key}' is not a table of this branch any more")
        drift_guard(session.recovery, entry, ground.branch)
        moved: TableWrite | None = table
        if ground.restage is not None and entry.version != table.entry.version:
            moved = ground.restage(table, entry)
        if moved is not None:
            settled[key] = moved
    if tables and not settled:
        raise ReadSetMoved(ReadSetConflict("tables", message="others rewrote every table of this write"))
    return settled
