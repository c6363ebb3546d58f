"""`__clone.json`: which graph a clone was made from, and how far the last run of it came.

A clone is a graph once its schema source exists, which is written last of all. So whoever misses that source,
or the manifest, asks here why.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum

from omnigraph.core.clock import boot_id
from omnigraph.core.errors import CloneTarget, CloneUnfinished
from omnigraph.core.formats import CLONE_FORMAT
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.layout import CLONE
from omnigraph.storage.objects import StorageAdapter


class ClonePhase(StrEnum):
    """How far a run came."""

    COPYING = "copying"
    """Files are copied that nothing points at yet; a former clone still shows its state."""
    PUBLISHING = "publishing"
    """What points at the files is copied; there is no graph until that is complete."""
    COMPLETE = "complete"
    """The last run ended."""


@dataclass(frozen=True, slots=True)
class CloneMarker:
    """The content of the marker."""

    origin: str
    """The first commit of the graph: it tells a graph from every other one, wherever its copies lie."""
    source: str
    """Where the graph was when it was cloned last."""
    phase: ClonePhase
    boot: str | None
    """Which run of the machine copied: files it had not synced may be anything after the next."""
    branches: Mapping[str, str]
    """The branches that came from the source, each with its incarnation."""

    def to_text(self) -> str:
        """The stored form."""
        return json.dumps({"format": CLONE_FORMAT, **asdict(self)})

    @property
    def was_cut_off(self) -> bool:
        """Whether the machine may have lost what the last run wrote."""
        return self.phase is not ClonePhase.COMPLETE and (self.boot is None or self.boot != boot_id())


def read_marker(adapter: StorageAdapter) -> CloneMarker | None:
    """The marker of a place; None when no clone was begun there.

    Raises CloneTarget for one that is damaged or of a newer program.
    """
    text = adapter.read_text_if_exists(CLONE)
    if text is None:
        return None
    try:
        value = json.loads(text)
        if value.pop("format") == CLONE_FORMAT:
            return CloneMarker(
                str(value["origin"]),
                str(value["source"]),
                ClonePhase(value["phase"]),
                value["boot"],
                dict(value["branches"]),
            )
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    raise CloneTarget(adapter.uri, f"its '{CLONE}' is not one that this program wrote")


def refuse_unfinished_clone(adapter: StorageAdapter) -> None:
    """Raise CloneUnfinished where a clone was begun: for a place that should be a graph and is not one."""
    marker = read_marker(adapter)
    if marker is not None:
        raise CloneUnfinished(adapter.uri, marker.source)
