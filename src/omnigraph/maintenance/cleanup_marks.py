"""What a cleanup must not touch: the states that stay, and every file that they are read from.

Nothing is concluded from what cannot be read, or is not what was written. A branch, a tag or a pin that
cannot be told stops everything; a table that cannot be told is left alone as a whole.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import TYPE_CHECKING, Final, TypeVar

from omnigraph.core.errors import (
    Corrupt,
    OmnigraphError,
    ResourceBusy,
    SnapshotNotFound,
    StorageNotFound,
    StoragePermanent,
    StorageTransient,
)
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import Branch, show_branch
from omnigraph.maintenance.pins import live_pins
from omnigraph.manifest.lineage import possible_bases
from omnigraph.recovery.file_checks import FileChecks
from omnigraph.storage.layout import (
    COMMIT_ACTORS,
    COMMIT_RECOVERIES,
    COMMITS,
    MANIFEST,
    branch_directory,
    branch_reference,
    tag_reference,
)
from omnigraph.storage.manifest_files import manifest_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from omnigraph.core.ids import CommitId
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup_report import Retention
    from omnigraph.maintenance.pins import LivePin
    from omnigraph.maintenance.stored_files import Line, StoredFiles
    from omnigraph.manifest.state import Snapshot, TableEntry
    from omnigraph.manifest.store import Head
    from omnigraph.storage.version_files import UsedFiles

LOOKS_MAX: Final = 20
"""How often a look begins again because a branch was deleted beside it."""
PROJECTIONS: Final = (COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES)
State = tuple[Branch, int]
"""A branch and a version of the manifest."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class Marks:
    """What stays, and why."""

    seen: object
    """What it was worked out from: equal for two looks between which nothing moved."""
    heads: dict[Branch, Snapshot]
    expired_pins: tuple[str, ...] = ()
    states: dict[State, str] = field(default_factory=dict["State", str])
    """The first reason counts: the strongest are looked for first."""
    versions: dict[tuple[Line, int], str] = field(default_factory=dict["tuple[Line, int]", str])
    """Versions of tables and of the commit tables."""
    files: dict[str, str] = field(default_factory=dict[str, str])
    """Every object by its name, versions included."""
    failed: dict[str, OmnigraphError] = field(default_factory=dict[str, OmnigraphError])
    """Datasets of which not everything could be told, by location: nothing of them goes."""
    keeps_history: str = ""
    """Why every version stays, whoever shows it; empty unless somebody reads all of the history."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """Versions of tables that no state may show any more, whatever a retention says."""

    locations: frozenset[str] = frozenset()
    since: Mapping[Line, int] = field(default_factory=dict["Line", int])
    """By line of a table: the version from which on it may be shown; none where a line has none."""

    def has(self, entry: TableEntry) -> bool:
        """Whether what a state shows of a table is forgotten."""
        first = self.since.get((entry.location, entry.branch))
        return entry.location in self.locations and (first is None or entry.version < first)

    def is_in(self, snapshot: Snapshot) -> bool:
        """Whether a state shows something of it."""
        return any(map(self.has, snapshot.entries.values()))


class Marker:
    """Marks one graph, any number of times. What was read of a state or a version is read once."""

    def __init__(
        self,
        session: GraphSession,
        retention: Retention,
        stored: StoredFiles,
        forgotten: Forgotten | None = None,
    ) -> None:
        """`forgotten`: states that show something of it go, but for heads and those of tags and pins."""
        self._session = session
        self._retention = retention
        self._stored = stored
        self._forgotten = forgotten
        self._snapshots: dict[tuple[str, State], Snapshot | None] = {}
        self._used: dict[tuple[Line, int, str], UsedFiles] = {}
        """By version and incarnation: a branch that was made again reaches the same numbers."""
        self._homes: dict[CommitId, State] = {}
        self._checks = FileChecks(session.recovery)
        self._learned = False

    def mark(self, now_us: int, *, unless_same_as: Marks | None = None) -> Marks:
        """Everything that stays as of now; `unless_same_as` itself when nothing moved since.

        Raises when a branch, a tag or a pin cannot be read: then nothing may go. It begins again when a
        branch was deleted beside it. Cost: a few probes per branch, tag and pin; one open for each state and
        table version that stays, the first time; on a disk also a read of every version of the manifest.
        """
        for _ in range(LOOKS_MAX):
            heads = self._heads()
            try:
                return self._marked(heads, now_us, unless_same_as)
            except OmnigraphError:
                if not self._has_lost_one_of(heads):
                    raise
        raise ResourceBusy("branches were deleted again and again during the look", hint="try again later")

    def _has_lost_one_of(self, heads: Mapping[Branch, Head]) -> bool:
        there = self._heads()
        return any(
            branch not in there or there[branch].incarnation != head.incarnation
            for branch, head in heads.items()
        )

    def _marked(self, heads: Mapping[Branch, Head], now_us: int, unless_same_as: Marks | None) -> Marks:
        if not self._learned and self._session.root.is_local:  # an object store compares by itself
            self._checks.learn()
            self._learned = True
        tags = self._tags()
        pins, over = live_pins(self._session)
        seen = (
            {branch: (head.version, head.incarnation) for branch, head in heads.items()},
            tags,
            pins,
        )
        if unless_same_as is not None and unless_same_as.seen == seen:
            return unless_same_as
        marks = Marks(seen, {branch: head.snapshot for branch, head in heads.items()}, tuple(over))
        for branch, head in heads.items():
            marks.states[(branch, head.version)] = f"head of {show_branch(branch)}"
        for name, state in tags.items():
            marks.states.setdefault(state, f"tag {name}")
        self._mark_bases(marks)
        self._mark_beginnings(marks)
        self._mark_pins(marks, pins)
        unknown = self._mark_recent(marks, heads, now_us)
        if self._forgotten is not None:
            asked = {state for pin in pins for state in pin.states} | set(tags.values()) | unknown
            self._drop_forgotten(self._forgotten, marks, heads, asked)
        self._mark_versions(marks, self._shown(marks, heads))
        self._mark_files(marks)
        return marks

    def used_by(self, versions: Iterable[tuple[Line, int]]) -> set[str]:
        """Files of versions that are about to go, as far as they can still be told."""

        def used(version: tuple[Line, int]) -> list[str]:
            try:
                return self._names(self._files_of(version))
            except StorageTransient:
                raise
            except OmnigraphError:
                return []

        return {name for names in self._side_by_side(used, list(versions)) for name in names}

    # --- states -----------------------------------------------------------------------------------------

    def _heads(self) -> dict[Branch, Head]:
        found: dict[Branch, Head] = {}
        manifest = self._session.manifest
        for branch in (None, *manifest.all_branches()):
            try:
                failpoint(Window.CLEANUP_RESOLVE_BRANCH_SNAPSHOT)
                found[branch] = manifest.head(branch)
            except StorageTransient:
                raise
            except OmnigraphError as error:
                if branch is not None and not manifest.branch_exists(branch):
                    continue  # deleted since the listing
                raise StoragePermanent(
                    f"{show_branch(branch)} cannot be read, so nothing may be removed: {error.message}",
                    hint="run `omnigraph verify`; restore the branch from a backup, or delete it",
                ) from error
        return found

    def _tags(self) -> dict[str, State]:
        tags = self._session.manifest.tags
        for name in tags.damaged():
            raise Corrupt(tag_reference(MANIFEST, name), problem="does not say any more what it names")
        return dict(sorted(tags.places().items()))

    def _mark_bases(self, marks: Marks) -> None:
        """The states that merges between live branches are based on, as far as they are there."""
        lineage = self._session.commits.ancestry()
        for (left, one), (right, other) in combinations(marks.heads.items(), 2):
            for commit_id in possible_bases(lineage, one.head, other.head):
                state = self._home_of(commit_id)
                if state[0] in marks.heads and self._has(state):
                    why = f"merge base of {show_branch(left)} and {show_branch(right)}"
                    marks.states.setdefault(state, why)

    def _home_of(self, commit_id: CommitId) -> State:
        if commit_id not in self._homes:
            record = self._session.commits.show(commit_id)
            self._homes[commit_id] = (record.home, record.manifest_version)
        return self._homes[commit_id]

    def _mark_beginnings(self, marks: Marks) -> None:
        for branch in marks.heads:
            if branch is not None:
                reference = self._session.manifest.branch_reference(branch)
                state = (reference.parent, reference.parent_version)
                if self._has(state):
                    marks.states.setdefault(state, f"where {branch} began")

    def _mark_pins(self, marks: Marks, pins: Sequence[LivePin]) -> None:
        for pin in pins:
            why = f"pin of a {pin.purpose}"
            if pin.history:
                marks.keeps_history = why
            for state in pin.states:
                if self._has(state):
                    marks.states.setdefault(state, why)

    def _mark_recent(self, marks: Marks, heads: Mapping[Branch, Head], now_us: int) -> set[State]:
        """The newest states of each branch, those shown lately, and those whose commits are known nowhere
        else; the last ones are given back.
        """
        unknown: set[State] = set()
        published = self._session.commits.times()
        for branch, head in heads.items():
            numbers = sorted(self._stored.versions[branch_directory(MANIFEST, branch)], reverse=True)
            times = published.get(head.incarnation, {})
            first = min(times, default=0)
            left: int | None = None
            for place, number in enumerate(number for number in numbers if number <= head.version):
                why = marks.keeps_history
                if not why and self._retention.keeps(place):
                    why = f"one of the newest {self._retention.keep} of {show_branch(branch)}"
                if not why and self._retention.was_shown_lately(left, now_us):
                    why = f"shown by {show_branch(branch)} until lately"
                if number >= first and number not in times:
                    unknown.add((branch, number))
                    why = why or "its commit is not in the commit tables"
                if why:
                    marks.states.setdefault((branch, number), why)
                left = times.get(number)
        return unknown

    def _drop_forgotten(
        self, forgotten: Forgotten, marks: Marks, heads: Mapping[Branch, Head], asked: set[State]
    ) -> None:
        """Let go of every state that shows what is forgotten, unless somebody asked for just that state."""
        asked |= {(branch, head.version) for branch, head in heads.items()}
        states = list(marks.states)
        for state, snapshot in zip(states, self._read(states, heads), strict=True):
            if state not in asked and snapshot is not None and forgotten.is_in(snapshot):
                del marks.states[state]

    def _has(self, state: State) -> bool:
        return self._session.manifest.dataset.has_version(*state)

    def _shown(self, marks: Marks, heads: Mapping[Branch, Head]) -> list[tuple[Snapshot, str]]:
        """What the states that stay show, with the reasons."""
        pairs = zip(self._read(list(marks.states), heads), marks.states.values(), strict=True)
        return [(snapshot, why) for snapshot, why in pairs if snapshot is not None]

    def _read(self, states: Sequence[State], heads: Mapping[Branch, Head]) -> list[Snapshot | None]:
        """What states show, each read once. The first versions of a manifest are empty."""

        def read(state: State) -> Snapshot | None:
            branch, version = state
            head = heads.get(branch)
            if head is not None and head.version == version:
                return head.snapshot
            key = ("" if head is None else head.incarnation, state)
            if key not in self._snapshots:
                with suppress(StorageNotFound):
                    self._files_of(
                        ((MANIFEST, branch), version)
                    )  # they are compared before they are believed
                try:
                    self._snapshots[key] = self._session.manifest.read_version(branch, version)
                except SnapshotNotFound:
                    self._snapshots[key] = None
            return self._snapshots[key]

        return self._side_by_side(read, states)

    # --- versions and files -----------------------------------------------------------------------------

    def _mark_versions(self, marks: Marks, shown: Sequence[tuple[Snapshot, str]]) -> None:
        for snapshot, why in shown:
            for entry in snapshot.entries.values():
                marks.versions.setdefault(((entry.location, entry.branch), entry.version), why)
        for location in PROJECTIONS:
            newest = max(self._stored.versions[location], default=0)
            if newest:
                marks.versions[((location, None), newest)] = "newest commit table"
        if marks.keeps_history:
            for directory, numbers in self._stored.versions.items():
                location, _, branch = directory.partition("/tree/")
                line: Line = (location, branch or None)  # pyright: ignore[reportAssignmentType]  a name of ours
                if location != MANIFEST:
                    for number in numbers:
                        marks.versions.setdefault((line, number), marks.keeps_history)

    def _mark_files(self, marks: Marks) -> None:
        for state, why in marks.states.items():
            marks.files.setdefault(manifest_object(MANIFEST, *state), why)
            branch, _ = state
            if branch is not None:
                marks.files.setdefault(branch_reference(MANIFEST, branch), f"reference of {branch}")
        states = [((MANIFEST, branch), version) for branch, version in marks.states]
        used = self._side_by_side(self._told, [*states, *marks.versions])
        reasons = [*marks.states.values(), *marks.versions.values()]
        for version, found, why in zip([*states, *marks.versions], used, reasons, strict=True):
            (location, branch), number = version
            marks.files.setdefault(manifest_object(location, branch, number), why)
            if isinstance(found, StorageNotFound) and not self._is_there(version):
                continue  # a former state whose table went with a deleted branch: nothing of it is left
            if isinstance(found, OmnigraphError):
                if location == MANIFEST:
                    raise found
                marks.failed.setdefault(location, found)
                continue
            for name in self._names(found):
                marks.files.setdefault(name, why)

    def _is_there(self, version: tuple[Line, int]) -> bool:
        line, number = version
        return number in self._stored.versions[branch_directory(*line)]

    def _told(self, version: tuple[Line, int]) -> UsedFiles | OmnigraphError:
        try:
            return self._files_of(version)
        except StorageTransient:
            raise
        except OmnigraphError as error:
            return error

    def _files_of(self, version: tuple[Line, int]) -> UsedFiles:
        line, number = version
        location, branch = line
        name = manifest_object(location, branch, number)
        identity = self._session.adapter.identity(name)
        if identity is None:
            raise StorageNotFound(f"{self._session.adapter.address(name)}: the version does not exist")
        key = (line, number, identity)
        if key not in self._used:
            self._look_at(name)
            if location == MANIFEST:
                used = self._session.manifest.dataset.used_files(branch, number)
                for file in (*used.data, *used.deletions):
                    self._look_at(file)
            else:
                used = self._session.storage.used_files(location, branch, number)
            self._used[key] = used
        return self._used[key]

    def _look_at(self, name: str) -> None:
        """Compare what says which files stay with its checksum: a flipped bit would let others go."""
        try:
            self._checks.look_at(name)
        except Corrupt:
            self._checks.learn()  # a branch that was made again has other files of the same names
            self._checks.look_at(name)

    def _names(self, used: UsedFiles) -> list[str]:
        names = [*used.data, *used.deletions]
        for index in used.indexes:
            names += self._stored.index_files[index]
        if used.transaction is not None:
            names.append(used.transaction)
        return names

    def _side_by_side(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        with ThreadPoolExecutor(self._session.settings.maintenance_concurrency) as pool:
            return list(pool.map(work, items))
