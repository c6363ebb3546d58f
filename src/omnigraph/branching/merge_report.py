"""What a merge did or would do, for people and programs, and the conflict list a person edits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from omnigraph.branching.delta_engine import LOCAL
from omnigraph.branching.merge_plan import RESOLVABLE, ConflictKind
from omnigraph.branching.merge_planning import MergeOutcome
from omnigraph.branching.settling import UNRESOLVED, Choice, Decision, Resolution
from omnigraph.core import html
from omnigraph.core.errors import BadRequest, IoFailure, PreconditionFailed
from omnigraph.core.formats import CONFLICT_LIST_FORMAT
from omnigraph.core.ids import show_branch
from omnigraph.manifest.commit_record import commit_dict

if TYPE_CHECKING:
    import os

    from omnigraph.branching.merge_plan import MergeConflict
    from omnigraph.branching.merge_planning import MergePlan
    from omnigraph.core.ids import CommitId
    from omnigraph.manifest.commit_record import CommitRecord

WHOLE_ENTITIES_FORMAT: Final = 1
"""Lists from before merges looked at properties: a choice stands for the whole entity."""
HTML_CONFLICTS_MAX: Final = 20
"""Conflicts a notebook lists; the rest is counted."""


@dataclass(frozen=True, slots=True)
class MergeReport(html.Shown):
    """A merge that happened, or had nothing to do."""

    source: str
    target: str
    outcome: MergeOutcome
    actor: str | None
    commit: CommitRecord | None
    stats: Mapping[str, Mapping[str, int]]
    engine: str = LOCAL

    @classmethod
    def of(cls, plan: MergePlan, actor: str | None, commit: CommitRecord | None) -> MergeReport:
        """The report of a plan that was carried out as `commit`."""
        return cls(
            show_branch(plan.source.branch),
            show_branch(plan.target.branch),
            plan.outcome,
            actor,
            commit,
            plan.summary,
            plan.engine,
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as the command line and the service show it."""
        return {
            "source": self.source,
            "target": self.target,
            "outcome": self.outcome.value,
            "actor_id": self.actor,
            "commit": None if self.commit is None else commit_dict(self.commit),
            "stats": {key: dict(counts) for key, counts in self.stats.items()},
            "engine": self.engine,
        }

    def _shown(self) -> html.Pieces:
        commit = None if self.commit is None else self.commit.id
        about = {"outcome": self.outcome.value, "commit": commit, "actor": self.actor}
        return html.facts(f"merge of {self.source} into {self.target}", about) + html.counts(self.stats)


