"""The one table of error kinds: what each means to HTTP clients, shells and retry loops."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from omnigraph.core.late_dataclass import dataclass


class Retry(StrEnum):
    """What a caller may do with the failed request."""

    NEVER = "never"
    SAME_REQUEST = "same_request"
    AFTER_REFRESH = "after_refresh"
    AFTER_DELAY = "after_delay"
    AFTER_RECOVERY = "after_recovery"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class KindFacts:
    """The consequences of one kind. `http_status=None` means the failure never leaves over HTTP."""

    kind: str
    http_status: int | None
    code: str | None
    exit_status: int
    retry: Retry
    effect_free: bool = True


_CODES: Final[Mapping[int, str]] = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    409: "conflict",
    413: "bad_request",
    415: "bad_request",
    416: "bad_request",
    429: "too_many_requests",
    500: "internal",
}

# kind, HTTP status, exit status, retry. A "!" before the kind: something may have happened.
_TABLE: Final = """
usage                         -    2   never
not_remote                    -    2   never
bad_request                   400  1   never
query_syntax                  400  1   never
query_type                    400  1   never
query_not_selected            400  1   never
wrong_query_kind              400  1   never
mixed_mutation                400  1   never
missing_parameter             400  1   never
unknown_parameter             400  1   never
parameter_type                400  1   never
query_execution               400  1   never
ambiguous_target              400  2   never
schema_syntax                 400  1   never
schema_invalid                400  1   never
unsupported_migration         400  1   never
data_loss_not_allowed         400  5   never
load_record                   400  1   never
constraint_violation          400  1   never
external_blob_policy          400  1   never
change_cursor_rejected        400  1   never
unsupported_media_type        415  1   never
method_not_allowed            405  1   never

graph_not_found               404  6   never
route_not_found               404  6   never
branch_not_found              404  6   never
tag_not_found                 404  6   never
commit_not_found              404  6   never
snapshot_not_found            404  6   never
load_not_found                404  6   never
type_not_found                404  6   never
entity_not_found              404  6   never
blob_null                     404  6   never
stored_query_not_found        404  6   never
profile_not_found             -    6   never
alias_not_found               -    6   never
server_not_found              -    6   never
schema_contract_missing       404  6   never
version_reclaimed             410  6   never

manifest_conflict             409  3   after_refresh
read_set_conflict             409  3   after_refresh
commit_conflict               409  3   same_request
key_conflict                  409  3   never
merge_conflicts               409  3   never
merge_base_gone               409  3   never
branch_exists                 409  3   never
tag_exists                    409  3   never
subject_tagged                409  3   never
branch_prefix_clash           409  3   never
branch_has_children           409  3   never
branches_block_schema_apply   409  3   never
already_initialized           409  3   never
initialization_claimed        409  3   never
clone_target                  409  3   never
parentless_commit             409  3   never
schema_boundary               409  3   never
load_not_resumable            409  3   never
precondition_failed           412  4   never
blob_precondition_failed      412  4   never
idempotency_mismatch          409  3   never

unauthorized                  401  5   never
actor_required                401  5   never
actor_not_settable            -    5   never
forbidden                     403  5   never
confirmation_required         -    5   never
credentials_insecure          -    5   never
policy_evaluation_failed      500  1   never

resource_limit                413  8   never
resource_busy                 503  8   after_delay
too_many_requests             429  8   after_delay
blob_range                    416  1   never
!deadline_exceeded            504  8   same_request

!recovery_required            503  7   after_recovery
!initialization_committed     500  7   unknown
!initialization_indeterminate 500  7   unknown
recovery_note_unreadable      503  7   after_recovery
drift                         409  7   after_recovery
change_feed_gap               410  3   never
!client_disconnected          -    1   unknown
cancelled                     503  130 same_request

storage_transient             503  1   after_delay
storage_configuration         500  1   never
storage_not_found             500  1   never
!storage_precondition         500  1   unknown
storage_permanent             500  1   never
storage_unknown               500  1   never
corrupt                       500  1   never
io                            500  1   never
format_too_new                500  1   never
blob_integrity                500  1   never
external_blob_source          424  1   after_delay
embedding_provider            424  1   after_delay
!network                      -    1   same_request
not_this_product              -    1   never
internal                      500  1   never
"""


def _parse(line: str) -> KindFacts:
    kind, status_text, exit_status, retry = line.split()
    name = kind.removeprefix("!")
    status = None if status_text == "-" else int(status_text)
    # 412 is the one status whose code depends on the kind: a lost If-Match of a blob says "conflict".
    code = "conflict" if name == "blob_precondition_failed" else _CODES.get(status or 0)
    return KindFacts(name, status, code, int(exit_status), Retry(retry), effect_free=not kind.startswith("!"))


RESERVED: Final[Mapping[str, tuple[str, ...]]] = {
    "a server, its policy and its clients": (
        "alias_not_found",
        "client_disconnected",
    ),
    "drops that reclaim the data at once": ("data_loss_not_allowed",),
    "checksums of stored values": ("blob_integrity",),
}
"""Kinds that nothing raises yet, by what will. Their numbers are fixed, so that callers may handle them."""

FACTS: Final[Mapping[str, KindFacts]] = {
    facts.kind: facts for facts in map(_parse, filter(None, _TABLE.splitlines()))
}
