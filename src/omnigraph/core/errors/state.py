"""Not there, already there, changed by somebody else, not allowed."""

from collections.abc import Mapping, Sequence
from typing import Any

from omnigraph.core.errors.base import ConflictError, NotFoundError, PermissionDenied, placed, with_candidates
from omnigraph.core.limits import MERGE_CONFLICTS_REPORTED_MAX


class GraphNotFound(NotFoundError):
    """There is no graph at this place, or none with this id."""

    kind = "graph_not_found"

    def __init__(self, uri: str, *, hint: str | None = None) -> None:
        super().__init__(f"no graph at '{uri}'", hint=hint or "create one with `omnigraph init`")
        self.uri = uri


class RouteNotFound(NotFoundError):
    """A server has nothing at this address."""

    kind = "route_not_found"


class CloneUnfinished(GraphNotFound):
    """A clone was begun here and is not complete, so there is no graph yet."""

    def __init__(self, uri: str, source: str) -> None:
        super().__init__(
            uri, hint=f"a clone of '{source}' stopped half-way; clone it again, which goes on from there"
        )
        self.source = source


class BranchNotFound(NotFoundError):
    """The branch does not exist; reading or writing never creates one."""

    kind = "branch_not_found"

    def __init__(self, branch: str, *, candidates: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(
            f"branch '{branch}' does not exist",
            hint=hint or (f"did you mean '{candidates[0]}'?" if candidates else "list the branches first"),
            details=with_candidates(None, tuple(candidates)),
        )
        self.branch = branch


class TagNotFound(NotFoundError):
    """No tag has this name."""

    kind = "tag_not_found"

    def __init__(self, tag: str, *, candidates: Sequence[str] = ()) -> None:
        super().__init__(
            f"tag '{tag}' does not exist",
            hint=f"did you mean '{candidates[0]}'?" if candidates else "list the tags first",
            details=with_candidates(None, tuple(candidates)),
        )
        self.tag = tag


class LoadNotFound(NotFoundError):
    """No load that ended before its commit has this id."""

    kind = "load_not_found"

    def __init__(self, load_id: str) -> None:
        super().__init__(
            f"no load '{load_id}' can be resumed", hint="`omnigraph load --resumable` lists those that can"
        )
        self.load_id = load_id


class LoadNotResumable(ConflictError):
    """What a load staged does not fit any more, or may not be touched now; nothing of it is reused."""

    kind = "load_not_resumable"

    def __init__(self, load_id: str, differences: Sequence[str]) -> None:
        super().__init__(
            f"load '{load_id}' cannot be resumed: {'; '.join(differences)}",
            hint="load the input again, without --resume",
            details={"load_id": load_id, "differences": list(differences)},
        )
        self.load_id = load_id
        self.differences = tuple(differences)


class CommitNotFound(NotFoundError):
    """The commit does not exist, or the actor may not read it: both look alike."""

    kind = "commit_not_found"

    def __init__(self, commit_id: str, *, candidates: Sequence[str] = (), hint: str | None = None) -> None:
        near = f"did you mean '{candidates[0]}'?" if candidates else hint
        super().__init__(
            f"commit '{commit_id}' does not exist",
            hint=near,
            details=with_candidates(None, tuple(candidates)),
        )
        self.commit_id = commit_id


class SnapshotNotFound(NotFoundError):
    """No snapshot under this name or number."""

    kind = "snapshot_not_found"

    def __init__(self, snapshot: str) -> None:
        super().__init__(f"snapshot '{snapshot}' does not exist")
        self.snapshot = snapshot


class TypeNotFound(NotFoundError):
    """The schema has no such node or edge type."""

    kind = "type_not_found"

    def __init__(self, type_name: str, *, message: str | None = None, candidates: Sequence[str] = ()) -> None:
        super().__init__(
            message or f"the schema has no type '{type_name}'",
            hint=f"did you mean '{candidates[0]}'?" if candidates else None,
            details=with_candidates(None, tuple(candidates)),
        )
        self.type_name = type_name


class TypeAbsentAtSnapshot(TypeNotFound):
    """The type exists now and did not exist at the snapshot that is read."""

    def __init__(self, type_name: str) -> None:
        super().__init__(type_name, message=f"type '{type_name}' does not exist at this snapshot")


class EntityNotFound(NotFoundError):
    """No entity of this type has this id."""

    kind = "entity_not_found"


class BlobNull(NotFoundError):
    """The entity exists and its blob property is null."""

    kind = "blob_null"


class StoredQueryNotFound(NotFoundError):
    """No stored query has this name, or the actor may not invoke it."""

    kind = "stored_query_not_found"


class ProfileNotFound(NotFoundError):
    """The operator configuration has no such profile."""

    kind = "profile_not_found"


class AliasNotFound(NotFoundError):
    """The operator configuration has no such alias."""

    kind = "alias_not_found"


class ServerNotFound(NotFoundError):
    """The operator configuration has no such server."""

    kind = "server_not_found"


class SchemaContractMissing(NotFoundError):
    """The graph has a manifest and its schema file is gone."""

    kind = "schema_contract_missing"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the graph has a manifest, but its schema file '{name}' is missing",
            hint="restore the file from a backup; do not initialise again",
        )
        self.name = name


