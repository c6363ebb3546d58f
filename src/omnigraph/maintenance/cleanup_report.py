"""What a cleanup is asked for, and what it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from omnigraph.core import html
from omnigraph.core.errors import BadRequest

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Which states of each branch stay. With both bounds a state goes only if both let it."""

    keep: int | None = None
    """The newest states of each branch; None: as many as the other bound keeps."""
    older_than_s: int | None = None
    """Seconds since a branch last showed the state."""

    def __post_init__(self) -> None:
        if self.keep is None and self.older_than_s is None:
            raise BadRequest(
                "nothing says what may go", hint="give a number of states to keep, an age, or both"
            )
        if self.keep is not None and self.keep < 1:
            raise BadRequest(f"at least one state of each branch is kept, not {self.keep}")
        if self.older_than_s is not None and self.older_than_s < 0:
            raise BadRequest(f"an age is not negative: {self.older_than_s}")

    def keeps(self, place: int) -> bool:
        """Whether a state stays by its place among those of its branch; 0 is the newest."""
        return self.keep is not None and place < self.keep

    def was_shown_lately(self, until_us: int | None, now_us: int) -> bool:
        """Whether a state stays by the time until which its branch showed it; None: nobody knows it."""
        if self.older_than_s is None:
            return False
        return until_us is None or now_us - until_us < self.older_than_s * _SECOND_US


@dataclass(frozen=True, slots=True)
class Fate:
    """One object of the graph: its bytes, whether it goes, and why."""

    name: str
    bytes: int
    goes: bool
    why: str

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"name": self.name, "bytes": self.bytes, "goes": self.goes, "why": self.why}


@dataclass(frozen=True, slots=True)
class CleanedDataset:
    """What goes of one dataset: a table, or one of the graph's own."""

    name: str
    """The key of a type such as `node:Person`; else the name of the directory."""
    files: int
    bytes: int
    versions: int
    error: str | None = None
    """Why nothing more of it was removed; the others were."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "type_key": self.name,
            "files_removed": self.files,
            "bytes_removed": self.bytes,
            "old_versions_removed": self.versions,
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class CleanupReport(html.Shown):
    """What a cleanup removed or, in a dry run, would remove."""

    retention: Retention
    dry_run: bool
    datasets: tuple[CleanedDataset, ...]
    fates: tuple[Fate, ...]
    """Every object that was there when it began."""

    @property
    def removed(self) -> tuple[Fate, ...]:
        """The objects that went, or would go."""
        return tuple(each for each in self.fates if each.goes)

    @property
    def failed(self) -> bool:
        """Whether something of a dataset had to stay because of a failure."""
        return any(each.error is not None for each in self.datasets)

    def to_dict(self, *, files: bool = False) -> dict[str, Any]:
        """The JSON form; with `files` every object is in it."""
        removed = self.removed
        document: dict[str, Any] = {
            "keep_versions": self.retention.keep,
            "older_than_secs": self.retention.older_than_s,
            "dry_run": self.dry_run,
            "files_removed": len(removed),
            "bytes_removed": sum(each.bytes for each in removed),
            "files_kept": len(self.fates) - len(removed),
            "datasets": [each.to_dict() for each in self.datasets],
        }
        if files:
            document["files"] = [each.to_dict() for each in self.fates]
        return document

    def _shown(self) -> html.Pieces:
        removed = self.removed
        about = {
            "dry run": self.dry_run,
            "files removed": len(removed),
            "bytes removed": sum(each.bytes for each in removed),
        }
        rows = [
            (each.name, each.versions, each.files, each.bytes, each.error or "") for each in self.datasets
        ]
        return html.facts("cleanup", about) + html.table(
            ("table", "versions", "files", "bytes", "error"), rows
        )
