"""What a load says when it is done, and the error it raises when it refuses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from omnigraph.core.errors import (
    BlobPolicyError,
    BlobSourceError,
    ConstraintViolation,
    KeyConflict,
    LoadFormatError,
    OmnigraphError,
    ResourceLimit,
    Violation,
)
from omnigraph.core.errors.base import placed
from omnigraph.manifest.commit_record import CommitRecord, commit_dict
from omnigraph.pipeline.problems import KINDS, Problem, ProblemLog


@dataclass(frozen=True, slots=True)
class TypeCount:
    """What happened to the records of one type: read = inserted + replaced + superseded + refused."""

    name: str
    entities_loaded: int
    """Records loaded, also those that gave way to another one of the same entity."""
    inserted: int
    replaced: int
    superseded: int
    refused: int
    appended: int = 0
    """Of the new ones, edges that a merge or patch could only append: nothing but an id names them."""

    @property
    def kept(self) -> int:
        """Entities that the load wrote."""
        return self.inserted + self.replaced

    def __str__(self) -> str:
        parts = [f"{self.inserted:,} new"]
        if self.appended:
            parts.append("appended" if self.appended == self.inserted else f"{self.appended:,} appended")
        for number, what in (
            (self.replaced, "replaced"),
            (self.superseded, "superseded"),
            (self.refused, "refused"),
        ):
            if number:
                parts.append(f"{number:,} {what}")
        return f"{self.name} ({', '.join(parts)})"

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        return {
            "name": self.name,
            "entities_loaded": self.entities_loaded,
            "inserted": self.inserted,
            "replaced": self.replaced,
            "superseded": self.superseded,
            "refused": self.refused,
            **({"appended": self.appended} if self.appended else {}),
        }


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The outcome of a load. `commit` is None when there was nothing to publish."""

    branch: str
    base_branch: str | None
    branch_created: bool
    mode: str
    engine: str
    nodes: tuple[TypeCount, ...]
    edges: tuple[TypeCount, ...]
    records_read: int
    records_refused: int
    """All refused records, also those whose type is not known."""
    bytes_read: int
    seconds: Mapping[str, float]
    """Per stage, in the order in which they ran."""
    actor: str | None
    commit: CommitRecord | None
    load_id: str = ""
    """What `resume` takes when a load ends before its commit."""
    splits: int = 0
    """Pieces the input was cut into."""
    splits_reused: int = 0
    """Pieces that an earlier run had staged already: they were not read again."""
    rejects: str | None = None
    """The directory of the refused records, when it was asked for."""
    problems: tuple[Problem, ...] = ()
    problem_totals: Mapping[str, int] = field(default_factory=dict[str, int])
    repeated: bool = False
    """Whether an earlier load with the same idempotency key made `commit`, and this one did nothing. Then the
    counts are those of that commit.
    """

    @property
    def total_entities(self) -> int:
        """Records loaded, over all types."""
        return sum(count.entities_loaded for count in (*self.nodes, *self.edges))

    def __str__(self) -> str:
        """A line per type and one for the whole; of records that mean one entity, the kept one is counted."""
        types = (*self.nodes, *self.edges)
        loaded = sum(count.kept for count in types)
        where = f"{self.mode} on {self.branch} ({self.engine})"
        if self.branch_created:
            where = f"{where}, branch made from {self.base_branch}"
        commit = "nothing to commit" if self.commit is None else f"commit {self.commit.id}"
        lines = [
            *(f"{count.kept:>12,}  {count}" for count in types),
            f"loaded {loaded:,} {'entity' if loaded == 1 else 'entities'}: {where}; {commit}",
        ]
        if self.rejects is not None and self.records_refused:
            noun = "record" if self.records_refused == 1 else "records"
            lines.append(f"refused {self.records_refused:,} {noun}: see {self.rejects}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The shape the command line and the service give."""
        body: dict[str, Any] = {
            "branch": self.branch,
            "base_branch": self.base_branch,
            "branch_created": self.branch_created,
            "mode": self.mode,
            "engine": self.engine,
            "nodes": [count.to_dict() for count in self.nodes],
            "edges": [count.to_dict() for count in self.edges],
            "total_entities": self.total_entities,
            "records_read": self.records_read,
            "records_refused": self.records_refused,
            "bytes_read": self.bytes_read,
            "seconds": {stage: round(value, 3) for stage, value in self.seconds.items()},
            "actor_id": self.actor,
            "load_id": self.load_id,
            "splits": self.splits,
            "splits_reused": self.splits_reused,
            "commit": None if self.commit is None else commit_dict(self.commit),
            **({"repeated": True} if self.repeated else {}),
        }
        if self.rejects is not None:
            body["rejects"] = self.rejects
            body["problems"] = [problem.to_dict() for problem in self.problems]
            body["problem_totals"] = dict(self.problem_totals)
        return body

    def _repr_html_(self) -> str:
        from omnigraph.core import html  # noqa: PLC0415  only a notebook needs it

        columns = ("type", "loaded", "inserted", "replaced", "superseded", "refused")
        types = (*self.nodes, *self.edges)
        rows = [
            (each.name, each.kept, each.inserted, each.replaced, each.superseded, each.refused)
            for each in types
        ]
        about = {
            "mode": self.mode,
            "branch": self.branch,
            "engine": self.engine,
            "entities": sum(each.kept for each in types),
            "seconds": round(sum(self.seconds.values()), 1),
            "refused": self.records_refused or None,
            "rejects": self.rejects,
            "commit": "nothing to commit" if self.commit is None else self.commit.id,
        }
        return (html.facts("load", about) + html.table(columns, rows)).html()


def refusal(log: ProblemLog) -> OmnigraphError:
    """The error of a load that was refused: the first problem is the headline, all kept ones are listed."""
    problems = log.listed()
    error = _headline(problems, log)
    error.details["problems"] = [problem.to_dict() for problem in problems]
    error.details["problem_totals"] = {kind: log.totals[kind] for kind in KINDS if kind in log.totals}
    return error


def _headline(problems: Sequence[Problem], log: ProblemLog) -> OmnigraphError:
    first = problems[0]
    more = log.total - 1
    tail = f" (and {more} more)" if more else ""
    match first.kind:
        case "format":
            return LoadFormatError(
                line=first.line, file=first.file, message=first.message + tail, hint=first.hint
            )
        case "blob_policy":
            return BlobPolicyError(_placed(first) + tail, hint=_BLOB_HINT)
        case "blob_source":
            return BlobSourceError(_placed(first) + tail)
        case "resource_limit":
            return ResourceLimit(
                resource=first.property or "record_bytes",
                limit=first.limit or 0,
                actual=first.actual or 0,
                hint=_placed(first),
            )
        case "key_conflict":
            return _key_conflict(first)
        case _:
            rules = [problem for problem in problems if problem.kind not in _NOT_RULES]
            total = sum(count for kind, count in log.totals.items() if kind not in _NOT_RULES)
            violations = [_violation(each) for each in rules]
            return ConstraintViolation(violations=violations, total=total, hint=first.hint)


_BLOB_HINT = "supply the bytes as base64:<text>, or allow the place with blob_sources (--blob-source)"
_TWICE_HINT = "give every record an id of its own; in merge mode the last record of an id wins"
_NOT_RULES = frozenset({"format", "blob_policy", "blob_source", "resource_limit", "key_conflict"})


def _key_conflict(problem: Problem) -> KeyConflict:
    conflict = partial(
        KeyConflict,
        entity_kind=problem.entity_kind or "node",
        type_name=problem.type_name or "",
        entity_id=problem.entity_id,
        file=problem.file,
        line=problem.line,
    )
    return conflict() if problem.actual is None else conflict(times=problem.actual, hint=_TWICE_HINT)


def _placed(problem: Problem) -> str:
    return placed(problem.message, problem.file, problem.line)


def _violation(problem: Problem) -> Violation:
    return Violation(
        rule=problem.kind,
        entity_kind=problem.entity_kind or "node",
        type_name=problem.type_name or "",
        entity_id=problem.entity_id,
        property=problem.property,
        message=problem.message,
        line=problem.line,
        file=problem.file,
    )
