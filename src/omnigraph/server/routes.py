"""The one table of routes. Routing, validation, authorization and the OpenAPI document are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from omnigraph.server import bodies, entities, reading, writing
from omnigraph.server import calls as asking
from omnigraph.server.answers import ARROW, JSON, LINES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.core.permission import Question
    from omnigraph.server.answers import Answer
    from omnigraph.server.calls import Call, Work


class Carried(StrEnum):
    """Where a request says what it wants."""

    PARAMETERS = "parameters"
    """In its address."""
    BODY = "body"
    """In one JSON object."""
    RECORDS = "records"
    """In its address; the body is a stream of records."""


class Lane(StrEnum):
    """Which workers do it."""

    READS = "reads"
    WRITES = "writes"


@dataclass(frozen=True, slots=True)
class GraphRoute:
    """One thing a client can ask of a graph."""

    operation: str
    method: str
    path: str
    summary: str
    said: type[bodies.Body]
    carried: Carried
    lane: Lane
    asks: Callable[[Any, Mapping[str, str]], tuple[Question, ...]]
    work: Work
    gives: tuple[str, ...] = (JSON,)
    statuses: tuple[int, ...] = (400,)
    """Statuses that are not common to all routes."""
    keyed: bool = False
    """Whether an idempotency key may come with it."""
    empty: bool = False
    """Whether it may come without a body."""
    at_hand: Callable[[Call[Any]], Answer | None] | None = None
    """Gives the answers that take less time than telling a worker of them; it waits for nothing."""


PREFIX: Final = "/graphs/{graph_id}"

GRAPH_ROUTES: Final[tuple[GraphRoute, ...]] = (
    GraphRoute(
        "query", "POST", "/query", "Run a query that reads.",
        bodies.QueryBody, Carried.BODY, Lane.READS, asking.reads_state, reading.query,
        gives=(JSON, ARROW), statuses=(400, 404, 413, 415, 424, 504), at_hand=reading.query_at_hand,
    ),
    GraphRoute(
        "export", "POST", "/export", "Every record of a state, as lines of the load format.",
        bodies.ExportBody, Carried.BODY, Lane.READS, asking.exports_state, reading.export,
        gives=(LINES,), statuses=(400, 404, 413, 415),
    ),
    GraphRoute(
        "getSchema", "GET", "/schema", "The accepted schema.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, asking.reads_main, reading.schema,
        gives=(JSON, reading.PLAIN), statuses=(304, 400),
    ),
    GraphRoute(
        "listBranches", "GET", "/branches", "All branches, by name.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, asking.reads_main, reading.branches,
    ),
    GraphRoute(
        "mutate", "POST", "/mutate", "Run a query that writes, as one commit or not at all.",
        bodies.MutateBody, Carried.BODY, Lane.WRITES, asking.changes_branch, writing.mutate,
        statuses=(400, 404, 409, 412, 413, 415, 424, 429), keyed=True,
    ),
    GraphRoute(
        "mutateMany", "POST", "/mutate/many", "Run a query that writes for many parameters, as one commit.",
        bodies.MutateManyBody, Carried.BODY, Lane.WRITES, asking.changes_branch, writing.mutate_many,
        statuses=(400, 404, 409, 412, 413, 415, 424, 429), keyed=True,
    ),
    GraphRoute(
        "listQueries", "GET", "/queries", "The stored queries, with their parameters.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, asking.reads_main, reading.queries,
    ),
    GraphRoute(
        "invokeQuery", "POST", "/queries/{name:path}", "Run a stored query, as query or mutate would.",
        bodies.InvokeBody, Carried.BODY, Lane.READS, asking.invokes, reading.invoked,
        gives=(JSON, ARROW), statuses=(400, 404, 409, 412, 413, 415, 424, 429, 504), keyed=True, empty=True,
    ),
    GraphRoute(
        "load", "POST", "/load", "Load JSON lines as one commit or not at all.",
        bodies.LoadParameters, Carried.RECORDS, Lane.WRITES, asking.loads_branch, writing.load,
        statuses=(400, 404, 409, 412, 413, 415, 429), keyed=True,
    ),
    GraphRoute(
        "explain", "POST", "/explain", "How a query would be answered.",
        bodies.ExplainBody, Carried.BODY, Lane.READS, asking.reads_state, reading.explain,
        statuses=(400, 404, 413, 415, 424, 504),
    ),
    GraphRoute(
        "getStats", "GET", "/stats", "How large the tables of a state are.",
        bodies.ReadTarget, Carried.PARAMETERS, Lane.READS, asking.reads_state_or_all, reading.stats,
        statuses=(400, 404),
    ),
    GraphRoute(
        "getIndexes", "GET", "/indexes", "Which indexes a state has, and what they cover.",
        bodies.IndexesParameters, Carried.PARAMETERS, Lane.READS, asking.reads_state, reading.indexes,
        statuses=(400, 404),
    ),
    GraphRoute(
        "getSnapshot", "GET", "/snapshot", "The version and size of every table of a state.",
        bodies.SnapshotParameters, Carried.PARAMETERS, Lane.READS, asking.reads_state, reading.snapshot,
        statuses=(400, 404),
    ),
    GraphRoute(
        "getEntity", "GET", "/entity", "One node or edge.",
        bodies.EntityParameters, Carried.PARAMETERS, Lane.READS, asking.reads_state, entities.entity,
        gives=(JSON, ARROW), statuses=(400, 404),
    ),
    GraphRoute(
        "getBlob", "GET", "/blob", "The bytes of a blob or a range of them; 302 names where it is kept.",
        bodies.BlobParameters, Carried.PARAMETERS, Lane.READS, asking.reads_state, entities.blob,
        gives=(entities.BYTES,), statuses=(302, 304, 400, 404, 412, 416),
    ),
    GraphRoute(
        "headBlob", "HEAD", "/blob", "What a blob is, without its bytes.",
        bodies.BlobParameters, Carried.PARAMETERS, Lane.READS, asking.reads_state, entities.blob_head,
        gives=(entities.BYTES,), statuses=(302, 304, 400, 404, 412),
    ),
    GraphRoute(
        "listCommits", "GET", "/commits", "The commits of a branch, newest first.",
        bodies.CommitsParameters, Carried.PARAMETERS, Lane.READS, asking.reads_branch, reading.commits,
        statuses=(400, 404),
    ),
    GraphRoute(
        "getCommitChanges", "GET", "/commits/{commit:path}/changes", "What a commit changed, by pages.",
        bodies.CommitChangesParameters, Carried.PARAMETERS, Lane.READS,
        asking.reads_commit, reading.commit_changes,
        statuses=(400, 404, 409, 410, 413),
    ),
    GraphRoute(
        "getCommit", "GET", "/commits/{commit:path}", "One commit.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, asking.reads_commit, reading.commit,
        statuses=(400, 404),
    ),
    GraphRoute(
        "pollChanges", "GET", "/changes", "What happened on a branch behind a cursor.",
        bodies.FeedParameters, Carried.PARAMETERS, Lane.READS, asking.reads_branch, reading.changes,
        statuses=(400, 404, 409, 410, 413),
    ),
    GraphRoute(
        "startChanges", "GET", "/changes/start", "A cursor to begin a feed at.",
        bodies.CursorParameters, Carried.PARAMETERS, Lane.READS, asking.reads_branch, reading.cursor,
        statuses=(400, 404),
    ),
    GraphRoute(
        "captureChangeBaseline", "POST", "/changes/baseline", "A state, and the cursor that goes on from it.",
        bodies.BaselineBody, Carried.BODY, Lane.READS, asking.exports_branch, reading.baseline,
        gives=(LINES,), statuses=(400, 404, 413, 415),
    ),
    GraphRoute(
        "diff", "POST", "/diff", "What differs between two states.",
        bodies.DiffBody, Carried.BODY, Lane.READS, asking.reads_both, reading.diff,
        statuses=(400, 404, 409, 413, 415),
    ),
    GraphRoute(
        "blame", "GET", "/blame", "Which commit gave each property its value.",
        bodies.BlameParameters, Carried.PARAMETERS, Lane.READS, asking.reads_at, reading.blame,
        statuses=(400, 404),
    ),
    GraphRoute(
        "listTags", "GET", "/tags", "All tags.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, asking.reads_main, reading.tags,
        statuses=(400, 404),
    ),
    GraphRoute(
        "describeBranches", "GET", "/branches/details", "Every branch with its head, ahead and behind main.",
        bodies.Nothing, Carried.PARAMETERS, Lane.READS, asking.reads_every_branch, reading.branch_details,
    ),
    GraphRoute(
        "previewMerge", "POST", "/branches/preview", "What a merge would do now.",
        bodies.PreviewBody, Carried.BODY, Lane.READS, asking.previews, reading.preview,
        statuses=(400, 404, 409, 413, 415),
    ),
    GraphRoute(
        "createBranch", "POST", "/branches", "Make a branch.",
        bodies.BranchBody, Carried.BODY, Lane.WRITES, asking.makes_branch, writing.make_branch,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "mergeBranches", "POST", "/branches/merge", "Merge one branch into another.",
        bodies.MergeBody, Carried.BODY, Lane.WRITES, asking.merges, writing.merge,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "restoreBranch", "POST", "/branches/restore", "Make a branch show an older state again.",
        bodies.RestoreBody, Carried.BODY, Lane.WRITES, asking.restores, writing.show_again,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "deleteBranch", "DELETE", "/branches/{branch:path}", "Delete a branch.",
        bodies.Nothing, Carried.PARAMETERS, Lane.WRITES, asking.deletes_branch, writing.drop_branch,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "createTag", "POST", "/tags", "Name a commit for good.",
        bodies.TagBody, Carried.BODY, Lane.WRITES, asking.names_commit, writing.create_tag,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "deleteTag", "DELETE", "/tags/{tag:path}", "Forget a tag; the commit stays.",
        bodies.Nothing, Carried.PARAMETERS, Lane.WRITES, asking.changes_main, writing.delete_tag,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "revert", "POST", "/revert", "Take back what one commit did.",
        bodies.RevertBody, Carried.BODY, Lane.WRITES, asking.takes_back, writing.revert,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "applySchema", "POST", "/schema/apply", "Make a text the schema of the graph.",
        bodies.SchemaBody, Carried.BODY, Lane.WRITES, asking.applies_schema, writing.apply_schema,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "optimize", "POST", "/optimize", "Keep a branch fast; no row changes.",
        bodies.OptimizeBody, Carried.BODY, Lane.WRITES, asking.keeps_up, writing.optimize,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
    GraphRoute(
        "cleanup", "POST", "/cleanup", "Remove states that nobody wants any more.",
        bodies.CleanupBody, Carried.BODY, Lane.WRITES, asking.keeps_up, writing.cleanup,
        statuses=(400, 404, 409, 413, 415, 424, 429),
    ),
)  # fmt: skip

BY_OPERATION: Final = {each.operation: each for each in GRAPH_ROUTES}
