"""How many states a long run has judged, part by part: a run that was cut off is taken up where it ended.

`OMNIGRAPH_TORTURE_TALLY` names the file that keeps the counts. A part that stands in it is not judged again.
"""

import json
import os
from pathlib import Path


class Tally:
    """The states of every part of one run; kept in a file where one is named."""

    def __init__(self, path: str | None = None) -> None:
        self._path = Path(path) if path else None
        self._counts: dict[str, int] = {}
        if self._path is not None and self._path.exists():
            for line in self._path.read_text().splitlines():
                self._counts.update(json.loads(line))

    def __str__(self) -> str:
        return f"{sum(self._counts.values())} states in {len(self._counts)} parts"

    def judged(self, part: str) -> int:
        """How many states of a part were judged, by this run or by one that it goes on from; 0 when none."""
        return self._counts.get(part, 0)

    def note(self, part: str, count: int) -> None:
        """All states of a part were judged, and none is broken."""
        self._counts[part] = count
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({part: count}) + "\n")


def from_environment() -> Tally:
    """The tally that the environment names, or one that ends with the process."""
    return Tally(os.environ.get("OMNIGRAPH_TORTURE_TALLY"))