class VersionReclaimed(SnapshotNotFound):
    """A cleanup removed this state."""

    kind = "version_reclaimed"

    def __init__(self, snapshot: str, *, branch: str, oldest: str) -> None:
        NotFoundError.__init__(
            self,
            f"'{snapshot}' was removed by a cleanup",
            hint=f"the oldest state of {branch} that is left is commit {oldest}; tag what has to stay",
            details={"version_reclaimed": {"snapshot": snapshot, "branch": branch, "oldest": oldest}},
        )
        self.snapshot = snapshot
        self.branch = branch
        self.oldest = oldest


class ManifestConflict(ConflictError):
    """A version the write depended on is not the expected one."""

    kind = "manifest_conflict"


class ExpectedVersionMismatch(ManifestConflict):
    """Another writer published the table first. Never retried by the publisher."""

    def __init__(self, *, table_key: str, expected: int, actual: int) -> None:
        entity_kind, _, type_name = table_key.partition(":")
        super().__init__(
            f"{entity_kind} type '{type_name}' was changed by another write: "
            f"expected version {expected}, found {actual}",
            hint="read the current state, rebuild the write from it and send it again",
            details={
                "manifest_conflict": {"table_key": table_key, "expected": expected, "actual": actual},
                "published_dataset_version_conflict": {
                    "entity_kind": entity_kind,
                    "type_name": type_name,
                    "expected_published_dataset_version": expected,
                    "actual_published_dataset_version": actual,
                },
            },
        )
        self.table_key = table_key
        self.expected = expected
        self.actual = actual


class RowLevelCasContention(ConflictError):
    """Publishing met contention in every attempt although all expectations held; nothing was published."""

    kind = "commit_conflict"

    def __init__(self, *, attempts: int) -> None:
        super().__init__(
            f"publishing met contention in {attempts} attempts; nothing was published",
            hint="send the same request again",
        )
        self.attempts = attempts


class ReadSetConflict(ConflictError):
    """Something other than a table version that the write depended on has changed."""

    kind = "read_set_conflict"

    def __init__(
        self,
        member: str,
        *,
        expected: str | None = None,
        actual: str | None = None,
        message: str | None = None,
    ) -> None:
        detail = {"member": member, "expected": expected, "actual": actual}
        super().__init__(
            message or f"'{member}' changed while the write was prepared",
            hint="read the current state, rebuild the write from it and send it again",
            details={
                "read_set_conflict": {name: value for name, value in detail.items() if value is not None}
            },
        )
        self.member = member


