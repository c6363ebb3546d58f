"""The journal of a load: what is staged and proven so far, so that another process can go on from there.

A load keeps one text object, `__loads/<id>.json`, from its plan to its end: the request, the input files as
they were, the schema and the tables the rows were staged for. Every task that has staged its split adds one
object below `__loads/<id>/`. A retried task replaces its object; either copy names a whole set of files, so
a row is never there twice. No reader of the graph looks at any of it.

What may be reused is decided here, all at once and before anything is read: when one fact differs, nothing
is. Reused or not, the checks run again against the branch as it is now.
"""

import contextlib
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from omnigraph.catalog.ir import schema_hash
from omnigraph.core.clock import boot_id
from omnigraph.core.errors import (
    Cancelled,
    CommitNotFound,
    LoadNotFound,
    LoadNotResumable,
    StorageNotFound,
)
from omnigraph.core.events import tidying
from omnigraph.core.failpoints import Window, failpoint
from omnigraph.core.formats import LOAD_JOURNAL_FORMAT
from omnigraph.core.ids import CommitId, OperationId, show_branch
from omnigraph.core.load_options import ColumnForm, LoadMode, LoadOptions, SourceFormat
from omnigraph.manifest.commit_record import RequestKey
from omnigraph.pipeline.checks.exchange import IN_STORE
from omnigraph.pipeline.load.stage_split import SplitResult, StageTask, stage_split
from omnigraph.pipeline.plan import Split
from omnigraph.pipeline.problems import Problem, ProblemLog
from omnigraph.recovery.process_lock import FileLock, LockHeld, ObjectLock, ProcessLock
from omnigraph.storage.checksums import OWN_SUM, is_whole, sealed
from omnigraph.storage.durability import DurabilityMode
from omnigraph.storage.failures import translated
from omnigraph.storage.fragments import remove_fragments
from omnigraph.storage.handles import NO_NUMBER, Fragment
from omnigraph.storage.layout import LOADS, GraphRoot, load_record_name
from omnigraph.storage.objects import StorageAdapter, open_adapter

if TYPE_CHECKING:  # tasks load this module too, and have no use for them
    from omnigraph.engine.session import GraphSession
    from omnigraph.manifest.state import Snapshot

_FORMATS_READ: Final = (2, 3, LOAD_JOURNAL_FORMAT)
"""4: fragments as values, files of the graph named relative to its root. 2: files by their full paths.
2 and 3: fragments as Lance describes them, their files beside them; no `options` of their own."""
_RECORD_SUFFIX: Final = ".json"
_REJECTS_NOTE: Final = "rejects"
_LOCK_SUFFIXES: Final = (".lock", ".lock.next")


