"""The stored queries of a graph behind a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import quote

from omnigraph.api.arguments import text_checked_methods
from omnigraph.client.link import Part, check_caller
from omnigraph.client.wire import ARROW, mutation_of, rows_of, told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omnigraph.core.bounds import CallLimits
    from omnigraph.engine.read.result import Rows
    from omnigraph.engine.write.requests import MutationResult


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter: `kind` is string, bool, int, bigint, float, date, datetime, blob, vector or list."""

    name: str
    kind: str
    nullable: bool
    item_kind: str | None = None
    vector_dim: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        more = {"item_kind": self.item_kind, "vector_dim": self.vector_dim}
        known = {name: value for name, value in more.items() if value is not None}
        return {"name": self.name, "kind": self.kind, **known, "nullable": self.nullable}


@dataclass(frozen=True, slots=True)
class KnownQuery:
    """A stored query, as its caller has to know it."""

    name: str
    mutation: bool
    params: tuple[QueryParameter, ...]
    description: str | None = None
    instruction: str | None = None

    @property
    def signature(self) -> str:
        """Its name and its parameters on one line."""
        listed = ", ".join(f"{each.name}: {each.kind}{'?' * each.nullable}" for each in self.params)
        return f"{self.name}({listed})"

    def to_dict(self) -> dict[str, Any]:
        """JSON members."""
        about = {"description": self.description, "instruction": self.instruction}
        return {
            "name": self.name,
            **{name: value for name, value in about.items() if value is not None},
            "mutation": self.mutation,
            "params": [each.to_dict() for each in self.params],
        }


@text_checked_methods
class RemoteQueries(Part):
    """The stored queries of a graph behind a server: what its operator named, called by name."""

    def list(self, **_limits: Unpack[CallLimits]) -> list[KnownQuery]:
        """All of them, by name."""
        return told(self._link.get("/queries"), lambda said: [_query(each) for each in said["queries"]])

    def run(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> Rows:
        """Run one that reads, at the head of a branch or at a commit, tag or moment.

        ```python
        graph.queries.run("ship_by_imo", {"imo": "S1"})[0]
        ```

        Raises `StoredQueryNotFound`, also when the policy does not let the caller invoke it.
        """
        body = {"params": _plain(params), "branch": branch, "at": at, "expect_mutation": False}
        return rows_of(self._link.look(_path(name), body, accept=ARROW))

    def run_document(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        branch: str | None = None,
        at: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> dict[str, Any]:
        """As `run`, the result as one JSON object; Arrow is not loaded."""
        body = {"params": _plain(params), "branch": branch, "at": at, "expect_mutation": False}
        return told(self._link.look(_path(name), body), lambda said: said)

    def mutate(
        self,
        name: str,
        params: Mapping[str, Any] | None = None,
        *,
        branch: str = "main",
        actor: str | None = None,
        if_commit: str | None = None,
        idempotency_key: str | None = None,
        **_limits: Unpack[CallLimits],
    ) -> MutationResult:
        """Run one that writes, as one commit, or change nothing. As `Graph.mutate`."""
        check_caller(actor)
        body = {"params": _plain(params), "branch": branch, "if_commit": if_commit, "expect_mutation": True}
        return told(self._link.post(_path(name), body, idempotency_key), mutation_of)


def _path(name: str) -> str:
    return f"/queries/{quote(name, safe='')}"


def _plain(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if params is None else dict(params)


def _query(said: dict[str, Any]) -> KnownQuery:
    params = tuple(
        QueryParameter(
            str(each["name"]),
            str(each["kind"]),
            bool(each["nullable"]),
            each.get("item_kind"),
            each.get("vector_dim"),
        )
        for each in said["params"]
    )
    return KnownQuery(
        str(said["name"]), bool(said["mutation"]), params, said.get("description"), said.get("instruction")
    )
