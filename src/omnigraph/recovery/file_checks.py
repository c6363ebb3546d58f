"""Comparing stored files with the checksums of the commits that wrote them.

A commit keeps the sums of the files it made (`storage/checksums`) in its version of `__manifest`, and the sum
of the version before it, which could not hold its own. The newest version of a branch is covered by the sum
of the rows it shows. Versions are read here byte by byte, not by Lance: a damaged one may end the process.
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from omnigraph.catalog.ir import from_json, schema_hash
from omnigraph.core.errors import Corrupt, OmnigraphError, StorageNotFound
from omnigraph.core.ids import Branch, CommitId, show_branch
from omnigraph.core.limits import MIB
from omnigraph.core.progress import Steps
from omnigraph.manifest.dataset import ControlDataset
from omnigraph.manifest.state import Snapshot, TableEntry, digest
from omnigraph.recovery.context import RecoveryContext
from omnigraph.storage.checksums import PROPERTY, DamagedRecordError, FileRecord, FileSum, record_of
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import (
    COMMIT_ACTORS,
    COMMIT_RECOVERIES,
    COMMITS,
    MANIFEST,
    SCHEMAS,
    branch_directory,
    branch_reference,
    schema_name,
)
from omnigraph.storage.manifest_files import (
    manifest_message,
    manifest_object,
    transaction_properties,
    version_of,
)

SAMPLED_VERSIONS_MAX: Final = 16
SAMPLED_BYTES_MAX: Final = 64 * MIB
"""What one quick verification compares beside the newest commit of each branch."""


@dataclass(frozen=True, slots=True)
class FilesCompared:
    """What was compared, and what differed."""

    files: int
    bytes: int
    commits_without: int
    """Commits among those looked at that keep no checksums: they were written before there were any."""
    damaged: tuple[Corrupt, ...]


@dataclass(slots=True)
class _Tally:
    files: int = 0
    bytes: int = 0
    without: int = 0
    damaged: dict[str, Corrupt] = field(default_factory=dict[str, Corrupt])

    def compared(self) -> FilesCompared:
        return FilesCompared(self.files, self.bytes, self.without, tuple(self.damaged.values()))


@dataclass(frozen=True, slots=True)
class _Version:
    """One version of a dataset of the engine itself."""

    location: str
    branch: Branch
    number: int
    newest: bool

    @property
    def name(self) -> str:
        return manifest_object(self.location, self.branch, self.number)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A sum, and the commit that keeps it."""

    sum: FileSum
    commit: str
    of_parent: bool = False
    """Whether the commit before that one made the file."""


