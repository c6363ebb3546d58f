"""What goes and what stays: one word about every object of a graph."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from omnigraph.maintenance.cleanup_report import Fate
from omnigraph.maintenance.stored_files import VERSIONS, Line, location_of, part_of
from omnigraph.storage.adapter import TEMPORARY
from omnigraph.storage.layout import (
    CACHE,
    CHECKSUMS,
    CLEANUP,
    CLONE,
    LEASE,
    LOADS,
    MANIFEST,
    PINS,
    RECOVERY,
    SCHEMA_IR,
    SCHEMA_SOURCE,
    SCHEMA_STATE,
    SCHEMAS,
    branch_reference,
)
from omnigraph.storage.manifest_files import version_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.core.ids import BranchName
    from omnigraph.engine.session import GraphSession
    from omnigraph.maintenance.cleanup_marks import Marker, Marks
    from omnigraph.storage.adapter import StoredObject
    from omnigraph.storage.branches import BranchIdentifier

UNREFERENCED: Final = "unreferenced"
ORPHAN: Final = "fork that nothing shows"
DEAD_LOAD: Final = "load that nobody resumed"
EXPIRED: Final = "pin of somebody who is gone"
_NO_BOUND: Final = 2**63
_OWN: Final = {
    RECOVERY: "recovery note",
    SCHEMAS: "schema",
    SCHEMA_SOURCE: "schema",
    SCHEMA_IR: "schema",
    SCHEMA_STATE: "schema",
    CACHE: "read cache",
    CHECKSUMS: "checksums",
    LEASE: "writer lease",
    f"{LEASE}.next": "writer lease",
    PINS: "pin",
    CLONE: "says what the graph is a clone of",
}


class StagedLoads(Protocol):
    """The loads of a graph that ended before their commits, or still run."""

    def files(self) -> Mapping[str, frozenset[str]]:
        """What each of them needs beside its own directory, by the load. Raises when one cannot be told."""
        ...

    def discard(self, load_id: str) -> bool:
        """Forget a load that nobody drives; whether it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Fork:
    """A branch of one table that nothing shows."""

    line: Line
    chain: BranchIdentifier


@dataclass(slots=True)
class CleanupPlan:
    """What a cleanup is about to do. Objects that appear later are not in it, so they stay."""

    fates: dict[str, Fate] = field(default_factory=dict[str, Fate])
    forks: list[Fork] = field(default_factory=list[Fork])
    """In the order in which they go: what grew out of another one first, then the longest names."""
    loads: list[str] = field(default_factory=list[str])

    def going(self) -> list[str]:
        """The objects that go."""
        return [name for name, fate in self.fates.items() if fate.goes]


