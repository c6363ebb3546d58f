"""Which files make up a table version."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from omnigraph.core.errors import InternalError
from omnigraph.core.late_dataclass import dataclass
from omnigraph.storage.datasets import DatasetPool, read_transaction
from omnigraph.storage.failures import Circumstances
from omnigraph.storage.handles import (
    NO_NUMBER,
    Fragment,
    SnapshotHandle,
    StagedHandle,
    lance_dataset,
    staged_work,
)
from omnigraph.storage.layout import GraphRoot
from omnigraph.storage.short_files import file_name, is_whole

if TYPE_CHECKING:
    from lance import LanceDataset
    from lance.fragment import FragmentMetadata, LanceFragment


def circumstances(
    pool: DatasetPool, handle: SnapshotHandle, *, writes: bool = False, bytes_written: int = 0
) -> Circumstances:
    """What is known when a call on this table version fails: every file it may have needed."""
    uri = pool.root.dataset_uri(handle.location, handle.branch)

    def needed() -> Iterable[str]:
        dataset = lance_dataset(handle)
        bases = base_roots(dataset)
        for fragment in dataset.get_fragments():
            files, deletions = fragment_files(fragment.metadata, uri, bases)
            yield from files
            if deletions is not None:
                yield deletions

    def damaged() -> str | None:
        dataset = lance_dataset(handle)
        bases = base_roots(dataset)
        for fragment in dataset.get_fragments():
            files, deletions = fragment_files(fragment.metadata, uri, bases)
            for name, file in zip(files, fragment.metadata.files, strict=True):
                if not is_whole(name, file.file_size_bytes):
                    return name
            if deletions is not None and not is_whole(deletions):
                return deletions
        return None

    directory = uri if writes and pool.root.is_local else None
    return pool.circumstances(
        handle.location,
        handle.branch,
        needed=needed,
        # An object store shows an object whole or not at all; only local files can be cut short.
        **({"damaged": damaged} if pool.root.is_local else {}),
        directory=directory,
        bytes_written=bytes_written,
    )


def fragment_files(
    fragment: "FragmentMetadata", own_root: str, bases: dict[int, str]
) -> tuple[list[str], str | None]:
    """Full addresses of the data files of a fragment (Lance's metadata of it) and of its deletion file."""
    files = [f"{_below(file.base_id, own_root, bases)}/data/{file_name(file)}" for file in fragment.files]
    if fragment.deletion_file is None:
        return files, None
    # Members are read one by one: Lance's to_json() copies deeply, which on a table of many fragments costs
    # more than a commit.
    deletion = fragment.deletion_file.asdict()
    suffix = "arrow" if deletion["file_type"] == "array" else "bin"
    name = f"{fragment.id}-{deletion['read_version']}-{deletion['id']}.{suffix}"
    return files, f"{_below(deletion['base_id'], own_root, bases)}/_deletions/{name}"


@dataclass(frozen=True, slots=True)
class UsedFiles:
    """Every file a version of a dataset needs beside its manifest, as seen from the graph root."""

    data: Mapping[str, int]
    """Data files with the bytes the version recorded of them; 0 where it recorded none."""
    deletions: tuple[str, ...]
    indexes: tuple[str, ...]
    """Directories: every file below belongs to the version."""
    transaction: str | None
    """Where Lance wrote the commit a second time. It may be gone: the manifest has it too."""


def used_files(root: GraphRoot, dataset: "LanceDataset") -> UsedFiles:
    """What a version of an open dataset needs. Cost: its metadata, a step per fragment.

    Raises InternalError for a version with files of a kind that is not known here: nobody may take a part of
    a version for all of it.
    """
    own, bases = str(dataset.uri), base_roots(dataset)

    def below_root(address: str) -> str:
        return address.removeprefix(f"{root.uri}/")

    data: dict[str, int] = {}
    deletions: list[str] = []
    for fragment in dataset.get_fragments():
        metadata = fragment.metadata
        if metadata.overlays:
            raise InternalError(f"{own}: version {dataset.version} has files of a kind that is not known")
        files, hidden = fragment_files(metadata, own, bases)
        for file, address in zip(metadata.files, files, strict=True):
            data[below_root(address)] = int(file.file_size_bytes or 0)
        if hidden is not None:
            deletions.append(below_root(hidden))
    indexes = [
        below_root(f"{_below(segment.base_id, own, bases)}/_indices/{segment.uuid}")
        for index in dataset.describe_indices()
        for segment in index.segments
    ]
    made_by = read_transaction(dataset, dataset.version)
    transaction = None if made_by is None else transaction_name(made_by.read_version, made_by.uuid)
    return UsedFiles(
        data=data,
        deletions=tuple(deletions),
        indexes=tuple(dict.fromkeys(indexes)),
        transaction=None if transaction is None else below_root(f"{own}/{transaction}"),
    )


def transaction_name(read_version: int, transaction_uuid: str) -> str:
    """Where Lance writes a commit a second time, as seen from the dataset."""
    return f"_transactions/{read_version}-{transaction_uuid}.txn"


def describe_fragments(
    pool: DatasetPool, handle: SnapshotHandle, *, above: int = -1, also: Collection[int] = ()
) -> tuple[Fragment, ...]:
    """The fragments of a version with their files as seen from the graph root.

    Only those numbered above `above`, and those in `also`.
    """
    dataset = lance_dataset(handle)
    own = pool.root.dataset_uri(handle.location, handle.branch)
    bases = base_roots(dataset)
    prefix = f"{pool.root.uri}/"
    found: list[Fragment] = []
    for fragment in _chosen(dataset, above, also):
        metadata = fragment.metadata
        files, deletions = fragment_files(metadata, own, bases)
        found.append(
            Fragment(
                id=int(metadata.id),
                files=tuple(name.removeprefix(prefix) for name in files),
                physical_rows=int(metadata.physical_rows),
                deletions=None if deletions is None else deletions.removeprefix(prefix),
                deleted_rows=int(metadata.num_deletions),
                bytes=_stored_bytes(metadata),
            )
        )
    return tuple(found)


def describe_staged(root: GraphRoot, handle: SnapshotHandle, staged: StagedHandle) -> tuple[Fragment, ...]:
    """The fragments of a staged write: nobody points at them, and they have no numbers."""
    own = root.dataset_uri(handle.location, handle.branch)
    prefix = f"{root.uri}/"
    return tuple(
        Fragment(
            id=NO_NUMBER,
            files=tuple(name.removeprefix(prefix) for name in fragment_files(metadata, own, {})[0]),
            physical_rows=int(metadata.physical_rows),
            bytes=_stored_bytes(metadata),
            metadata=json.dumps(metadata.to_json()),
        )
        for metadata in staged_work(staged).new_fragments
    )


def _stored_bytes(metadata: "FragmentMetadata") -> int:
    return sum(int(file.file_size_bytes or 0) for file in metadata.files)


def _chosen(dataset: "LanceDataset", above: int, also: Collection[int]) -> "Iterator[LanceFragment]":
    if above < 0:
        yield from dataset.get_fragments()
        return
    # Only what is asked for is made: a table of many fragments pays for each object.
    for number in dataset.fragment_ids():
        if number > above or number in also:
            fragment = dataset.get_fragment(number)
            if fragment is not None:
                yield fragment


def _below(base_id: int | None, own_root: str, bases: dict[int, str]) -> str:
    return own_root if base_id is None else bases[base_id]


def base_roots(dataset: "LanceDataset") -> dict[int, str]:
    """Directories of other branches whose files this table version uses, by Lance's number for them."""
    return {int(number): str(base.path) for number, base in dataset.base_paths().items()}
