"""Which versions of each table are worth keeping open."""

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

from omnigraph.core.limits import VERSIONS_KEPT_MAX

Version = TypeVar("Version", bound=Hashable)


class VersionsKept(Generic[Version]):
    """The versions of each table that were opened last. Not thread-safe.

    An open version describes every fragment: keeping them all would cost a writer the square of its commits.
    """

    def __init__(self) -> None:
        self._of: dict[Hashable, deque[Version]] = {}

    def leaving(self, table: Hashable, version: Version) -> Version | None:
        """Note that a version was opened; gives the one that has to leave for it, if any."""
        recent = self._of.setdefault(table, deque())
        if version in recent:
            return None
        recent.append(version)
        return recent.popleft() if len(recent) > VERSIONS_KEPT_MAX else None
