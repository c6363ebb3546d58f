"""What goes over the wire: failures back into errors, objects back into results."""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import orjson

from omnigraph.core.errors import KINDS, NotThisProduct, OmnigraphError, Retry, SourceError
from omnigraph.core.ids import BranchName, CommitId, TableKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from omnigraph.api.branches import BranchCreation
    from omnigraph.branching.branches import BranchDeletion
    from omnigraph.branching.merge_report import MergeReport
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.write.requests import MutationResult
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.pipeline.report import LoadReport

# Every function imports the classes it makes: a command that needs none of them loads none.
# ruff: noqa: PLC0415

Result = TypeVar("Result")
ARROW: Final = "application/vnd.apache.arrow.stream"
LINES: Final = "application/x-ndjson"
_SAID_APART: Final = frozenset({"error", "code", "kind", "hint", "retry", "request_id"})


def failure_of(status: int, content: bytes) -> OmnigraphError:
    """The error behind an answer: the class of its kind where that is known. Never raises."""
    try:
        body: Any = orjson.loads(content)
    except ValueError:
        body = None
    if not isinstance(body, dict) or not isinstance(cast("dict[str, Any]", body).get("error"), str):
        return NotThisProduct(
            f"the server answered {status}, and not as this product does", hint="check the address"
        )
    said = cast("dict[str, Any]", body)
    kind = str(said.get("kind") or said.get("code") or "internal")
    details = {name: value for name, value in said.items() if name not in _SAID_APART}
    if "request_id" in said:
        details["request_id"] = said["request_id"]
    known = KINDS.get(kind)
    cls = OmnigraphError if known is None else known.cls
    error = cls.__new__(cls, said["error"])
    # Constructors take facts; an error that comes from elsewhere is set as it was told.
    OmnigraphError.__init__(
        error, kind, said["error"], hint=said.get("hint"), retry=_retry(said.get("retry")), details=details
    )
    for name, empty in _facts(cls).items():
        setattr(error, name, _fact(name, details, empty))
    return error


@cache
def _facts(cls: type[OmnigraphError]) -> dict[str, object]:
    """The facts that errors of a class have as fields, each with what it is when nobody tells it."""
    found: dict[str, object] = {}
    for each in cls.__mro__[: cls.__mro__.index(OmnigraphError)]:
        for name, parameter in inspect.signature(each.__init__).parameters.items():
            spelled = inspect.formatannotation(parameter.annotation).strip("'")
            empty = () if "Sequence" in spelled else {"str": "", "int": 0, "bool": False}.get(spelled)
            found.setdefault(name, empty)
    kept = {"self", "args", "kwargs", "kind", "message", "hint", "retry", "details", "uri"}
    return {name: empty for name, empty in found.items() if name not in kept}


def _fact(name: str, details: dict[str, Any], empty: object) -> object:
    """One fact, from the details or from an object among them."""
    inside = (cast("dict[str, Any]", each) for each in details.values() if isinstance(each, dict))
    told = next((each[name] for each in (details, *inside) if name in each), None)
    if name == "conflicts":
        told = details.get("merge_conflicts")
    elif name == "total":
        told = details.get("merge_conflicts_total", details.get("constraints_total"))
    elif name == "source_error" and told is not None:
        return SourceError(**told)
    if told is None:
        return empty
    return tuple(cast("list[object]", told)) if isinstance(told, list) else told


def _retry(told: object) -> str | None:
    return told if isinstance(told, str) and told in set(Retry) else None


def told(content: bytes, result: Callable[[Any], Result]) -> Result:
    """What the JSON of an answer means. Raises NotThisProduct for an answer that means nothing here."""
    try:
        return result(orjson.loads(content))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise strange() from error


def strange() -> NotThisProduct:
    """The error of an answer that means nothing here."""
    return NotThisProduct("the server answered, and not as this product does", hint="check the address")