class Planner:
    """Plans one cleanup from a listing and from what was marked."""

    def __init__(
        self,
        session: GraphSession,
        stored: Mapping[str, StoredObject],
        marks: Marks,
        loads: StagedLoads,
        *,
        noted: frozenset[str] = frozenset(),
        now_us: int,
    ) -> None:
        """`noted`: what an earlier cleanup that stopped half-way had released."""
        self._session = session
        self._stored = stored
        self._marks = marks
        self._noted = noted
        self._latest_us = now_us - session.settings.leftover_seconds * 1_000_000
        self._age = _spoken(session.settings.leftover_seconds)
        self._loads = loads.files()
        self._newest: dict[Line, int] = {}
        """The newest version of each line that a state shows."""
        for line, number in marks.versions:
            self._newest[line] = max(self._newest.get(line, 0), number)
        self._plan = CleanupPlan()
        self._released: frozenset[str] = noted

    def plan(self, marker: Marker) -> CleanupPlan:
        """All of it. Cost: where young files are marked by nobody, one open for each version that goes."""
        self._plan_loads()
        self._plan_forks()
        young = [name for name in self._stored if self._is_doubtful(name)]
        if young:
            going = [version for name in self._stored if (version := self._going_version(name)) is not None]
            self._released = self._noted | marker.used_by(going)
        for name in sorted(self._stored):
            goes, why = self._fate(name)
            self._plan.fates[name] = Fate(name, self._stored[name].size, goes, why)
        return self._plan

    # --- loads and forks --------------------------------------------------------------------------------

    def _plan_loads(self) -> None:
        """A load is dead once the newest object of it is old; whoever drives one holds its lock."""
        newest: dict[str, int] = {}
        for name, found in self._stored.items():
            if name.startswith(f"{LOADS}/"):
                load = _load_of(name)
                newest[load] = max(newest.get(load, 0), found.modified_us)
        self._plan.loads = sorted(each for each, time_us in newest.items() if time_us <= self._latest_us)
        self._needed = {
            name: load
            for load, names in self._loads.items()
            if load not in self._plan.loads
            for name in names
        }

    def _plan_forks(self) -> None:
        storage = self._session.storage
        tables = {location for name in self._stored if (location := location_of(name)) and "/" in location}
        for location in sorted(tables - self._marks.failed.keys()):
            listed = storage.list_branches(location)
            staying = set(listed)
            for branch in sorted(listed, key=lambda each: (-len(listed[each]), -len(each), each)):
                if (location, branch) in self._newest or self._marks.keeps_history:
                    continue
                if not any(_stands_on(other, branch, listed) for other in staying - {branch}):
                    staying.discard(branch)
                    self._plan.forks.append(Fork((location, branch), listed[branch]))
        self._orphans = {each.line for each in self._plan.forks}

    # --- one object -------------------------------------------------------------------------------------

    def _fate(self, name: str) -> tuple[bool, str]:
        why = self._marks.files.get(name)
        if why is not None:
            return False, why
        if TEMPORARY.search(name):
            return self._by_age(name)
        location = location_of(name)
        if location is None:
            return self._own(name)
        if location in self._marks.failed:
            return False, "not everything of its table can be read"
        part = part_of(name)
        if part is None:
            return self._reference(location, name)
        if part.line in self._orphans:
            return True, ORPHAN
        if part.kind == VERSIONS:
            return self._version(part.line, name)
        load = self._needed.get(name)
        if load is not None:
            return False, f"staged by load {load}"
        return self._by_age(name)

    def _own(self, name: str) -> tuple[bool, str]:
        """An object beside the datasets. What nobody knows is somebody else's, and stays."""
        if name.startswith(f"{LOADS}/"):
            load = _load_of(name)
            return (True, DEAD_LOAD) if load in self._plan.loads else (False, f"load {load}")
        if name in self._marks.expired_pins:
            return True, EXPIRED
        if name.startswith(CLEANUP):
            return False, "note of the last cleanup"
        top = name.partition("/")[0]
        return False, _OWN.get(name) or _OWN.get(top) or "not written by the graph"

    def _reference(self, location: str, name: str) -> tuple[bool, str]:
        """A reference, or something that Lance does not write."""
        for fork in self._plan.forks:
            if fork.line[0] == location and name == branch_reference(location, fork.line[1] or ""):
                return True, ORPHAN
        return False, "reference" if "/_refs/" in name else "not written by the graph"

    def _version(self, line: Line, name: str) -> tuple[bool, str]:
        file = name.rpartition("/")[2]
        number = version_of(file)
        if number is None:
            # A hint, or a version beside the others that an optimization made and did not remove.
            return self._by_age(name) if file.startswith("d") else (False, "names the newest version")
        if self._marks.keeps_history:
            return False, self._marks.keeps_history
        if number > self._newest_known(line):
            return False, "newer than this cleanup"
        return (True, UNREFERENCED) if self._is_of_graph(line) else self._by_age(name)

    def _newest_known(self, line: Line) -> int:
        location, branch = line
        if location == MANIFEST:
            head = self._marks.heads.get(branch)
            return 0 if head is None else head.manifest_version
        return self._newest.get(line, _NO_BOUND)

    def _is_of_graph(self, line: Line) -> bool:
        """Whether a branch of a dataset exists; what has no reference is only a leftover."""
        location, branch = line
        return branch is None or branch_reference(location, branch) in self._stored

    def _by_age(self, name: str) -> tuple[bool, str]:
        if name in self._released or self._stored[name].modified_us <= self._latest_us:
            return True, UNREFERENCED
        return False, f"younger than {self._age}"

    def _is_doubtful(self, name: str) -> bool:
        """Whether only the versions that go can tell if an object goes."""
        if name in self._marks.files or self._stored[name].modified_us <= self._latest_us:
            return False
        part = part_of(name)
        return part is not None and part.kind != VERSIONS

    def _going_version(self, name: str) -> tuple[Line, int] | None:
        part = part_of(name)
        if part is None or part.kind != VERSIONS or not self._fate(name)[0]:
            return None
        number = version_of(name.rpartition("/")[2])
        return None if number is None else (part.line, number)


def _load_of(name: str) -> str:
    """The load an object below `__loads` belongs to."""
    return name.split("/")[1].partition(".")[0]


def _stands_on(other: BranchName, branch: BranchName, listed: Mapping[BranchName, BranchIdentifier]) -> bool:
    """Whether a branch of a table grew out of another one, or lies below its directory."""
    chain, own = listed[other], listed[branch]
    return other.startswith(f"{branch}/") or (len(chain) > len(own) and chain[: len(own)] == own)


def _spoken(seconds: int) -> str:
    """An age as a person says it."""
    for unit, size in (("h", 3_600), ("min", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