class KeyConflict(ConflictError):
    """A strict insert met an existing id, or an input names one id `times` times."""

    kind = "key_conflict"

    def __init__(
        self,
        *,
        entity_kind: str,
        type_name: str,
        entity_id: str | None,
        line: int | None = None,
        file: str | None = None,
        times: int | None = None,
        hint: str | None = "use merge mode to update existing entities",
    ) -> None:
        which = f"an entity with id '{entity_id}'" if entity_id is not None else "an entity with this id"
        found = f"already has {which}" if times is None else f"has {which} {times} times in the input"
        detail = {"entity_kind": entity_kind, "type_name": type_name}
        if entity_id is not None:
            detail["entity_id"] = entity_id
        super().__init__(
            placed(f"{entity_kind} type '{type_name}' {found}", file, line),
            hint=hint,
            details={"key_conflict": detail},
        )
        self.entity_kind = entity_kind
        self.type_name = type_name
        self.entity_id = entity_id
        self.line = line
        self.file = file
        self.times = times


class MergeConflicts(ConflictError):
    """Both sides of a merge changed the same things. Each conflict is one object of the body."""

    kind = "merge_conflicts"

    def __init__(
        self,
        conflicts: Sequence[Mapping[str, Any]],
        *,
        total: int | None = None,
        hint: str | None = None,
        what: str = "merge",
    ) -> None:
        self.total = max(total or 0, len(conflicts))
        self.conflicts = tuple(dict(conflict) for conflict in conflicts[:MERGE_CONFLICTS_REPORTED_MAX])
        super().__init__(
            f"the {what} has {self.total} conflict{'' if self.total == 1 else 's'}",
            hint=hint,
            details={"merge_conflicts": list(self.conflicts), "merge_conflicts_total": self.total},
        )


class MergeBaseGone(ConflictError):
    """The last state two branches have in common went with a deleted branch."""

    kind = "merge_base_gone"

    def __init__(self, *, source: str, target: str, commit_id: str) -> None:
        super().__init__(
            f"'{source}' and '{target}' last had commit '{commit_id}' in common, and its branch was deleted",
            hint=f"apply `omnigraph diff {target} {source}` to a new branch of '{target}' instead",
        )
        self.source = source
        self.target = target
        self.commit_id = commit_id


class SubjectTagged(ConflictError):
    """States that tags name may hold what is to be erased, and a tag goes only by consent."""

    kind = "subject_tagged"

    def __init__(self, *, type_name: str, entity_id: str, tags: Sequence[str]) -> None:
        names = ", ".join(tags)
        super().__init__(
            f"{type_name} '{entity_id}' cannot be erased while tags name older states: {names}",
            hint="erase with --tags to delete these tags as well, or delete them first",
            details={"subject_tagged": {"type_name": type_name, "id": entity_id, "tags": list(tags)}},
        )
        self.type_name = type_name
        self.entity_id = entity_id
        self.tags = tuple(tags)


class BranchExists(ConflictError):
    """A branch of this name exists."""

    kind = "branch_exists"

    def __init__(self, branch: str) -> None:
        super().__init__(f"branch '{branch}' already exists", hint="choose another name")
        self.branch = branch


class TagExists(ConflictError):
    """A tag of this name exists; a tag never moves."""

    kind = "tag_exists"

    def __init__(self, tag: str) -> None:
        super().__init__(f"tag '{tag}' already exists", hint="choose another name, or delete it first")
        self.tag = tag


class BranchPrefixClash(ConflictError):
    """`topic` and `topic/a` cannot both be branches."""

    kind = "branch_prefix_clash"

    def __init__(self, branch: str, existing: str) -> None:
        super().__init__(
            f"branch '{branch}' clashes with branch '{existing}': one name is a path prefix of the other",
            hint="choose another name",
            details={"blocking_branches": [existing]},
        )
        self.branch = branch
        self.existing = existing


