"""What a commit needs, written while its tables are still being staged."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from omnigraph.engine.write.records import announced_changes, commit_record, is_announceable, sidecar_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from omnigraph.core.ids import TableKey
    from omnigraph.engine.session import GraphSession
    from omnigraph.engine.write.ground import Ground
    from omnigraph.engine.write.parts import WriteIntent
    from omnigraph.engine.write.records import Announced
    from omnigraph.manifest.publisher import PreparedPublish
    from omnigraph.recovery.sidecar import Sidecar


class Ahead:
    """A sidecar that has no name yet and rows of a publish that nobody points at.

    Both guess that the branch will not move before the write holds its queues; a wrong guess costs two small
    files. Whoever makes one calls `discard` in the end, used or not. One owner, one thread.
    """

    def __init__(
        self, session: GraphSession, sidecar: Sidecar, prepare: Callable[[], PreparedPublish]
    ) -> None:
        self._session = session
        self.sidecar = sidecar
        self._rows: Future[PreparedPublish] | None = session.submit(prepare)
        self._note = session.submit(session.sidecars.prepare, sidecar)
        self._placed = False

    def rows(self) -> PreparedPublish | None:
        """The rows of the publish, as soon as they are written; None when they could not be."""
        return self._prepared()

    def place(self) -> None:
        """Phase A: give the sidecar its name, durably. When this raises, no table may be moved.

        Afterwards the rows belong to the caller.
        """
        try:
            note = self._note.result()
        except Exception:  # noqa: BLE001
            # Tried again in the ordinary way, which fails with the right error if it must.
            self._session.sidecars.write(self.sidecar)
        else:
            self._session.sidecars.write_prepared(self.sidecar, note)
        self._placed = True
        self._rows = None

    def discard(self) -> None:
        """Remove what was not used."""
        if not self._placed:
            # Whatever was wrong with it: a text without a name harms nobody.
            with suppress(Exception):
                self._session.sidecars.discard_prepared(self._note.result())
        prepared = self._prepared()
        if prepared is not None:
            self._session.publisher.discard(prepared)
            self._rows = None

    def _prepared(self) -> PreparedPublish | None:
        if self._rows is None:
            return None
        try:
            return self._rows.result()
        except Exception:  # noqa: BLE001  the publish itself will meet the same trouble, or none
            return None


def begin_ahead(
    session: GraphSession, intent: WriteIntent, ground: Ground, planned: Mapping[TableKey, Announced]
) -> Ahead | None:
    """Begin to write the sidecar and the rows of the publish beside the staging, if that looks worthwhile.

    Not when the last write of this handle met another writer, or one is at work on the branch now: its
    publish would make the rows useless. Those of other branches publish elsewhere.
    """
    if session.disturbed or not planned:
        return None
    if any(branch == ground.branch for _, branch in session.queues.held_keys()):
        return None
    if not is_announceable(ground.branch, planned.values()):
        return None
    snapshot = ground.snapshot
    expected = {key: snapshot.pin(key) for key in {*planned, *ground.reads}}
    record = commit_record(intent, snapshot.head)

    def prepare() -> PreparedPublish:
        changes = announced_changes(planned.values())
        return session.publisher.prepare(ground.branch, changes, expected, record)

    entries = {key: table.entry for key, table in planned.items()}
    return Ahead(session, sidecar_of(session.clock, intent, ground, entries, {}), prepare)