def is_read_format(number: object) -> bool:
    """Whether this program understands a journal of that format."""
    return number in _FORMATS_READ


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the input, as it was when the load was planned."""

    path: str
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: str) -> "InputFile":
        """The file as it is now."""
        found = Path(path).stat()
        return cls(path, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """What a load set out to do. Everything that decides whether its staged rows still mean the same."""

    id: str
    commit_id: str
    started_us: int
    boot: str | None
    """Which run of the machine wrote it: what the system had not yet put on disk is gone after the next."""
    options: LoadOptions
    schema: str
    head: str
    """The commit of the branch at the plan."""
    targets: Mapping[str, tuple[str, str | None]]
    """Per table: its location and the branch that holds it."""
    workspace: str | None
    partitions: int
    inputs: tuple[InputFile, ...]
    splits: tuple[Split, ...]
    digest: str = ""
    """Of the request, where it has a key."""
    model: str | None = None
    """Whose vectors the staged rows have where records left them out; None where nobody embeds."""

    @property
    def request(self) -> RequestKey | None:
        """What the caller calls the load."""
        key = self.options.idempotency_key
        return None if key is None else RequestKey(self.options.actor, key, self.digest)


@dataclass(frozen=True, slots=True)
class ResumableLoad:
    """A load that ended before its commit, as a listing shows it."""

    id: str
    started_us: int
    mode: str
    branch: str
    splits: int
    splits_staged: int
    sources: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Places:
    """How a journal names files: those of the graph relative to its root, others by their full paths."""

    root: GraphRoot
    former: str | None = None
    """The root as an earlier program wrote it in full; the graph may have been moved since."""

    @classmethod
    def of(cls, root: GraphRoot, load_id: str, workspace: str | None) -> "_Places":
        """As the record of a load tells, by the directory it gave the load."""
        own = f"/{LOADS}/{load_id}"
        named_in_full = workspace is not None and workspace.endswith(own) and root.is_local
        return cls(root, workspace.removesuffix(own) if workspace is not None and named_in_full else None)

    def workspace(self, load_id: str, recorded: str | None) -> str | None:
        """The directory of a load: below a local graph; elsewhere only where it was outside of the graph."""
        if self.root.is_local:
            return self.root.local_path(f"{LOADS}/{load_id}")
        return None if recorded is None or recorded.endswith(f"{LOADS}/{load_id}") else recorded

    def kept(self, path: str) -> str:
        """As the journal names it."""
        return path.removeprefix(f"{self.root.uri}/") if self.root.is_local else path

    def here(self, path: str) -> str:
        """Where it lies now."""
        if not self.root.is_local or path.startswith(IN_STORE):
            return path
        if self.former is not None and path.startswith(f"{self.former}/"):
            return f"{self.root.uri}{path.removeprefix(self.former)}"
        return path if path.startswith("/") else self.root.local_path(path)

    def reach(self, result: SplitResult) -> bool:
        """Whether the facts of a split are where this graph has them, in files or in its store."""
        paths = [path for some in result.facts.values() for path in some]
        return not self.root.is_local or not any(path.startswith(IN_STORE) for path in paths)


class Journal:
    """The journal of one load, on the driver."""

    def __init__(self, root: GraphRoot, load_id: str) -> None:
        self.load_id = load_id
        self._root = root
        self._adapter = _adapter(root)

    def begin(self, record: LoadRecord) -> None:
        """Start over with this plan: entries of a former one are gone first."""
        self._adapter.delete_prefix(_entries(self.load_id))
        members = {"format": LOAD_JOURNAL_FORMAT, **_record_members(record, _Places(self._root))}
        self._adapter.write_text(load_record_name(self.load_id), _dumped(members))

    def replace(self, result: SplitResult, skip: NDArray[np.int64]) -> None:
        """A split was staged again without some records; its former files go only after this."""
        write_entry(self._root, self.load_id, result, skip)

    def entries(self) -> dict[int, tuple[SplitResult, NDArray[np.int64]]]:
        """What every finished split gave, and the records that were left out. A torn entry is no entry."""
        found: dict[int, tuple[SplitResult, NDArray[np.int64]]] = {}
        places = self._places()
        for name in self._adapter.list_dir(_entries(self.load_id)):
            if not name.startswith("split-"):
                continue
            text = self._adapter.read_text_if_exists(f"{_entries(self.load_id)}/{name}")
            with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, FileNotFoundError):
                members = _loaded(text)
                sizes = {places.here(path): size for path, size in members["sizes"].items()}
                result = _result_from(members, places)
                if places.reach(result) and all(Path(p).stat().st_size == size for p, size in sizes.items()):
                    found[result.split] = (result, np.array(members["skip"], np.int64))
        return found

    def _places(self) -> _Places:
        text = self._adapter.read_text_if_exists(load_record_name(self.load_id))
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return _Places.of(self._root, self.load_id, orjson.loads(text or "")["workspace"])
        return _Places(self._root)

    def note_rejects(self) -> None:
        """The file of refused records is this load's from now on."""
        self._adapter.write_text(f"{_entries(self.load_id)}/{_REJECTS_NOTE}", "")

    def has_rejects(self) -> bool:
        """Whether this load has set records aside already."""
        return self._adapter.exists(f"{_entries(self.load_id)}/{_REJECTS_NOTE}")

    def end(self) -> None:
        """Nothing is left to resume. The record goes first: by it a task that still runs knows."""
        self._adapter.delete(load_record_name(self.load_id))
        self._adapter.delete_prefix(self._out_of_reach())

    def _out_of_reach(self) -> str:
        """Where the files of the load now are: no task that still runs can put another one there."""
        name = f"{LOADS}/{self.load_id}"
        if self._root.is_local:
            path = self._root.local_path(name)
            with contextlib.suppress(StorageNotFound), translated(path):
                Path(path).rename(f"{path}.ended")
                return f"{name}.ended"
        return name


