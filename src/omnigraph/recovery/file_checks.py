"""Comparing stored files with the checksums of the commits that wrote them.

A commit keeps the sums of the files it made (`storage/checksums`) in its version of `__manifest`, and the sum
of the version before it, which could not hold its own. The newest version of a branch is covered by the sum
of the rows it shows. Where versions stay behind or go and files of them live on, their sums are carried into
`__checksums`. Versions are read here byte by byte, not by Lance: a damaged one may end the process.
"""

import random
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from typing import Final
from urllib.parse import unquote

from omnigraph.catalog.ir import from_json, schema_hash
from omnigraph.core.errors import Corrupt, OmnigraphError, StorageNotFound, StoragePermanent
from omnigraph.core.ids import Branch, BranchName, CommitId, new_ulid, show_branch
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.limits import MIB
from omnigraph.core.progress import Steps
from omnigraph.manifest.dataset import ControlDataset
from omnigraph.manifest.state import Snapshot, TableEntry, columns_of, digest
from omnigraph.recovery.context import RecoveryContext
from omnigraph.storage.checksums import (
    PROPERTY,
    DamagedRecordError,
    FileRecord,
    FileSum,
    record_of,
    record_text,
)
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.layout import (
    CHECKSUMS,
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
SAMPLED_CARRIED_MAX: Final = 256
SAMPLED_BYTES_MAX: Final = 64 * MIB
"""What one quick verification compares beside the newest commit of each branch."""
_MAIN: Final = "main"
_LOOKS_MAX: Final = 16
"""How often carried sums are looked for again, when they were replaced in the middle of a look."""


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
    """Checks of one graph. Memory does not follow the size of files; where it follows their number, a method
    says so.
    """

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context
        self._shown: dict[Branch, Snapshot] | None = None
        self._files: dict[tuple[str, Branch, int], set[str]] = {}
        """The files of table versions that were asked for."""
        self._sums: dict[str, _Kept] = {}

    def all_files(self) -> FilesCompared:
        """Compare every file that a commit keeps a sum of. Cost: all of them are read; the sums that were
        carried are held.
        """
        versions = list(self._versions())
        tally = _Tally()
        carried = self._carried(tally)
        total = sum(kept.sum.size for kept in self._of(versions, _Tally()))
        steps = Steps("verify", "compare files", total + sum(kept.sum.size for kept in carried), "bytes")
        for kept in carried:
            self._compare(kept, tally)
            steps.advance(kept.sum.size)
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
        carried = self._carried(tally)
        for kept in random.sample(carried, min(SAMPLED_CARRIED_MAX, len(carried))):
            if tally.bytes < SAMPLED_BYTES_MAX:
                self._compare(kept, tally)
        return tally.compared()

    def learn(self, known: Container[str] = ()) -> None:
        """Read what `checked` compares with: the sums that were carried, and those in every version of the
        manifest but the known ones, by their names. They are held.
        """
        wanted = (each for each in self._versions() if each.name not in known)
        kept = (*self._carried(_Tally()), *self._of(wanted, _Tally()))
        self._sums = {each.sum.name: each for each in kept}

    def look_at(self, name: str) -> None:
        """Read a file and compare it with what was learned. Raises Corrupt, StorageNotFound."""
        if name in self._sums:
            self.checked(self._context.storage.sum_of(name))

    def checked(self, found: FileSum) -> None:
        """Raise Corrupt when a file, as just read, is not what was written. One without a sum passes."""
        kept = self._sums.get(found.name)
        if kept is not None and kept.sum != found:
            tally = _Tally()
            self._note(found.name, self._written_by(kept), tally)
            raise tally.damaged[found.name]

    def carry(self, context: RecoveryContext, files: Container[str], versions: Container[str]) -> None:
        """Keep the sums of these files in a graph, beside those that these versions of its manifest hold.

        Call it before the other versions go. What was carried into that graph before is replaced: `files`
        are all that it has. Cost: where a version goes, all are read and their sums held.
        """
        staying, going = list[_Version](), list[_Version]()
        for version in self._versions():
            (staying if version.name in versions else going).append(version)
        loose = [*self._carried(_Tally()), *self._of(going, _Tally())]
        held = {each.sum.name for each in self._of(staying if loose else (), _Tally())}
        lives = self._lives()
        by_life: dict[str, dict[str, dict[str, FileSum]]] = {}
        for kept in loose:
            name = kept.sum.name
            life = _life_of(name, lives) if name in files and name not in held else None
            if life is not None:
                by_life.setdefault(life, {}).setdefault(self._written_by(kept), {})[name] = kept.sum
        before = context.adapter.list_dir(CHECKSUMS)
        for life, commits in by_life.items():
            records = (FileRecord(tuple(sums.values()), commit=each) for each, sums in commits.items())
            context.adapter.write_text(
                f"{CHECKSUMS}/{new_ulid()}.{life}.txt", "\n".join(map(record_text, records))
            )
        for file in before:
            context.adapter.delete(f"{CHECKSUMS}/{file}")

    # --- what there is to compare ------------------------------------------------------------------------

    def _versions(self) -> Iterator[_Version]:
        for branch in (None, *self._context.manifest.all_branches()):
            yield from self._versions_of(MANIFEST, branch)

    def _versions_of(self, location: str, branch: Branch) -> Iterator[_Version]:
        names = self._context.adapter.list_dir(f"{branch_directory(location, branch)}/_versions")
        numbers = sorted(number for name in names if (number := version_of(name)) is not None)
        for number in numbers:
            yield _Version(location, branch, number, newest=number == numbers[-1])

    def _of(self, versions: Iterable[_Version], tally: _Tally) -> Iterator[_Kept]:
        return (kept for version in versions for kept in self._kept(version, tally))

    def _carried(self, tally: _Tally) -> list[_Kept]:
        """The sums that were carried over from versions which are not here, of branches that are."""
        lives = set(self._lives().values())
        for _ in range(_LOOKS_MAX):
            names = self._context.adapter.list_dir(CHECKSUMS)
            alive = [f"{CHECKSUMS}/{file}" for file in sorted(names) if _life_in(file) in lives]
            with suppress(StorageNotFound):  # replaced meanwhile
                return [kept for name in alive for kept in self._carried_in(name, tally)]
        return []

    def _carried_in(self, name: str, tally: _Tally) -> Iterator[_Kept]:
        try:
            records = [record_of(line) for line in self._context.adapter.read_text(name).splitlines()]
        except (StoragePermanent, DamagedRecordError):
            return self._note(name, "", tally)
        yield from (_Kept(each, record.commit) for record in records for each in record.files)

    def _lives(self) -> dict[Branch, str]:
        """Which incarnation of each branch there is: one that is made again has files of the same names."""
        lives: dict[Branch, str] = {None: _MAIN}
        for branch in self._context.manifest.all_branches():
            with suppress(OmnigraphError):  # a damaged reference is a finding of the check that reads it
                lives[branch] = self._context.manifest.branch_reference(branch).incarnation
        return lives

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
        if digest(columns_of(shown)) != record.rows:
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
        if "/_versions/" in name:
            return name == manifest_object(entry.location, entry.branch, entry.version)
        if entry.branch is not None and name == branch_reference(entry.location, entry.branch):
            return True
        storage, version = self._context.storage, (entry.location, entry.branch, entry.version)
        try:
            if version not in self._files:
                self._files[version] = storage.files_of(storage.open_version(entry.table_key, *version))
        except OmnigraphError:
            return True
        return name in self._files[version]


def _life_of(name: str, lives: Mapping[Branch, str]) -> str | None:
    """The incarnation of the branch that a file belongs to; None when that branch is gone."""
    reference = name.partition("/_refs/branches/")[2].removesuffix(".json")
    if reference:
        return lives.get(BranchName(unquote(reference)))
    below = name.partition("/tree/")[2]
    while below:  # names of branches may have steps: the longest one it is
        below = below.rpartition("/")[0]
        if below in lives:
            return lives[BranchName(below)]
    return None if "/tree/" in name else lives[None]


def _life_in(file: str) -> str:
    """The incarnation that an object of carried sums is named after."""
    return file.removesuffix(".txt").partition(".")[2]
