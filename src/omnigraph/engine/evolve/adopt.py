"""A branch adopts the schema of the graph: generation by generation, each as a commit of upkeep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omnigraph.catalog.table_changes import catalog_change
from omnigraph.core.bounds import unbounded
from omnigraph.core.errors import ConflictError, ExpectedVersionMismatch, ReadSetConflict
from omnigraph.core.failpoints import Window
from omnigraph.core.ids import CommitId, OperationId, TableKey, new_ulid, show_branch
from omnigraph.engine.evolve.tables import reshape, table_writes
from omnigraph.engine.readable import first_entry
from omnigraph.engine.write.ground import Ground, WhenMoved
from omnigraph.engine.write.parts import Switch, Windows, WriteIntent
from omnigraph.engine.write.protocol import Staged, carry
from omnigraph.manifest.commit_record import ADOPT_OPERATION
from omnigraph.recovery.outcome import WriteCourse
from omnigraph.recovery.sidecar import WriterKind

if TYPE_CHECKING:
    from omnigraph.core.ids import Branch
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot

ATTEMPTS: Final = 5
"""How often a generation is tried while others write to the branch."""
WINDOWS: Final = Windows(
    post_sidecar=Window.SCHEMA_ADOPT_POST_SIDECAR_PRE_COMMIT,
    pre_publish=Window.SCHEMA_ADOPT_POST_COMMIT_PRE_PUBLISH,
)


def adopt_schema(session: GraphSession, branch: Branch, wanted: str | None = None) -> None:
    """Bring a branch to the accepted schema, or to the one with the hash `wanted`, before it is written to.

    The branch shows the same rows afterwards: added properties are null, added types empty. Each generation
    is a commit of its own. Nothing to do costs nothing. Raises `ConflictError` when the branch follows a
    schema that does not lead there.
    """
    snapshot = session.manifest.current(branch)
    target = session.schemas.latest().hash if wanted is None else wanted
    if branch is None or snapshot.schema_hash == target:
        return
    for each in reversed(_line(session, snapshot, target)):
        _adopt_or_find(session, branch, each)


def _adopt_or_find(session: GraphSession, branch: Branch, schema_hash: str) -> None:
    """One generation. Another writer may have done it first, or moved a table: then it is tried again."""
    for attempt in range(1, ATTEMPTS + 1):
        snapshot = session.manifest.current(branch)
        if session.catalog_of(snapshot).generation >= session.schemas.catalog(schema_hash).generation:
            return
        try:
            _adopt(session, snapshot, schema_hash)
        except (ExpectedVersionMismatch, ReadSetConflict):
            if attempt == ATTEMPTS:
                raise
        else:
            return


def _line(session: GraphSession, snapshot: Snapshot, target: str) -> list[str]:
    """The schemas that follow the branch's own, newest first."""
    line: list[str] = []
    each: str | None = target
    while each is not None and each != snapshot.schema_hash:
        line.append(each)
        each = session.schemas.catalog(each).parent
    if each is None:
        raise ConflictError(
            f"{show_branch(snapshot.branch)} follows a schema that the accepted one does not descend from",
            hint="export the branch and load it into a new one",
        )
    return line


def _adopt(session: GraphSession, snapshot: Snapshot, schema_hash: str) -> None:
    own, catalog = session.catalog_of(snapshot), session.schemas.catalog(schema_hash)
    operation_id = OperationId(new_ulid())
    change = catalog_change(own, catalog)
    tables = table_writes(session, snapshot, change, operation_id)
    registered = session.manifest.current(None).registrations
    added = [TableKey(each.table_key) for each in change.added]
    staged = Staged(
        WriteIntent(
            kind=WriterKind.SCHEMA_APPLY,
            operation=ADOPT_OPERATION,
            operation_id=operation_id,
            commit_id=CommitId(new_ulid()),
            schema_hash=schema_hash,
        ),
        Ground(snapshot, session.branch_identity(snapshot.branch), WhenMoved.REFUSE),
        WriteCourse("the adoption of the schema"),
        tables,
        switches={key: Switch(first_entry(session, key, registered[key])) for key in added},
        windows=WINDOWS,
        reshape=reshape(session, snapshot, change, operation_id, makes_added=False),
    )
    with unbounded():  # the call that meets the old schema goes on within its own
        carry(session, staged)