class FileChecks:
    """Checks of one graph. Reads only; memory does not follow the size of files or their number."""

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context
        self._shown: dict[Branch, Snapshot] | None = None

    def all_files(self) -> FilesCompared:
        """Compare every file that a commit keeps a sum of. Cost: all of them are read."""
        versions = list(self._versions())
        total = sum(kept.sum.size for version in versions for kept in self._kept(version, _Tally()))
        steps = Steps("verify", "compare files", total, "bytes")
        tally = _Tally()
        for version in versions:
            for kept in self._kept(version, tally):
                self._compare(kept, tally)
                steps.advance(kept.sum.size)
            if version.newest:
                self._compare_rows(version, tally)
        self._compare_schemas(tally)
        self._compare_commit_tables(tally)
        return tally.compared()

    def some_files(self) -> FilesCompared:
        """As `all_files` for the newest commit of each branch and a few others, other ones at every call."""
        versions = list(self._versions())
        newest = [each for each in versions if each.newest]
        others = [each for each in versions if not each.newest]
        drawn = random.sample(others, min(SAMPLED_VERSIONS_MAX, len(others)))
        tally = _Tally()
        for version in (*newest, *drawn):
            for kept in self._kept(version, tally):
                if tally.bytes < SAMPLED_BYTES_MAX:
                    self._compare(kept, tally)
            if version.newest:
                self._compare_rows(version, tally)
        return tally.compared()

    # --- what there is to compare ------------------------------------------------------------------------

    def _versions(self) -> Iterator[_Version]:
        for branch in (None, *self._context.manifest.all_branches()):
            yield from self._versions_of(MANIFEST, branch)

    def _versions_of(self, location: str, branch: Branch) -> Iterator[_Version]:
        names = self._context.adapter.list_dir(f"{branch_directory(location, branch)}/_versions")
        numbers = sorted(number for name in names if (number := version_of(name)) is not None)
        for number in numbers:
            yield _Version(location, branch, number, newest=number == numbers[-1])

    def _kept(self, version: _Version, tally: _Tally) -> Iterator[_Kept]:
        """The sums that a version keeps; what is wrong with the version itself is noted."""
        record = self._record(version, tally)
        if record is not None:
            yield from (_Kept(each, record.commit) for each in record.files)
            yield from (_Kept(each, record.commit, of_parent=True) for each in record.before)

    def _record(self, version: _Version, tally: _Tally) -> FileRecord | None:
        try:
            file = self._context.adapter.read_bytes(version.name)
        except StorageNotFound:
            return None  # reclaimed since the listing
        properties = transaction_properties(file)
        text = None if properties is None else properties.get(PROPERTY)
        try:
            if text is not None:
                return record_of(text)
        except DamagedRecordError:
            self._note(version.name, "", tally)
            return None
        if manifest_message(file) is None:
            self._note(version.name, "", tally)
        elif self._is_commit(version):
            tally.without += 1
        return None

    def _is_commit(self, version: _Version) -> bool:
        """Whether a version shows a commit of its own: the first ones of a manifest or branch do not."""
        if version.location != MANIFEST:
            return False
        try:
            return (
                self._context.manifest.read_version(version.branch, version.number).commit.home
                == version.branch
            )
        except OmnigraphError:
            return False

    # --- comparing ---------------------------------------------------------------------------------------

    def _compare(self, kept: _Kept, tally: _Tally) -> None:
        name = kept.sum.name
        try:
            found = self._context.storage.sum_of(name)
        except StorageNotFound:
            # What no branch shows any more may have been reclaimed.
            if self._seen_by(name):
                self._note(name, self._written_by(kept), tally, problem="is gone")
            return
        tally.files += 1
        tally.bytes += found.size
        if found != kept.sum:
            self._note(name, self._written_by(kept), tally)

    def _compare_rows(self, version: _Version, tally: _Tally) -> None:
        """The newest state of a branch against the sum of what it shows."""
        record = self._record(version, _Tally()) if version.location == MANIFEST else None
        if record is None or record.rows is None:
            return
        try:
            shown = self._context.manifest.read_version(version.branch, version.number)
            found = self._context.manifest.current(version.branch).manifest_version
        except OmnigraphError:
            self._note(version.name, record.commit, tally, problem="cannot be read")
            return
        if digest(shown) != record.rows:
            self._note(version.name, record.commit, tally)
        if found < version.number:
            hint = f"{branch_directory(MANIFEST, version.branch)}/_versions/latest_version_hint.json"
            self._note(hint, "", tally, problem=f"leads to version {found} instead of {version.number}")

    def _compare_commit_tables(self, tally: _Tally) -> None:
        """The rows that the commit tables have now. Nobody reads older versions of them."""
        context = self._context
        for location in (COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES):
            versions = self._versions_of(location, None)
            kept = {each.sum.name: each for version in versions for each in self._kept(version, _Tally())}
            table = ControlDataset(
                context.root, location, context.adapter, DurabilityMode(context.settings.durability)
            )
            with suppress(OmnigraphError):  # what cannot be opened is a finding of the check that reads it
                for name in table.data_names(table.open_head(None)) if table.exists() else ():
                    if name in kept:
                        self._compare(kept[name], tally)

    def _compare_schemas(self, tally: _Tally) -> None:
        """Compiled schemas against their names, which are hashes of what they say."""
        for file in self._context.adapter.list_dir(SCHEMAS):
            name = f"{SCHEMAS}/{file}"
            tally.files += 1
            try:
                said = schema_hash(from_json(self._context.adapter.read_text(name)))
            except OmnigraphError:
                said = ""
            if name != schema_name(said):
                self._note(name, "", tally)

    def _note(
        self, name: str, commit: str, tally: _Tally, problem: str = "holds other bytes than were written"
    ) -> None:
        if name not in tally.damaged:
            tally.damaged[name] = Corrupt(
                name,
                problem=problem,
                commit=commit,
                branches=tuple(show_branch(branch) for branch in self._seen_by(name)),
                restore_from=self._parent(commit),
            )

    def _written_by(self, kept: _Kept) -> str:
        return self._parent(kept.commit) if kept.of_parent else kept.commit

    def _parent(self, commit: str) -> str:
        """The commit before another one; empty where nobody knows."""
        try:
            return (self._context.commits.show(CommitId(commit)).parent or "") if commit else ""
        except OmnigraphError:
            return ""

    # --- who needs a file --------------------------------------------------------------------------------

    def _seen_by(self, name: str) -> list[Branch]:
        """The branches whose newest state is read from this file; those that cannot tell are among them."""
        if self._shown is None:
            self._shown = self._context.manifest.readable()
        own = [
            branch
            for branch in self._context.manifest.branches()
            if branch not in self._shown
            and (
                name == branch_reference(MANIFEST, branch)
                or name.startswith(f"{branch_directory(MANIFEST, branch)}/")
            )
        ]
        return [*(branch for branch, shown in self._shown.items() if self._uses(branch, shown, name)), *own]

    def _uses(self, branch: Branch, snapshot: Snapshot, name: str) -> bool:
        if name.startswith(f"{MANIFEST}/"):
            own = branch_directory(MANIFEST, branch)
            state = manifest_object(MANIFEST, branch, snapshot.manifest_version)
            reference = None if branch is None else branch_reference(MANIFEST, branch)
            return name in {state, reference} or name.startswith(f"{own}/data/")
        return any(
            name.startswith(f"{entry.location}/") and self._reads(entry, name)
            for entry in snapshot.entries.values()
        )

    def _reads(self, entry: TableEntry, name: str) -> bool:
        if name == manifest_object(entry.location, entry.branch, entry.version):
            return True
        if entry.branch is not None and name == branch_reference(entry.location, entry.branch):
            return True
        storage = self._context.storage
        try:
            handle = storage.open_version(entry.table_key, entry.location, entry.branch, entry.version)
            return name in storage.files_of(handle)
        except OmnigraphError:
            return True
