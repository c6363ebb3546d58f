"""Files on their way to the device beside a write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from omnigraph.engine.session import GraphSession


class Syncs:
    """The syncs of one write. All of them are awaited before the publish.

    Threads that commit side by side may share it.
    """

    def __init__(self, session: GraphSession) -> None:
        self._session = session
        self._begun: set[str] = set()
        self._running: list[Future[None]] = []

    def start(self, paths: Sequence[str]) -> None:
        """Begin to sync what is not begun yet."""
        if new := self._new(paths):
            self._running.append(self._session.submit(self._session.make_durable, new))

    def finish(self, paths: Sequence[str]) -> None:
        """Sync these here, and return once everything begun is on the device."""
        self._session.make_durable(self._new(paths))
        for running in self._running:
            running.result()

    def _new(self, paths: Sequence[str]) -> list[str]:
        if not self._session.syncs:
            return []
        new = [path for path in paths if path not in self._begun]
        self._begun.update(new)
        return new
