"""What requests may say. One class for the body or the parameters of each route; nothing else is accepted."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The base of all."""


Text = Annotated[str, Meta(min_length=1)]
Names = tuple[str, ...]
Token = Annotated[str, Meta(max_length=4_096)]
PageSize = Annotated[int, Meta(ge=1, description="At most 8,192.")]


class Nothing(Body):
    """No parameters."""


class ReadTarget(Body):
    """The state a read sees: the head of a branch, or a commit, tag or branch `at`."""

    branch: str | None = None
    at: str | None = None


class QueryBody(ReadTarget, kw_only=True):
    """A query that reads."""

    query: Text
    name: str | None = None
    params: dict[str, Any] | None = None


class InvokeBody(Body):
    """A call of a stored query. `at` belongs to one that reads, `if_commit` to one that writes."""

    params: dict[str, Any] | None = None
    branch: str | None = None
    at: str | None = None
    if_commit: str | None = None
    expect_mutation: bool | None = None
    """What the caller takes it for."""


class MutateBody(Body):
    """A query that writes."""

    query: Text
    name: str | None = None
    params: dict[str, Any] | None = None
    branch: str = "main"
    if_commit: str | None = None


class MutateManyBody(Body, kw_only=True):
    """A query that writes, run once for each set of parameters."""

    query: Text
    parameter_sets: tuple[dict[str, Any], ...]
    name: str | None = None
    branch: str = "main"
    if_commit: str | None = None


class LoadParameters(Body):
    """How the records of a load are written."""

    branch: str = "main"
    base: str | None = msgspec.field(default=None, name="from")
    mode: Literal["append", "merge", "overwrite", "patch"] = "merge"
    if_commit: str | None = None
    replace_types: Names = ()
    on_duplicate: Literal["refuse", "first", "last"] | None = None


class ExportBody(ReadTarget):
    """What of a graph is exported."""

    type_names: Names | None = None


class ExplainBody(QueryBody, kw_only=True):
    """A query that is explained, and with `analyze` run and measured."""

    analyze: bool = False


class CommitsParameters(Body):
    """Which commits of a branch are listed."""

    branch: str = "main"
    actor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    before: str | None = None
    since: Annotated[int, Meta(ge=0)] | None = None
    until: Annotated[int, Meta(ge=0)] | None = None
    merged: bool = False
    upkeep: bool = True


class ChangesFilter(Body):
    """Which changes are told."""

    kind: Names = ()
    type: Names = ()
    op: Names = ()


class CommitChangesParameters(ChangesFilter):
    """One page of what a commit changed."""

    page_token: Token | None = None
    limit: PageSize = 1_000


class FeedParameters(ChangesFilter):
    """One page of what happened on a branch."""

    branch: str = "main"
    cursor: Token | None = None
    start: str | None = None
    page_token: Token | None = None
    limit: PageSize = 1_000
    commits: Annotated[int, Meta(ge=1, description="At most 512.")] = 100


class CursorParameters(ChangesFilter):
    """Where a feed begins."""

    branch: str = "main"
    start: str = "now"


class BaselineBody(ChangesFilter):
    """The state a feed goes on from."""

    branch: str = "main"


class DiffBody(ChangesFilter, kw_only=True):
    """Two states that are compared."""

    old: Text = msgspec.field(name="from")
    new: Text = msgspec.field(name="to")


class Named(Body, kw_only=True):
    """One entity: by its id as text, or by its `key` as JSON says it."""

    type: Text
    id: Text | None = None
    key: Text | None = None


class BlameParameters(Named, kw_only=True):
    """The entity somebody asks about."""

    at: str = "main"


class EntityParameters(Named, kw_only=True):
    """One entity as a state has it."""

    branch: str | None = None
    at: str | None = None


class BlobParameters(EntityParameters, kw_only=True):
    """One blob of one entity. `entity` tells types of one name apart."""

    property: Text
    entity: Literal["node", "edge"] | None = None


class IndexesParameters(ReadTarget):
    """A state, and which types of it."""

    type: Names = ()


class SnapshotParameters(ReadTarget):
    """A state: what `at` names, or a branch as it is or was at one of its versions."""

    version: Annotated[int, Meta(ge=1)] | None = None


class BranchBody(Body, kw_only=True):
    """A branch that is made."""

    name: Text
    base: str = msgspec.field(default="main", name="from")


class PreviewBody(Body, kw_only=True):
    """A merge that is looked at: which branch into which, and who wins where both changed something."""

    source: Text
    target: str = "main"
    on_conflict: Literal["ours", "theirs"] | dict[str, Literal["ours", "theirs"]] | None = None
    resolve: dict[str, Any] | None = None
    """An edited list of conflicts."""


class MergeBody(PreviewBody, kw_only=True):
    """A merge, and whether its source is deleted afterwards."""

    deletes_source: bool = msgspec.field(default=False, name="delete_branch")


class TagBody(Body, kw_only=True):
    """A name for a commit."""

    name: Text
    at: str = "main"


class RevertBody(Body, kw_only=True):
    """A commit whose changes are taken back."""

    commit: Text
    branch: str = "main"
    parent: str | None = None


class RestoreBody(Body, kw_only=True):
    """A state that a branch shows again."""

    to: Text
    branch: str = "main"


class SchemaBody(Body, kw_only=True):
    """The schema a graph shall have."""

    schema_source: Text
    file: str | None = None
    """How messages call it."""
    dry_run: bool = False
    allow_data_loss: bool = False
    fills: Names = ()


class OptimizeBody(Body):
    """What is optimized."""

    branch: str = "main"
    types: Names | None = None


class CleanupBody(Body):
    """Which states go."""

    keep: Annotated[int, Meta(ge=1)] | None = None
    older_than_s: Annotated[int, Meta(ge=0, le=10_000_000_000)] | None = None
    dry_run: bool = False