@contextlib.contextmanager
def own_files(root: GraphRoot, load_id: str) -> Generator[None]:
    """Turn what the system refuses about the files of a load into one of our errors, which names the file."""
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else f"{root.uri}/{LOADS}/{load_id}"
        with translated(named):
            raise


@contextlib.contextmanager
def only_driver(session: "GraphSession", load_id: str, *, new: bool) -> Generator[None]:
    """Be the only process that drives this load. Raises LoadNotResumable while another one does.

    Of a `new` load nobody else knows: whatever is there of its lock is removed, also when an interrupt came
    while it was taken.
    """
    name = f"{LOADS}/{load_id}.lock"
    lock: ProcessLock
    if session.root.is_local:
        Path(session.root.local_path(LOADS)).mkdir(exist_ok=True)
        lock = FileLock(session.root.local_path(name))
    else:
        lock = ObjectLock(session.adapter, name, session.clock)
    held: LockHeld | None = None
    try:
        held = lock.acquire(0.0)
        if held is None:
            raise LoadNotResumable(load_id, ("another process still runs it",))
        yield
    finally:
        if held is not None or new:
            _give_up(session, load_id, held, name)


def _give_up(session: "GraphSession", load_id: str, held: LockHeld | None, name: str) -> None:
    """Let go of the load. It has ended, so nothing here may say otherwise."""
    with tidying(f"the lock of the load {load_id} remains"):
        if session.root.is_local:
            for suffix in _LOCK_SUFFIXES:
                Path(session.root.local_path(f"{LOADS}/{load_id}{suffix}")).unlink(missing_ok=True)
    if held is not None:
        held.release()
    with tidying(f"the lock of the load {load_id} remains"):
        # A released lock stays as an object. Without a record nobody can want it any more.
        if not session.root.is_local and not session.adapter.exists(load_record_name(load_id)):
            session.adapter.delete(name)


# --- entries, written by tasks ---


def stage_journaled(task: StageTask) -> SplitResult:
    """Stage a split, then note it: its fragments are durable and its facts are written."""
    adapter, load_id = _adapter(task.plan.root), task.plan.operation_id
    result: SplitResult | None = None
    try:
        result = stage_split(task)
        _refuse_if_ended(adapter, load_id)
        write_entry(task.plan.root, load_id, result, np.empty(0, np.int64))
        _refuse_if_ended(adapter, load_id)
    except BaseException:  # an interrupt as well: without an entry nobody else knows the files
        if result is not None:
            remove_fragments(task.plan.root, result.staged())
        raise
    failpoint(Window.LOAD_SPLIT_STAGED)
    return result


def _refuse_if_ended(adapter: StorageAdapter, load_id: str) -> None:
    """Leave nothing behind a load that ended meanwhile: Spark does not reach into a task that it cancels."""
    if not adapter.exists(load_record_name(load_id)):
        adapter.delete_prefix(f"{LOADS}/{load_id}")
        raise Cancelled("the load was stopped; nothing was changed")


def write_entry(root: GraphRoot, load_id: str, result: SplitResult, skip: NDArray[np.int64]) -> None:
    """Write or replace the entry of one split."""
    places = _Places(root)
    facts = {space: [places.kept(path) for path in paths] for space, paths in result.facts.items()}
    files = [path for paths in facts.values() for path in paths if not path.startswith(IN_STORE)]
    if root.is_local:
        files += [name for fragment in result.staged() for name in fragment.files]
    members = {
        **{each.name: getattr(result, each.name) for each in fields(result)},
        "facts": facts,
        "log": {
            "kept": {kind: [asdict(one) for one in some] for kind, some in result.log.kept.items()},
            "totals": result.log.totals,
            "kept_max": result.log.kept_max,
        },
        "refused": result.refused.tolist(),
        "at_fault": result.at_fault.tolist(),
        "skip": skip.tolist(),
        "sizes": {name: Path(places.here(name)).stat().st_size for name in files},
    }
    _adapter(root).write_text(f"{_entries(load_id)}/split-{result.split}.json", _dumped(members))