@dataclass(frozen=True, slots=True)
class MergePreview(html.Shown):
    """What a merge would do and what stands against it."""

    source: str
    target: str
    outcome: MergeOutcome
    source_commit: CommitId
    target_commit: CommitId
    base_commit: CommitId
    stats: Mapping[str, Mapping[str, int]]
    conflicts: tuple[MergeConflict, ...]
    conflicts_total: int
    engine: str = LOCAL
    advice: str = ""
    """What can be done about the conflicts."""

    @classmethod
    def of(cls, plan: MergePlan) -> MergePreview:
        """The preview of a plan."""
        return cls(
            show_branch(plan.source.branch),
            show_branch(plan.target.branch),
            MergeOutcome.CONFLICTS if plan.conflicts else plan.outcome,
            plan.source.head,
            plan.target.head,
            plan.base.head,
            plan.summary,
            plan.conflicts,
            plan.conflicts_total,
            plan.engine,
            plan.advice,
        )

    def to_dict(self) -> dict[str, Any]:
        """The preview as the command line and the service show it."""
        return {
            "source": self.source,
            "target": self.target,
            "outcome": self.outcome.value,
            "source_commit": self.source_commit,
            "target_commit": self.target_commit,
            "base_commit": self.base_commit,
            "stats": {key: dict(counts) for key, counts in self.stats.items()},
            "merge_conflicts": [each.to_dict() for each in self.conflicts],
            "merge_conflicts_total": self.conflicts_total,
            "engine": self.engine,
            **({"hint": self.advice} if self.advice else {}),
        }

    def _shown(self) -> html.Pieces:
        about = {"outcome": self.outcome.value, "conflicts": self.conflicts_total, "base": self.base_commit}
        told = [
            (each.kind.value, each.message, "; ".join(map(str, each.properties)))
            for each in self.conflicts[:HTML_CONFLICTS_MAX]
        ]
        listed = html.table(
            ("conflict", "what", "properties"),
            told,
            more=self.conflicts_total - len(told),
            unit="conflicts",
        )
        would = html.facts(f"a merge of {self.source} into {self.target} would be", about)
        return would + html.counts(self.stats) + (listed if told else html.NOTHING)

    def write_conflicts(self, path: str | os.PathLike[str]) -> None:
        """Write the conflicts as JSON; a person fills in `resolution` with `ours` or `theirs`.

        A conflict has one, and each of its properties one that counts before it.
        """
        document = {
            "format": CONFLICT_LIST_FORMAT,
            "source": self.source,
            "target": self.target,
            "source_commit": self.source_commit,
            "target_commit": self.target_commit,
            "conflicts": [_to_resolve(each) for each in self.conflicts],
        }
        try:
            Path(path).write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
        except OSError as error:
            raise IoFailure(f"'{path}' cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ConflictList:
    """An edited conflict list: the heads it was made for, and a decision per conflict."""

    source_commit: str
    target_commit: str
    choices: Mapping[tuple[str, str, str], Decision]

    def for_heads(self, source: CommitId, target: CommitId) -> Resolution:
        """The choices, if both branches still show the commits the list was made for.

        Raises `PreconditionFailed` otherwise: the rows behind the entries may be others by now.
        """
        for listed, actual in ((self.source_commit, source), (self.target_commit, target)):
            if listed != actual:
                raise PreconditionFailed(expected=listed, actual=actual)
        return Resolution(entries=self.choices)


def chosen_sides(on_conflict: str | Mapping[str, str] | None) -> Resolution:
    """The choices a caller gives by name: one side for everything, or one per type or table key."""
    if on_conflict is None:
        return UNRESOLVED
    if isinstance(on_conflict, str):
        return Resolution(everything=_side(on_conflict))
    tables: dict[str, Choice] = {}
    for name, side in on_conflict.items():
        keys = [name] if ":" in name else [f"node:{name}", f"edge:{name}"]
        tables.update(dict.fromkeys(keys, _side(side)))
    return Resolution(tables=tables)


def _side(text: str) -> Choice:
    if text not in set(Choice):
        raise BadRequest(f"'{text}' is not a side of a merge: choose 'ours' or 'theirs'")
    return Choice(text)


def read_conflicts(listed: str | os.PathLike[str] | Mapping[str, Any]) -> ConflictList:
    """An edited conflict list: its file, or what is in it. Raises `BadRequest` naming the entry without a
    usable choice.
    """
    named = "the list" if isinstance(listed, Mapping) else f"'{listed}'"
    document = listed if isinstance(listed, Mapping) else conflicts_in(listed)
    try:
        known = (WHOLE_ENTITIES_FORMAT, CONFLICT_LIST_FORMAT)
        if document["format"] not in known:
            raise BadRequest(f"{named} has format {document['format']}; known are {known[0]} and {known[1]}")
        whole = document["format"] == WHOLE_ENTITIES_FORMAT
        choices = dict(_decision(entry, whole=whole) for entry in document["conflicts"])
        return ConflictList(str(document["source_commit"]), str(document["target_commit"]), choices)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRequest(f"{named} is not a conflict list: {error!r}") from error


def conflicts_in(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """What is in the file of a conflict list. Raises `BadRequest`, `IoFailure`."""
    try:
        document: object = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        hint = "name a conflict list that a preview wrote: --dry-run --conflicts FILE (write_conflicts)"
        raise IoFailure(f"'{path}' cannot be read: {error.strerror}", hint=hint) from error
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"'{path}' is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadRequest(f"'{path}' is not a conflict list")
    return cast("dict[str, Any]", document)


def _to_resolve(conflict: MergeConflict) -> dict[str, Any]:
    """A conflict as an entry of the list, with the places where a person puts a side."""
    entry = conflict.to_dict()
    if conflict.kind not in RESOLVABLE:
        return entry
    if conflict.kind is not ConflictKind.DELETE_VS_UPDATE:
        entry["properties"] = [{**each, "resolution": None} for each in entry.get("properties", ())]
    return {**entry, "resolution": None}


def _decision(entry: Any, *, whole: bool) -> tuple[tuple[str, str, str], Decision]:
    named = f"{entry['table_key']} {entry['row_id']}"
    if ConflictKind(entry["kind"]) not in RESOLVABLE:
        raise BadRequest(f"{named}: a {entry['kind']} is settled by changing a branch, not by a choice")
    side = _chosen(entry, named)
    listed: list[Any] = [] if whole else entry.get("properties", [])
    sides = {str(each["property"]): _chosen(each, f"{named} {each['property']}") for each in listed}
    properties = {name: chosen for name, chosen in sides.items() if chosen is not None}
    if side is None and (not sides or len(properties) < len(sides)):
        unsaid = next((name for name in sides if name not in properties), None) if properties else None
        raise BadRequest(
            f"{named}{'' if unsaid is None else f' {unsaid}'}: the resolution must be 'ours' or 'theirs'"
        )
    key = (str(entry["table_key"]), str(entry["row_id"]), str(entry["kind"]))
    return key, Decision(side, properties, whole=whole)


def _chosen(entry: Any, named: str) -> Choice | None:
    said = entry.get("resolution")
    if said is None:
        return None
    if said not in set(Choice):
        raise BadRequest(f"{named}: the resolution must be 'ours' or 'theirs'")
    return Choice(said)