def rows_of(content: bytes) -> Rows:
    """The result of a query, from an Arrow stream. Raises NotThisProduct."""
    import pyarrow as pa

    from omnigraph.engine.read.result import Rows

    try:
        table = pa.ipc.open_stream(content).read_all()
        said = orjson.loads((table.schema.metadata or {})[b"omnigraph"])
        name, target, commit = said["query_name"], said["target"], said["graph_commit_id"]
        branch, snapshot = target["branch"], target["snapshot"]
    except (LookupError, TypeError, ValueError, AttributeError, OSError) as error:
        raise strange() from error
    columns = [column.combine_chunks() for column in table.columns]
    return Rows(columns, pa.schema(list(table.schema)), name, branch, snapshot, commit)


def commit_of(said: Mapping[str, Any]) -> CommitRecord:
    """A commit. What a server does not tell, such as the schema's hash, is empty."""
    from omnigraph.manifest.commit_record import CommitRecord

    parents = (said.get("parent_commit_id"), said.get("merged_parent_commit_id"))
    branch = str(said["graph_branch"])
    return CommitRecord(
        id=CommitId(said["graph_commit_id"]),
        parents=tuple(CommitId(each) for each in parents if each is not None),
        actor=said.get("actor_id"),
        operation=str(said["operation"]),
        time_us=int(said["created_at"]),
        home=None if branch == "main" else BranchName(branch),
        manifest_version=int(said["graph_manifest_version"]),
        schema_hash="",
        requests=int(said.get("requests", 1)),
    )


def mutation_of(said: Mapping[str, Any]) -> MutationResult:
    """The result of a mutation."""
    from omnigraph.engine.write.requests import InsertedEntity, MutationResult

    return MutationResult(
        branch=said["branch"],
        query_name=said["query_name"],
        affected_nodes=said["affected_nodes"],
        affected_edges=said["affected_edges"],
        actor=said["actor_id"],
        commit=None if said["commit"] is None else commit_of(said["commit"]),
        inserted=tuple(
            InsertedEntity(each["type"], each["id"], generated=False) for each in said["inserted"]
        ),
        repeated=bool(said.get("repeated", False)),
    )


def creation_of(said: Mapping[str, Any]) -> BranchCreation:
    """A branch that was made."""
    from omnigraph.api.branches import BranchCreation

    return BranchCreation(said["name"], said["from"], commit_of(said["commit"]))


def deletion_of(said: Mapping[str, Any]) -> BranchDeletion:
    """A branch that is gone."""
    from omnigraph.branching.branches import BranchDeletion

    return BranchDeletion(said["name"], tuple(TableKey(each) for each in said["unreclaimed"]))


def merge_of(said: Mapping[str, Any]) -> MergeReport:
    """The report of a merge."""
    from omnigraph.branching.merge_planning import MergeOutcome
    from omnigraph.branching.merge_report import MergeReport

    return MergeReport(
        source=said["source"],
        target=said["target"],
        outcome=MergeOutcome(said["outcome"]),
        actor=said["actor_id"],
        commit=None if said["commit"] is None else commit_of(said["commit"]),
        stats=said["stats"],
        engine=said["engine"],
    )


def load_of(said: Mapping[str, Any]) -> LoadReport:
    """The report of a load."""
    from omnigraph.pipeline.report import LoadReport, TypeCount

    return LoadReport(
        branch=said["branch"],
        base_branch=said["base_branch"],
        branch_created=said["branch_created"],
        mode=said["mode"],
        engine=said["engine"],
        nodes=tuple(TypeCount(**each) for each in said["nodes"]),
        edges=tuple(TypeCount(**each) for each in said["edges"]),
        records_read=said["records_read"],
        records_refused=said["records_refused"],
        bytes_read=said["bytes_read"],
        seconds=said["seconds"],
        actor=said["actor_id"],
        commit=None if said["commit"] is None else commit_of(said["commit"]),
        load_id=said["load_id"],
        splits=said["splits"],
        splits_reused=said["splits_reused"],
        repeated=bool(said.get("repeated", False)),
    )
