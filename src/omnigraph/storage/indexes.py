"""Index builds as staged writes, and what the indexes of a table version cover.

An index is never needed for a right answer: rows of fragments it does not cover are scanned.
"""

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from omnigraph.core.events import DurableOperation, StorageCall, TableStaged, emit
from omnigraph.core.late_dataclass import dataclass
from omnigraph.core.progress import Steps
from omnigraph.storage.datasets import DatasetPool
from omnigraph.storage.failures import substrate
from omnigraph.storage.handles import SnapshotHandle, StagedHandle, Stamp, lance_dataset
from omnigraph.storage.layout import branch_directory
from omnigraph.storage.memory import giving_back
from omnigraph.storage.short_files import require_whole
from omnigraph.storage.staging import Work
from omnigraph.storage.text_analysis import analyser_options
from omnigraph.storage.version_files import base_roots, circumstances

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.dataset import Index


class IndexKind(StrEnum):
    """The index forms the product builds."""

    BTREE = "BTREE"
    INVERTED = "INVERTED"
    VECTOR = "IVF_FLAT"


_SUFFIXES: Final = {IndexKind.BTREE: "btree", IndexKind.INVERTED: "fts", IndexKind.VECTOR: "vec"}

_processors: Final = threading.BoundedSemaphore(os.cpu_count() or 1)
_large_build: Final = threading.Lock()
LARGE_BUILD_ROWS_MIN: Final = 1_000_000
"""Over this many rows a build holds hundreds of megabytes: such builds run one after the other."""

_ROWS_PER_PARTITION: Final = 4096
_PARTITIONS_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """One index to build. `options` go to Lance as they are (tokenizer, metric, partitions)."""

    kind: IndexKind
    column: str
    options: dict[str, Any] = field(default_factory=dict[str, Any], hash=False)

    @property
    def name(self) -> str:
        """The name all segments of this index share."""
        return f"{self.column}_{_SUFFIXES[self.kind]}"


