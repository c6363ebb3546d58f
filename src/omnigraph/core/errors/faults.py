"""Too much, interrupted, and faults of the environment."""

from typing import Any, Final

from omnigraph.core.errors.base import (
    EnvironmentFault,
    InterruptedWrite,
    KnownError,
    LimitError,
    StorageError,
)
from omnigraph.core.errors.kinds import Retry
from omnigraph.core.errors.state import RowLevelCasContention

CEILINGS: Final = {
    "request_bytes": "bytes in the body of a request",
    "mutation_rows": "rows in one mutation",
    "mutation_bytes": "bytes in one mutation",
    "query_memory_bytes": "bytes of memory",
    "result_rows": "rows of a result",
    "memory_bytes": "bytes of memory",
    "array_bytes": "bytes in one array",
    "record_bytes": "bytes in one record",
    "record_structure": "brackets, commas and colons in one record",
    "blob_range_bytes": "bytes in one read of a blob",
    "external_blob_uri_bytes": "bytes in the address of an external blob",
    "external_blob_object_bytes": "bytes in one external blob",
}
"""What the ceilings count, in words. Their names are for programs and stay."""


def over_limit_text(resource: str, actual: int, limit: int) -> str:
    """How far a ceiling was passed, for people."""
    return f"{actual:,} {CEILINGS.get(resource, resource)}; at most {limit:,} are allowed"


class ResourceLimit(LimitError):
    """A stated ceiling: what, how much is allowed, how much was asked."""

    kind = "resource_limit"

    def __init__(
        self,
        *,
        resource: str,
        limit: int,
        actual: int,
        type_name: str | None = None,
        place: str | None = None,
        hint: str | None = None,
    ) -> None:
        subject = f"{type_name}: " if type_name is not None else f"{place}: " if place is not None else ""
        detail: dict[str, Any] = {"resource": resource, "limit": limit, "actual": actual}
        if type_name is not None:
            detail["type_name"] = type_name
        if place is not None:
            detail["place"] = place
        super().__init__(
            f"{subject}{over_limit_text(resource, actual, limit)}",
            hint=hint,
            details={"resource_limit": detail},
        )
        self.resource = resource
        self.limit = limit
        self.actual = actual
        self.type_name = type_name


class ResourceBusy(LimitError):
    """The ceiling is on simultaneous use; waiting helps."""

    kind = "resource_busy"


class LeaseLost(ResourceBusy):
    """Another process took the writer lease while this one stood still; this write must not go on."""

    def __init__(self) -> None:
        super().__init__(
            "another process took over the writer lease of the graph while this write was under way",
            hint="this process was stopped or cut off for too long; send the write again",
        )


class TooManyRequests(LimitError):
    """Admission control of one actor."""

    kind = "too_many_requests"


class BlobRange(LimitError):
    """The byte range lies outside the value."""

    kind = "blob_range"


class DeadlineExceeded(LimitError):
    """A time limit passed. For a write the outcome is unknown."""

    kind = "deadline_exceeded"

    def __init__(self, message: str, *, writing: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, retry=Retry.UNKNOWN if writing else Retry.SAME_REQUEST)
        self.writing = writing


class Cancelled(InterruptedWrite):
    """The caller stopped the operation before its first effect."""

    kind = "cancelled"


class RecoveryRequired(InterruptedWrite):
    """A write stopped half-way, now or earlier, and recovery must settle it before this one can go on."""

    kind = "recovery_required"

    def __init__(self, message: str, operation_id: str | None = None, *, hint: str | None = None) -> None:
        details: dict[str, Any] = {}
        if operation_id is not None:
            details = {"recovery_required": {"operation_id": operation_id}}
        super().__init__(
            message,
            hint=hint or "open the graph read-write once, then look whether the write is there",
            details=details,
        )
        self.operation_id = operation_id


class UnpublishedWrite(RecoveryRequired, RowLevelCasContention):
    """The tables of a write have moved, and publishing them met contention in every attempt.

    Unlike contention before the first effect it must not simply be sent again: the next write completes it.
    """

    def __init__(self, operation_id: str, *, attempts: int) -> None:
        # Not through the chain: both bases would say something else about the outcome.
        KnownError.__init__(
            self,
            f"publishing met contention in {attempts} attempts; the write is not visible yet",
            hint="do not send it again: the next write completes it; then look at the commits",
            details={"recovery_required": {"operation_id": operation_id}},
        )
        self.operation_id = operation_id
        self.attempts = attempts


class SidecarSchemaError(InterruptedWrite):
    """A recovery note is malformed, from a newer version, or contradicts the store."""

    kind = "recovery_note_unreadable"

    def __init__(
        self,
        *,
        object: str,  # noqa: A002  the word of the specification: the stored object that cannot be read
        message: str,
        found: int | str | None = None,
        max_supported_version: int | None = None,
    ) -> None:
        detail: dict[str, Any] = {"object": object}
        if found is not None:
            detail["found"] = found
        if max_supported_version is not None:
            detail["max_supported_version"] = max_supported_version
        super().__init__(
            message,
            hint="reading works; upgrade the program, or inspect the note and restore",
            details={"recovery_note": detail},
        )
        self.object = object
        self.found = found
        self.max_supported_version = max_supported_version


