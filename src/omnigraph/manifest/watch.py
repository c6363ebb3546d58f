"""Whether the newest state of a branch is still the newest, told by a look at local files."""

import os
import time
from typing import Final

CLOCK_STEP_SECONDS_MAX: Final = 2.5
"""File times move in shorter steps on every known file system; the longest known step is two seconds."""


class Watch:
    """Whether a state of a branch is still the newest, told by probes of local files.

    Two probes tell it exactly: the file of the next version is absent, and the hint that every commit
    rewrites is the one that was seen. A watch is made where the state was found to be the newest; while it is
    at rest, so is the branch.

    Both files lie in one directory. Once the directory has been left alone for longer than a step of the file
    system's clock, the time of its last change tells as much as the two probes: every file that is made,
    replaced or removed there from then on changes it. Before that, two changes could have the same time.
    """

    __slots__ = ("_directory", "_hint", "_next", "_seen", "_settled", "_settling")

    def __init__(self, following: str, hint: str) -> None:
        self._next = following
        self._hint = hint
        self._directory = os.path.dirname(hint)  # noqa: PTH120 - a path object costs more than the call
        self._seen = _signs(hint)
        # A stamp is only ever compared, so threads may set these in any order.
        self._settling: tuple[int, int, float] | None = None
        """A stamp of the directory, and when it will be older than a step of the clock."""
        self._settled: tuple[int, int] | None = None
        """The stamp with which the two probes found the branch at rest, when it was old enough."""

    def is_seen_with(self, token: str | None) -> bool:
        """Whether the hint was the one of this token (`newest_hint`) when the watch was made."""
        seen = self._seen
        return seen is not None and token == f"{seen[0]}-{seen[1]}-{seen[2]}"

    def at_rest(self) -> bool:
        """Whether nothing has happened since. Cost: one probe, or three before the directory has settled."""
        try:
            found = os.stat(self._directory)  # noqa: PTH116
        except OSError:
            return False
        inode, changed = found.st_ino, found.st_mtime_ns
        settled = self._settled
        if settled is not None and settled[1] == changed and settled[0] == inode:
            return True
        if os.access(self._next, os.F_OK) or _signs(self._hint) != self._seen:
            return False
        # The stamp was read before the probes: a change that they missed has a later one.
        settling, now = self._settling, time.monotonic()
        if settling is None or settling[0] != inode or settling[1] != changed:
            self._settling = (inode, changed, now + CLOCK_STEP_SECONDS_MAX)
        elif now >= settling[2]:
            self._settled = (inode, changed)
        return True


def _signs(path: str) -> tuple[int, int, int] | None:
    """What tells one incarnation of a file from another; None when there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a path object costs more than the call
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
