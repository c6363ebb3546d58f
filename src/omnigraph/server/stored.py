"""Stored queries: named and typed by the operator, called by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from omnigraph.api.texts import in_file
from omnigraph.catalog.types import FLOAT_KINDS, ScalarKind
from omnigraph.core.errors import BadRequest, IoFailure, SourceFailure, StoredQueryNotFound
from omnigraph.language.query_syntax import parse_queries
from omnigraph.planning.compile import compile_query, raise_diagnostics
from omnigraph.server.bodies import MutateBody, QueryBody

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from omnigraph.catalog.schema import Catalog
    from omnigraph.language.query_tree import Parameter
    from omnigraph.server.bodies import InvokeBody

SUFFIX: Final = ".gq"
_KINDS: Final[Mapping[str, str]] = {
    ScalarKind.STRING: "string",
    ScalarKind.BOOL: "bool",
    ScalarKind.I32: "int",
    ScalarKind.U32: "int",
    ScalarKind.I64: "bigint",
    ScalarKind.U64: "bigint",
    ScalarKind.DATE: "date",
    ScalarKind.DATETIME: "datetime",
    ScalarKind.BLOB: "blob",
    **dict.fromkeys(FLOAT_KINDS, "float"),
}


@dataclass(frozen=True, slots=True)
class StoredQuery:
    """One query of a file. `text` is that query alone."""

    name: str
    text: str
    mutation: bool
    parameters: tuple[Parameter, ...]
    description: str | None
    instruction: str | None
    file: str

    def to_dict(self) -> dict[str, Any]:
        """What a caller has to know to call it."""
        told = {"description": self.description, "instruction": self.instruction}
        return {
            "name": self.name,
            "tool_name": self.name,
            **{name: value for name, value in told.items() if value is not None},
            "mutation": self.mutation,
            "params": [_parameter(each) for each in self.parameters],
        }


@dataclass(frozen=True, slots=True)
class StoredQueries:
    """The stored queries of one graph, by name."""

    by_name: Mapping[str, StoredQuery] = field(default_factory=dict[str, StoredQuery])

    def find(self, name: str) -> StoredQuery:
        """The query of a name. The error says nothing of the name: one that may not be called looks alike."""
        found = self.by_name.get(name)
        if found is None:
            raise StoredQueryNotFound(
                "there is no stored query of this name", hint="`GET …/queries` lists what there is"
            )
        return found

    def check(self, catalog: Catalog) -> None:
        """Whether every query means something with this schema. Raises BadRequest that names the first."""
        for each in self.by_name.values():
            try:
                compile_query(each.text, catalog, name=each.name)
            except SourceFailure as error:
                raise BadRequest(
                    f"the stored query '{each.name}' does not fit the schema: {error.message}",
                    hint=f"change it in {each.file}, or take it out",
                ) from error


def as_said(query: StoredQuery, said: InvokeBody) -> QueryBody | MutateBody:
    """A call by name as the body of a query or a mutation. Raises BadRequest."""
    if said.expect_mutation is not None and said.expect_mutation is not query.mutation:
        right = "mutate" if query.mutation else "query"
        does = "changes data" if query.mutation else "only reads"
        raise BadRequest(f"the stored query '{query.name}' {does}", hint=f"run it with {right}")
    if query.mutation:
        if said.at is not None:
            raise BadRequest("a stored query that writes is not run at an older state", hint="leave out at")
        branch = "main" if said.branch is None else said.branch
        return MutateBody(query.text, query.name, said.params, branch, said.if_commit)
    if said.if_commit is not None:
        raise BadRequest("a stored query that reads has no condition", hint="leave out if_commit")
    return QueryBody(branch=said.branch, at=said.at, query=query.text, name=query.name, params=said.params)


NO_QUERIES: Final = StoredQueries()


def read_queries(places: Sequence[str]) -> StoredQueries:
    """The queries of files, and of directories their `.gq` files. Raises IoFailure, BadRequest for a name
    that is given twice, and the errors of query texts.
    """
    found: dict[str, StoredQuery] = {}
    for path in (file for place in places for file in _files(Path(place))):
        for each in _queries_of(path):
            if each.name in found:
                raise BadRequest(
                    f"the stored query '{each.name}' is in {found[each.name].file} and in {each.file}",
                    hint="give every stored query a name of its own",
                )
            found[each.name] = each
    return StoredQueries(dict(sorted(found.items())))


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    return sorted(each for each in place.iterdir() if each.suffix == SUFFIX)


def _queries_of(path: Path) -> list[StoredQuery]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"'{path}' is not UTF-8 text") from error
    except OSError as error:
        raise IoFailure(f"'{path}' cannot be read: {error.strerror}") from error
    parsed = parse_queries(text)
    if not parsed.ok:
        try:
            raise_diagnostics(parsed.diagnostics)
        except SourceFailure as error:
            raise in_file(error, path.name) from None
    return [
        StoredQuery(
            each.name,
            text[each.span.start : each.span.end],
            each.is_mutation,
            each.parameters,
            each.description,
            each.instruction,
            path.name,
        )
        for each in parsed.queries
    ]


def _parameter(declared: Parameter) -> dict[str, Any]:
    type_ = declared.type
    if type_.vector_dim is not None:
        kind: dict[str, Any] = {"kind": "vector", "vector_dim": type_.vector_dim}
    elif type_.is_list:
        kind = {"kind": "list", "item_kind": _KINDS[type_.scalar]}
    else:
        kind = {"kind": _KINDS[type_.scalar]}
    return {"name": declared.name, **kind, "nullable": declared.nullable}
