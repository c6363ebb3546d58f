"""Cloning: one moment of a graph, copied file by file into another place.

Files of a graph never change, so a clone copies those that its place lacks, and a second one only what is
new. Files come before what points at them: the content of tables, their versions, the versions of the
manifest. A clone can be opened once its schema source exists, which is written last; a former clone that is
brought up to date loses it before the first version comes. Whatever stops a clone, the next one goes on.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from omnigraph.core import html
from omnigraph.core.clock import boot_id
from omnigraph.core.errors import (
    BadRequest,
    BranchNotFound,
    Cancelled,
    CloneTarget,
    Corrupt,
    InternalError,
    ResourceBusy,
    SnapshotNotFound,
    StorageConfiguration,
    StorageError,
    StorageNotFound,
    StoragePermanent,
)
from omnigraph.core.events import Progress, Warned, emit
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.ids import BranchName, show_branch
from omnigraph.core.limits import LEASE_OPEN_WAIT_S_MAX
from omnigraph.maintenance.clone_plan import (
    ClonePlan,
    CloneRequest,
    Cut,
    plan_clone,
    still_there,
    take_cut,
)
from omnigraph.maintenance.pins import Pin, remove_expired
from omnigraph.manifest.clone_marker import CloneMarker, ClonePhase, read_marker
from omnigraph.recovery.file_checks import FileChecks
from omnigraph.storage.checksums import Summing
from omnigraph.storage.layout import (
    CLONE,
    COMMIT_ACTORS,
    COMMIT_RECOVERIES,
    COMMITS,
    LEASE,
    MANIFEST,
    SCHEMA_IR,
    SCHEMA_SOURCE,
    SCHEMA_STATE,
    branch_directory,
    tag_reference,
)
from omnigraph.storage.manifest_files import HINT, hint_text, version_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from omnigraph.core.cancel import Cancellation
    from omnigraph.engine.session import GraphSession

MOMENTS_MAX: Final = 16
"""Moments tried, one after the other, while branches are deleted in the middle of their copying."""
WAKE_S: Final = 5.0
"""How long a wait for files lasts before the pin and the caller are looked after."""
SYNC_ROUND_FILES: Final = 256
"""Files synced in one round: all of them are open at once."""
_OUTCOME: Final = "the next one goes on from there"


@dataclass(frozen=True, slots=True)
class ClonedBranch:
    """One branch of a clone and the commit it ends with."""

    branch: str
    graph_commit_id: str
    graph_manifest_version: int


@dataclass(frozen=True, slots=True)
class CloneReport(html.Shown):
    """What a clone consists of, and what had to be copied for it."""

    source: str
    target: str
    heads_only: bool
    branches: tuple[ClonedBranch, ...]
    tags: tuple[str, ...]
    files: int
    bytes: int
    """Everything in the place of the clone."""
    files_copied: int
    bytes_copied: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return asdict(self)

    def _shown(self) -> html.Pieces:
        about = {"source": self.source, "files copied": self.files_copied, "bytes copied": self.bytes_copied}
        rows = [(each.branch, each.graph_commit_id, each.graph_manifest_version) for each in self.branches]
        return html.facts(f"clone {self.target}", about) + html.table(("branch", "commit", "version"), rows)


def clone_graph(
    source: GraphSession,
    target: GraphSession,
    request: CloneRequest,
    *,
    pins: bool,
    cancel: Cancellation,
) -> CloneReport:
    """Copy one moment of a graph into the place of `target`, which nobody has opened.

    The source may be written meanwhile; with `pins` no cleanup takes away what is being copied. Pending
    writes are not part of a clone: it shows what was published. Raises CloneTarget when the place holds
    something else, ResourceBusy when somebody else is at work there.
    """
    _refuse_overlap(source, target)
    clone = _Clone(source, target, cancel)
    clone.look()
    if target.root.is_local:
        os.makedirs(target.root.uri, exist_ok=True)  # noqa: PTH103
    with target.lease.alone(wait_s_max=LEASE_OPEN_WAIT_S_MAX):
        for _ in range(MOMENTS_MAX):
            with clone.pinned(request, pins=pins) as cut:
                try:
                    return clone.run(cut)
                except (BranchNotFound, Corrupt, SnapshotNotFound, StorageNotFound):
                    # A branch that was deleted meanwhile took its files along, and one that was made again
                    # has others of the same names. Another moment has it no more.
                    if still_there(source, cut):
                        raise
    raise ResourceBusy("branches were deleted again and again while they were copied")


def _refuse_overlap(source: GraphSession, target: GraphSession) -> None:
    ours, theirs = source.root.uri, target.root.uri
    if ours == theirs or theirs.startswith(f"{ours}/"):
        raise BadRequest(f"'{theirs}' lies in the graph that is to be cloned", hint="choose another place")


class _Clone:
    """One run of a clone."""

    def __init__(self, source: GraphSession, target: GraphSession, cancel: Cancellation) -> None:
        self._source = source
        self._target = target
        self._cancel = cancel
        self._pin: Pin | None = None
        self._started = time.monotonic()
        self._copied = _Tally()
        self._wanted = _Tally()
        self._marker: CloneMarker | None = None
        self._checks = FileChecks(source.recovery)
        lineage = source.commits.ancestry()
        self._known = lineage.parents
        self._origin = min(each for each, parents in lineage.parents.items() if not parents)

    @contextmanager
    def pinned(self, request: CloneRequest, *, pins: bool) -> Generator[Cut]:
        """The moment that is cloned, kept from being reclaimed as long as this lasts."""
        cut = self._pin_cut(request) if pins else None
        try:
            yield take_cut(self._source, request) if cut is None else cut
        finally:
            if self._pin is not None:
                with suppress(StorageError):  # it expires
                    self._pin.release()

    def _pin_cut(self, request: CloneRequest) -> Cut | None:
        """The moment, pinned; None where the source takes no pin."""
        source = self._source
        try:
            with source.lease.hold():
                remove_expired(source)
                cut = take_cut(source, request)
                self._pin = Pin(source, "clone", cut.states(), history=cut.history)
                self._pin.renew()
        except StorageConfiguration as error:
            self._pin = None
            emit(Warned("the source takes no pin; a cleanup of it could stop the clone", error.message))
            return None
        return cut

    def look(self) -> dict[str, int]:
        """What is in the place, with its bytes. Raises CloneTarget unless it is free or an earlier clone."""
        target = self._target
        there = target.adapter.sizes()
        self._marker = marker = read_marker(target.adapter)
        if marker is None and any(not name.startswith(LEASE) for name in there):
            raise CloneTarget(target.root.uri, "it is not empty and no clone of this graph")
        if marker is not None and marker.origin != self._origin:
            raise CloneTarget(target.root.uri, f"it is a clone of another graph, made from '{marker.source}'")
        return there

    def run(self, cut: Cut) -> CloneReport:
        """Copy, then publish."""
        there = self.look()
        if SCHEMA_SOURCE in there:
            self._refuse_own_work(cut)
        contract = self._schema_texts(cut)
        kept, gone = self._branches_there(there)
        trusted = self._trusted(there, gone)
        # A file that is to be copied was made by a commit that is, or by one that stays behind.
        self._checks.learn(trusted if cut.history else ())
        plan = plan_clone(self._source, cut, trusted, self._checks)
        if SCHEMA_SOURCE in there and not gone and self._is_complete(plan):
            return self._report(plan)
        content = {name: size for name, size in plan.content.items() if trusted.get(name) != size}
        self._mark(ClonePhase.COPYING, cut)
        self._drop_unfinished(plan)
        pointers = (*plan.table_versions.items(), *plan.states.items())
        self._wanted = _Tally(self._copied.files, self._copied.bytes)
        self._wanted.add(*content.values(), *(size for _, size in pointers))
        self._copy(content)
        failpoint(Window.CLONE_POST_COPY)
        self._publish(plan, contract, self._leftovers(there, kept, gone, plan))
        return self._report(plan)

    # ---- what may stand in the way

    def _refuse_own_work(self, cut: Cut) -> None:
        """A clone that was written to, or that is ahead of the wanted moment, cannot be brought to it."""
        target = self._target
        came = dict[str, str]() if self._marker is None else self._marker.branches
        for branch in (None, *target.manifest.all_branches()):
            name = show_branch(branch)
            life = "" if branch is None else target.manifest.branch_reference(branch).incarnation
            head = target.manifest.current(branch)
            own = "a branch of its own" if branch is not None and came.get(branch) != life else ""
            if head.head not in self._known:
                own = f"commits of its own, up to {head.head}"
            if own:
                raise CloneTarget(
                    target.root.uri,
                    f"{name} has {own}" if branch is None or "commits" in own else f"'{name}' is {own}",
                    hint="a clone that is written to goes its own way; clone into a new place",
                )
            wanted = cut.heads.get(branch) if branch is None or cut.lives.get(branch) == life else None
            if wanted is not None and head.manifest_version > wanted.manifest_version:
                raise CloneTarget(target.root.uri, f"{name} is ahead of {wanted.head}: it shows {head.head}")

    def _branches_there(self, there: Iterable[str]) -> tuple[set[str], set[str]]:
        """The directories of branches in the place: those the source has as well, and those that are gone.

        One that was made again is another one, with files of the same names. What a killed run left of a
        branch without its reference is taken for such.
        """
        source, target = self._source.adapter, self._target.adapter
        kept: set[str] = set()
        gone: set[str] = set()
        for name in there:
            line = _line_of_reference(name)
            if line is not None:
                same = source.read_text_if_exists(name) == target.read_text_if_exists(name)
                (kept if same else gone).add(line)
            directory, is_version, _ = name.rpartition("/_versions/")
            if is_version and "/tree/" in directory:
                gone.add(directory)
        return kept, gone - kept

    def _leftovers(self, there: Iterable[str], kept: set[str], gone: set[str], plan: ClonePlan) -> list[str]:
        """Objects of branches that are gone, and tags of them; references first."""
        needed = {*plan.content, *plan.table_versions, *plan.states}
        lines = kept | gone | {name.rpartition("/_versions/")[0] for name in needed if "/_versions/" in name}
        tags = [
            tag_reference(MANIFEST, tag)
            for tag, (branch, _) in self._target.manifest.tags.places().items()
            if branch_directory(MANIFEST, branch) in gone and tag not in plan.tags
        ]
        references = [name for name in there if _line_of_reference(name) in gone]
        files = [name for name in there if name not in needed and _line_of(name, lines) in gone]
        return [*tags, *references, *files]

    def _trusted(self, there: Mapping[str, int], gone: set[str]) -> dict[str, int]:
        """What is in the place, of this very graph, and was not lost in part when the machine stopped."""
        known = {n: size for n, size in there.items() if n.rpartition("/_versions/")[0] not in gone}
        marker = self._marker
        if marker is None or not self._target.root.is_local or not marker.was_cut_off:
            return known
        if marker.phase is ClonePhase.PUBLISHING:
            return {}
        return {name: size for name, size in known.items() if "/_versions/" in name}

    def _is_complete(self, plan: ClonePlan) -> bool:
        """Whether a former clone lacks nothing: then it is not closed for a moment either."""
        if plan.content or plan.table_versions or plan.states:
            return False
        source, target = self._source.adapter, self._target.adapter
        references = (*plan.table_references, *plan.state_references, *plan.schemas)
        return all(target.read_text_if_exists(name) == source.read_text(name) for name in references)

    def _drop_unfinished(self, plan: ClonePlan) -> None:
        """Remove what a killed run left under temporary names."""
        if self._marker is None or not self._target.root.is_local:
            return
        names = (*plan.content, *plan.table_versions, *plan.states)
        for directory in {os.path.dirname(name) for name in names}:  # noqa: PTH120
            for each in self._target.adapter.unfinished(directory, age_s_min=0):
                self._target.adapter.discard_text(each)

    def _schema_texts(self, cut: Cut) -> dict[str, str]:
        """The accepted schema, which main of the clone must follow."""
        source = self._source
        contract = source.schemas.current()
        if contract.hash != cut.heads[None].schema_hash:
            raise BadRequest(
                f"main follows another schema at {cut.heads[None].head} than the graph does now",
                hint="clone a commit since the schema was changed",
            )
        return {name: source.adapter.read_text(name) for name in (SCHEMA_IR, SCHEMA_STATE, SCHEMA_SOURCE)}

    # ---- copying

    def _copy(self, files: Mapping[str, int]) -> None:
        """Copy files, several at once, and make them durable. They appear whole."""
        names = iter(files.items())
        threads = self._target.settings.maintenance_concurrency
        pending: dict[Future[None], int] = {}
        stop = threading.Event()
        with ThreadPoolExecutor(threads) as pool:
            try:
                while True:
                    for name, size in islice(names, 2 * threads - len(pending)):
                        pending[pool.submit(self._copy_one, name, size, stop)] = size
                    if not pending:
                        break
                    done, _ = wait(pending, WAKE_S, return_when=FIRST_COMPLETED)
                    for each in done:
                        size = pending.pop(each)
                        each.result()
                        self._tell(size)
                    self._breathe()
            except BaseException:
                stop.set()
                for each in pending:
                    each.cancel()
                raise
        self._make_durable(files)

    def _copy_one(self, name: str, size: int, stop: threading.Event) -> None:
        source, target = self._source.adapter, self._target.adapter

        running = Summing()

        def chunks() -> Iterator[bytes]:
            for chunk in source.read_chunks(name):
                if stop.is_set():
                    raise Cancelled("the clone was stopped")
                running.add(chunk)
                yield chunk
            # Before it gets its name: a file that is damaged in the source is not copied.
            self._checks.checked(running.named(name))

        written = target.write_chunks(name, chunks())
        if written != size:
            raise StoragePermanent(
                f"{source.address(name)}: {written:,} bytes were read where {size:,} were expected",
                hint="look at the source with `omnigraph verify`, then clone again",
            )
        failpoint(Window.CLONE_FILE_COPIED)

    def _breathe(self) -> None:
        if self._cancel.requested:
            self._cancel.raise_if_overdue(_OUTCOME)
            raise Cancelled(f"the clone was stopped; {_OUTCOME}")
        if self._pin is not None:
            self._pin.renew_when_due()

    def _tell(self, size: int) -> None:
        done, total = self._copied, self._wanted
        done.add(size)
        emit(Progress("clone", "copied", done.bytes, total.bytes, "bytes"))

    def _copy_texts(self, names: Iterable[str]) -> None:
        for name in names:
            self._target.adapter.write_text(name, self._source.adapter.read_text(name))

    def _make_durable(self, names: Iterable[str]) -> None:
        root = self._target.root
        if root.is_local:
            paths = [root.local_path(name) for name in names]
            for start in range(0, len(paths), SYNC_ROUND_FILES):
                self._target.make_durable(paths[start : start + SYNC_ROUND_FILES])

    # ---- publishing

    def _publish(self, plan: ClonePlan, contract: Mapping[str, str], leftovers: Iterable[str]) -> None:
        """Place everything that points at files. There is no graph from the first step to the last."""
        session = self._target
        self._mark(ClonePhase.PUBLISHING, plan.cut)
        session.adapter.delete(SCHEMA_SOURCE, durable=True)
        for name in leftovers:
            session.adapter.delete(name)
        self._copy(plan.table_versions)
        self._copy_texts(plan.table_references)
        self._write_hints(plan.table_versions)
        failpoint(Window.CLONE_POST_TABLES)
        self._copy_texts(plan.schemas)
        self._take_over_history(plan.cut)
        self._copy(plan.states)
        self._carry_sums()
        self._copy_texts(plan.state_references)
        self._write_hints(plan.states)
        for name in (SCHEMA_IR, SCHEMA_STATE):
            session.adapter.write_text(name, contract[name])
        self._check(plan)
        self._mark(ClonePhase.COMPLETE, plan.cut)
        failpoint(Window.CLONE_POST_STATES)
        session.adapter.write_text(SCHEMA_SOURCE, contract[SCHEMA_SOURCE])

    def _take_over_history(self, cut: Cut) -> None:
        source, target = self._source, self._target
        marker = self._marker
        if marker is not None and target.root.is_local and marker.was_cut_off:
            # The machine may have torn them, and all that they say follows here.
            for location in (COMMITS, COMMIT_ACTORS, COMMIT_RECOVERIES):
                target.adapter.delete_prefix(location)
        records = source.commits.behind([each.commit for each in cut.states()])
        target.commits.take_over(records)
        known = {record.id for record in records}
        for each in source.recovery.recoveries.list():
            if each.graph_commit_id in known:
                target.recovery.recoveries.append_once(each)

    def _carry_sums(self) -> None:
        """Keep the sums of files whose commits stay behind."""
        there = self._target.adapter.sizes()
        self._checks.carry(self._target.recovery, there, there)

    def _write_hints(self, versions: Iterable[str]) -> None:
        """Say which version of each dataset is the newest, as Lance does after a commit to a local disk."""
        if not self._target.root.is_local:
            return
        newest: dict[str, int] = {}
        for name in versions:
            directory, _, file = name.rpartition("/")
            newest[directory] = max(newest.get(directory, 0), version_of(file) or 0)
        for directory, version in newest.items():
            self._target.adapter.write_text(f"{directory}/{HINT}", hint_text(version))

    def _check(self, plan: ClonePlan) -> None:
        """Every file has its size, and every branch shows what it should."""
        target = self._target
        there = target.adapter.sizes()
        for name, size in (*plan.content.items(), *plan.table_versions.items(), *plan.states.items()):
            if there.get(name) != size:
                raise StoragePermanent(
                    f"{target.adapter.address(name)}: {there.get(name)} bytes are there where {size:,} were"
                    " written",
                    hint="clone again",
                )
        for branch, wanted in plan.cut.heads.items():
            shown = target.manifest.current(branch)
            if shown.head != wanted.head:
                raise InternalError(
                    f"{show_branch(branch)} of the clone shows {shown.head}, not {wanted.head}"
                )

    def _mark(self, phase: ClonePhase, cut: Cut) -> None:
        came = dict[str, str]() if self._marker is None else self._marker.branches
        branches = {**came, **cut.lives}
        marker = CloneMarker(self._origin, self._source.root.uri, phase, boot_id(), branches)
        self._target.adapter.write_text(CLONE, marker.to_text())

    def _report(self, plan: ClonePlan) -> CloneReport:
        there = self._target.adapter.sizes()
        return CloneReport(
            source=self._source.root.uri,
            target=self._target.root.uri,
            heads_only=not plan.cut.history,
            branches=tuple(
                ClonedBranch(show_branch(branch), each.head, each.manifest_version)
                for branch, each in plan.cut.heads.items()
            ),
            tags=plan.tags,
            files=len(there),
            bytes=sum(there.values()),
            files_copied=self._copied.files,
            bytes_copied=self._copied.bytes,
            seconds=time.monotonic() - self._started,
        )


@dataclass(slots=True)
class _Tally:
    """Files and their bytes."""

    files: int = 0
    bytes: int = 0

    def add(self, *sizes: int) -> None:
        self.files += len(sizes)
        self.bytes += sum(sizes)


def _line_of_reference(name: str) -> str | None:
    """The directory of the branch that an object is the reference of."""
    location, found, file = name.partition("/_refs/branches/")
    return branch_directory(location, BranchName(unquote(file.removesuffix(".json")))) if found else None


def _line_of(name: str, lines: set[str]) -> str | None:
    """The branch directory an object lies in. Names of branches may have steps: the deepest one it is."""
    while "/tree/" in name:
        name = name.rpartition("/")[0]
        if name in lines:
            return name
    return None