def _result_from(members: Mapping[str, Any], places: _Places) -> SplitResult:
    known = {each.name for each in fields(SplitResult)}
    log = members["log"]
    kept = {kind: [Problem(**one) for one in some] for kind, some in log["kept"].items()}
    rebuilt: dict[str, Any] = {
        "log": ProblemLog(kept, log["totals"], log["kept_max"]),
        "refused": np.array(members["refused"], np.int64),
        "at_fault": np.array(members["at_fault"], np.int64),
        "facts": {space: [places.here(path) for path in some] for space, some in members["facts"].items()},
        "fragments": {
            key: [_fragment_from(one, members, places) for one in some]
            for key, some in members["fragments"].items()
        },
    }
    kept_members: dict[str, Any] = {name: value for name, value in members.items() if name in known}
    return SplitResult(**(kept_members | rebuilt))


def _fragment_from(one: Any, members: Mapping[str, Any], places: _Places) -> Fragment:
    if not isinstance(one, str):
        return Fragment.from_members(one)
    described = orjson.loads(one)
    mine = {file["path"] for file in described["files"]}
    files = [places.kept(places.here(path)) for path in members["files"] if Path(path).name in mine]
    return Fragment(NO_NUMBER, tuple(files), described["physical_rows"], metadata=one)


def _entries(load_id: str) -> str:
    return f"{LOADS}/{load_id}/journal"


def _adapter(root: GraphRoot) -> StorageAdapter:
    """Not durable on purpose: after a power cut nothing is reused, and a load must not wait for the disk."""
    return open_adapter(root.uri, root.storage_options, durability=DurabilityMode.OS)


def _dumped(value: Any) -> str:
    return sealed(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode())


def _loaded(text: str | None) -> dict[str, Any]:
    """The members of an object. Raises JSONDecodeError when it is torn, KeyError when a bit of it flipped."""
    members = orjson.loads(text or "")
    if not is_whole(text or ""):
        raise KeyError(text)
    return {name: value for name, value in members.items() if name != OWN_SUM}


# --- reading a record, and whether it still holds ---


def read_record(session: "GraphSession", load_id: str) -> LoadRecord:
    """The record of a load that ended before its commit.

    Raises LoadNotFound when there is none.
    """
    if not load_id.isalnum():
        raise LoadNotFound(load_id)
    text = _adapter(session.root).read_text_if_exists(load_record_name(load_id))
    record = None if text is None else _record_from(text, session.root)
    if record is None:
        raise LoadNotFound(load_id)
    return record


def resumable_loads(session: "GraphSession") -> list[ResumableLoad]:
    """Every load of this graph that left a record, oldest first; one that still runs is among them."""
    adapter = _adapter(session.root)
    found: list[ResumableLoad] = []
    for name in sorted(adapter.list_dir(LOADS)):
        if not name.endswith(_RECORD_SUFFIX):
            continue
        text = adapter.read_text_if_exists(f"{LOADS}/{name}")
        record = None if text is None else _record_from(text, session.root)
        if record is not None:
            found.append(
                ResumableLoad(
                    id=record.id,
                    started_us=record.started_us,
                    mode=record.options.chosen_mode().value,
                    branch=show_branch(record.options.branch),
                    splits=len(record.splits),
                    splits_staged=len(Journal(session.root, record.id).entries()),
                    sources=tuple(dict.fromkeys(split.name for split in record.splits)),
                )
            )
    return found


def _record_members(record: LoadRecord, places: _Places) -> dict[str, Any]:
    members: dict[str, Any] = asdict(record)
    members["options"] = record.options.members()
    if record.workspace is not None:
        members["workspace"] = places.kept(record.workspace)
    for each in (*members["inputs"], *members["splits"]):
        each["path"] = places.kept(each["path"])
    return members


def _record_from(text: str, root: GraphRoot) -> LoadRecord | None:
    """None for a torn record and for one of a format that is not read."""
    with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        members = _loaded(text)
        if members.pop("format") in _FORMATS_READ:
            places = _Places.of(root, members["id"], members["workspace"])
            for each in (*members["inputs"], *members["splits"]):
                each["path"] = places.here(each["path"])
            members["workspace"] = places.workspace(members["id"], members["workspace"])
            members["splits"] = tuple(_split_from(split) for split in members["splits"])
            members["inputs"] = tuple(InputFile(**each) for each in members["inputs"])
            members["options"] = _options_from(members)
            members["targets"] = {key: (where, held) for key, (where, held) in members["targets"].items()}
            return LoadRecord(**members)
    return None