@dataclass(frozen=True, slots=True)
class IndexCoverage:
    """What one named index covers at a table version."""

    name: str
    kind: str
    columns: tuple[str, ...]
    segments: int
    covered: frozenset[int]
    """Fragments of this version whose rows the index knows."""
    uncovered: frozenset[int]
    """Fragments of this version that a search has to scan."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False, compare=False)
    """What it was built with, as far as the substrate says."""
    bytes: int = field(default=0, compare=False)
    """Of its files; 0 where the substrate did not record it."""

    def makes_words(self, analysis: str) -> bool:
        """Whether it is a full-text index whose words are made in this way."""
        wanted = analyser_options(analysis)
        is_text = self.kind.upper() == IndexKind.INVERTED.value
        return is_text and all(self.options.get(name) == value for name, value in wanted.items())

    def follows(self, plan: IndexPlan) -> bool:
        """Whether it is what the plan would build; a full-text index may make other words."""
        if plan.kind is not IndexKind.INVERTED:
            return True
        return all(self.options.get(name) == value for name, value in plan.options.items())

    @property
    def role(self) -> str:
        """The name of the plan it carries out. Its own name is another one once its column was renamed."""
        kind = next((each for each in IndexKind if each.value == self.kind.upper()), None)
        return self.name if kind is None or len(self.columns) != 1 else IndexPlan(kind, self.columns[0]).name


def index_coverage(handle: SnapshotHandle, column: str | None = None) -> tuple[IndexCoverage, ...]:
    """Every index of the version, or those of one column. Cost: metadata of the open handle only."""
    dataset = lance_dataset(handle)
    present = frozenset(int(fragment.fragment_id) for fragment in dataset.get_fragments())
    found: list[IndexCoverage] = []
    for index in dataset.describe_indices():
        columns = tuple(str(name) for name in index.field_names)
        if column is not None and column not in columns:
            continue
        known: set[int] = set()
        for segment in index.segments:
            # An index of which the substrate cannot say what it covers is not held against a table.
            listed = segment.fragment_ids
            known.update(present if listed is None else (int(number) for number in listed))
        covered = present & known
        found.append(
            IndexCoverage(
                index.name,
                str(index.index_type),
                columns,
                len(index.segments),
                covered,
                present - covered,
                dict(index.details or {}) if str(index.index_type).upper() == "INVERTED" else {},
                int(index.total_size_bytes or 0),
            )
        )
    return tuple(found)


def index_files(pool: DatasetPool, handle: SnapshotHandle) -> list[str]:
    """Graph-relative names of the index files of a version. Cost: metadata, and a listing per segment.

    A branch also uses the indexes of the branches it grew out of; they are looked for in all of these.
    """
    dataset = lance_dataset(handle)
    prefix = f"{pool.root.uri}/"
    roots = [branch_directory(handle.location, handle.branch), *base_roots(dataset).values()]
    found: list[str] = []
    for segment in (each for index in dataset.describe_indices() for each in index.segments):
        for root in roots:
            directory = f"{root.removeprefix(prefix)}/_indices/{segment.uuid}"
            found.extend(f"{directory}/{name}" for name in pool.adapter.list_dir(directory))
    return found


def stage_indexes(
    pool: DatasetPool,
    handle: SnapshotHandle,
    plans: Sequence[IndexPlan],
    stamp: Stamp,
    *,
    rebuild: bool = False,
    segments_max: int | None = None,
) -> StagedHandle | None:
    """Build the indexes over what they do not cover yet, as segments of one later commit.

    None when everything is covered.
    `rebuild` covers every fragment anew and replaces the old segments, those of indexes without a plan as
    well: afterwards no index knows a row that is gone. An index that would have more segments than
    `segments_max` is built anew, too.
    """
    from lance import LanceOperation  # noqa: PLC0415

    dataset = lance_dataset(handle)
    there = index_coverage(handle)
    coverage = {each.role: each for each in there}
    present = sorted(int(fragment.fragment_id) for fragment in dataset.get_fragments())
    replaced = [old for each in there for old in segments_of(dataset, each.name)] if rebuild else []
    wanted: list[tuple[IndexPlan, str, list[int]]] = []
    emit(StorageCall("create_index", str(dataset.uri)))
    emit(DurableOperation("stage_index", str(dataset.uri), "before"))
    with substrate(lambda: circumstances(pool, handle, writes=True)):
        for plan in plans:
            known = coverage.get(plan.name)
            stale = known is not None and not known.follows(plan)
            anew = rebuild or (known is not None and has_too_many_segments(known, segments_max))
            fragments = _fragments_to_build(plan, None if stale else known, present, rebuild=anew)
            if fragments is None:
                continue
            if known is not None and not rebuild:
                whole = stale or fragments == present
                replaced.extend(_replaced(dataset, known.name, present, whole=whole))
            name = _free_name(plan, there) if known is None else known.name
            wanted.append((plan, name, fragments))
        built = _build_all(pool, handle, wanted)
    emit(DurableOperation("stage_index", str(dataset.uri), "after"))
    if not built and not replaced:
        return None
    work = Work(LanceOperation.CreateIndex(built, replaced), stamp, data_root=str(dataset.uri))
    size = sum(file.size_bytes or 0 for index in built for file in index.files or ())
    files = _files(pool, handle, built)
    require_whole(files, files)
    staged = StagedHandle(
        table_key=handle.table_key,
        primitive="stage_indexes",
        base_version=handle.version,
        transaction_uuid=str(uuid.uuid4()),
        rows=0,
        rows_removed=0,
        bytes=size,
        files=tuple(files),
        _work=work,
    )
    emit(TableStaged(handle.table_key, "stage_indexes", 0, size))
    return staged


def has_too_many_segments(known: IndexCoverage, segments_max: int | None) -> bool:
    """Whether an index has too many segments, or would have once it covers everything."""
    return segments_max is not None and known.segments + bool(known.uncovered) > segments_max


def _fragments_to_build(
    plan: IndexPlan, known: IndexCoverage | None, present: list[int], *, rebuild: bool
) -> list[int] | None:
    """The fragments a build has to read; None when there is nothing to do."""
    if known is None:
        # On an empty table only a full-text index means anything: without one, searching is an error.
        return present if present or plan.kind is IndexKind.INVERTED else None
    if not present:
        return present if rebuild and plan.kind is IndexKind.INVERTED else None
    if rebuild or not known.covered:
        return present
    return sorted(known.uncovered) or None


def default_options(dataset: "LanceDataset", plan: IndexPlan) -> dict[str, Any]:
    """The options of a build: what the plan says, completed by what follows from the table."""
    options = dict(plan.options)
    if plan.kind is IndexKind.VECTOR:
        options.setdefault("num_partitions", _partitions(dataset.count_rows()))
        options.setdefault("metric", "l2")
    return options


def _build_all(
    pool: DatasetPool, handle: SnapshotHandle, wanted: Sequence[tuple[IndexPlan, str, list[int]]]
) -> "list[Index]":
    """Build side by side, as many at once as the machine has processors: each build keeps one busy."""
    large = lance_dataset(handle).count_rows() >= LARGE_BUILD_ROWS_MIN

    def build(each: tuple[IndexPlan, str, list[int]]) -> "Index":
        with _large_build if large else nullcontext(), _processors:
            # A dataset of its own: a build borrows it exclusively, and every reader of a shared one would
            # fail meanwhile.
            return _build(pool.private(handle.location, handle.branch, handle.version), *each)

    steps = Steps("index", f"build {handle.table_key}", len(wanted), "indexes")
    with giving_back() if large else nullcontext():
        if len(wanted) < 2:
            return [steps.counting(build)(each) for each in wanted]
        with ThreadPoolExecutor(len(wanted), thread_name_prefix="omnigraph-index") as threads:
            begun = [threads.submit(build, each) for each in wanted]
            for _ in as_completed(begun):
                steps.advance()
            return [each.result() for each in begun]


def _free_name(plan: IndexPlan, there: Sequence[IndexCoverage]) -> str:
    """The name of a new index; an index whose column was renamed keeps the one it was built with."""
    taken = {each.name for each in there}
    name, number = plan.name, 2
    while name in taken:
        name, number = f"{plan.name}_{number}", number + 1
    return name


def _build(dataset: "LanceDataset", plan: IndexPlan, name: str, fragments: list[int]) -> "Index":
    index = dataset.create_index_uncommitted(
        plan.column,
        plan.kind.value,
        name=name,
        replace=True,
        fragment_ids=fragments,
        **default_options(dataset, plan),
    )
    if plan.kind is IndexKind.INVERTED:
        # Bare, its parts are per fragment and cannot be searched; the merge writes the searchable form.
        index = dataset.merge_existing_index_segments([index])
    return index


def _partitions(rows: int) -> int:
    return max(1, min(_PARTITIONS_MAX, rows // _ROWS_PER_PARTITION))


def _replaced(dataset: "LanceDataset", name: str, present: list[int], *, whole: bool) -> "list[Index]":
    """The segments a build makes useless: all of them, or those that know only fragments long rewritten."""
    segments = segments_of(dataset, name)
    return segments if whole else [each for each in segments if each.fragment_ids.isdisjoint(present)]


def segments_of(dataset: "LanceDataset", name: str) -> "list[Index]":
    """The segments of an index of an open version, as a commit names them."""
    from lance.dataset import Index  # noqa: PLC0415

    return [
        Index(
            uuid=str(segment.uuid),
            name=name,
            fields=list(index.fields),
            dataset_version=int(segment.dataset_version_at_last_update),
            fragment_ids=set(segment.fragment_ids or ()),
            index_version=int(segment.index_version),
        )
        for index in dataset.describe_indices()
        if index.name == name
        for segment in index.segments
    ]


def _files(pool: DatasetPool, handle: SnapshotHandle, built: "Sequence[Index]") -> dict[str, int]:
    """The local files of new indexes and the sizes they were written with."""
    if not pool.root.is_local:
        return {}
    uri = pool.root.dataset_uri(handle.location, handle.branch)
    return {
        f"{uri}/_indices/{index.uuid}/{file.path}": int(file.size_bytes)
        for index in built
        for file in index.files or ()
    }
