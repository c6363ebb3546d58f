"""What a commit needs, written while its tables are still being staged."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from omnigraph.engine.session import GraphSession
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
        self._sidecar = sidecar
        self._rows: Future[PreparedPublish] | None = session.submit(prepare)
        self._note = session.submit(session.sidecars.prepare, sidecar)
        self._placed = False

    def place(self) -> PreparedPublish | None:
        """Phase A: give the sidecar its name, durably. When this raises, no table may be moved."""
        try:
            note = self._note.result()
        except Exception:  # noqa: BLE001
            # Tried again in the ordinary way, which fails with the right error if it must.
            self._session.sidecars.write(self._sidecar)
        else:
            self._session.sidecars.write_prepared(self._sidecar, note)
        self._placed = True
        prepared, self._rows = self._prepared(), None
        return prepared

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