def _options_from(members: dict[str, Any]) -> LoadOptions:
    if "options" not in members:  # formats 2 and 3 have them among the other members
        members["options"] = {each.name: members.pop(each.name, None) for each in fields(LoadOptions)}
    return LoadOptions.from_members(members["options"])


def _split_from(members: dict[str, Any]) -> Split:
    members["format"] = SourceFormat(members["format"])
    if "columns" in members:
        form = members["columns"]
        members["columns"] = ColumnForm(
            form["delimiter"],
            None if form["names"] is None else tuple(form["names"]),
            tuple(form["nulls"]),
            tuple((name, meant) for name, meant in form["rename"]),
            form["ignore_extra"],
        )
    return Split(**members)


@dataclass(slots=True)
class Differences:
    """Why a load cannot go on: every fact that is not what it was."""

    found: list[str] = field(default_factory=list[str])

    def raise_if_any(self, load_id: str) -> None:
        """Raise LoadNotResumable that names them all."""
        if self.found:
            raise LoadNotResumable(load_id, tuple(self.found))


def check_inputs(record: LoadRecord, sources: Sequence[str] | None, differences: Differences) -> None:
    """The input is the same files, unchanged, and this is the same run of the machine."""
    if record.boot != boot_id():
        differences.found.append("the machine has been restarted since")
    if sources is not None:
        asked, planned = set(sources), {each.path for each in record.inputs}
        differences.found += [f"input '{path}' is new" for path in sorted(asked - planned)]
        differences.found += [f"input '{path}' is not named" for path in sorted(planned - asked)]
    for each in record.inputs:
        try:
            now = InputFile.of(each.path)
        except OSError:
            differences.found.append(f"input '{each.path}' is gone")
            continue
        if now != each:
            what = "size" if now.size != each.size else "time of change"
            differences.found.append(f"input '{each.path}' has another {what}")


def check_graph(
    session: "GraphSession",
    record: LoadRecord,
    snapshot: "Snapshot",
    touched: Collection[str],
    model: str | None,
) -> None:
    """The graph takes the staged rows: same schema, tables where they were, and nothing of it committed.

    Raises LoadNotResumable. Rows of a patch carry values of the commit they were staged against, so there
    the branch must not have moved at all.
    """
    differences = Differences()
    settled = _settled_by(session, record)
    if settled is not None:
        with tidying(f"files of the load {record.id} remain"):
            Journal(session.root, record.id).end()
        differences.found.append(f"commit {settled} settled it")
    if schema_hash(session.catalog_of(snapshot)) != record.schema:
        differences.found.append("the schema has changed")
    if model != record.model:
        was, now = ("no embedder" if each is None else f"'{each}'" for each in (record.model, model))
        differences.found.append(f"vectors are made by {now}, were made by {was}")
    mode = record.options.mode
    if mode is LoadMode.PATCH and snapshot.head != record.head:
        moved = f"the branch is at {snapshot.head}, was at {record.head}, and patch depends on it"
        differences.found.append(moved)
    elif mode is LoadMode.MERGE and snapshot.head != record.head:
        edges = session.catalog_of(snapshot).edges.values()
        named = [edge.name for edge in edges if edge.table_key in touched and edge.identity is not None]
        if named:
            moved = f"the branch is at {snapshot.head}, was at {record.head}"
            differences.found.append(f"{moved}, and edges of {named[0]} are named by their ends there")
    for key in sorted(touched):
        entry = next((each for name, each in snapshot.entries.items() if name == key), None)
        now = None if entry is None else (entry.location, entry.branch)
        if now != record.targets.get(key):
            differences.found.append(f"the table of {key} lies elsewhere")
    differences.raise_if_any(record.id)


def _settled_by(session: "GraphSession", record: LoadRecord) -> str | None:
    """The commit that made the load visible or took it back: its process died after Phase A."""
    try:
        return session.commits.show(CommitId(record.commit_id)).id
    except CommitNotFound:
        recovery = session.commits.recovering(OperationId(record.id))
        return None if recovery is None else recovery.id
