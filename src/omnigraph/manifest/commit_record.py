"""The record of one graph commit, as the publish that made it stored it."""

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import orjson

from omnigraph.core.errors import InternalError
from omnigraph.core.ids import Branch, BranchName, CommitId, OperationId, show_branch
from omnigraph.core.late_dataclass import dataclass

SCHEMA_OPERATION: Final = "schema_apply"
ADOPT_OPERATION: Final = "adopt_schema"
UPKEEP_OPERATIONS: Final = frozenset({"ensure_indices", "optimize", ADOPT_OPERATION})
"""Commits that show the rows of the commit before them: only where rows lie and how they are found is new."""

TableSummary = Mapping[str, Mapping[str, int]]
"""Per table key, what the commit did there: counts under short names such as `inserted`."""


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The key a caller gave a write, and what is needed to answer the same request again."""

    actor: str | None
    key: str
    digest: str
    """Of the request: the same key with another request is a mistake."""
    nodes: int = 0
    edges: int = 0

    def to_list(self) -> list[Any]:
        """JSON members, in order."""
        return [self.actor, self.key, self.digest, self.nodes, self.edges]

    @classmethod
    def from_list(cls, value: object) -> "RequestKey":
        """Read them back. Raises ValueError."""
        match value:
            case [None | str() as actor, str() as key, str() as digest, int() as nodes, int() as edges]:
                return cls(actor, key, digest, nodes, edges)
            case _:
                raise ValueError("not the key of a request")


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One commit of the graph.

    `branch` and `manifest_version` say where it was published; a branch created later shows the same
    commit as its head without repeating it. `recovers` is the operation a recovery commit settled, `summary`
    counts per table what the commit did.
    """

    id: CommitId
    parents: tuple[CommitId, ...]
    actor: str | None
    operation: str
    time_us: int
    home: Branch
    """The branch it was published on as the manifest knows it: None on main."""
    manifest_version: int
    schema_hash: str
    operation_id: OperationId | None = None
    recovers: OperationId | None = None
    summary: TableSummary = field(default_factory=dict[str, Mapping[str, int]])
    incarnation: str = ""
    """Which branch of that name: one that is deleted and made again is another one. Empty for main."""
    requests: int = 1
    """How many calls it carries: writers that wait for the same commit share the next one."""
    keys: tuple[RequestKey, ...] = ()
    """The keys of those calls that were given one."""

    def __str__(self) -> str:
        """One line, as a history lists it."""
        when = self.time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        where = f"{self.branch} v{self.manifest_version}"
        return f"{self.id}  {where}  {when}  {self.operation}  {self.actor or '-'}"

    @property
    def branch(self) -> str:
        """The name of the branch it was published on."""
        return show_branch(self.home)

    @property
    def time(self) -> datetime:
        """When it was published, in UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self.time_us)

    @property
    def parent(self) -> CommitId | None:
        """The commit this one was made on; None only for the first commit of a graph."""
        return self.parents[0] if self.parents else None

    @property
    def is_upkeep(self) -> bool:
        """Whether it changed no row: only where rows lie and how they are found is new."""
        return self.operation in UPKEEP_OPERATIONS

    @property
    def merged_parent(self) -> CommitId | None:
        """The head that was merged in, for a merge commit."""
        return self.parents[1] if len(self.parents) > 1 else None


def record_to_json(record: CommitRecord) -> str:
    """The stored form of a commit record; `record_from_json` reads it back unchanged."""
    return orjson.dumps(
        {
            "id": record.id,
            "parents": list(record.parents),
            "actor": record.actor,
            "operation": record.operation,
            "operation_id": record.operation_id,
            "time_us": record.time_us,
            "branch": record.home,
            "incarnation": record.incarnation,
            "manifest_version": record.manifest_version,
            "schema_hash": record.schema_hash,
            "recovers": record.recovers,
            "summary": {key: dict(counts) for key, counts in record.summary.items()},
            **({} if record.requests == 1 else {"requests": record.requests}),
            **({"keys": [each.to_list() for each in record.keys]} if record.keys else {}),
        }
    ).decode()


def record_from_json(text: str | None, *, row: str) -> CommitRecord:
    """Read a stored commit record found in `row`. A damaged one is an InternalError naming that row."""
    fields = json_object(text, row=row)
    return CommitRecord(
        id=CommitId(_text(fields, "id", row)),
        parents=tuple(CommitId(parent) for parent in _texts(fields, "parents", row)),
        actor=_optional(fields, "actor", row),
        operation=_text(fields, "operation", row),
        time_us=_number(fields, "time_us", row),
        home=_branch(_optional(fields, "branch", row)),
        manifest_version=_number(fields, "manifest_version", row),
        schema_hash=_text(fields, "schema_hash", row),
        operation_id=_operation(_optional(fields, "operation_id", row)),
        recovers=_operation(_optional(fields, "recovers", row)),
        summary=_summary(fields.get("summary"), row),
        incarnation=_optional(fields, "incarnation", row) or "",
        requests=_number(fields, "requests", row) if "requests" in fields else 1,
        keys=_keys(fields.get("keys"), row),
    )


def json_object(text: str | None, *, row: str) -> dict[str, Any]:
    """The JSON object a row carries; anything else is an InternalError naming the row."""
    if text is None:
        raise corrupt_row(row, "its details are missing")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise corrupt_row(row, "its details are not JSON") from error
    if not isinstance(value, dict):
        raise corrupt_row(row, "its details are not a JSON object")
    return cast("dict[str, Any]", value)


def corrupt_row(row: str, problem: str) -> InternalError:
    """The error for a record of the graph that cannot be what this program wrote."""
    return InternalError(
        f"the graph's record '{row}' is damaged: {problem}",
        hint="restore the graph from a backup, or open an older commit",
    )


def _text(fields: dict[str, Any], name: str, row: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise corrupt_row(row, f"'{name}' is not text")
    return value


def _optional(fields: dict[str, Any], name: str, row: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name, row)


def _number(fields: dict[str, Any], name: str, row: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise corrupt_row(row, f"'{name}' is not a whole number")
    return value


def _texts(fields: dict[str, Any], name: str, row: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list):
        raise corrupt_row(row, f"'{name}' is not a list")
    items = cast("list[Any]", value)
    if not all(isinstance(item, str) for item in items):
        raise corrupt_row(row, f"'{name}' holds something other than text")
    return cast("list[str]", items)


def _summary(value: object, row: str) -> TableSummary:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise corrupt_row(row, "'summary' is not a JSON object")
    tables = cast("dict[str, Any]", value)
    if not all(isinstance(counts, dict) for counts in tables.values()):
        raise corrupt_row(row, "'summary' holds something other than counts")
    return cast("TableSummary", tables)


def _keys(value: object, row: str) -> tuple[RequestKey, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise corrupt_row(row, "'keys' is not a list")
    try:
        return tuple(RequestKey.from_list(each) for each in cast("list[Any]", value))
    except ValueError as error:
        raise corrupt_row(row, "'keys' holds something other than keys") from error


def _branch(text: str | None) -> Branch:
    return None if text is None else BranchName(text)


def _operation(text: str | None) -> OperationId | None:
    return None if text is None else OperationId(text)


def commit_dict(record: CommitRecord) -> dict[str, Any]:
    """A commit in the shape the command line and the service give."""
    return {
        "graph_commit_id": record.id,
        "graph_branch": record.branch,
        "graph_manifest_version": record.manifest_version,
        "parent_commit_id": record.parent,
        "merged_parent_commit_id": record.merged_parent,
        "actor_id": record.actor,
        "created_at": record.time_us,
        "operation": record.operation,
        "requests": record.requests,
    }
