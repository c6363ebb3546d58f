"""What a call of a mutation asks for, and what it gets."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pyarrow as pa

from omnigraph.catalog.scalars import as_instant
from omnigraph.core.bounds import NO_BOUNDS, Bounds
from omnigraph.core.late_dataclass import dataclass
from omnigraph.engine.write.validate import relates_rows
from omnigraph.manifest.commit_record import RequestKey, commit_dict
from omnigraph.planning.ir import InsertOp

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from omnigraph.core.cancel import Cancellation
    from omnigraph.core.clock import Clock
    from omnigraph.core.ids import Branch, CommitId
    from omnigraph.engine.search.embedding import EmbeddedTexts
    from omnigraph.manifest.commit_record import CommitRecord
    from omnigraph.planning.ir import MutationPlan
    from omnigraph.planning.values import Value
    from omnigraph.recovery.outcome import WriteCourse


@dataclass(frozen=True, slots=True)
class MutationRequest:
    """One call of a mutation, the same for every attempt: `now` does not change between them."""

    plan: MutationPlan
    parameter_sets: tuple[Mapping[str, Value], ...]
    """The statements are run once for each of them."""
    branch: Branch
    schema_hash: str
    """Names the schema the plan was made for."""
    now: dt.datetime
    course: WriteCourse
    """Is told how far the write has come."""
    actor: str | None = None
    if_commit: CommitId | None = None
    bounds: Bounds = NO_BOUNDS
    key: RequestKey | None = None
    """What the caller calls this request, so that it is carried out once however often it is sent."""
    vectors: EmbeddedTexts | None = None
    """Those of the texts it gives without their vectors; None where nobody embeds."""
    operation: str = "mutation"
    """What the commit says that it is."""

    @property
    def cancel(self) -> Cancellation:
        """What stops it before its first effect."""
        return self.bounds.cancel

    def names(self, key: RequestKey) -> bool:
        """Whether this call has the same key of the same actor."""
        return self.key is not None and (self.key.actor, self.key.key) == (key.actor, key.key)

    @property
    def assigns_blobs(self) -> bool:
        """Whether bytes may have to be read, from wherever they are, before the rows are whole."""
        return any(
            each.type.property_named(name).type.is_blob
            for each in self.plan.statements
            if isinstance(each, InsertOp)
            for name, _ in each.assignments
        )

    @property
    def reads_nothing(self) -> bool:
        """Whether no committed row decides about it: it inserts or replaces nodes that no rule relates."""
        return all(
            isinstance(each, InsertOp) and not each.new and not relates_rows(each.type)
            for each in self.plan.statements
        )

    @property
    def may_share(self) -> bool:
        """Whether it may be prepared again behind others, and so share a commit with them."""
        return (
            self.if_commit is None
            and len(self.parameter_sets) == 1
            and all(isinstance(each, InsertOp) for each in self.plan.statements)
        )


def time_of(clock: Clock) -> dt.datetime:
    """What `now()` is in a call that begins now."""
    return as_instant(dt.datetime.fromtimestamp(clock.now_us() / 1_000_000, dt.UTC))


@dataclass(frozen=True, slots=True)
class InsertedEntity:
    """An entity an insert statement wrote, and whether the engine drew its id."""

    type_name: str
    id: str
    generated: bool


@dataclass(frozen=True, slots=True)
class MutationResult:
    """What a mutation did. `commit` is None when nothing was selected or inserted."""

    branch: str
    query_name: str
    affected_nodes: int
    affected_edges: int
    actor: str | None
    commit: CommitRecord | None
    inserted: tuple[InsertedEntity, ...] = ()
    """One per insert statement that made a new entity or replaced one, with its id."""
    repeated: bool = False
    """Whether an earlier call with the same idempotency key made `commit`, and this one changed nothing. Then
    `inserted` is empty.
    """

    def to_dict(self) -> dict[str, Any]:
        """The shape the command line and the service give."""
        return {
            "branch": self.branch,
            "query_name": self.query_name,
            "affected_nodes": self.affected_nodes,
            "affected_edges": self.affected_edges,
            "actor_id": self.actor,
            "commit": None if self.commit is None else commit_dict(self.commit),
            "inserted": [{"type": each.type_name, "id": each.id} for each in self.inserted],
            **({"repeated": True} if self.repeated else {}),
        }

    def __str__(self) -> str:
        """One line: what was written, and the commit that shows it."""
        parts = ((self.affected_nodes, "node"), (self.affected_edges, "edge"))
        counts = ", ".join(f"{number:,} {noun}{'' if number == 1 else 's'}" for number, noun in parts)
        commit = "nothing to commit" if self.commit is None else f"commit {self.commit.id}"
        return f"{self.query_name}: {counts}; {commit} on {self.branch}"

    def to_arrow(self) -> pa.Table:
        """The counts as one row: `affected_nodes` and `affected_edges`, both unsigned."""
        counts = {"affected_nodes": [self.affected_nodes], "affected_edges": [self.affected_edges]}
        return pa.table(counts, schema=pa.schema([(name, pa.uint64()) for name in counts]))

    def _repr_html_(self) -> str:
        from omnigraph.core import html  # noqa: PLC0415  only a notebook needs it

        about = {
            "branch": self.branch,
            "nodes": self.affected_nodes,
            "edges": self.affected_edges,
            "actor": self.actor,
            "commit": "nothing to commit" if self.commit is None else self.commit.id,
        }
        return html.facts(f"mutation {self.query_name}", about).html()
