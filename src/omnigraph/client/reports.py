"""The reports of a server, back as the classes that `Graph` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import orjson

from omnigraph.client.wire import commit_of, strange
from omnigraph.core.ids import BranchName, CommitId, TableKey
from omnigraph.manifest.commit_record import CommitRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import httpx2

    from omnigraph.branching.blame import Blame
    from omnigraph.branching.feed import ChangesPage, FeedPage
    from omnigraph.branching.history import Diff, EntityChange
    from omnigraph.branching.listing import BranchDetail
    from omnigraph.branching.merge_report import MergePreview
    from omnigraph.catalog.plan import SchemaStep
    from omnigraph.engine.entities.blob_cells import Blob
    from omnigraph.engine.entities.lookup import Entity
    from omnigraph.engine.evolve.apply import AppliedSchema
    from omnigraph.engine.read.explain import Explanation, Operator
    from omnigraph.maintenance.cleanup_report import CleanupReport
    from omnigraph.maintenance.index_report import ColumnReport, IndexesReport
    from omnigraph.maintenance.optimize import OptimizedTable, OptimizeReport
    from omnigraph.maintenance.stats import BranchStats, StatsReport
    from omnigraph.manifest.state import Snapshot

# Every function imports the classes it makes: a command that needs none of them loads none.
# ruff: noqa: PLC0415


def snapshot_of(said: Mapping[str, Any]) -> Snapshot:
    """A state. What only the storage is read with is empty."""
    from omnigraph.manifest.state import Snapshot, TableEntry

    entries: dict[TableKey, TableEntry] = {}
    for each in said["datasets"]:
        key = TableKey(f"{each['entity_kind']}:{each['type_name']}")
        owner = each["native_dataset_branch"]
        entries[key] = TableEntry(
            key,
            each["dataset_path"],
            each["published_dataset_version"],
            None if owner is None else BranchName(owner),
            each["entity_count"],
            "",
        )
    branch = said["graph_branch"]
    return Snapshot(
        branch=None if branch == "main" else BranchName(branch),
        manifest_version=said["graph_manifest_version"],
        entries=entries,
        registrations={},
        tombstones={},
        commit=commit_of(said["commit"]),
    )


def entity_of(content: bytes) -> Entity:
    """One entity, from an Arrow stream of one row. Raises NotThisProduct."""
    import pyarrow as pa

    from omnigraph.catalog.blobs import BlobReference
    from omnigraph.engine.entities.lookup import Entity

    try:
        table = pa.ipc.open_stream(content).read_all()
        said = orjson.loads((table.schema.metadata or {})[b"omnigraph"])
        properties = table.to_pylist()[0] if table.num_columns else {}
        references = {name: BlobReference(uri) for name, uri in said["references"].items()}
        return Entity(said["type"], said["id"], {**properties, **references}, said["from"], said["to"])
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise strange() from error


def blob_of(answer: httpx2.Response) -> Blob:
    """One blob, from its bytes or from the answer that names their place. Raises NotThisProduct."""
    from omnigraph.engine.entities.blob_cells import Blob

    try:
        selected = orjson.loads(answer.headers["omnigraph-selector"])
        place = selected["entity"], selected["type"], selected["id"], selected["property"]
        commit = answer.headers["omnigraph-snapshot-id"]
        if answer.has_redirect_location:
            return Blob(*place, commit, uri=answer.headers["location"])
        etag = answer.headers["etag"].strip('"')
    except (LookupError, TypeError, ValueError) as error:
        raise strange() from error
    return Blob(*place, commit, size=len(answer.content), etag=etag, content=answer.content)


# --- how a query is answered -----------------------------------------------------------------------------


def explanation_of(said: Mapping[str, Any]) -> Explanation:
    """How a query would be answered, or was."""
    from omnigraph.engine.read.explain import Explanation

    ran = said.get("analyze")
    measured: dict[str, Any] = {}
    if ran is not None:
        measured = {
            "analyzed": True,
            "rows": ran["rows"],
            "seconds": ran["seconds"],
            "requests": ran["requests"],
            "bytes": ran["bytes"],
            "storage_calls": ran["storage_calls"],
            "memory_bytes_max": ran["working_bytes_max"],
        }
    return Explanation(
        said["query_name"],
        said["graph_commit_id"],
        tuple(_operator(each) for each in said["operators"]),
        order=said.get("order", ""),
        **measured,
    )


def _operator(said: Mapping[str, Any]) -> Operator:
    from omnigraph.engine.read.explain import Operator

    told = {name: value for name, value in said.items() if name not in {"operator", "warning", "inner"}}
    return Operator(said["operator"], inner=[_operator(each) for each in said.get("inner", ())], **told)


# --- history ---------------------------------------------------------------------------------------------


def change_of(said: Mapping[str, Any]) -> EntityChange:
    """One entity that differs."""
    from omnigraph.branching.history import ChangeOp, EntityChange

    before, after = (_image(said["id"], said.get(side)) for side in ("before", "after"))
    kind = said["type"]
    return EntityChange(
        kind["name"], said["kind"], said["id"], ChangeOp(said["op"]), before, after, kind["id"]
    )


def _image(entity_id: str, said: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if said is None:
        return None
    ends = said.get("endpoints")
    own = {} if ends is None else {"src": ends["from"], "dst": ends["to"]}
    return {"id": entity_id, **own, **said["properties"]}


@dataclass(frozen=True, slots=True, eq=False)
class ToldDiff:
    """The difference of two states, as a server told it. As `Diff`, which reads rows when it is iterated."""

    from_commit: CommitId
    to_commit: CommitId
    summary: Mapping[str, Mapping[str, int]]
    changes: tuple[EntityChange, ...]

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[EntityChange]:
        return iter(self.changes)

    def part(self, start: int, stop: int) -> Iterator[EntityChange]:
        """The changes from one position up to another."""
        return iter(self.changes[max(0, start) : max(0, stop)])

    @property
    def stats(self) -> dict[str, dict[str, int]]:
        """Counts by table key, for the types that differ."""
        words = {"inserts": "inserted", "updates": "updated", "deletes": "deleted"}
        return {
            key: {words[what]: number for what, number in counts.items()}
            for key, counts in self.summary.items()
        }

    def json_lines(self) -> Iterator[bytes]:
        """One change per line."""
        return (orjson.dumps(each.to_dict()) + b"\n" for each in self.changes)

    def to_dict(self) -> dict[str, Any]:
        """The summary: both commits and the counts by type."""
        return {"from": self.from_commit, "to": self.to_commit, "stats": dict(self.summary)}

    def __repr__(self) -> str:
        return f"Diff({self.from_commit}..{self.to_commit}, changes: {len(self)})"


def diff_of(said: Mapping[str, Any]) -> Diff:
    """What differs between two states."""
    changes = tuple(change_of(each) for each in said["changes"])
    told = ToldDiff(CommitId(said["from"]), CommitId(said["to"]), said["stats"], changes)
    return cast("Diff", told)


def blame_of(said: Mapping[str, Any]) -> Blame:
    """Where each property got its value. Values are as JSON says them."""
    from omnigraph.branching.blame import Blame, Blamed

    origins = [
        Blamed(
            each["property"],
            each["value"],
            _cause(each, "graph_branch", "created_at"),
            each["before"],
            each["value"],
        )
        for each in said["properties"]
    ]
    return Blame(said["type"], said["id"], tuple(origins))


def _cause(said: Mapping[str, Any], branch: str, time: str) -> CommitRecord:
    """The commit behind a change, as much of it as is told there."""
    parents = (said.get("parent_commit_id"), said.get("merged_parent_commit_id"))
    home = said[branch]
    return CommitRecord(
        id=CommitId(said["graph_commit_id"]),
        parents=tuple(CommitId(each) for each in parents if each is not None),
        actor=said.get("actor_id"),
        operation="",
        time_us=said[time],
        home=None if home == "main" else BranchName(home),
        manifest_version=0,
        schema_hash="",
    )


def feed_page_of(said: Mapping[str, Any]) -> FeedPage:
    """Some commits and what they changed."""
    from omnigraph.branching.feed import FeedBlock, FeedPage

    blocks = [FeedBlock(*_block(each)) for each in said["blocks"]]
    return FeedPage(tuple(blocks), said.get("next_page_token"), said.get("cursor"), said.get("caught_up"))


def changes_page_of(said: Mapping[str, Any]) -> ChangesPage:
    """Some changes of one commit."""
    from omnigraph.branching.feed import ChangesPage

    return ChangesPage(*_block(said), said.get("next_page_token"))


def _block(said: Mapping[str, Any]) -> tuple[CommitRecord, tuple[EntityChange, ...]]:
    cause = _cause(said["cause"], "authored_branch", "authored_at")
    return cause, tuple(change_of(each) for each in said["changes"])


def details_of(said: Mapping[str, Any]) -> tuple[BranchDetail, ...]:
    """Every branch and how it stands to main."""
    from omnigraph.branching.listing import BranchDetail

    return tuple(
        BranchDetail(
            each["name"],
            CommitId(each["head_commit_id"]),
            each["ahead"],
            each["behind"],
            each["updated_at"],
            each["schema_generation"],
        )
        for each in said["branches"]
    )


def preview_of(said: Mapping[str, Any]) -> MergePreview:
    """What a merge would do."""
    from omnigraph.branching.merge_plan import ConflictKind, DisputedProperty, MergeConflict
    from omnigraph.branching.merge_planning import MergeOutcome
    from omnigraph.branching.merge_report import MergePreview

    def disputed(each: Mapping[str, Any]) -> DisputedProperty:
        values = {role: value for role, value in each.items() if role != "property"}
        return DisputedProperty(each["property"], values)

    conflicts = [
        MergeConflict(
            TableKey(each["table_key"]),
            each["row_id"],
            ConflictKind(each["kind"]),
            each["message"],
            tuple((TableKey(edge["table_key"]), edge["row_id"]) for edge in each.get("edges", ())),
            tuple(disputed(one) for one in each.get("properties", ())),
        )
        for each in said["merge_conflicts"]
    ]
    return MergePreview(
        said["source"],
        said["target"],
        MergeOutcome(said["outcome"]),
        CommitId(said["source_commit"]),
        CommitId(said["target_commit"]),
        CommitId(said["base_commit"]),
        said["stats"],
        tuple(conflicts),
        said["merge_conflicts_total"],
        said["engine"],
        said.get("hint", ""),
    )


# --- upkeep ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToldStep:
    """One step of a schema change, as a server told it. Its members are those of its JSON form."""

    kind: str
    members: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.members:
            raise AttributeError(name)
        return self.members[name]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": self.kind, **self.members}


def applied_of(said: Mapping[str, Any]) -> AppliedSchema:
    """What a schema change did, or would do."""
    from omnigraph.catalog.plan import StepWork
    from omnigraph.engine.evolve.apply import AppliedSchema
    from omnigraph.engine.evolve.costs import StepCost

    cost = {"work", "rows", "bytes", "engine"}
    steps = [
        ToldStep(each["kind"], {name: value for name, value in each.items() if name not in {"kind", *cost}})
        for each in said["steps"]
    ]
    costs = [
        StepCost(StepWork(each["work"]), each["rows"], each["bytes"], each["engine"])
        for each in said["steps"]
    ]
    return AppliedSchema(
        steps=cast("tuple[SchemaStep, ...]", tuple(steps)),
        applied=said["applied"],
        graph_manifest_version=said["graph_manifest_version"],
        commit=CommitId(said["commit"]),
        generation=said["generation"],
        costs=tuple(costs),
        reclaimed_bytes=said.get("reclaimed_bytes", 0),
        kept_by=tuple(said.get("kept_by", ())),
    )


def optimized_of(said: Mapping[str, Any]) -> OptimizeReport:
    """What an optimization did."""
    from omnigraph.maintenance.optimize import OptimizeReport

    return OptimizeReport(
        said["branch"], tuple(_optimized(each) for each in said["datasets"]), said["graph_commit_id"]
    )


def _optimized(said: Mapping[str, Any]) -> OptimizedTable:
    from omnigraph.maintenance.indices import PendingIndex
    from omnigraph.maintenance.optimize import OptimizedTable

    name = said["type_key"].partition(":")[2]
    return OptimizedTable(
        table_key=said["type_key"],
        type_name=name,
        fragments_removed=said["fragments_removed"],
        fragments_added=said["fragments_added"],
        committed=said["committed"],
        skipped=said["skipped"],
        manifest_version=said["published_dataset_version"],
        lance_head_version=said["lance_head_version"],
        pending_indexes=tuple(
            PendingIndex(name, each["property"], each["reason"]) for each in said["pending_indexes"]
        ),
    )


def cleanup_of(said: Mapping[str, Any]) -> CleanupReport:
    """What a cleanup removed, or would remove."""
    from omnigraph.maintenance.cleanup_report import CleanedDataset, CleanupReport, Fate, Retention

    return CleanupReport(
        Retention(said["keep_versions"], said["older_than_secs"]),
        said["dry_run"],
        tuple(
            CleanedDataset(
                each["type_key"],
                each["files_removed"],
                each["bytes_removed"],
                each["old_versions_removed"],
                each["error"],
            )
            for each in said["datasets"]
        ),
        tuple(Fate(each["name"], each["bytes"], each["goes"], each["why"]) for each in said["files"]),
    )


def indexes_of(said: Mapping[str, Any]) -> IndexesReport:
    """The indexes of a state."""
    from omnigraph.maintenance.index_report import IndexesReport

    return IndexesReport(
        said["branch"], said["graph_commit_id"], tuple(_column(each) for each in said["columns"])
    )


def _column(said: Mapping[str, Any]) -> ColumnReport:
    from omnigraph.maintenance.index_report import ColumnReport, Degraded, Indexed, IndexReport, IndexState

    told: Sequence[Mapping[str, Any]] = said["indexes"]
    indexes = [
        IndexReport(
            each["name"],
            each["kind"],
            each["declared"],
            IndexState(each["state"]),
            each["segments"],
            each["covered_fragments"],
            each["uncovered_fragments"],
            each["bytes"],
        )
        for each in told
    ]
    compared = said["comparisons"]
    coverage = Indexed() if compared["state"] == "Indexed" else Degraded(compared["reason"])
    return ColumnReport(said["type_name"], said["column"], tuple(indexes), coverage)


def stats_of(said: Mapping[str, Any]) -> StatsReport:
    """How large a graph is. What is said about memory is that of the server."""
    from omnigraph.maintenance.stats import StatsReport, StoredStats

    stored = [
        StoredStats(each["name"], each["files"], each["bytes"], each["cache_bytes"])
        for each in said["stored"]
    ]
    return StatsReport(
        tuple(_branch_stats(each) for each in said["branches"]),
        tuple(stored),
        said["cache_file_bytes"],
        said["cache_memory_bytes"],
    )


def _branch_stats(said: Mapping[str, Any]) -> BranchStats:
    from omnigraph.maintenance.stats import BranchStats, TableStats

    renamed = {
        "type_key": "table_key",
        "native_dataset_branch": "owner",
        "published_dataset_version": "version",
    }
    told: Sequence[Mapping[str, Any]] = said["datasets"]
    tables = [TableStats(**{renamed.get(name, name): value for name, value in each.items()}) for each in told]
    return BranchStats(
        said["branch"],
        said["graph_commit_id"],
        said["graph_manifest_version"],
        said["versions"],
        tuple(tables),
    )