class BranchHasChildren(ConflictError):
    """Other branches were made from this one."""

    kind = "branch_has_children"

    def __init__(self, branch: str, children: Sequence[str]) -> None:
        super().__init__(
            f"branch '{branch}' has child branches: {', '.join(children)}",
            hint="delete the children first",
            details={"blocking_branches": list(children)},
        )
        self.branch = branch
        self.children = tuple(children)


class MigrationBlocked(ConflictError):
    """Other branches exist and the schema plan is not additive."""

    kind = "branches_block_schema_apply"

    def __init__(
        self, branches: Sequence[str], *, hint: str = "merge or delete these branches first"
    ) -> None:
        super().__init__(
            f"the schema change is not additive and other branches exist: {', '.join(branches)}",
            hint=hint,
            details={"blocking_branches": list(branches)},
        )
        self.branches = tuple(branches)


class AlreadyInitialized(ConflictError):
    """There is a graph at this place already."""

    kind = "already_initialized"

    def __init__(self, uri: str, *, message: str | None = None, hint: str | None = None) -> None:
        super().__init__(
            message or f"there is already a graph at '{uri}'", hint=hint or "choose another place"
        )
        self.uri = uri


class InitializationClaimed(ConflictError):
    """Another initialisation runs here or died here."""

    kind = "initialization_claimed"


class CloneTarget(ConflictError):
    """The place of a clone holds something that the clone may not touch."""

    kind = "clone_target"

    def __init__(self, uri: str, reason: str, *, hint: str | None = None) -> None:
        super().__init__(
            f"'{uri}' cannot take the clone: {reason}", hint=hint or "clone into an empty or a new place"
        )
        self.uri = uri
        self.reason = reason


class ParentlessCommit(ConflictError):
    """The commit has no parent to compare with."""

    kind = "parentless_commit"


class SchemaBoundary(ConflictError):
    """The schema changed between the two sides of a comparison."""

    kind = "schema_boundary"


class PreconditionFailed(ConflictError):
    """A conditional write: the head of the branch is not the named commit."""

    kind = "precondition_failed"

    def __init__(self, *, expected: str, actual: str | None) -> None:
        detail = {"expected": expected}
        if actual is not None:
            detail["actual"] = actual
        super().__init__(
            f"the head of the branch is not commit '{expected}'",
            hint="read again and decide again",
            details={"precondition_failure": detail},
        )
        self.expected = expected
        self.actual = actual


class BlobPreconditionFailed(ConflictError):
    """The blob is not the one named by `If-Match`."""

    kind = "blob_precondition_failed"


class IdempotencyMismatch(ConflictError):
    """The same idempotency key was used with another body."""

    kind = "idempotency_mismatch"

    def __init__(self, key: str, commit_id: str) -> None:
        super().__init__(
            f"the idempotency key '{key}' belongs to another request, which made commit {commit_id}",
            hint="a new request needs a new key; to ask for that commit again, send the same request",
            details={"idempotency_key": key, "graph_commit_id": commit_id},
        )
        self.key = key
        self.commit_id = commit_id


class Unauthorized(PermissionDenied):
    """No token or an unknown one."""

    kind = "unauthorized"


class ActorRequired(PermissionDenied):
    """A policy is attached and the write names no actor."""

    kind = "actor_required"


class ActorNotSettable(PermissionDenied):
    """A served call takes its actor from the token."""

    kind = "actor_not_settable"


class Forbidden(PermissionDenied):
    """The policy said no."""

    kind = "forbidden"


class ConfirmationRequired(PermissionDenied):
    """Destructive, not local, and nobody can be asked."""

    kind = "confirmation_required"


class CredentialsInsecure(PermissionDenied):
    """The credentials file can be read by others."""

    kind = "credentials_insecure"


class PolicyEvaluationFailed(PermissionDenied):
    """The policy could not be evaluated; nothing was permitted."""

    kind = "policy_evaluation_failed"