DRIFT_WAY_OUT: Final = (
    "reading works and is not affected; look at it with `omnigraph repair`, which changes nothing without"
    " --confirm, or go on writing on a new branch, which starts from what is published"
)


class DriftError(InterruptedWrite):
    """A table is ahead of the manifest and no recovery note explains it."""

    kind = "drift"

    def __init__(self, *, table_key: str, branch: str, pin: int, head: int) -> None:
        super().__init__(
            f"{table_key} on {branch} is at version {head} while version {pin} is published, and no recovery"
            " note explains it: something other than this program wrote to its table",
            hint=DRIFT_WAY_OUT,
            details={"drift": {"table_key": table_key, "pin": pin, "head": head}},
        )
        self.table_key = table_key
        self.pin = pin
        self.head = head


class SchemaDrift(InterruptedWrite):
    """The schema files and the manifest name different schemas and no recovery note explains it."""

    kind = "drift"


class InitializationCommitted(InterruptedWrite):
    """The graph was created and a check afterwards failed."""

    kind = "initialization_committed"


class InitializationIndeterminate(InterruptedWrite):
    """It cannot be told whether the graph was created."""

    kind = "initialization_indeterminate"


class ChangeFeedGap(InterruptedWrite):
    """Retention removed commits after the cursor."""

    kind = "change_feed_gap"


class ClientDisconnected(InterruptedWrite):
    """The connection was lost during a write."""

    kind = "client_disconnected"


class StorageTransient(StorageError):
    """Network or throttling; waiting helps."""

    kind = "storage_transient"


class StorageConfiguration(StorageError):
    """A bad address, missing credentials or a missing region."""

    kind = "storage_configuration"


class StorageNotFound(StorageError):
    """An object the manifest names is gone. Never read as an empty graph."""

    kind = "storage_not_found"


class StoragePrecondition(StorageError):
    """A conditional write was refused where that cannot be."""

    kind = "storage_precondition"


class StoragePermanent(StorageError):
    """The store refuses and will refuse again."""

    kind = "storage_permanent"


class StorageUnknown(StorageError):
    """The store failed in a way nobody classified."""

    kind = "storage_unknown"


class Corrupt(StoragePermanent):
    """A stored file does not hold what was written.

    `commit` wrote it; `branches` show rows that are read from it; `restore_from` is the newest commit that
    does without it. Each is empty where it is not known.
    """

    kind = "corrupt"

    def __init__(
        self,
        file: str,
        *,
        problem: str = "holds other bytes than were written",
        commit: str = "",
        branches: tuple[str, ...] = (),
        restore_from: str = "",
    ) -> None:
        wrote = f"; commit {commit} wrote it" if commit else ""
        seen = f"; seen by {', '.join(branches)}" if branches else ""
        copy = "put the file back from a backup or a clone"
        super().__init__(
            f"{file} {problem}{wrote}{seen}",
            hint=f"{copy}, or go on from commit {restore_from}, which does without it"
            if restore_from
            else copy,
            details={
                "corrupt": {
                    "file": file,
                    "commit": commit or None,
                    "branches": list(branches),
                    "restore_from": restore_from or None,
                }
            },
        )
        self.file = file
        self.commit = commit
        self.branches = branches
        self.restore_from = restore_from


class IoFailure(EnvironmentFault):
    """Local files: disk full, no permission, no such file."""

    kind = "io"


class FormatTooNew(EnvironmentFault):
    """The graph was written in a format this version does not know yet."""

    kind = "format_too_new"

    def __init__(self, *, found: int | str, supported: int | str) -> None:
        super().__init__(
            f"the graph has format {found}; this version knows formats up to {supported}",
            hint="upgrade omnigraph",
        )
        self.found = found
        self.supported = supported


class BlobIntegrity(EnvironmentFault):
    """A stored blob contradicts its description."""

    kind = "blob_integrity"


class BlobSourceError(EnvironmentFault):
    """An allowed external blob source is missing or unreachable during a write."""

    kind = "external_blob_source"


class EmbedderError(EnvironmentFault):
    """The embedding provider refused or timed out."""

    kind = "embedding_provider"


class NetworkError(EnvironmentFault):
    """The server could not be reached. For a write the outcome is unknown."""

    kind = "network"

    def __init__(self, message: str, *, writing: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, retry=Retry.UNKNOWN if writing else Retry.SAME_REQUEST)
        self.writing = writing


class NotThisProduct(EnvironmentFault):
    """The address answers, but not like an Omnigraph server."""

    kind = "not_this_product"
